"""A source in memory, and what can be wrong with it: a mistake each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from twophase.errors import DataLost
from twophase.source import NO_LIMIT, ReadLimit, Source

_LARGE_BYTES = 10**6


@dataclass
class Numbers(Source[tuple[int, int]]):
    """Units of numbers in their order; an offset is how many units came before."""

    units: list[list[int]] = field(default_factory=list)
    columns: list[list[str]] = field(default_factory=list)
    """Of each unit, in the order in which its values lie; all but `value` are noise."""
    gone: set[int] = field(default_factory=set)
    changed: set[int] = field(default_factory=set)

    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.int64())])

    def earliest(self) -> str:
        return json.dumps({"unit": 0})

    def newest(self) -> str:
        return json.dumps({"unit": len(self.units)})

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        first, end = self._at(start), self._at(until or self.newest())
        if limit.bytes is not None and limit.bytes < _LARGE_BYTES:
            end = min(end, first + 1)
        last = first + 1
        while limit.rows is not None and last < end and sum(map(len, self.units[first : last + 1])) <= limit.rows:
            last += 1
        return json.dumps({"unit": max(first, end if limit.rows is None else min(last, end))})

    def plan(self, start: str, end: str) -> Sequence[tuple[int, int]]:
        return [(at, at + 1) for at in range(self._at(start), self._at(end))]

    def read(self, split: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        for at in range(*split):
            if at in self.gone:
                raise DataLost(f"unit {at} is gone")
            if at in self.changed:
                raise DataLost(f"unit {at} was changed")
            yield self.batch(self.stored(at, self.columns[at]))

    def acknowledge(self, end: str) -> None: ...

    def stored(self, at: int, columns: list[str]) -> list[int]:
        """The numbers of a unit, whose columns are taken to be these."""
        place = columns.index("value")
        rows = ([value if name == "value" else -value for name in self.columns[at]] for value in self.units[at])
        return [row[min(place, len(row) - 1)] for row in rows]

    def batch(self, values: list[int]) -> pa.RecordBatch:
        return pa.record_batch([pa.array(values, pa.int64())], schema=self.schema())

    def _at(self, offset: str) -> int:
        return int(json.loads(offset)["unit"])


class ReadsToTheEnd(Numbers):
    """Whatever has arrived when it reads, and not when the range was made."""

    def read(self, split: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        end = len(self.units) if split[1] == self.end else split[1]
        yield from super().read((split[0], end))

    def plan(self, start: str, end: str) -> Sequence[tuple[int, int]]:
        self.end = self._at(end)
        return super().plan(start, end)


class JumpsOverGaps(Numbers):
    def read(self, split: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        if split[0] not in self.gone:
            yield from super().read(split)


class JumpsWhenItOffers(Numbers):
    """What is gone when a range is offered is left out of it."""

    def plan(self, start: str, end: str) -> Sequence[tuple[int, int]]:
        left_out = json.loads(end).get("gone", [])
        return [split for split in super().plan(start, end) if split[0] not in left_out]

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        end = super().latest(start, limit, until=until)
        gone = sorted(self.gone & set(range(self._at(start), self._at(end))))
        return json.dumps({"unit": self._at(end), "gone": gone}) if gone else end


class StampsRows(Numbers):
    """With a column that says how often it has read."""

    reads = 0

    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.int64()), ("read", pa.int64())])

    def batch(self, values: list[int]) -> pa.RecordBatch:
        type(self).reads += 1
        return pa.record_batch(
            [pa.array(values, pa.int64()), pa.array([self.reads] * len(values))], schema=self.schema()
        )


class ForgetsSilently(Numbers):
    """Who asks for what was acknowledged gets nothing."""

    def acknowledge(self, end: str) -> None:
        for at in range(self._at(end)):
            self.units[at] = []


class DropsSigns(Numbers):
    def batch(self, values: list[int]) -> pa.RecordBatch:
        return super().batch([max(value, -value) % 2**63 for value in values])


class IgnoresRowsBesideBytes(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return super().latest(start, limit if limit.bytes is None else ReadLimit(bytes=limit.bytes), until=until)


class ReadsTheFirstPage(Numbers):
    """Of a unit."""

    def batch(self, values: list[int]) -> pa.RecordBatch:
        return super().batch(values[:1000])


class ListsTheFirstUnits(Numbers):
    def plan(self, start: str, end: str) -> Sequence[tuple[int, int]]:
        return super().plan(start, end)[:1000]


class SortsUnitsAsText(Numbers):
    def newest(self) -> str:
        names = [str(at) for at in range(len(self.units))]
        return json.dumps({"unit": 1 + int(max(names)) if names else 0})


class OverlapsWhereThereAreMany(Numbers):
    def plan(self, start: str, end: str) -> Sequence[tuple[int, int]]:
        first, last = self._at(start), self._at(end)
        if last - first <= 100:
            return super().plan(start, end)
        return [(at, min(at + 3, last)) for at in range(first, last, 2)]


class TakesOneLimitOfTwo(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return super().latest(start, limit if limit.rows is None else ReadLimit(rows=limit.rows), until=until)


class IgnoresUntilUnderBytes(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return super().latest(start, limit, until=until if limit.bytes is None else None)


class StandsStill(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return start if limit.rows == 0 else super().latest(start, limit, until=until)


class IgnoresLimits(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return super().latest(start, until=until)


class GoesBack(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return until or super().latest(start, limit)


class IgnoresUntil(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return super().latest(start, limit)


class ForgetsAll(Numbers):
    def acknowledge(self, end: str) -> None:
        self.gone |= set(range(len(self.units)))


class ReadsOnce(Numbers):
    def read(self, split: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        yield from super().read(split)
        self.units[split[0]] = []


class NumbersForOffsets(Numbers):
    def earliest(self) -> str:
        return "0"

    def _at(self, offset: str) -> int:
        return 0 if offset == "0" else super()._at(offset)


class SchemaOfItsOwn(Numbers):
    def batch(self, values: list[int]) -> pa.RecordBatch:
        return pa.record_batch([pa.array(values, pa.int32())], names=["value"])


class LooksForGapsInFront(Numbers):
    """At the oldest unit of a range, and at no other."""

    def plan(self, start: str, end: str) -> Sequence[tuple[int, int]]:
        if self._at(start) in self.gone:
            raise DataLost(f"unit {self._at(start)} is gone")
        return [split for split in super().plan(start, end) if split[0] not in self.gone]

    def read(self, split: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        if split[0] in self.gone:
            self.plan(json.dumps({"unit": min(self.gone)}), self.newest())
        yield from super().read(split)


class ForgetsWhatItHasOffered(Numbers):
    """Who asks for what comes next has read all before it."""

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        self.gone |= set(range(self._at(start) - 1))
        return super().latest(start, limit, until=until)


class GivesEqualRowsOnce(Numbers):
    def batch(self, values: list[int]) -> pa.RecordBatch:
        return super().batch(sorted(set(values)))


class ReadsByTheNewestColumns(Numbers):
    def stored(self, at: int, columns: list[str]) -> list[int]:
        return super().stored(at, self.columns[-1])


class ReadsWhatLiesThereNow(Numbers):
    def read(self, split: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        self.changed.clear()
        return super().read(split)
