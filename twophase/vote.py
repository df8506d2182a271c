"""The vote: what a task tells the driver after pre-commit, and what a decision keeps of it.

A vote is JSON text, because it travels in Spark's commit messages and must be readable by any later process. It says which
generation and epoch it was given for: a driver that counts votes of another one would decide rows it never asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twophase.errors import ProtocolViolation
from twophase.handle import Handle
from twophase.identity import Attempt, Epoch, Generation
from twophase.sink import H, Share

VOTE_FORMAT = 1


def canonical_json(data: Any) -> str:
    """One text for one value: what is compared and hashed must not depend on the order of keys."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


@dataclass(frozen=True)
class VotedShare:
    """A share whose handle is still JSON text: the core does not look into handles."""

    slot: int
    attempt: Attempt
    rows: int
    checksum: str
    handle: str

    @classmethod
    def of(cls, task_slot: int, attempt: Attempt, rows: int, checksum: str, handle: Handle) -> VotedShare:
        return cls(task_slot, attempt, rows, checksum, canonical_json(handle.to_json()))

    def read(self, handle_type: type[H]) -> Share[H]:
        handle = handle_type.from_json(json.loads(self.handle))
        return Share(self.slot, self.attempt, self.rows, self.checksum, handle)

    def to_json(self) -> dict[str, Any]:
        return {
            "slot": self.slot,
            "attempt": str(self.attempt),
            "rows": self.rows,
            "checksum": self.checksum,
            "handle": json.loads(self.handle),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VotedShare:
        return cls(
            slot=count(data["slot"]),
            attempt=Attempt.parse(text(data["attempt"])),
            rows=count(data["rows"]),
            checksum=text(data["checksum"]),
            handle=canonical_json(data["handle"]),
        )


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is not text")
    return value


def count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r:.60} is not a whole number from 0")
    return value


@dataclass(frozen=True)
class Vote:
    """One task's answer for one sink: a share, or None if it was told to drain its input and write nothing."""

    generation: Generation
    epoch: Epoch
    sink: str
    slot: int
    share: VotedShare | None

    def to_text(self) -> str:
        return canonical_json(
            {
                "format": VOTE_FORMAT,
                "generation": str(self.generation),
                "epoch": str(self.epoch),
                "sink": self.sink,
                "slot": self.slot,
                "share": None if self.share is None else self.share.to_json(),
            }
        )

    @classmethod
    def from_text(cls, message: str) -> Vote:
        """Read a commit message; raises ProtocolViolation if it is not a vote, whatever else it is."""
        try:
            data = json.loads(message)
            if data["format"] != VOTE_FORMAT:
                raise ProtocolViolation(
                    f"a vote of format {data['format']!r} can't be read by this release (it reads {VOTE_FORMAT}): "
                    "driver and executors must run the same release of twophase"
                )
            share = None if data["share"] is None else VotedShare.from_json(data["share"])
            vote = cls(
                generation=Generation.parse(text(data["generation"])),
                epoch=Epoch.parse(text(data["epoch"])),
                sink=text(data["sink"]),
                slot=count(data["slot"]),
                share=share,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ProtocolViolation(f"a commit message is not a vote: {error!r:.200}") from error
        if share is not None and share.slot != vote.slot:
            raise ProtocolViolation(f"a vote for slot {vote.slot} carries a share of slot {share.slot}")
        return vote
