"""Record batches of our own on a real broker: what consumers that know nothing of them read, and what brokers refuse."""

from __future__ import annotations

import time
import uuid

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from integration_tests.topics import TopicUnderTest, committed_records
from twophase.clients.kafka.connections import control_of
from twophase.clients.kafka.control import End, Ending
from twophase.clients.kafka.record_batches import BatchForm
from twophase.clients.kafka.rows import NO_TIME, Rows
from twophase.clients.kafka.settings import for_librdkafka
from twophase.errors import Fenced, SchemaMismatch, TargetUnavailable
from twophase.options import PassThrough
from twophase.sinks.kafka.direct_producer import DirectProducer
from twophase.sinks.kafka.producer import Producer
from twophase.sinks.kafka.sink import KafkaSink
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps

pytestmark = pytest.mark.servers

PATIENCE_S = 20.0
TIMEOUT_MS = 60_000


class Topic:
    """A new one, and producers for it."""

    def __init__(self, bootstrap: str, partitions: int = 3, **settings: str):
        self.bootstrap, self.name = bootstrap, f"batches-{uuid.uuid4().hex}"
        self.control = control_of(PassThrough({"bootstrap.servers": bootstrap}), patience_s=PATIENCE_S)
        told = {name.replace("_", "."): value for name, value in settings.items()}
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            new = NewTopic(self.name, num_partitions=partitions, config=told)
            admin.create_topics([new])[self.name].result(30)

    def producer(self, transactional_id: str, **settings: str) -> DirectProducer:
        told = {name.replace("_", "."): value for name, value in settings.items()}
        form = BatchForm.of(for_librdkafka({"bootstrap.servers": self.bootstrap, **told}))
        assert form is not None, "these tests need twophase to be installed where there is a C compiler"
        return DirectProducer(self.control, form, transactional_id, timeout_ms=TIMEOUT_MS, end_version=5)

    def commit(self, transactional_id: str, producer: DirectProducer) -> End:
        producer.flush()
        identity = producer.identify()
        producer.drop()
        ending = Ending(transactional_id, identity.producer_id, identity.producer_epoch, 5)
        (end,) = self.control.end([ending], commit=True)
        return end

    def values(self) -> list[bytes | None]:
        return [record.value() for record in committed_records(self.bootstrap, self.name)]


@pytest.fixture
def topic(kafka_server: Server[str]) -> Topic:
    return Topic(kafka_server.endpoint)


@pytest.fixture
def name() -> str:
    return f"batches-{uuid.uuid4().hex}"


@pytest.mark.parametrize("batch_size", ["50000", "500000"])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_consumers_read_what_was_written_however_it_is_compressed(
    topic: Topic, name: str, compression: str, batch_size: str
) -> None:
    producer = topic.producer(name, compression_type=compression, batch_size=batch_size)
    producer.begin(topic.name)
    wanted = [f"{number:06} " * 20 for number in range(20_000)]
    for start in range(0, len(wanted), 3_000):
        some = wanted[start : start + 3_000]
        keys = pa.array([text[:3] for text in some])
        producer.produce(topic.name, Rows(pa.array(some), keys))
    assert topic.commit(name, producer) is End.DONE
    by_key: dict[bytes, list[bytes]] = {}
    for record in committed_records(topic.bootstrap, topic.name):
        value, key = record.value(), record.key()
        assert value is not None
        assert key is not None
        by_key.setdefault(bytes(key), []).append(bytes(value))
    assert sorted(value.decode() for values in by_key.values() for value in values) == wanted
    assert all(values == sorted(values) for values in by_key.values()), "a key's records are not in their order"


