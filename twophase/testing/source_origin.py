"""SourceOrigin: what the suite needs to know of where a source's rows come from. Whoever adopts the suite writes one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from twophase.source import Source

AnySource = Source[Any]


class SourceOrigin(ABC):
    """Where rows come from; empty when a test begins."""

    @abstractmethod
    def source(self) -> AnySource:
        """A source of these rows: a new object at each call, as another process would make it."""

    @abstractmethod
    def add(self, values: Sequence[int]) -> None:
        """One unit more: what an epoch takes at the least (a file, a record, an epoch of a table), with a row for each number."""

    @abstractmethod
    def lose(self, unit: int) -> str:
        """Destroy a unit, by its number (the oldest is 0); the text that an error must contain, to name what is lost."""

    # ---- what the source claims ----

    limits: Collection[str] = frozenset({"rows", "bytes"})
    """Which limits it can keep. Whatever it claims, it makes progress under both."""
    outlives_process: bool = True
    """Whether another process can read the same rows; False for what lies in the memory of one."""
    ordered: bool = False
    """Whether a range read twice, with the same splits, gives its rows in the same order."""

    loses_any_unit: bool = True
    """Whether a unit can be lost while older ones are there; False for what is only ever cut off at its old end."""

    notices_unseen: bool = True
    """Whether it is known of a unit that it was there, before it was offered; False for files in a folder."""
    many_units: int = 1100
    """More than what a service lists at once."""
    many_rows: int = 10_007

    # ---- what rarely needs another answer ----

    def add_changed(self, values: Sequence[int]) -> bool:
        """One unit more, whose rows have another column before the others, as if their writer was changed.

        False, and nothing is added, if all units of this origin have the same columns for ever.
        """
        return False

    def change(self, unit: int) -> bool:
        """Change the rows of a unit where it lies, by its number, as somebody with an editor would; False if nobody can."""
        return False

    def split_in(self, tasks: int) -> AnySource:
        """A source that splits a range into about so many tasks, if it can be told."""
        return self.source()

    def value(self, row: Mapping[str, Any]) -> int:
        """The number of a row."""
        return int(row["value"])
