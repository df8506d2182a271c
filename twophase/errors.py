"""Errors, named by what the caller may conclude.

Every error is a `TwophaseError` with a stable condition name, and says whose epoch it is about when that is known. They are
picklable, because a task's error crosses from an executor to the driver. None of them carries a secret: messages are built
from names, numbers and hashes only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar


class TwophaseError(Exception):
    """Base of all errors raised by twophase.

    Parameters
    ----------
    message:
        What happened and what to do about it, for the person who reads the log.
    owner, epoch, slot:
        Whose epoch it is about, where that is known.
    """

    condition: ClassVar[str] = "TWOPHASE"

    def __init__(self, message: str, *, owner: str | None = None, epoch: int | None = None, slot: int | None = None):
        super().__init__(message)
        self.message = message
        self.owner = owner
        self.epoch = epoch
        self.slot = slot

    def __str__(self) -> str:
        about = [
            f"{k}={v}" for k, v in (("owner", self.owner), ("epoch", self.epoch), ("slot", self.slot)) if v is not None
        ]
        return f"[{self.condition}] {self.message}" + (f" ({', '.join(about)})" if about else "")

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, self.__dict__)


@contextmanager
def about(*, owner: str, epoch: int | None = None) -> Iterator[None]:
    """Errors that come through here say whose epoch they are about, if they did not know."""
    try:
        yield
    except TwophaseError as error:
        error.owner = owner if error.owner is None else error.owner
        error.epoch = epoch if error.epoch is None else error.epoch
        raise


def _restore(kind: type[TwophaseError], args: tuple[Any, ...], state: dict[str, Any]) -> TwophaseError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class NotCommitted(TwophaseError):
    """Certain: nothing of the share is visible, and nothing ever will be. The epoch can be written again."""

    condition = "NOT_COMMITTED"

    def __init__(self, message: str, *, dead_slots: Sequence[int] = (), **about: Any):
        super().__init__(message, **about)
        self.dead_slots = tuple(dead_slots)


class OutcomeUnknown(TwophaseError):
    """The request may or may not have taken effect, and the target could not be asked. Nothing was deleted; try again."""

    condition = "OUTCOME_UNKNOWN"


class Fenced(TwophaseError):
    """A newer generation owns the epoch, and finishes or discards what this one began. This process must stop."""

    condition = "FENCED"


class AlreadyDecided(TwophaseError):
    """This generation has decided the epoch already, with other votes. The first decision stands."""

    condition = "ALREADY_DECIDED"


class CheckpointMismatch(TwophaseError):
    """The checkpoint and the target do not belong together. Nothing was written."""

    condition = "CHECKPOINT_MISMATCH"


class ReplayDiffers(TwophaseError):
    """A decided epoch must be written again and part of it may be visible, but the replay gave other rows."""

    condition = "REPLAY_DIFFERS"


class LedgerCorrupt(TwophaseError):
    """A ledger record can't be read: torn, altered, foreign, or of a newer format. Nothing was guessed or written."""

    condition = "LEDGER_CORRUPT"


class TableCorrupt(TwophaseError):
    """A table's manifest can't be read: torn, altered, foreign, or of a newer format. Nothing was guessed or written."""

    condition = "TABLE_CORRUPT"


class SchemaMismatch(TwophaseError):
    """The rows do not fit the target: columns that it can't take, or that differ from what it has. Nothing was written."""

    condition = "SCHEMA_MISMATCH"


class ProtocolViolation(TwophaseError):
    """A call that the protocol forbids. Nothing was changed."""

    condition = "PROTOCOL_VIOLATION"


class OptionError(TwophaseError):
    """One or more options are wrong; every one of them is in the message."""

    condition = "OPTION"

    def __init__(self, message: str, *, problems: Sequence[str] = (), **about: Any):
        super().__init__(message, **about)
        self.problems = tuple(problems)


class DataLost(TwophaseError):
    """Rows of a range can't be read any more, or are no longer the rows they were. Nothing was read in their place."""

    condition = "DATA_LOST"


class Unreadable(TwophaseError):
    """Data is there, but can't be read as rows of the schema: damaged, of another format, or of another type."""

    condition = "UNREADABLE"


class TargetUnavailable(TwophaseError):
    """The target, or the ledger, can't be used now: no rights, no space, no connection. Nothing is lost; mend it and go on."""

    condition = "TARGET_UNAVAILABLE"


class MissingExtra(TwophaseError):
    """A connector's vendor client is not installed; the message says what to install."""

    condition = "MISSING_EXTRA"
