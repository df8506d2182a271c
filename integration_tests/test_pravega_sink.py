"""PravegaSink, beyond the suite: what other clients read, streams that are scaled, leases, lost replies, what is forgotten."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from integration_tests import pravega_binding
from integration_tests.pravega_streams import (
    StreamUnderTest,
    contents,
    events_in,
    events_of,
    new_stream,
    records,
)
from twophase.clients.pravega.controller import Controller, State
from twophase.clients.pravega.stream import Stream
from twophase.errors import NotCommitted, OptionError, OutcomeUnknown, SchemaMismatch, TargetUnavailable
from twophase.sink import CommitOrder, Outcome
from twophase.sinks.pravega.journal import Intent, Journal
from twophase.sinks.pravega.sink import PravegaSink
from twophase.sinks.pravega.transaction import Pinger
from twophase.testing.query_steps import QuerySteps, dies_at
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps
from twophase.testing.tcp_proxy import Fault, TcpProxy

pytestmark = pytest.mark.servers

_COMMIT = b"\x20" + b"\x80" * 9 + b"\x01"
"""The field of a request that only commitTransaction has: a time that is not given."""
_MERGE = (58).to_bytes(4, "big")


class Keyed(StreamUnderTest):
    """A stream of three segments, with routing keys; an event is `key:number`."""

    def __init__(self, address: str):
        super().__init__(address)
        self.stream = new_stream(address, segments=3)

    def sink(self) -> PravegaSink:
        sink = PravegaSink(
            self.address,
            self.stream.scope,
            self.stream.name,
            routing_key_column="key",
            lease_ms=self._lease_ms,
            request_timeout_ms=20_000,
        )
        # Of one key, and so of one segment, they are: what the checker looks at are all of a task's.
        sink.capabilities = replace(sink.capabilities, ordered=False)
        return sink

    def batch(self, values: Sequence[int]) -> pa.RecordBatch:
        keys = [f"key-{value % 17}" for value in values]
        events = [f"{key}:{value}" for key, value in zip(keys, values, strict=True)]
        return pa.record_batch([pa.array(events, pa.string()), pa.array(keys, pa.string())], names=["value", "key"])

    def read(self) -> Sequence[dict[str, Any]]:
        return [{"value": int(event.partition(b":")[2])} for event in events_of(self.controller, self.stream)]


@pytest.fixture
def target(pravega_server: Server[str]) -> Keyed:
    return Keyed(pravega_server.endpoint)


@pytest.fixture
def steps(target: Keyed) -> SinkSteps:
    return SinkSteps(target)


@pytest.fixture
def query(target: Keyed, tmp_path: Path) -> QuerySteps:
    return QuerySteps(tmp_path / "checkpoint", target)


def scale(controller: Controller, stream: Stream, segments: int) -> None:
    now = [each.segment for each in controller.current(stream)]
    controller.scale(stream, now, [(at / segments, (at + 1) / segments) for at in range(segments)])


# ---- readers ----


def test_the_official_client_reads_exactly_what_was_committed(query: QuerySteps, target: Keyed) -> None:
    query.epoch(0, list(range(200)), list(range(200, 400)), [])
    query.log(1)
    query.prepare()
    query.run([900], [901])  # and then its driver dies
    query.restart().finish(list(range(400, 500)), [500])

    read = pravega_binding.read(target.address, target.stream, at_least=501)
    assert sorted(int(event.partition(b":")[2]) for event in read) == list(range(501))
    assert query.restart().findings() == []


def test_events_of_one_key_are_in_one_segment_in_their_order(steps: SinkSteps, target: Keyed) -> None:
    steps.epoch(0, list(range(1000)))
    steps.epoch(1, list(range(1000, 2000)))

    by_key: dict[bytes, list[tuple[int, int]]] = {}
    for segment, data in contents(target.controller, target.stream).items():
        for event in events_in(data):
            key, _, number = event.partition(b":")
            by_key.setdefault(key, []).append((segment, int(number)))
    assert len(by_key) == 17
    for places in by_key.values():
        assert len({segment for segment, _ in places}) == 1
        assert [number for _, number in places] == sorted(number for _, number in places)


def test_events_without_keys_go_to_all_segments(pravega_server: Server[str]) -> None:
    target = StreamUnderTest(pravega_server.endpoint)
    target.stream = new_stream(pravega_server.endpoint, segments=3)
    SinkSteps(target).epoch(0, list(range(3000)))

    sizes = [len(events_in(data)) for data in contents(target.controller, target.stream).values()]
    assert sum(sizes) == 3000
    assert min(sizes) > 500


# ---- streams that are scaled ----


def test_a_stream_that_is_scaled_between_epochs_is_followed(query: QuerySteps, target: Keyed) -> None:
    query.epoch(0, [1, 2, 3], [4])
    scale(target.controller, target.stream, 4)
    query.epoch(1, [5, 6], [7])
    scale(target.controller, target.stream, 3)
    query.epoch(2, [8], [9])

    assert (query.findings(), query.residue()) == ([], [])


@pytest.mark.parametrize("when", ["voted", "decided"])
def test_a_stream_that_is_scaled_while_transactions_are_open_takes_them(
    query: QuerySteps, target: Keyed, tmp_path: Path, when: str
) -> None:
    query.epoch(0, [1, 2])
    query.log(1)
    query.prepare()
    query.run([3, 4], [5, 6])
    if when == "decided":
        with dies_at(tmp_path, "decide.published"):
            query.commit()
    scale(target.controller, target.stream, 4)
    if when == "decided":
        query = query.restart()
        query.prepare()
        query.run([3, 4], [5, 6])
    query.commit()
    query.log_commit()
    query.epoch(2, [7])

    assert (query.findings(), query.residue()) == ([], [])
    assert sorted(target.values()) == [1, 2, 3, 4, 5, 6, 7]


def test_an_epoch_whose_tasks_began_before_and_after_a_scaling_is_not_decided(query: QuerySteps, target: Keyed) -> None:
    query.log(0)
    query.prepare()
    query.observed.written[0] = [[1], [2]]
    first = query.task(0, target.batch([1]))
    scale(target.controller, target.stream, 4)
    query.votes = [first, query.task(1, target.batch([2]))]
    with pytest.raises(NotCommitted, match="scaled"):
        query.commit()
    tail = query.tail()
    assert tail is not None
    assert tail.decision is None
    query.abort()

    query.finish([1], [2])
    assert (query.findings(), query.residue()) == ([], [])


# ---- merging ----


@pytest.mark.parametrize("hit", [1, 2])
def test_a_driver_that_dies_between_two_merges_leaves_nothing(query: QuerySteps, tmp_path: Path, hit: int) -> None:
    query.epoch(0, [1])
    query.log(1)
    query.prepare()
    query.run([2, 3], [4], [5, 6])
    with dies_at(tmp_path, "pravega.merged", hit):
        query.commit()
    again = query.restart()
    again.finish([2, 3], [4], [5, 6])

    assert (again.findings(), again.residue()) == ([], [])


def test_a_commit_that_is_tried_again_after_half_of_a_merge_goes_on_where_it_was(
    query: QuerySteps, tmp_path: Path
) -> None:
    """Spark's second try: the same votes of the same generation."""
    query.log(0)
    query.prepare()
    query.run([1, 2], [3], [4])
    with dies_at(tmp_path, "pravega.merged"):
        query.commit()
    query.commit()

    assert (query.findings(), query.residue()) == ([], [])


