"""A stream, the names of its segments, and where keys go.

A segment's id is its number, with the epoch of the stream in which it was made in the upper 32 bits. (An epoch of a stream ends
when it is scaled; it has nothing to do with a query's.) A transaction has a segment of its own beside each segment of the stream.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"[A-Za-z0-9.\-]+")
_NUMBER_BITS = 32


@dataclass(frozen=True, order=True)
class Stream:
    scope: str
    name: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.name}"

    def segment(self, segment: int) -> str:
        """The name by which segment stores know it."""
        return f"{self}/{segment & (1 << _NUMBER_BITS) - 1}.#epoch.{epoch_of(segment)}"

    def transaction_segment(self, segment: int, transaction: str) -> str:
        return f"{self.segment(segment)}#transaction.{transaction}"


@dataclass(frozen=True)
class KeyRange:
    """A segment, and the part of the keys' positions, from 0 to 1, that it takes."""

    segment: int
    low: float
    high: float


def epoch_of(segment: int) -> int:
    """The stream's epoch in which a segment was made: higher for whatever was made later."""
    return segment >> _NUMBER_BITS


def shown(segment: int) -> str:
    """As Pravega's own tools name it."""
    return f"{segment & (1 << _NUMBER_BITS) - 1}.#epoch.{epoch_of(segment)}"


def problem_with(name: str) -> str:
    """What keeps this from being the name of a scope or stream of a user; nothing if nothing does."""
    if not _NAME.fullmatch(name):
        return f"{name!r} may have letters, digits, dots and hyphens only"
    return ""