def test_a_key_goes_where_the_other_client_puts_it(topic: Topic, name: str) -> None:
    keys = [f"customer {number}" * (number % 4) for number in range(500)]
    rows = Rows(pa.array(["x"] * len(keys)), pa.array(keys))
    direct = topic.producer(name)
    direct.begin(topic.name)
    direct.produce(topic.name, rows)
    assert topic.commit(name, direct) is End.DONE
    other = Producer(for_librdkafka({"bootstrap.servers": topic.bootstrap}), patience_s=PATIENCE_S)
    other.produce(topic.name, rows)
    other.flush()
    other.drop()
    places: dict[bytes, set[int | None]] = {}
    for record in committed_records(topic.bootstrap, topic.name):
        places.setdefault(bytes(record.key() or b""), set()).add(record.partition())
    assert len(places) == len(set(keys))
    assert all(len(found) == 1 for found in places.values())


def test_headers_times_and_partitions_come_through(topic: Topic, name: str) -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    rows = Rows(
        values=pa.array(["a", None, ""]),
        keys=pa.array([None, b"k", b""], pa.binary()),
        partitions=np.array([2, 0, -1], np.int32),
        headers=pa.array([[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, []], headers),
        times=np.array([1_700_000_000_123, NO_TIME, 0], np.int64),
    )
    producer = topic.producer(name)
    producer.begin(topic.name)
    before_ms = time.time_ns() // 1_000_000
    producer.produce(topic.name, rows)
    assert topic.commit(name, producer) is End.DONE
    found = {record.value(): record for record in committed_records(topic.bootstrap, topic.name)}
    assert found.keys() == {b"a", None, b""}
    assert (found[b"a"].partition(), found[b"a"].key(), found[b"a"].timestamp()[1]) == (2, None, 1_700_000_000_123)
    assert found[b"a"].headers() == [("h", b"1"), ("h", None)]
    assert (found[None].partition(), found[None].key(), found[None].headers()) == (0, b"k", None)
    assert found[None].timestamp()[1] >= before_ms
    assert (found[b""].key(), found[b""].timestamp()[1]) == (b"", 0)


def test_a_batch_that_is_too_large_for_the_topic_is_sent_in_pieces(kafka_server: Server[str], name: str) -> None:
    topic = Topic(kafka_server.endpoint, 2, max_message_bytes="5000")
    producer = topic.producer(name)
    producer.begin(topic.name)
    wanted = [f"{number:04}" * 25 for number in range(2_000)]
    for start in range(0, len(wanted), 500):
        producer.produce(topic.name, Rows(pa.array(wanted[start : start + 500])))
    assert topic.commit(name, producer) is End.DONE
    assert sorted(value.decode() for value in topic.values() if value is not None) == wanted


def test_a_record_that_is_too_large_for_the_topic_is_refused_by_its_size(kafka_server: Server[str], name: str) -> None:
    topic = Topic(kafka_server.endpoint, 1, max_message_bytes="5000")
    producer = topic.producer(name)
    producer.begin(topic.name)
    producer.produce(topic.name, Rows(pa.array(["small", "x" * 9_000])))
    with pytest.raises(SchemaMismatch, match=r"a record of 9,0.. bytes: larger than what is allowed"):
        producer.flush()
    producer.abort()
    assert topic.values() == []


def test_a_record_that_is_larger_than_a_request_may_be_is_refused_before_it_is_sent(topic: Topic, name: str) -> None:
    producer = topic.producer(name, max_request_size="5000")
    producer.begin(topic.name)
    producer.produce(topic.name, Rows(pa.array(["x" * 4_000] * 3)))
    producer.flush()
    producer.produce(topic.name, Rows(pa.array(["small", "x" * 9_000])))
    with pytest.raises(SchemaMismatch, match=r"a record of 9,0.. bytes: .* kafka.max.request.size if it is set"):
        producer.flush()
    producer.abort()
    assert topic.values() == []


def test_a_time_that_the_topic_does_not_take_is_refused_by_the_columns_name(
    kafka_server: Server[str], name: str
) -> None:
    topic = Topic(kafka_server.endpoint, 1, message_timestamp_before_max_ms="1000")
    producer = topic.producer(name)
    producer.begin(topic.name)
    producer.produce(topic.name, Rows(pa.array(["old"]), times=np.array([86_400_000])))
    with pytest.raises(TargetUnavailable, match=r"the column timestamp.*message.timestamp.before.max.ms"):
        producer.flush()
    producer.abort()
    assert topic.values() == []


def test_a_record_without_a_key_in_a_compacted_topic_is_refused_by_the_columns_name(
    kafka_server: Server[str], name: str
) -> None:
    topic = Topic(kafka_server.endpoint, 1, cleanup_policy="compact")
    producer = topic.producer(name)
    producer.begin(topic.name)
    producer.produce(topic.name, Rows(pa.array(["x"])))
    with pytest.raises(TargetUnavailable, match="compacted needs the column key"):
        producer.flush()
    producer.abort()
    assert topic.values() == []


def test_a_partition_that_is_not_there_is_named(topic: Topic, name: str) -> None:
    producer = topic.producer(name)
    producer.begin(topic.name)
    producer.produce(topic.name, Rows(pa.array(["x"]), partitions=np.array([3], np.int32)))
    with pytest.raises(TargetUnavailable, match=r"no such partition.*partition 3 of 3"):
        producer.flush()
    producer.abort()


def test_a_topic_that_gets_more_partitions_meanwhile_takes_a_tasks_rows_where_it_took_the_first(
    topic: Topic, name: str
) -> None:
    producer = topic.producer(name)
    producer.begin(topic.name)
    producer.produce(topic.name, Rows(pa.array(["x"] * 100), pa.array([str(number) for number in range(100)])))
    producer.flush()
    with AdminClient({"bootstrap.servers": topic.bootstrap}) as admin:
        admin.create_partitions([NewPartitions(topic.name, 9)])[topic.name].result(30)
    deadline = time.monotonic() + PATIENCE_S
    while topic.control.partitions_of(topic.name) != 9:
        assert time.monotonic() < deadline, "the topic has not got its partitions"
        time.sleep(0.1)
    producer._client._leaders.clear()  # as after a leader that has moved
    for _ in range(12):
        producer.produce(topic.name, Rows(pa.array(["y" * 100_000])))
        producer.flush()
    assert topic.commit(name, producer) is End.DONE
    found = [(record.value(), record.partition()) for record in committed_records(topic.bootstrap, topic.name)]
    assert len(found) == 112
    assert {partition for _, partition in found} == {0, 1, 2}


def test_a_producer_whose_id_another_has_taken_is_fenced_and_leaves_nothing(topic: Topic, name: str) -> None:
    first, second = topic.producer(name), topic.producer(name)
    first.begin(topic.name)
    first.produce(topic.name, Rows(pa.array(["first"])))
    first.flush()
    second.begin(topic.name)
    first.produce(topic.name, Rows(pa.array(["late"])))
    with pytest.raises(Fenced):
        first.flush()
    first.drop()
    second.produce(topic.name, Rows(pa.array(["second"])))
    assert topic.commit(name, second) is End.DONE
    assert topic.values() == [b"second"]


def test_a_transaction_that_is_aborted_shows_nothing_and_one_without_records_can_be(topic: Topic, name: str) -> None:
    for rows in (["x"] * 1000, []):
        producer = topic.producer(name)
        producer.begin(topic.name)
        if rows:
            producer.produce(topic.name, Rows(pa.array(rows)))
            producer.flush()
        producer.abort()
        producer.drop()
    assert topic.values() == []


def test_the_sink_leaves_settings_that_only_librdkafka_has_to_it(kafka_server: Server[str]) -> None:
    """And so it works where there was no compiler."""
    target = TopicUnderTest(kafka_server.endpoint)
    sink = KafkaSink(
        target.bootstrap,
        target.topic,
        transactional_id_prefix=target.prefix,
        kafka={"queue.buffering.max.messages": "5000"},
    )
    steps = SinkSteps(target)
    plan = steps.prepare(0)
    task = steps.task(plan, 0)
    transaction = sink.begin(plan, task)
    assert isinstance(transaction._producer, Producer)
    batch = target.batch([1, 2, 3])
    transaction.write(batch)
    steps.commit(steps.order(plan, steps.vote(transaction, task, batch)))
    assert steps.visible() == [1, 2, 3]