def test_a_share_that_is_lost_between_two_merges_is_named_and_all_is_written_again(
    steps: SinkSteps, target: Keyed, tmp_path: Path
) -> None:
    order = steps.decided(0, [1, 2, 3], [4, 5, 6], [7, 8, 9])
    with dies_at(tmp_path, "pravega.merged"):
        steps.commit(order)
    target.lose(steps.owner, order.shares[2])
    with pytest.raises(NotCommitted, match="lost"):
        steps.commit(order)
    assert steps.visible() == []
    steps.sweep()
    assert list(target.residue()) == []

    steps.epoch(0, [1, 2, 3], [4, 5, 6], [7, 8, 9])
    assert steps.visible() == list(range(1, 10))


# ---- the journal ----


def test_the_journal_is_as_long_as_one_epoch_however_many_there_were(steps: SinkSteps, target: Keyed) -> None:
    lengths = []
    for number in range(8):
        steps.epoch(number, [2 * number], [2 * number + 1])
        journal = Journal(target.controller, target.stream, steps.owner)
        lengths.append(len(records(target.controller, journal.stream)))

    assert lengths == [1] * 8


def test_a_marker_that_was_not_settled_is_settled_by_the_next_generation(
    steps: SinkSteps, target: Keyed, tmp_path: Path
) -> None:
    order = steps.decided(0, [1], [2])
    with dies_at(tmp_path, "pravega.committed"):
        steps.commit(order)
    journal = Journal(target.controller, target.stream, steps.owner)
    kinds = [record["kind"] for record in records(target.controller, journal.stream)]
    assert kinds == ["begun", "begun", "merging", "intended"]
    assert steps.marker(settled=True) == order.marker

    steps.prepare(1)
    assert [record["kind"] for record in records(target.controller, journal.stream)] == ["settled"]
    assert steps.marker(settled=True) == order.marker
    assert steps.commit(order) is Outcome.ALREADY_COMMITTED


