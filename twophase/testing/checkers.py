"""Checkers: what must hold of a target, as plain functions over what was written and what readers saw.

::

    History(written, reads) ─► checker ─► findings: a sentence for each violation; empty means that all is well

================  ==============================================================================================
no_loss           a read has every row of every epoch that was committed when it began
no_duplicate      no row is there twice
no_stranger       no row is there that nobody wrote
nothing_early     no row is there, and nothing committed, of an epoch that was not decided when the read ended
no_torn_epoch     an epoch is there whole or not at all                             (sinks that are atomic across tasks)
gapless_prefix    no row is there of an epoch whose predecessors are not there whole
nothing_vanishes  what one read has seen, every later one sees
in_order          rows of one slot of an epoch are in the order in which they were written        (where promised)
in_its_epoch      a row is shown under the epoch that wrote it                      (targets that show epochs)
no_residue        nothing is staged any more
same_rows         every replay of a range gives the same rows                                            (sources)
difference        where two long lists of rows differ first
================  ==============================================================================================

Rows are any hashable values, and no two of a history are the same: only so can a row be traced to its epoch. Values are the same if
they look the same: 1, 1.0, Decimal(1) and True are four, 0.0 and -0.0 are two, and a NaN is itself. Decimals may have more or less
zeros at their end. `violations` runs all checkers that concern a history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from itertools import pairwise, zip_longest

Row = Hashable
Slots = Sequence[Sequence[Row]]
"""The rows of each slot of an epoch, in the order in which they were written."""
_SHOWN = 5


@dataclass(frozen=True)
class Read:
    """What one reader saw, at one moment."""

    rows: Sequence[Row]
    committed: int | None
    """The newest epoch that was committed when the read began; None if none was."""
    decided: int | None
    """The newest epoch that was decided when the read ended: later ones must not be there. None if none was."""
    under: Sequence[int] | None = None
    """The epoch that the target shows each row under, if it shows any."""


@dataclass(frozen=True)
class History:
    """What a query wrote, epoch by epoch, and what readers saw in the course of time."""

    written: Mapping[int, Slots]
    reads: Sequence[Read] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        counts = Counter(Exact(row) for slots in self.written.values() for slot in slots for row in slot)
        twice = [row for row, count in counts.items() if count > 1]
        if twice:
            raise ValueError(f"rows of a history must differ, and {_some(twice)} are written twice")

    @cached_property
    def seen(self) -> Sequence[Read]:
        """The reads, with rows that can be compared. What was committed for one of them is so for all after it."""
        seen, committed = list[Read](), list[int]()
        for read in self.reads:
            committed += [] if read.committed is None else [read.committed]
            seen.append(replace(read, rows=exact(read.rows), committed=max(committed, default=None)))
        return seen

    @cached_property
    def origin(self) -> Mapping[Row, tuple[int, int, int]]:
        """Epoch, slot and place in the slot of every row."""
        return {
            Exact(row): (epoch, slot, place)
            for epoch, slots in self.written.items()
            for slot, rows in enumerate(slots)
            for place, row in enumerate(rows)
        }

    def rows_of(self, epoch: int) -> set[Row]:
        return {Exact(row) for slot in self.written[epoch] for row in slot}


class Exact:
    """A row that is equal to those that look the same, and to no others. Python's own 1 == 1.0 == True would hide that a target
    changed a value, and its NaN != NaN would take a right row for a stranger."""

    __slots__ = ("_looks", "row")

    def __init__(self, row: Row):
        self.row = row
        self._looks = _looks(row)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exact) and self._looks == other._looks

    def __hash__(self) -> int:
        return hash(self._looks)

    def __repr__(self) -> str:
        return repr(self.row)


def exact(rows: Iterable[Row]) -> list[Row]:
    return [Exact(row) for row in rows]


def _looks(value: object) -> Hashable:
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()  # what readers of data frames have for Python's numbers
    if isinstance(value, tuple):
        return (type(value), *map(_looks, value))
    if isinstance(value, frozenset):
        return (type(value), frozenset(map(_looks, value)))
    if isinstance(value, float):
        return (type(value), repr(value))
    if isinstance(value, Decimal) and not (value and value.is_finite()):
        return (type(value), value.is_signed(), repr(value.normalize() if value.is_finite() else value))
    return (type(value), value)


def violations(history: History, *, atomic: bool, ordered: bool) -> list[str]:
    """The findings of every checker that concerns such a sink. A history that nobody has read proves nothing: ValueError."""
    if not history.reads:
        raise ValueError("a history without a read: nothing would be checked")
    checkers = [no_loss, no_duplicate, no_stranger, nothing_early, gapless_prefix, nothing_vanishes, in_its_epoch]
    checkers += [no_torn_epoch] if atomic else []
    checkers += [in_order] if ordered else []
    return [finding for checker in checkers for finding in checker(history)]


def no_loss(history: History) -> list[str]:
    return list(_no_loss(history))


def _no_loss(history: History) -> Iterator[str]:
    for at, read in enumerate(history.seen):
        seen = set(read.rows)
        for epoch in sorted(history.written):
            missing = history.rows_of(epoch) - seen
            if read.committed is not None and epoch <= read.committed and missing:
                yield f"{_read(at)}: epoch {epoch} was committed, and {_rows(missing)} missing"


def no_duplicate(history: History) -> list[str]:
    return list(_no_duplicate(history))


def _no_duplicate(history: History) -> Iterator[str]:
    for at, read in enumerate(history.seen):
        for row, count in Counter(read.rows).items():
            if count > 1:
                yield f"{_read(at)}: row {row!r} is there {count} times"


def no_stranger(history: History) -> list[str]:
    return list(_no_stranger(history))


def _no_stranger(history: History) -> Iterator[str]:
    for at, read in enumerate(history.seen):
        strange = {row for row in read.rows if row not in history.origin}
        if strange:
            yield f"{_read(at)}: {_rows(strange)} there that nobody wrote"


def nothing_early(history: History) -> list[str]:
    return list(_nothing_early(history))


def _nothing_early(history: History) -> Iterator[str]:
    for at, read in enumerate(history.seen):
        if read.committed is not None and (read.decided is None or read.committed > read.decided):
            yield f"{_read(at)}: epoch {read.committed} was committed, and nobody has decided it"
        for epoch, rows in _seen_by_epoch(history, read).items():
            if read.decided is None or epoch > read.decided:
                yield f"{_read(at)}: epoch {epoch} was not decided, and {_rows(rows)} there"


def no_torn_epoch(history: History) -> list[str]:
    return list(_no_torn_epoch(history))


def _no_torn_epoch(history: History) -> Iterator[str]:
    for at, read in enumerate(history.seen):
        for epoch, rows in _seen_by_epoch(history, read).items():
            missing = history.rows_of(epoch) - rows
            if missing:
                yield f"{_read(at)}: epoch {epoch} is torn: {_rows(rows)} there, and {_rows(missing)} missing"


def gapless_prefix(history: History) -> list[str]:
    return list(_gapless_prefix(history))


def _gapless_prefix(history: History) -> Iterator[str]:
    for at, read in enumerate(history.seen):
        seen = _seen_by_epoch(history, read)
        newest = max(seen, default=None)
        for epoch in sorted(history.written):
            if newest is not None and epoch < newest and history.rows_of(epoch) - seen.get(epoch, set()):
                yield f"{_read(at)}: rows of epoch {newest} are there, and epoch {epoch} before it is not there whole"


def nothing_vanishes(history: History) -> list[str]:
    return list(_nothing_vanishes(history))


def _nothing_vanishes(history: History) -> Iterator[str]:
    for at, (before, after) in enumerate(pairwise(history.seen), start=1):
        gone = {row for row in set(before.rows) - set(after.rows) if row in history.origin}
        if gone:
            yield f"{_read(at)}: {_rows(gone)} not there any more"


def in_order(history: History) -> list[str]:
    return list(_in_order(history))


def _in_order(history: History) -> Iterator[str]:
    for at, read in enumerate(history.seen):
        last: dict[tuple[int, int], tuple[int, Row]] = {}
        for row in read.rows:
            if row not in history.origin:
                continue
            epoch, slot, place = history.origin[row]
            before, previous = last.get((epoch, slot), (-1, None))
            if place < before:
                yield f"{_read(at)}: epoch {epoch}, slot {slot}: row {row!r} comes after {previous!r}, and was written before it"
            last[epoch, slot] = (max(place, before), row if place >= before else previous)


def in_its_epoch(history: History) -> list[str]:
    return list(_in_its_epoch(history))


def _in_its_epoch(history: History) -> Iterator[str]:
    for at, read in enumerate(history.seen):
        if read.under is None:
            continue
        for row, shown in zip(read.rows, read.under, strict=True):
            if row in history.origin and history.origin[row][0] != shown:
                yield f"{_read(at)}: row {row!r} of epoch {history.origin[row][0]} is shown under epoch {shown}"


def no_residue(residue: Iterable[str]) -> list[str]:
    """Over what a target still holds besides its rows, by name."""
    return [f"left behind: {what}" for what in residue]


def same_rows(replays: Sequence[Sequence[Row]], *, ordered: bool = False) -> list[str]:
    """Over the rows that one range gave, each time that it was read; the first is what the others are compared with."""
    if len(replays) < 2:
        raise ValueError("one replay alone: there is nothing to compare it with")
    return list(_same_rows(replays, ordered=ordered))


def _same_rows(replays: Sequence[Sequence[Row]], *, ordered: bool) -> Iterator[str]:
    for at, rows in enumerate(replays[1:], start=1):
        first, now = Counter(exact(replays[0])), Counter(exact(rows))
        if first - now:
            yield f"replay {at}: {_rows(list((first - now).elements()))} missing"
        if now - first:
            yield f"replay {at}: {_rows(list((now - first).elements()))} there that the first did not give"
        if ordered and first == now and exact(rows) != exact(replays[0]):
            yield f"replay {at}: the rows are in another order"


def difference(found: Sequence[Row], expected: Sequence[Row]) -> str:
    """Where two long lists differ first; nothing if they are equal. pytest takes minutes to tell the difference of thousands."""
    for at, (one, other) in enumerate(zip_longest(found, expected, fillvalue="nothing")):
        if one != other:
            return f"row {at} of {len(found):,} is {one}, and {other} was expected, of {len(expected):,}"
    return ""


def _seen_by_epoch(history: History, read: Read) -> dict[int, set[Row]]:
    seen: dict[int, set[Row]] = {}
    for row in read.rows:
        if row in history.origin:
            seen.setdefault(history.origin[row][0], set()).add(row)
    return seen


def _read(at: int) -> str:
    return f"read {at}"


def _rows(rows: Iterable[Row]) -> str:
    """Of one row: "row 3 is"; of more: "rows 3, 4 and 2 more are"."""
    listed = list(rows)
    return f"row {_some(listed)} is" if len(listed) == 1 else f"rows {_some(listed)} are"


def _some(rows: Iterable[Row]) -> str:
    shown = sorted(repr(row) for row in rows)
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return ", ".join(shown[:_SHOWN]) + more
