"""PravegaSource, beyond the suite: streams that are scaled and truncated, limits of bytes, cuts that are given."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from integration_tests import pravega_binding
from integration_tests.pravega_streams import controller_at, new_stream
from twophase.clients.pravega import routing
from twophase.clients.pravega.appender import Appender
from twophase.clients.pravega.controller import Controller
from twophase.clients.pravega.events import blocks_of
from twophase.clients.pravega.stream import Stream
from twophase.errors import DataLost, OptionError, TargetUnavailable, Unreadable
from twophase.source import NO_LIMIT, ReadLimit
from twophase.sources import PravegaSource
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers

KEYS = [f"key-{number}" for number in range(12)]


class Writer:
    """Writes numbers, by keys, to a stream that is scaled between them."""

    def __init__(self, address: str, segments: int = 2):
        self.address, self.stream = address, new_stream(address, segments)
        self.written = 0

    @property
    def controller(self) -> Controller:
        return controller_at(self.address)

    def write(self, count: int) -> None:
        """To each key, its next numbers, by our own client."""
        ranges = self.controller.current(self.stream)
        chosen = routing.segments_of(routing.positions(pa.array(KEYS)), ranges)
        for at, each in enumerate(ranges):
            keys = [key for key, place in zip(KEYS, chosen, strict=True) if place == at]
            values = [f"{key}:{self.written + number}" for number in range(count) for key in keys]
            appender = Appender(self.controller, self.stream, each.segment, self.stream.segment(each.segment))
            for block in blocks_of(pa.array(values, pa.string())):
                appender.append(block)
            appender.flush()
            appender.close()
        self.written += count

    def scale(self, segments: int) -> None:
        now = [each.segment for each in self.controller.current(self.stream)]
        self.controller.scale(self.stream, now, [(at / segments, (at + 1) / segments) for at in range(segments)])

    def source(self, **options: Any) -> PravegaSource:
        told = {"starting_cut": "earliest", "request_timeout_ms": 20_000, **options}
        return PravegaSource(self.address, self.stream.scope, self.stream.name, **told)


@pytest.fixture
def writer(pravega_server: Server[str]) -> Writer:
    return Writer(pravega_server.endpoint)


def read(source: PravegaSource, start: str, end: str) -> list[str]:
    batches: list[Any] = [batch for split in source.plan(start, end) for batch in source.read(split)]
    return [value.decode() for batch in batches for value in batch.column(0).to_pylist()]


def follow(
    source: PravegaSource, start: str, limit: ReadLimit = NO_LIMIT, until: str | None = None
) -> tuple[list[list[str]], str]:
    """Range after range, to the end."""
    ranges = []
    while (end := source.latest(start, limit, until=until)) != start:
        ranges.append(read(source, start, end))
        assert sorted(read(source, start, end)) == sorted(ranges[-1])
        start = end
    return ranges, start


def require_order(ranges: Sequence[Sequence[str]], count: int) -> None:
    """Each key has its numbers, once, in their order."""
    by_key: dict[str, list[int]] = {}
    for event in (event for each in ranges for event in each):
        key, _, number = event.partition(":")
        by_key.setdefault(key, []).append(int(number))
    assert by_key == {key: list(range(count)) for key in KEYS}


@pytest.mark.parametrize("limit", [NO_LIMIT, ReadLimit(bytes=100), ReadLimit(rows=5)])
def test_a_stream_that_was_scaled_is_followed_in_the_order_of_its_keys(writer: Writer, limit: ReadLimit) -> None:
    for segments in (3, 2, 4):
        writer.write(4)
        writer.scale(segments)
    writer.write(4)
    source = writer.source()
    ranges, _ = follow(source, source.earliest(), limit)

    require_order(ranges, 16)


def test_a_stream_that_is_scaled_while_it_is_read_is_followed(writer: Writer) -> None:
    source = writer.source()
    at, ranges = source.earliest(), list[list[str]]()
    for segments in (3, 3, 2, 5):
        writer.write(3)
        more, at = follow(source, at)
        ranges += more
        writer.write(2)
        writer.scale(segments)
    more, at = follow(source, at)

    require_order(ranges + more, 20)


def test_what_was_there_when_it_began_is_read_and_no_more(writer: Writer) -> None:
    """Spark's trigger availableNow, with a stream that is scaled before and after."""
    writer.write(3)
    writer.scale(3)
    writer.write(3)
    source = writer.source()
    until = source.newest()
    writer.write(5)
    writer.scale(4)
    writer.write(5)
    ranges, _ = follow(source, source.earliest(), until=until)

    require_order(ranges, 6)


