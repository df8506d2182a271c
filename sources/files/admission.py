"""Admission: how many of the waiting units one epoch takes. A unit is a file, or an epoch of a table; it is never cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twophase.source import ReadLimit


@dataclass(frozen=True)
class Size:
    """How large a unit is; `rows` is None if that can't be known before it is read."""

    bytes: int
    rows: int | None


@dataclass(frozen=True)
class Admission:
    """How much one epoch may take; None means no limit."""

    units: int | None = None
    rows: int | None = None
    bytes: int | None = None

    def within(self, limit: ReadLimit) -> Admission:
        return Admission(self.units, _smaller(self.rows, limit.rows), _smaller(self.bytes, limit.bytes))

    @property
    def is_unlimited(self) -> bool:
        return self == Admission()

    def admitted(self, sizes: Iterable[Size]) -> int:
        """How many units from the first on: at least one, if there is any. Looks at no more of them than it must."""
        taken = rows = total_bytes = 0
        for size in sizes:
            if self.units is not None and taken >= max(1, self.units):
                break
            rows += size.rows or 0
            total_bytes += size.bytes
            # A unit of unknown rows may be anything: with a limit on rows it is taken alone.
            unknown = self.rows is not None and size.rows is None
            over = _exceeds(rows, self.rows) or _exceeds(total_bytes, self.bytes)
            if taken > 0 and (unknown or over):
                break
            taken += 1
            if unknown or over:
                break
        return taken


def _exceeds(value: int, limit: int | None) -> bool:
    return limit is not None and value > limit


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
