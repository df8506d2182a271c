"""What a person sees when a query fails: one sentence of ours, instead of a trace through our code.

Spark prints the Python traceback of an error that a sink raises, and stops the query with it. At the border to Spark our own
errors lose their trace, because their message says what to do; and an error of the operating system becomes one of ours,
which says the same for it. Anything else is a defect of twophase, and keeps its trace.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from types import TracebackType

from twophase.errors import TargetUnavailable, TwophaseError

_CURES = {
    errno.EACCES: "the user that runs Spark has no rights there: grant them",
    errno.EPERM: "the user that runs Spark has no rights there: grant them",
    errno.EROFS: "the file system is mounted read-only: mount it for writing, or use another path",
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.ENOENT: "a folder that has to exist is gone: restore it",
    errno.ENOTDIR: "a file is where a folder should be: move it away, or use another path",
    errno.EMFILE: "the process has too many open files: raise its limit (ulimit -n)",
}


def explained(*, owner: str | None = None, epoch: int | None = None, slot: int | None = None) -> _Explained:
    """A context: errors that come through it are fit to be read by the person who runs the query."""
    return _Explained(owner, epoch, slot)


@dataclass(frozen=True)
class _Explained:
    """No generator with `contextmanager`: contextlib puts the old trace back on an error that a generator lets through."""

    owner: str | None
    epoch: int | None
    slot: int | None

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TwophaseError):
            raise error.with_traceback(None) from None
        if isinstance(error, OSError):
            raise unavailable(error, owner=self.owner, epoch=self.epoch, slot=self.slot) from None


def unavailable(
    error: OSError, *, owner: str | None = None, epoch: int | None = None, slot: int | None = None
) -> TargetUnavailable:
    cure = _CURES.get(error.errno or 0, "see to it that it works again")
    return TargetUnavailable(
        f"{error}: {cure}, and start the query again. Nothing of the epoch is visible in part, and nothing is lost",
        owner=owner,
        epoch=epoch,
        slot=slot,
    )