def test_a_limit_of_bytes_ends_ranges_where_events_end(writer: Writer) -> None:
    writer.write(50)
    source = writer.source(max_bytes_per_trigger=400)
    ranges, _ = follow(source, source.earliest())

    require_order(ranges, 50)
    sizes = [sum(8 + len(event) for event in each) for each in ranges]
    assert max(sizes) <= 400
    assert len(sizes) < 60


def test_one_event_is_taken_however_small_the_limit_is(writer: Writer) -> None:
    writer.write(2)
    source = writer.source(max_bytes_per_trigger=1)
    ranges, _ = follow(source, source.earliest())

    require_order(ranges, 2)
    assert {len(each) for each in ranges} == {1}


def test_a_batch_has_everything_however_often_the_stream_was_scaled(writer: Writer) -> None:
    for segments in (3, 2, 4):
        writer.write(4)
        writer.scale(segments)
    writer.write(4)
    source = writer.source()

    assert sorted(read(source, *source.bounded())) == sorted(f"{key}:{number}" for key in KEYS for number in range(16))


def test_a_cut_that_is_given_is_where_a_query_begins_and_a_batch_ends(writer: Writer) -> None:
    writer.write(2)
    cut = writer.source().newest()
    writer.write(2)
    after = writer.source(starting_cut=cut)
    before = writer.source(ending_cut=cut)

    assert after.earliest() == cut
    assert {event.rpartition(":")[2] for event in read(after, *after.bounded())} == {"2", "3"}
    assert {event.rpartition(":")[2] for event in read(before, *before.bounded())} == {"0", "1"}


def test_a_stream_begins_at_its_end_unless_it_is_told_otherwise(writer: Writer) -> None:
    writer.write(2)
    source = writer.source(starting_cut=None)
    start = source.earliest()
    writer.write(1)

    assert read(source, start, source.latest(start)) == sorted(f"{key}:2" for key in KEYS) or len(
        read(source, start, source.latest(start))
    ) == len(KEYS)


def test_what_was_truncated_is_named_with_segment_and_range(writer: Writer) -> None:
    writer.write(5)
    source = writer.source()
    start = source.earliest()
    end = source.latest(start)
    (split, *_) = source.plan(start, end)
    cut = {each.segment: 0 for each in writer.controller.current(writer.stream)}
    cut[split.segment] = split.end
    writer.controller.truncate_stream(writer.stream, cut)

    for ask in (lambda: source.plan(start, end), lambda: source.latest(start), lambda: list(source.read(split))):
        with pytest.raises(DataLost, match=rf"segment {split.segment}\.#epoch\.0 .*from 0 on|bytes 0 to"):
            ask()
    assert len(read(source, source.earliest(), end)) > 0


def test_segments_that_went_with_a_truncation_are_not_missed_if_they_were_read(writer: Writer) -> None:
    writer.write(3)
    writer.scale(3)
    source = writer.source()
    first = source.earliest()
    start = source.latest(first)
    assert len(read(source, first, start)) == 3 * len(KEYS)
    writer.controller.truncate_stream(
        writer.stream, {each.segment: 0 for each in writer.controller.current(writer.stream)}
    )
    writer.write(1)

    assert len(read(source, start, source.latest(start))) == len(KEYS)
    with pytest.raises(DataLost, match="is gone"):
        source.plan(first, start)


def test_events_of_the_official_client_are_read(writer: Writer) -> None:
    events = [(key, f"{key}:{number}".encode()) for number in range(20) for key in KEYS]
    pravega_binding.write(writer.address, writer.stream, events)
    source = writer.source()
    ranges, _ = follow(source, source.earliest())

    require_order(ranges, 20)


def test_bytes_that_are_no_events_are_refused(writer: Writer) -> None:
    writer.write(1)
    source = writer.source()
    start = source.earliest()
    end = json.loads(source.latest(start))
    for cut in end.values():
        cut["0"] -= 3
    with pytest.raises(Unreadable, match="no event ends at"):
        read(source, start, json.dumps(end))


def test_what_can_not_be_read_is_refused(writer: Writer) -> None:
    with pytest.raises(OptionError) as caught:
        PravegaSource(writer.address, "a/b", "c", starting_cut="soon")
    assert len(caught.value.problems) == 1
    with pytest.raises(OptionError, match="startingCut is no stream cut"):
        writer.source(starting_cut='{"other/stream": {"0": 1}}')
    with pytest.raises(OptionError, match="belongs to one stream"):
        writer.source().latest('{"other/stream": {"0": 1}}')
    writer.stream = Stream(writer.stream.scope, "nothing")
    with pytest.raises(TargetUnavailable, match=r"not there|no stream"):
        writer.source().earliest()
