"""The contract of a replayable source: the same (start, end) always gives the same rows.

An offset is versionless JSON text that Spark stores in `offsets/N`; a split is one task's part of a range. Between
`latest` and `acknowledge` the source promises that the range can be read again, any number of times, split differently,
after a restart, and while new data arrive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import pyarrow as pa

S = TypeVar("S")


@dataclass(frozen=True)
class ReadLimit:
    """How much one epoch may take; None means no limit."""

    rows: int | None = None
    bytes: int | None = None


NO_LIMIT = ReadLimit()


class Source(ABC, Generic[S]):
    """A configured origin of rows; picklable, and it opens nothing until it is used. `S` is its type of split."""

    start_moves: ClassVar[bool] = False
    """Whether `earliest` may give another answer later. A query's first range then begins where it was first asked: its connector
    sees to it that this is logged before anything is read."""

    @abstractmethod
    def schema(self) -> pa.Schema: ...

    @abstractmethod
    def earliest(self) -> str:
        """The offset before the oldest row that can still be read."""

    @abstractmethod
    def newest(self) -> str:
        """The offset after the newest row that can be read now, whatever the limits: durable, as that of `latest`."""

    @abstractmethod
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        """An end for a range that begins at `start`: durable and replayable from the moment that this returns.

        At least one unit of progress is made if there is any, however small the limit. Never past `until`, if it is given:
        Spark's trigger availableNow reads what was there when it began, in as many epochs as the limits make of it.
        """

    @abstractmethod
    def plan(self, start: str, end: str) -> Sequence[S]:
        """Split the range. Data that vanished from it is an error that names what is lost, never a silent jump."""

    @abstractmethod
    def read(self, split: S) -> Iterator[pa.RecordBatch]: ...

    @abstractmethod
    def acknowledge(self, end: str) -> None:
        """Spark has committed everything before `end`: the source may forget it. Repeating an older one changes nothing."""

    def stop(self) -> None:
        """The query has stopped: let go of what this process holds for it. Not called if the process is killed."""
        return
