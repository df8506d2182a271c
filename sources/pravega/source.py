"""PravegaSource: events of a stream, replayable: the same two cuts give the same events, in the same order for each key.

::

    offset      a stream cut: segment → position, the next byte to be read
    latest      how long each segment of the cut is now; one that is sealed and read to its end makes room for its successors
    plan        a split for each segment; what was truncated is an error with its name and range
    read        from the first byte of the split to the last, in blocks; events are columns without a Python object each

The guarantee: the same (start, end) gives the same events of each segment in the same order, in any process, for as long as the
stream keeps them; if it does not, the read fails and names segment and range. Events of transactions are there when they are
committed, and not before.

Streams that are scaled are followed: a successor's events are in a later epoch than those of the segments whose place it took, so
events with one routing key come in the order in which they were written, epoch by epoch. (A batch, which has one range, has them
all at once.)

What it can't do: tell that a stream was deleted and made anew, if it is at least as long again by the time that it is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from twophase.clients.pravega.connections import controller_of
from twophase.clients.pravega.controller import Controller
from twophase.clients.pravega.events import HEADER_BYTES, Events, events_of, whole_events
from twophase.clients.pravega.refusals import Refusal, SegmentRefused
from twophase.clients.pravega.segment_store import SegmentInfo, SegmentStore, SegmentStores, connected
from twophase.clients.pravega.stream import Stream, epoch_of, shown
from twophase.errors import DataLost, OptionError, Unreadable
from twophase.options import parse
from twophase.source import NO_LIMIT, ReadLimit, Source
from twophase.sources.pravega import cut as cuts
from twophase.sources.pravega.cut import Cut
from twophase.sources.pravega.options import EARLIEST, LATEST, PravegaSourceOptions

IGNORED = ("checkpointLocation", "queryName", "path")
_READ_BYTES = 1 << 20
_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("value", pa.binary()),
    ("scope", pa.string()),
    ("stream", pa.string()),
    ("segment", pa.int64()),
    ("offset", pa.int64()),
]
_SCHEMA = pa.schema(_COLUMNS)


@dataclass(frozen=True)
class PravegaSplit:
    """The bytes from `begin` on and before `end` of one segment."""

    segment: int
    begin: int
    end: int


class PravegaSource(Source[PravegaSplit]):
    """A stream.

    Parameters
    ----------
    controller, scope, stream:
        Where it is.
    options:
        The other fields of `PravegaSourceOptions`.
    """

    start_moves = True

    def __init__(self, controller: str, scope: str, stream: str, **options: Any):
        self._set(PravegaSourceOptions(controller=controller, scope=scope, stream=stream, **options))
        problems = list(self._options.problems())
        if problems:
            raise OptionError("; ".join(problems), problems=problems)

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> PravegaSource:
        source = cls.__new__(cls)
        source._set(parse(PravegaSourceOptions, given, ignore=IGNORED))
        return source

    def _set(self, options: PravegaSourceOptions) -> None:
        self._options = options
        self._stream = Stream(options.scope, options.stream)

    def schema(self) -> pa.Schema:
        return _SCHEMA

    # ---- offsets ----

    def earliest(self) -> str:
        """Where `startingCut` says, now: for a stream at the latest, unless it says something else."""
        return self._begin(LATEST)

    def newest(self) -> str:
        with self._stores() as stores:
            return self._text(self._tail(stores))

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        bound = None if until is None else self._cut(until)
        with self._stores() as stores:
            begin = self._handed_over(stores, self._cut(start), bound)
            infos = {segment: self._info(stores, segment, at) for segment, at in begin.items()}
            ends = {each: max(begin[each], _bounded(each, infos[each].length, bound)) for each in begin}
            end = self._admitted(stores, begin, ends, limit)
            return self._text(self._handed_over(stores, end, bound))

    def bounded(self) -> tuple[str, str]:
        """Where a batch begins and ends, by the options, now."""
        begin, said = self._begin(EARLIEST), self._options.ending_cut
        return begin, self.newest() if said in (None, LATEST) else self._text(self._cut(str(said)))

    def _begin(self, unless_said: str) -> str:
        said = self._options.starting_cut or unless_said
        if said == LATEST:
            return self.newest()
        if said == EARLIEST:
            self._controller.current(self._stream)  # says that there is no such stream, if there is none
            return self._text(self._controller.head(self._stream))
        return self._text(self._cut(said))

    def _tail(self, stores: SegmentStores) -> Cut:
        return {
            each.segment: self._info(stores, each.segment, None).length
            for each in self._controller.current(self._stream)
        }

    def _handed_over(self, stores: SegmentStores, cut: Cut, until: Cut | None) -> Cut:
        """The same cut, where segments that are sealed and read to their ends have made room for their successors.

        Only all segments whose place one takes together: so every successor of a segment that is left is in the cut.
        """
        while True:
            drained = {segment for segment, at in cut.items() if self._is_drained(stores, segment, at, until)}
            following = {segment: self._controller.successors(self._stream, segment) for segment in drained}
            leaving = {
                segment
                for segment, successors in following.items()
                if successors and all(before <= drained for before in successors.values())
            }
            # One whose sibling stays must stay too: their successors have both before them.
            while staying := {
                segment for segment in leaving if any(not before <= leaving for before in following[segment].values())
            }:
                leaving -= staying
            if not leaving:
                return cut
            entering = {successor: 0 for segment in leaving for successor in following[segment]}
            cut = {**{segment: at for segment, at in cut.items() if segment not in leaving}, **entering}

    def _is_drained(self, stores: SegmentStores, segment: int, at: int, until: Cut | None) -> bool:
        info = self._info(stores, segment, at)
        return info.is_sealed and at >= info.length and _bounded(segment, info.length, until) >= info.length

    # ---- limits ----

    def _admitted(self, stores: SegmentStores, begin: Cut, ends: Cut, limit: ReadLimit) -> Cut:
        """Where each segment ends in this epoch: by the limits, in proportion to what waits, and where an event ends."""
        limits = [most for most in (self._options.max_bytes_per_trigger, limit.bytes) if most is not None]
        most_bytes = min(limits) if limits else None
        waiting = {segment: ends[segment] - begin[segment] for segment in begin if ends[segment] > begin[segment]}
        total = sum(waiting.values())
        if not total or (limit.rows is None and (most_bytes is None or total <= most_bytes)):
            return ends
        admitted, rows_left = dict(begin), limit.rows
        for segment, size in sorted(waiting.items(), key=lambda each: -each[1]):
            share = size if most_bytes is None or total <= most_bytes else most_bytes * size // total
            rows = None if limit.rows is None else min(rows_left or 0, -(-limit.rows * size // total))
            if rows == 0:
                continue
            at, count = self._boundary(stores, segment, begin[segment], begin[segment] + share, ends[segment], rows)
            admitted[segment] = at
            rows_left = None if rows_left is None else rows_left - count
        if admitted == begin:
            first = max(waiting, key=lambda segment: waiting[segment])
            whole = ends[first]
            admitted[first], _ = self._boundary(stores, first, begin[first], whole, whole, 1)
        return admitted

    def _boundary(
        self, stores: SegmentStores, segment: int, begin: int, wanted: int, end: int, most: int | None
    ) -> tuple[int, int]:
        """Where the last event ends that is within what is wanted, and how many there are."""
        store, name, token = stores.of(segment), self._stream.segment(segment), stores.token
        at, count = begin, 0
        while at < wanted and (most is None or count < most):
            data = store.read(name, at, min(_READ_BYTES, wanted - at), token)[: wanted - at]
            left = None if most is None else most - count
            found = whole_events(data, at, name, most=left)
            if len(found) == 1:  # not one that is whole
                data = _at_least(store, name, at, end, token, data)
                found = whole_events(data, at, name, most=1)
                if len(found) == 1 or at + found[-1] > wanted:
                    break
            at, count = at + found[-1], count + len(found) - 1
        return at, count

    # ---- ranges ----

    def plan(self, start: str, end: str) -> Sequence[PravegaSplit]:
        begin, ends = self._cut(start), self._cut(end)
        newest, splits, todo, seen = max(map(epoch_of, ends)), list[PravegaSplit](), dict(begin), set[int]()
        for segment, at in ends.items():
            if at:
                todo.setdefault(segment, 0)
        with self._stores() as stores:
            while todo:
                segment, at = todo.popitem()
                seen.add(segment)
                is_last = segment in ends
                if is_last and at >= ends[segment]:
                    continue
                info = self._info(stores, segment, at)
                to = ends[segment] if is_last else info.length
                if to > info.length or not (is_last or info.is_sealed):
                    raise self._lost(segment, at, to, info)
                if at < to:
                    splits.append(PravegaSplit(segment, at, to))
                if is_last:
                    continue
                for successor in self._controller.successors(self._stream, segment):
                    if successor not in seen and epoch_of(successor) <= newest:
                        todo.setdefault(successor, 0)
        return sorted(splits, key=lambda split: split.segment)

    def read(self, split: PravegaSplit) -> Iterator[pa.RecordBatch]:
        name = self._stream.segment(split.segment)
        with connected(self._controller, self._stream, split.segment) as store:
            at, rest = split.begin, b""
            while at + len(rest) < split.end:
                data = rest + self._read(store, split, at + len(rest))
                ends = whole_events(data, at, name)
                if len(ends) > 1:
                    yield self._batch(split, events_of(data, ends, at))
                at, rest = at + ends[-1], data[ends[-1] :]
            if rest:
                raise Unreadable(f"{name}: no event ends at {split.end}, which a cut says")

    def acknowledge(self, end: str) -> None:
        """Nothing: what the stream keeps is its own business."""

    # ---- inside ----

    def _read(self, store: SegmentStore, split: PravegaSplit, at: int) -> bytes:
        try:
            token = self._controller.token(self._stream).value
            found = store.read(self._stream.segment(split.segment), at, min(_READ_BYTES, split.end - at), token)
        except SegmentRefused as error:
            if error.refusal not in (Refusal.TRUNCATED, Refusal.NO_SEGMENT):
                raise
            raise self._lost(split.segment, at, split.end) from error
        return found[: split.end - at]

    def _batch(self, split: PravegaSplit, events: Events) -> pa.RecordBatch:
        count = len(events.values)
        columns: list[Any] = [
            events.values,
            pa.repeat(pa.scalar(self._stream.scope), count),
            pa.repeat(pa.scalar(self._stream.name), count),
            pa.array(np.full(count, split.segment, np.int64)),
            pa.array(events.positions),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)

    def _info(self, stores: SegmentStores, segment: int, at: int | None) -> SegmentInfo:
        """Of a segment that is to be read from there on: DataLost, if it is not there any more."""
        try:
            info = stores.of(segment).info(self._stream.segment(segment), stores.token)
        except SegmentRefused as error:
            if error.refusal is not Refusal.NO_SEGMENT:
                raise
            raise self._lost(segment, at or 0, None) from error
        if at is not None and not info.begin <= at <= info.length:
            raise self._lost(segment, at, None, info)
        return info

    def _lost(self, segment: int, begin: int, end: int | None, info: SegmentInfo | None = None) -> DataLost:
        wanted = f"the bytes from {begin} on" if end is None else f"the bytes {begin} to {end - 1}"
        has = "is gone" if info is None else f"has only what is before {info.length}"
        if info is not None and info.begin:
            has += f" and from {info.begin} on"
        return DataLost(
            f"segment {shown(segment)} of the stream {self._stream} {has}, and {wanted} are to be read. Retention or somebody has "
            "truncated the stream before it was read, or it was made anew. Begin anew with another checkpoint, or with startingCut"
        )

    def _cut(self, text: str) -> Cut:
        try:
            return cuts.from_text(self._stream, text)
        except ValueError as error:
            problem = f"the offset {text!r} {error}. A checkpoint belongs to one stream"
            raise OptionError(problem, problems=[problem]) from None

    def _text(self, cut: Cut) -> str:
        return cuts.to_text(self._stream, cut)

    def _stores(self) -> SegmentStores:
        return SegmentStores(self._controller, self._stream)

    @property
    def _controller(self) -> Controller:
        return controller_of(self._options.access, patience_s=self._options.request_timeout_ms / 1000)


def _bounded(segment: int, length: int, until: Cut | None) -> int:
    """How much of a segment is before a cut. One that the cut does not have was sealed before it, or made after it."""
    if until is None:
        return length
    if segment in until:
        return min(length, until[segment])
    return length if epoch_of(segment) < max(map(epoch_of, until)) else 0


def _at_least(store: SegmentStore, name: str, at: int, end: int, token: str, data: bytes) -> bytes:
    """The first event, whole, however large it is."""
    while at + len(data) < end:
        needed = HEADER_BYTES if len(data) < HEADER_BYTES else HEADER_BYTES + int.from_bytes(data[4:8], "big")
        if len(data) >= needed:
            break
        more = min(needed - len(data), end - at - len(data))
        data += store.read(name, at + len(data), more, token)[:more]
    return data
