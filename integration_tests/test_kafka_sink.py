"""KafkaSink on real brokers: what the suite does not know about Kafka."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from integration_tests.topics import TopicUnderTest, close_clients, committed_records, create_topic, transactions
from twophase.errors import (
    Fenced,
    NotCommitted,
    OptionError,
    OutcomeUnknown,
    ReplayDiffers,
    SchemaMismatch,
    TwophaseError,
)
from twophase.identity import Owner
from twophase.sink import Outcome
from twophase.sinks.kafka.producer import Producer
from twophase.sinks.kafka.sink import KafkaSink
from twophase.sinks.kafka.transactional_id import CIRCLE
from twophase.testing.framing import kafka_frames, kafka_request
from twophase.testing.query_steps import QuerySteps
from twophase.testing.servers import kafka
from twophase.testing.servers.ports import free_ports
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps
from twophase.testing.tcp_proxy import Fault, TcpProxy

pytestmark = pytest.mark.servers

END_TXN = 26
RECORDS = pa.table(
    {
        "topic": pa.array([], pa.string()),
        "partition": pa.array([], pa.int32()),
        "key": pa.array([], pa.binary()),
        "value": pa.array([], pa.binary()),
        "headers": pa.array([], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    }
).schema
SHORT_MS = 8_000
"""Long enough for an epoch on a machine that does other things too."""


class ShortTopic(TopicUnderTest):
    """Transactions that time out while a test waits."""

    def sink(self) -> KafkaSink:
        return KafkaSink(
            self.bootstrap, self.topic, transactional_id_prefix=self.prefix, transaction_timeout_ms=SHORT_MS
        )


@pytest.fixture
def target(kafka_server: Server[str]) -> Iterator[TopicUnderTest]:
    target = TopicUnderTest(kafka_server.endpoint)
    yield target
    assert target.residue() == []


@pytest.fixture
def steps(target: TopicUnderTest) -> SinkSteps:
    return SinkSteps(target)


def wait_until_timed_out(target: TopicUnderTest) -> None:
    deadline = time.monotonic() + 90
    while transactions(target.bootstrap, target.prefix, "Ongoing"):
        assert time.monotonic() < deadline, "the broker does not time the transactions out"
        time.sleep(0.1)


def row(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([columns])


def test_a_decided_epoch_survives_kill_9_of_the_broker(steps: SinkSteps, kafka_server: Server[str]) -> None:
    steps.epoch(0, [1], [2])
    order = steps.decided(1, [3], [4])

    kafka_server.kill()
    kafka_server.start()

    assert steps.sink().alive(order) == {}
    assert steps.commit(order) is Outcome.COMMITTED
    assert steps.visible() == [1, 2, 3, 4]
    assert steps.target.residue() == []


def test_a_share_that_timed_out_after_the_decision_is_proven_dead_and_its_neighbour_is_committed(
    kafka_server: Server[str],
) -> None:
    target = ShortTopic(kafka_server.endpoint)
    steps = SinkSteps(target)
    plan = steps.prepare(0)
    early = steps.share(plan, 0, [1])
    wait_until_timed_out(target)
    late = steps.share(plan, 1, [2])
    order = steps.order(plan, early, late)

    assert set(steps.sink().alive(order)) == {0}
    with pytest.raises(NotCommitted) as caught:
        steps.commit(order)
    assert caught.value.dead_slots == (0,)
    assert steps.visible() == [2]

    again = steps.share(steps.prepare(0), 0, [1])
    revised = steps.order(plan, again, late)
    assert steps.commit(revised) is Outcome.COMMITTED
    assert steps.visible() == [1, 2]


def test_markers_are_found_where_all_slots_before_them_have_died(steps: SinkSteps) -> None:
    """Of a first epoch, with more slots than one group of markers has room for."""
    plan = steps.prepare(0)
    places = int(plan.details["markerPartitions"])
    shares = [steps.share(plan, slot, [slot]) for slot in range(places + 2)]
    for share in shares[:places]:
        steps.target.lose(steps.owner, share)
    order = steps.order(plan, *shares)

    with pytest.raises(NotCommitted) as caught:
        steps.commit(order)

    assert caught.value.dead_slots == tuple(range(places))
    assert sorted(steps.sink().status(steps.owner, settled=True).markers) == [places, places + 1]
    assert steps.visible() == [places, places + 1]


def test_attempts_that_lost_are_ended_with_the_epoch(steps: SinkSteps) -> None:
    """Readers of committed records would wait for them."""
    plan = steps.prepare(0)
    winner, loser = steps.share(plan, 0, [1]), steps.share(plan, 0, [1])

    steps.commit(steps.order(plan, winner))

    assert steps.target.residue() == []
    assert steps.visible() == [1]
    assert loser.handle.transactional_id != winner.handle.transactional_id


@pytest.mark.parametrize("version", [0, 2])
def test_the_reply_to_the_end_of_a_transaction_is_lost(tmp_path: Path, version: int) -> None:
    """With the older protocol of transactions, and with the newer one."""
    (port,) = free_ports(1)
    with TcpProxy(port, framing=kafka_frames, reply_framing=kafka_frames) as proxy:
        setup = kafka.Setup(
            client_ports=(port,), advertised_ports=(proxy.port,), features={"transaction.version": version}
        )
        with kafka.on_this_machine(tmp_path, setup) as server:
            steps = SinkSteps(TopicUnderTest(server.endpoint))
            steps.epoch(0, [1], [2])
            order = steps.decided(1, [3], [4])
            lost = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=kafka_request(END_TXN))

            steps.commit(order)

            assert proxy.wait_until_fired(lost).reply != b""
            assert steps.visible() == [1, 2, 3, 4]
            assert steps.commit(order) is Outcome.ALREADY_COMMITTED
            assert steps.visible() == [1, 2, 3, 4]
            assert steps.target.residue() == []


def test_a_record_has_the_time_that_its_row_says(target: TopicUnderTest) -> None:
    steps = SinkSteps(target)
    times = pa.array([1_700_000_000_123, None], pa.timestamp("ms", "UTC"))
    rows = pa.record_batch({"value": pa.array(["1", "2"]), "timestamp": times})
    before_ms = time.time_ns() // 1_000_000
    plan = steps.prepare(0, schema=rows.schema)
    steps.commit(steps.order(plan, steps.write(plan, 0, rows)))
    said, now = (record.timestamp()[1] for record in committed_records(target.bootstrap, target.topic))
    assert said == 1_700_000_000_123
    assert before_ms <= now <= time.time_ns() // 1_000_000


def test_rows_say_their_topic_partition_key_and_headers(target: TopicUnderTest) -> None:
    create_topic(target.bootstrap, f"{target.topic}-other", partitions=3)
    sink = KafkaSink(target.bootstrap, transactional_id_prefix=target.prefix)
    rows = pa.RecordBatch.from_pylist(
        [
            {"topic": f"{target.topic}-other", "partition": 2, "key": b"k", "value": b"0", "headers": None},
            {
                "topic": target.topic,
                "partition": None,
                "key": None,
                "value": b"1",
                "headers": [{"key": "h", "value": b"x"}],
            },
            {"topic": f"{target.topic}-other", "partition": 1, "key": b"", "value": None, "headers": []},
        ],
        schema=RECORDS,
    )
    steps = SinkSteps(_Fixed(target, sink))
    plan = steps.prepare(0, schema=rows.schema)

    steps.commit(steps.order(plan, steps.write(plan, 0, rows)))

    target.residue()
    (one,) = committed_records(target.bootstrap, target.topic)
    assert (one.key(), one.value(), one.headers()) == (None, b"1", [("h", b"x")])
    others = committed_records(target.bootstrap, f"{target.topic}-other")
    assert [(r.partition(), r.key(), r.value()) for r in others] == [(1, b"", None), (2, b"k", b"0")]


class _Fixed(TopicUnderTest):
    """The same target, by another sink."""

    def __init__(self, target: TopicUnderTest, sink: KafkaSink):
        self.__dict__.update(target.__dict__)
        self._sink = sink

    def sink(self) -> KafkaSink:
        return self._sink


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        (row(key="x"), "the column value is missing"),
        (row(value=1), "the column value is int64, and must be text or binary"),
        (row(value=b"x" * 2_000_000), "larger than what is allowed"),
    ],
    ids=["no value", "a number", "too large"],
)
def test_rows_that_are_no_records_are_refused(steps: SinkSteps, batch: pa.RecordBatch, says: str) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        steps.write(steps.prepare(0), 0, batch)
    assert says in str(caught.value)
    assert steps.visible() == []
    assert steps.target.residue() == []


def test_a_timeout_beyond_what_brokers_allow_is_named_with_both_settings(target: TopicUnderTest) -> None:
    sink = KafkaSink(target.bootstrap, target.topic, transaction_timeout_ms=1_000_000)
    with pytest.raises(OptionError) as caught:
        SinkSteps(_Fixed(target, sink)).prepare(0)
    assert "transactionTimeoutMs is 1000000, and the brokers allow 900000" in str(caught.value)


def test_brokers_that_are_not_there_are_named_in_time() -> None:
    (port,) = free_ports(1)
    sink = KafkaSink(f"127.0.0.1:{port}", "orders", request_timeout_ms=2_000)
    began = time.monotonic()
    with pytest.raises(TwophaseError) as caught:
        sink.status(SinkSteps.owner, settled=False)
    assert time.monotonic() - began < 30
    assert "no broker answers" in str(caught.value)


def test_a_commit_that_comes_a_circle_of_generations_too_late_ends_nothing(tmp_path: Path) -> None:
    """By then its transactional ids are those of a task that runs. With the older protocol that task would not notice."""
    with kafka.on_this_machine(tmp_path, kafka.Setup(features={"transaction.version": 0})) as server:
        steps = SinkSteps(TopicUnderTest(server.endpoint))
        old = steps.epoch(0, [1])
        first = old.shares[0].attempt.generation.number
        while steps.generation().number < first + CIRCLE - 1:
            pass
        plan = steps.prepare(1)
        assert plan.prepared.generation.number == first + CIRCLE
        task, batch = steps.task(plan, 0), steps.target.batch([2, 3])
        running = steps.sink().begin(plan, task)
        running.write(batch)

        assert steps.commit(old) is Outcome.ALREADY_COMMITTED
        steps.commit(steps.order(plan, steps.vote(running, task, batch)))

        assert steps.visible() == [1, 2, 3]


def test_a_task_whose_records_fail_while_the_queue_is_full_does_not_hang(target: TopicUnderTest) -> None:
    sink = KafkaSink(
        target.bootstrap,
        transactional_id_prefix=target.prefix,
        kafka={
            "queue.buffering.max.messages": "500",
            "allow.auto.create.topics": "false",
            "topic.metadata.propagation.max.ms": "500",
        },
        request_timeout_ms=20_000,
    )
    steps = SinkSteps(_Fixed(target, sink))
    batch = pa.table({"value": ["x"] * 3000, "topic": [f"{target.topic}-missing"] * 3000}).to_batches()[0]
    plan = steps.prepare(0, schema=batch.schema)
    transaction = sink.begin(plan, steps.task(plan, 0))

    def write_all() -> None:
        for _ in range(3):
            transaction.write(batch)
        transaction.pre_commit()

    began = time.monotonic()
    with pytest.raises(TwophaseError):
        write_all()
    assert time.monotonic() - began < 60
    with suppress(TwophaseError):
        transaction.abort()
    steps.sweep()


def test_a_query_that_pauses_for_longer_than_brokers_keep_offsets_goes_on(tmp_path: Path) -> None:
    """A job that runs once a week, in a minute: the broker really forgets its markers. What was in doubt then stays so."""
    properties = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"}
    with kafka.on_this_machine(tmp_path, kafka.Setup(properties=properties)) as server:
        target, doubtful = TopicUnderTest(server.endpoint), TopicUnderTest(server.endpoint)
        weekly = QuerySteps(tmp_path / "weekly", target)
        weekly.epoch(0, [1], [2])
        unsure = QuerySteps(tmp_path / "unsure", doubtful)
        unsure.epoch(0, [1])
        unsure.log(1)
        unsure.prepare()
        unsure.run([2])
        unsure.commit()  # and Spark dies before it logs that

        deadline = time.monotonic() + 180
        while any(each.sink().status(Owner("query", "sink"), settled=True).markers for each in (target, doubtful)):
            assert time.monotonic() < deadline, "the broker does not forget the markers"
            time.sleep(1)

        weekly.restart().epoch(1, [3])
        assert target.values() == [1, 2, 3]
        with pytest.raises(OutcomeUnknown, match=r"offsets\.retention\.minutes"):
            unsure.restart().finish([2])
        assert doubtful.values() == [1, 2]
        assert target.residue() == doubtful.residue() == []
        close_clients()


def test_a_decided_epoch_is_written_again_after_the_broker_was_down_for_longer_than_the_timeout(
    kafka_server: Server[str], tmp_path: Path
) -> None:
    target = ShortTopic(kafka_server.endpoint)
    query = QuerySteps(tmp_path / "query", target)
    query.epoch(0, [1], [2])
    query.log(1)
    query.decided(tmp_path, [3], [4])
    kafka_server.kill()
    time.sleep(SHORT_MS / 1000 + 1)
    kafka_server.start()
    wait_until_timed_out(target)

    again = query.restart()
    again.finish([3], [4])
    again.epoch(2, [5])
    assert again.findings() == []
    assert again.residue() == []
    assert sorted(target.values()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("slept", ["before the decision", "after the decision"])
def test_a_driver_that_slept_past_the_timeout_while_another_took_over_changes_nothing(
    kafka_server: Server[str], tmp_path: Path, slept: str
) -> None:
    target = ShortTopic(kafka_server.endpoint)
    zombie = QuerySteps(tmp_path / "query", target)
    zombie.epoch(0, [1], [2])
    zombie.log(1)
    order = None
    if slept == "after the decision":
        order = zombie.decided(tmp_path, [3], [4])
    else:
        zombie.prepare()
        zombie.run([3], [4])
    wait_until_timed_out(target)
    heir = zombie.restart()
    heir.finish([3], [4])

    with pytest.raises(Fenced):
        zombie.commit()
    if order is not None:
        with pytest.raises(Fenced):
            target.sink().commit(order)  # the request that it was about to make
    with suppress(Fenced):
        zombie.abort()

    heir.epoch(2, [5])
    assert heir.findings() == []
    assert heir.residue() == []
    assert sorted(target.values()) == [1, 2, 3, 4, 5]


def test_a_driver_that_slept_past_the_timeout_alone_decides_nothing(kafka_server: Server[str], tmp_path: Path) -> None:
    target = ShortTopic(kafka_server.endpoint)
    query = QuerySteps(tmp_path / "query", target)
    query.log(0)
    query.prepare()
    query.run([1], [2])
    wait_until_timed_out(target)

    with pytest.raises(NotCommitted, match=r"has timed out: .* Raise transactionTimeoutMs"):
        query.commit()

    assert target.values() == []
    query.restart().finish([1], [2])
    assert sorted(target.values()) == [1, 2]
    assert query.residue() == []


def test_a_share_that_timed_out_and_comes_back_with_other_rows_stops_the_query(
    kafka_server: Server[str], tmp_path: Path
) -> None:
    """One slot is visible when the other times out: the rows that replace it must be those that were decided."""
    target = ShortTopic(kafka_server.endpoint)
    query = QuerySteps(tmp_path / "query", target)
    query.log(0)
    order = query.decided(tmp_path, [1], [2])
    shown, _ = order.shares
    target.sink().commit(dataclasses.replace(order, shares=(shown,)))
    wait_until_timed_out(target)

    with pytest.raises(ReplayDiffers) as caught:
        query.restart().finish([1], [7])

    assert "slot" in str(caught.value)
    assert target.values() == [1]
    again = query.restart()
    again.finish([1], [2])
    assert sorted(target.values()) == [1, 2]
    assert again.residue() == []


def test_a_broker_that_is_alone_with_settings_for_three_is_told_so(tmp_path: Path) -> None:
    """Without this the first task would wait for a minute, and say that a coordinator is not available."""
    properties = {"transaction.state.log.replication.factor": "3", "transaction.state.log.min.isr": "2"}
    with kafka.on_this_machine(tmp_path, kafka.Setup(properties=properties)) as server:
        with pytest.raises(OptionError) as caught:
            SinkSteps(TopicUnderTest(server.endpoint)).prepare(0)
        close_clients()
    assert "transaction.state.log.replication.factor of the brokers is 3, and there are only 1" in str(caught.value)


def test_a_transaction_begins_at_once_and_not_after_half_a_second(target: TopicUnderTest) -> None:
    """The library looks for a coordinator again after 500 ms, if it has no connection when it looks first."""
    seconds = []
    for number in range(20):
        told = {"bootstrap.servers": target.bootstrap, "transactional.id": f"{target.prefix}/begun-{number % 4}"}
        producer = Producer(told, patience_s=30)
        began = time.monotonic()
        producer.begin(target.topic)
        seconds.append(time.monotonic() - began)
        producer.abort()
        producer.drop()

    assert len([each for each in seconds if each > 0.45]) < 4, seconds
