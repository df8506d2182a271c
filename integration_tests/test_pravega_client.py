"""The client of Pravega, on a real server: what the sink and the source stand on."""

from __future__ import annotations

import pyarrow as pa
import pytest

from integration_tests import pravega_binding
from integration_tests.pravega_streams import PATIENCE_S, contents, controller_at, events_in, events_of, new_stream
from twophase.clients.pravega import routing
from twophase.clients.pravega.access import Access
from twophase.clients.pravega.appender import Appender
from twophase.clients.pravega.controller import Controller, Ping, State
from twophase.clients.pravega.events import LARGEST_EVENT, blocks_of
from twophase.clients.pravega.refusals import NoStream, Refusal, SegmentRefused
from twophase.clients.pravega.segment_store import SegmentStores, connected
from twophase.clients.pravega.stream import Stream, epoch_of
from twophase.errors import TargetUnavailable
from twophase.testing.servers.ports import free_ports
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers


@pytest.fixture
def controller(pravega_server: Server[str]) -> Controller:
    return controller_at(pravega_server.endpoint)


@pytest.fixture
def stream(pravega_server: Server[str]) -> Stream:
    return new_stream(pravega_server.endpoint, segments=2)


def write(controller: Controller, stream: Stream, segment: int, name: str, values: list[bytes]) -> int:
    appender = Appender(controller, stream, segment, name)
    for block in blocks_of(pa.array(values, pa.large_binary())):
        appender.append(block)
    appender.flush()
    appender.close()
    return appender.length


def test_a_transaction_is_finished_by_whoever_knows_its_name(controller: Controller, stream: Stream) -> None:
    begun = controller.begin(stream, 30_000)
    write(controller, stream, 0, stream.transaction_segment(0, begun.transaction), [b"one", b"two"])
    other = Controller(controller.access, patience_s=PATIENCE_S)

    assert (other.state(stream, begun.transaction), events_of(other, stream)) == (State.OPEN, [])
    assert other.ping(stream, begun.transaction, 30_000) is Ping.OK
    assert other.commit(stream, begun.transaction)
    assert other.settled(stream, [begun.transaction], within_s=PATIENCE_S) == {begun.transaction: State.COMMITTED}
    assert events_of(other, stream) == [b"one", b"two"]
    assert other.ping(stream, begun.transaction, 30_000) is Ping.COMMITTED
    other.close()


def test_a_transaction_that_was_aborted_shows_nothing(controller: Controller, stream: Stream) -> None:
    begun = controller.begin(stream, 30_000)
    write(controller, stream, 0, stream.transaction_segment(0, begun.transaction), [b"one"])
    controller.abort(stream, [begun.transaction])

    assert controller.settled(stream, [begun.transaction], within_s=PATIENCE_S) == {begun.transaction: State.ABORTED}
    assert not controller.commit(stream, begun.transaction)
    assert events_of(controller, stream) == []


def test_a_transaction_that_never_was_is_unknown(controller: Controller, stream: Stream) -> None:
    assert controller.state(stream, "0" * 8 + "f" * 24) is State.UNKNOWN


def test_segments_of_transactions_are_merged_once_and_gone_then(controller: Controller, stream: Stream) -> None:
    one, other = controller.begin(stream, 30_000).transaction, controller.begin(stream, 30_000).transaction
    into, source = stream.transaction_segment(1, one), stream.transaction_segment(1, other)
    first, second = write(controller, stream, 1, into, [b"a"]), write(controller, stream, 1, source, [b"b", b"c"])
    with SegmentStores(controller, stream) as stores:
        store = stores.of(1)
        store.merge(into, source, stores.token)

        assert (store.length(into, ""), store.length(source, "")) == (first + second, None)
        store.merge(into, source, stores.token)  # by somebody who did not hear that it was done
        assert store.length(into, "") == first + second
    controller.commit(stream, one)
    controller.settled(stream, [one], within_s=PATIENCE_S)
    controller.abort(stream, [other])

    assert events_of(controller, stream) == [b"a", b"b", b"c"]