# ---- leases ----


@pytest.fixture
def nobody_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the process of every task had ended after its vote."""
    monkeypatch.setattr(Pinger, "voted", Pinger.stop)


def expired(target: Keyed, order: CommitOrder[Any]) -> None:
    names = [share.handle.transaction for share in order.shares]
    deadline = time.monotonic() + 60
    while {*target.controller.states(target.stream, names).values()} != {State.ABORTED}:
        assert time.monotonic() < deadline, "the lease does not end"
        time.sleep(0.2)


@pytest.mark.usefixtures("nobody_pings")
def test_leases_that_end_before_and_after_the_decision_lose_nothing(
    query: QuerySteps, target: Keyed, tmp_path: Path
) -> None:
    """Before it, nothing is decided; after it, the target proves the epoch dead. Both times it is written again."""
    target._lease_ms = 10_000
    query.log(0)
    query.prepare()
    query.run([1], [2])
    late = [vote.share.read(PravegaSink.handle_type) for vote in query.votes if vote and vote.share]
    voted = time.monotonic()
    again = query.restart()
    again.decided(tmp_path, [1], [2])
    order = again.newest_order()
    expired(target, order)
    expired(target, replace(order, shares=tuple(late)))
    assert time.monotonic() - voted > 8

    last = query.restart()
    last.finish([1], [2])
    tail = last.tail()
    assert tail is not None
    assert tail.decision is not None
    assert tail.decision.revision == 1
    assert (last.findings(), last.residue()) == ([], [])


@pytest.mark.usefixtures("nobody_pings")
def test_a_share_whose_lease_is_over_is_not_decided_and_the_option_is_named(query: QuerySteps, target: Keyed) -> None:
    target._lease_ms = 10_000
    query.log(0)
    query.prepare()
    query.run([1], [2])
    shares = tuple(vote.share.read(PravegaSink.handle_type) for vote in query.votes if vote and vote.share)
    deadline = time.monotonic() + 60
    names = [str(share.handle.transaction) for share in shares]
    while State.OPEN in target.controller.states(target.stream, names).values():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    with pytest.raises(NotCommitted, match="leaseMs"):
        query.commit()
    tail = query.tail()
    assert tail is not None
    assert tail.decision is None


def test_a_share_is_pinged_for_as_long_as_its_process_lives(steps: SinkSteps, target: Keyed) -> None:
    target._lease_ms = 10_000
    order = steps.decided(0, [1], [2])
    time.sleep(16)

    assert steps.sink().alive(order) == {}
    assert steps.commit(order) is Outcome.COMMITTED
    assert steps.visible() == [1, 2]


# ---- lost replies ----


def test_a_commit_whose_reply_is_lost_is_found_out(target: Keyed, steps: SinkSteps) -> None:
    order = steps.decided(0, [1], [2])
    with TcpProxy(int(target.address.rpartition(":")[2])) as proxy:
        through = PravegaSink(
            f"127.0.0.1:{proxy.port}",
            target.stream.scope,
            target.stream.name,
            routing_key_column="key",
            request_timeout_ms=20_000,
        )
        lost = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=lambda data: _COMMIT in data)
        assert through.commit(order) is Outcome.COMMITTED
        proxy.wait_until_fired(lost)

    assert steps.visible() == [1, 2]
    assert steps.commit(order) is Outcome.ALREADY_COMMITTED
    assert list(target.residue()) == []


def test_a_merge_whose_reply_is_lost_is_done_once(
    target: Keyed, steps: SinkSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = steps.decided(0, list(range(100)), list(range(100, 200)), list(range(200, 300)))
    host, port = target.controller.node(target.stream, 0)
    with TcpProxy(port) as proxy, monkeypatch.context() as patch:
        patch.setattr(Controller, "node", lambda *_: (host, proxy.port))
        lost = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=lambda data: data.startswith(_MERGE), occurrence=2)
        with pytest.raises(TargetUnavailable, match="connection"):
            steps.commit(order)
        proxy.wait_until_fired(lost)
    assert steps.commit(order) is Outcome.COMMITTED
    assert steps.visible() == list(range(300))


# ---- what is forgotten ----


@pytest.mark.parametrize("verb", ["commit", "status"])
def test_a_transaction_that_was_forgotten_within_a_commit_stops_the_query(
    steps: SinkSteps, target: Keyed, verb: str
) -> None:
    """The controller says of one that it has forgotten what it says of one that never was."""
    steps.epoch(0, [1])
    order = steps.decided(1, [2], [3])
    journal = Journal(target.controller, target.stream, steps.owner)
    history = journal.read()
    assert history is not None
    assert journal.intend(history, Intent(order.marker, "0" * 8 + "f" * 24))

    with pytest.raises(OutcomeUnknown, match=r"controller\.transaction\.ttl\.hours.*look for its events by hand"):
        steps.commit(order) if verb == "commit" else steps.marker(settled=True)
    assert steps.visible() == [1]
    assert steps.marker() == order.origin


def test_a_marker_that_is_settled_needs_no_transaction_that_is_remembered(steps: SinkSteps, target: Keyed) -> None:
    order = steps.epoch(0, [1], [2])
    journal = Journal(target.controller, target.stream, steps.owner)
    (settled,) = records(target.controller, journal.stream)

    assert (settled["kind"], settled["open"], settled["merging"]) == ("settled", [], {})
    assert steps.marker(settled=True) == order.marker


# ---- refusals ----


def test_rows_that_are_no_events_are_refused(steps: SinkSteps) -> None:
    plan = steps.prepare(0)
    key = pa.array(["a"])
    for batch, said in (
        (pa.record_batch([pa.array([1]), key], names=["value", "key"]), "value is int64"),
        (pa.record_batch([pa.array(["x"]), pa.array([1])], names=["value", "key"]), "key is int64"),
        (pa.record_batch([key], names=["key"]), "value is missing"),
        (pa.record_batch([pa.array([None], pa.string()), key], names=["value", "key"]), "value is null"),
        (pa.record_batch([key, pa.array([None], pa.string())], names=["value", "key"]), "no routing key"),
    ):
        with pytest.raises(SchemaMismatch, match=said):
            steps.write(plan, 0, batch)
    with pytest.raises(SchemaMismatch, match="key is missing"):
        steps.prepare(0, schema=pa.schema([("value", pa.string())]))


def test_a_stream_that_is_not_there_is_created_only_if_it_should_be(target: Keyed) -> None:
    steps = SinkSteps(target)
    target.stream = Stream(target.stream.scope, "not-there")
    with pytest.raises(TargetUnavailable, match="createStream"):
        steps.prepare(0)


def test_wrong_options_are_all_named() -> None:
    with pytest.raises(OptionError) as caught:
        PravegaSink.from_options(
            {"controller": "nowhere", "scope": "a/b", "stream": "_x", "user": "me", "leaseMs": "20000"}
        )
    assert len(caught.value.problems) == 4


def test_counts_of_events_are_those_of_rows(steps: SinkSteps, target: Keyed) -> None:
    steps.epoch(0, [7, 7, 7], [7])

    assert Counter(target.values()) == {7: 4}
