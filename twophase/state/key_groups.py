"""Key groups: the hash space of keys, cut into a number of groups that never changes, of which each task owns a contiguous range.

::

    groups   0 ─────────────── 42 43 ─────────────── 85 86 ────────────── 127
    tasks    └──────── 0 ───────┘ └──────── 1 ────────┘ └──────── 2 ────────┘

What lies together on disk is a range of groups. So another number of tasks moves whole groups from one task to another, and
never looks at single keys. A key's group is the positive remainder of its hash, which Spark and this module compute alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from twophase.state.xx_hash import xx_hash


@dataclass(frozen=True, order=True)
class GroupRange:
    """The groups from `first` on, and before `end`."""

    first: int
    end: int

    def __contains__(self, group: int) -> bool:
        return self.first <= group < self.end

    def __len__(self) -> int:
        return max(0, self.end - self.first)

    def __str__(self) -> str:
        return f"{self.first} to {self.end - 1}"

    def within(self, other: GroupRange) -> GroupRange:
        """What both have; without a length if that is nothing."""
        return GroupRange(max(self.first, other.first), min(self.end, other.end))

    def without(self, other: GroupRange) -> list[GroupRange]:
        """What is left when the other is taken out: up to two ranges."""
        if not self.within(other):
            return [self] if self else []
        rest = GroupRange(self.first, other.first), GroupRange(other.end, self.end)
        return [each for each in rest if each]


@dataclass(frozen=True)
class KeyGroups:
    """How many there are, and which is whose."""

    count: int

    def of(self, columns: Sequence[pa.Array[Any]], rows: int) -> npt.NDArray[np.int64]:
        """The group of each row, by its key columns."""
        return xx_hash(columns, rows) % self.count

    def owned(self, slot: int, tasks: int) -> GroupRange:
        """What the task in this slot owns; nothing, if there are more tasks than groups and it is one too many."""
        first, end = -(-slot * self.count // tasks), -(-(slot + 1) * self.count // tasks)
        return GroupRange(min(first, self.count), min(end, self.count))

    def slot_of(self, group: int, tasks: int) -> int:
        return group * tasks // self.count