def test_an_event_is_appended_on_condition_only_where_the_end_is(controller: Controller, stream: Stream) -> None:
    name = stream.segment(0)
    with connected(controller, stream, 0) as store:
        assert store.append_at(name, 0, b"first", "")
        length = store.info(name, "").length

        assert not store.append_at(name, 0, b"too late", "")
        assert store.append_at(name, length, b"second", "")
    assert events_in(contents(controller, stream)[0]) == [b"first", b"second"]


def test_what_is_truncated_is_gone_and_said_so(controller: Controller, stream: Stream) -> None:
    name = stream.segment(0)
    with connected(controller, stream, 0) as store:
        store.append(name, b"first", "")
        store.append(name, b"second", "")
        store.truncate(name, 13, "")

        assert (store.info(name, "").begin, store.info(name, "").length) == (13, 27)
        assert store.read(name, 13, 100, "")[8:14] == b"second"
        with pytest.raises(SegmentRefused) as caught:
            store.read(name, 0, 10, "")
    assert caught.value.refusal is Refusal.TRUNCATED


def test_events_as_large_as_any_client_writes_come_as_they_were(controller: Controller, stream: Stream) -> None:
    values = [b"small", b"x" * LARGEST_EVENT, b"", b"y" * 3_000_000]
    write(controller, stream, 0, stream.segment(0), values)

    assert events_of(controller, stream) == values


def test_a_scaled_stream_says_which_segments_follow_which(controller: Controller, stream: Stream) -> None:
    controller.scale(stream, [0], [(0.0, 0.25), (0.25, 0.5)])
    split = {each.segment for each in controller.current(stream)} - {1}
    assert controller.successors(stream, 0) == dict.fromkeys(split, frozenset({0}))
    assert {epoch_of(segment) for segment in split} == {1}

    controller.scale(stream, sorted(split), [(0.0, 0.5)])
    (merged,) = {each.segment for each in controller.current(stream)} - {1}
    assert controller.successors(stream, min(split)) == {merged: frozenset(split)}


def test_keys_are_in_the_segments_where_the_official_client_puts_them(
    pravega_server: Server[str], controller: Controller
) -> None:
    stream = new_stream(pravega_server.endpoint, segments=5)
    # Of other texts it takes other bytes than the Java client does, whose positions tests/test_pravega_routing.py has.
    keys = ["", "a", "customer-17", "x" * 7, "x" * 8, "x" * 9, "ab" * 100]
    keys += [f"key-{number}" for number in range(100)]
    pravega_binding.write(pravega_server.endpoint, stream, [(key, key.encode()) for key in keys])
    ranges = controller.current(stream)
    chosen = routing.segments_of(routing.positions(pa.array(keys)), ranges)

    written = {
        event.decode(): segment for segment, data in contents(controller, stream).items() for event in events_in(data)
    }
    assert {key: ranges[int(at)].segment for key, at in zip(keys, chosen, strict=True)} == written


def test_a_stream_that_is_not_there_is_named(controller: Controller, stream: Stream) -> None:
    with pytest.raises(NoStream, match="getCurrentSegments"):
        controller.current(Stream(stream.scope, "nothing"))
    assert not controller.is_there(Stream("nowhere", "nothing"))


def test_a_controller_that_is_not_there_is_given_up_in_time() -> None:
    (port,) = free_ports(1)
    controller = Controller(Access(f"127.0.0.1:{port}"), patience_s=0.5)
    try:
        with pytest.raises(TargetUnavailable, match=f"127.0.0.1:{port}"):
            controller.is_there(Stream("scope", "stream"))
    finally:
        controller.close()


def test_a_lease_that_the_controller_does_not_allow_is_refused_in_its_words(
    controller: Controller, stream: Stream
) -> None:
    with pytest.raises(TargetUnavailable, match="lease"):
        controller.begin(stream, 100_000_000)
