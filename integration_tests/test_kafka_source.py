"""`twophase-kafka` for reading, on a real broker: what the suite does not know about Kafka, and Spark on top of it."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from kafka import KafkaAdminClient, TopicPartition  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from examples import kafka_to_kafka
from integration_tests.streams import failure_of, run
from integration_tests.topics import committed_records, create_topic, producer_in_order
from twophase.clients.kafka.control import ControlClient
from twophase.clients.kafka.partition import LATEST, Partition
from twophase.errors import DataLost, OptionError, TargetUnavailable
from twophase.sources import KafkaSource
from twophase.sources.kafka import columns
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers

IMPATIENT_MS = 2_000
"""For what never comes back: a loss is told when patience is over, since a leader that lags looks the same."""


class Topic:
    """A topic with some partitions, and what was put into it."""

    def __init__(self, bootstrap: str, partitions: int = 2, config: dict[str, str] | None = None):
        self.bootstrap, self.name = bootstrap, f"orders-{uuid.uuid4().hex}"
        create_topic(bootstrap, self.name, partitions, config)

    def add(self, values: Sequence[bytes], *, partition: int = 0, **more: Any) -> None:
        producer = producer_in_order(self.bootstrap, **{"linger.ms": 5})
        for value in values:
            producer.produce(self.name, value, partition=partition, **more)
        assert producer.flush(30) == 0

    def delete_before(self, offset: int, *, partition: int = 0) -> None:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.delete_records({TopicPartition(self.name, partition): offset})
        finally:
            admin.close()

    def delete(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([self.name])[self.name].result(30)

    def make_anew(self, partitions: int = 2) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        deadline = time.monotonic() + 30
        while self.name in admin.list_topics(timeout=30).topics:
            assert time.monotonic() < deadline, "the topic is not deleted"
            time.sleep(0.1)
        create_topic(self.bootstrap, self.name, partitions)

    def source(self, **options: Any) -> KafkaSource:
        told = {"starting_offsets": "earliest", "request_timeout_ms": 20_000, **options}
        return KafkaSource(self.bootstrap, self.name, **told)


@pytest.fixture
def topic(kafka_server: Server[str]) -> Topic:
    return Topic(kafka_server.endpoint)


def rows_of(source: KafkaSource, start: str | None = None, end: str | None = None) -> list[dict[str, Any]]:
    start, end = start or source.earliest(), end or source.newest()
    return [row for split in source.plan(start, end) for batch in source.read(split) for row in batch.to_pylist()]


def values_of(*arguments: Any) -> list[bytes]:
    return [row["value"] for row in rows_of(*arguments)]


# ---- records ----


def test_a_record_has_the_columns_of_sparks_own_source(topic: Topic) -> None:
    topic.add([b"value"], partition=1, key=b"key", timestamp=1_700_000_000_123, headers=[("h", b"1"), ("h", None)])
    (row,) = rows_of(topic.source(include_headers=True))
    assert row.pop("timestamp").timestamp() == 1_700_000_000.123
    assert row == {
        "key": b"key",
        "value": b"value",
        "topic": topic.name,
        "partition": 1,
        "offset": 0,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_times_are_where_they_are_looked_for(
    kafka_server: Server[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """In the structures of the library that is installed: otherwise it is asked for the time of every record, and that is slow."""
    asked: list[int] = []
    time_of = columns._time

    def noted(pointer: int) -> tuple[int, int]:
        asked.append(pointer)
        return time_of(pointer)

    monkeypatch.setattr(columns, "_time", noted)
    topic = Topic(kafka_server.endpoint, config={"message.timestamp.type": kind})
    topic.add([b"value"] * 1000, timestamp=1_700_000_000_123)
    rows = rows_of(topic.source())
    assert {row["timestampType"] for row in rows} == {["CreateTime", "LogAppendTime"].index(kind)}
    assert ({row["timestamp"].timestamp() for row in rows} == {1_700_000_000.123}) == (kind == "CreateTime")
    assert len(rows) == 1000
    assert len(asked) < 100


def test_nulls_and_empty_values_and_large_ones_come_back_as_they_are(topic: Topic) -> None:
    values = [b"", None, b"x" * 12, b"y" * 13, b"z" * 900_000]
    producer = producer_in_order(topic.bootstrap)
    for value in values:
        producer.produce(topic.name, value, key=value[:20] if value else value, partition=0)
    assert producer.flush(30) == 0
    rows = rows_of(topic.source(include_headers=True))
    assert [row["value"] for row in rows] == values
    assert [row["key"] for row in rows] == [value[:20] if value else value for value in values]
    assert {tuple(row["headers"] or ()) for row in rows} == {()}


def test_a_hundred_thousand_records_come_in_their_order(topic: Topic) -> None:
    """Many fetches, several batches, and keys and values of many lengths."""
    count = 100_000
    producer = producer_in_order(topic.bootstrap, **{"linger.ms": 20, "compression.type": "lz4"})
    for number in range(count):
        producer.produce(topic.name, b"v" * (number % 60) + b"%d" % number, key=b"%d" % number, partition=0)
        producer.poll(0)
    assert producer.flush(60) == 0
    rows = rows_of(topic.source())
    assert [row["offset"] for row in rows] == list(range(count))
    assert [int(row["key"]) for row in rows] == list(range(count))
    assert all(row["value"] == b"v" * (number % 60) + b"%d" % number for number, row in enumerate(rows))


def test_what_is_in_a_transaction_that_is_open_or_aborted_is_not_there(topic: Topic) -> None:
    topic.add([b"before"])
    producer = Producer({"bootstrap.servers": topic.bootstrap, "transactional.id": uuid.uuid4().hex, "linger.ms": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b"open", partition=0)
    producer.flush(30)
    topic.add([b"after"])
    source = topic.source()
    start, end = source.earliest(), source.newest()
    assert json.loads(end)[topic.name]["0"] == 1, "the last stable offset is before the open transaction"
    assert values_of(source) == [b"before"]
    assert values_of(topic.source(kafka={"isolation.level": "read_uncommitted"})) == [b"before", b"open", b"after"]
    producer.abort_transaction(30)
    assert values_of(source, start, end) == [b"before"]
    assert values_of(source, end) == [b"after"]
    assert values_of(source) == [b"before", b"after"]


# ---- where it begins ----


def test_the_beginning_may_be_said_by_offset_or_by_time(topic: Topic) -> None:
    for number in range(5):
        topic.add([b"%d" % number], timestamp=1_700_000_000_000 + number * 1000)
    topic.add([b"other"], partition=1, timestamp=1_600_000_000_000)
    said = json.dumps({topic.name: {"0": 2, "1": -1}})
    assert values_of(topic.source(starting_offsets=said)) == [b"2", b"3", b"4"]
    by_time = topic.source(starting_offsets=None, starting_timestamp=1_700_000_003_000)
    assert values_of(by_time) == [b"3", b"4"]
    assert values_of(topic.source(starting_offsets="Latest", starting_timestamp=1_700_000_003_000)) == [b"3", b"4"]
    assert len(values_of(topic.source(starting_offsets="EARLIEST"))) == 6
    with pytest.raises(OptionError, match=r"no offset of topic .*, partition 1"):
        topic.source(starting_offsets=json.dumps({topic.name: {"0": 2}})).earliest()


def test_topics_by_pattern_and_partitions_by_name(kafka_server: Server[str]) -> None:
    one, other = Topic(kafka_server.endpoint), Topic(kafka_server.endpoint)
    one.add([b"one"], partition=1)
    other.add([b"other"])
    both = KafkaSource(one.bootstrap, subscribe_pattern=f"({one.name}|{other.name})", starting_offsets="earliest")
    assert sorted(values_of(both)) == [b"one", b"other"]
    assigned = KafkaSource(
        one.bootstrap, assign=json.dumps({one.name: [1], other.name: [1]}), starting_offsets="earliest"
    )
    assert values_of(assigned) == [b"one"]
    with pytest.raises(TargetUnavailable, match="there is no topic 'nowhere'"):
        KafkaSource(one.bootstrap, f"{one.name},nowhere").newest()


def test_a_partition_that_was_assigned_and_is_not_there_is_named(topic: Topic) -> None:
    topic.add([b"there"])
    source = KafkaSource(topic.bootstrap, assign=json.dumps({topic.name: [0, 7]}), starting_offsets="earliest")
    named = f"assign has topic {topic.name!r}, partition 7, which is not there"
    for begin in (source.earliest, source.bounded):
        with pytest.raises(OptionError, match=named):
            begin()
    begun = json.dumps({topic.name: {"0": 0}})
    with pytest.raises(OptionError, match=named):
        source.latest(begun)


def test_a_partition_that_was_assigned_and_read_and_is_gone_is_a_loss(topic: Topic) -> None:
    told: dict[str, Any] = {"assign": json.dumps({topic.name: [0, 1]}), "starting_offsets": "earliest"}
    source = KafkaSource(topic.bootstrap, **told)
    lax = KafkaSource(topic.bootstrap, **told, fail_on_data_loss=False)
    begun = source.earliest()
    topic.delete()
    topic.make_anew(partitions=1)
    topic.add([b"new"])
    with pytest.raises(DataLost, match=f"topic {topic.name!r}, partition 1 is gone"):
        source.latest(begun)
    gone_on = lax.latest(begun)
    assert values_of(lax, begun, gone_on) == [b"new"]
    # The partition is not in what was logged now, and must not stop the next epoch.
    assert lax.latest(gone_on) == gone_on


def test_new_partitions_are_found_and_read_from_their_beginning(topic: Topic) -> None:
    topic.add([b"old"])
    source = topic.source(starting_offsets="latest")
    start = source.earliest()
    admin = AdminClient({"bootstrap.servers": topic.bootstrap})
    admin.create_partitions([NewPartitions(topic.name, 3)])[topic.name].result(30)
    topic.add([b"new", b"newer"], partition=2)
    topic.add([b"old, later"])
    assert sorted(values_of(source, start, source.latest(start))) == [b"new", b"newer", b"old, later"]


# ---- what is gone ----


def test_what_is_gone_is_named_or_left_out_if_that_is_wanted(topic: Topic) -> None:
    topic.add([b"%d" % number for number in range(10)])
    topic.add([b"other"], partition=1)
    source, lax = topic.source(), topic.source(fail_on_data_loss=False)
    start, end = source.earliest(), source.newest()
    splits = source.plan(start, end)
    topic.delete_before(4)

    lost = f"topic {topic.name!r}, partition 0"
    with pytest.raises(DataLost, match=f"{lost}: the offsets 0 to 9 are to be read, and the broker has only 4 to 9"):
        source.plan(start, end)
    with pytest.raises(DataLost, match=f"{lost}: of the offsets 0 to 9 some are gone"):
        list(source.read(splits[0]))
    assert sorted(values_of(lax, start, end)) == [b"4", b"5", b"6", b"7", b"8", b"9", b"other"]
    found = [row["value"] for batch in lax.read(splits[0]) for row in batch.to_pylist()]
    assert found == [b"4", b"5", b"6", b"7", b"8", b"9"]
    topic.delete_before(10)
    with pytest.raises(DataLost, match=f"{lost}: the offsets 0 to 9 are to be read, and the broker has none"):
        source.plan(start, end)


def test_a_topic_that_was_made_anew_is_noticed(topic: Topic) -> None:
    topic.add([b"%d" % number for number in range(10)])
    source = topic.source(request_timeout_ms=IMPATIENT_MS)
    start, end = source.earliest(), source.newest()
    topic.delete()
    with pytest.raises((DataLost, TargetUnavailable), match=topic.name):
        source.plan(start, end)
    topic.make_anew()
    topic.add([b"again"])
    with pytest.raises(DataLost, match=r"the offsets 0 to 9 are to be read, and the broker has only 0 to 0"):
        source.plan(start, end)


def test_a_topic_that_was_made_anew_and_has_fewer_records_than_were_read_is_noticed(topic: Topic) -> None:
    topic.add([b"%d" % number for number in range(10)])
    source = topic.source(request_timeout_ms=IMPATIENT_MS)
    lax = topic.source(request_timeout_ms=IMPATIENT_MS, fail_on_data_loss=False)
    read = source.newest()
    topic.delete()
    topic.make_anew()
    topic.add([b"new"] * 3)

    lost = f"topic {topic.name!r}, partition 0: the offsets from 10 on are to be read, and the broker has only 0 to 2"
    for until in (None, source.newest()):
        with pytest.raises(DataLost, match=lost):
            source.latest(read, until=until)
        assert json.loads(lax.latest(read, until=until)) == {topic.name: {"0": 3, "1": 0}}
    gone_on = lax.latest(read)
    assert values_of(lax, read, gone_on) == []
    assert values_of(source, read, gone_on) == [], "what was logged is replayed, whatever the option says by then"
    topic.add([b"later"] * 10)
    assert values_of(source, gone_on, source.latest(gone_on)) == [b"later"] * 10


def test_a_beginning_that_the_topic_does_not_reach_is_noticed(topic: Topic) -> None:
    topic.add([b"only"])
    told: dict[str, Any] = {"request_timeout_ms": IMPATIENT_MS}
    told["starting_offsets"] = json.dumps({topic.name: {"0": 500, "1": -2}})
    source, lax = topic.source(**told), topic.source(**told, fail_on_data_loss=False)
    for begin in (source.earliest, source.bounded):
        with pytest.raises(DataLost, match=r"partition 0: the offsets from 500 on .* the broker has only 0 to 0"):
            begin()
    assert json.loads(lax.earliest()) == {topic.name: {"0": 1, "1": 0}}
    told["starting_offsets"] = json.dumps({topic.name: {"0": 1, "1": 1}})
    with pytest.raises(DataLost, match=r"partition 1: the offsets from 1 on .* the broker has none"):
        topic.source(**told).earliest()


def test_what_an_open_transaction_holds_back_is_not_gone(topic: Topic) -> None:
    """Nor are the ends of transactions, which are offsets without a record."""
    topic.add([b"before"])
    producer = Producer({"bootstrap.servers": topic.bootstrap, "transactional.id": uuid.uuid4().hex, "linger.ms": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic.name, b"in a transaction", partition=0)
    producer.flush(30)
    topic.add([b"after"])
    source = topic.source()
    read = json.dumps({topic.name: {"0": 3, "1": 0}})
    began = time.monotonic()
    assert json.loads(source.latest(read)) == json.loads(read), "read uncommitted before, say"
    assert json.loads(topic.source(starting_offsets=read).earliest()) == json.loads(read)
    producer.abort_transaction(30)
    deadline = time.monotonic() + 20
    while json.loads(after := source.newest())[topic.name]["0"] != 4:
        assert time.monotonic() < deadline, "the transaction does not end"
    assert json.loads(source.latest(after)) == json.loads(after), "the end of the transaction is the last offset"
    assert values_of(source, read, after) == []
    assert time.monotonic() - began < 15, "nothing was waited for"


def test_a_leader_that_lags_is_asked_again(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new leader says of its end can be behind what the old one has said."""
    topic.add([b"%d" % number for number in range(10)])
    source = topic.source()
    read = source.newest()
    ask, lags = ControlClient.offsets, [3, 3, 3, 3]

    def lagging(*arguments: Any, **more: Any) -> dict[Partition, int]:
        said = ask(*arguments, **more)
        if arguments[2] == LATEST and lags:
            behind = lags.pop()
            said = {each: max(0, offset - behind) for each, offset in said.items()}
        return said

    monkeypatch.setattr(ControlClient, "offsets", lagging)
    assert json.loads(source.latest(read)) == json.loads(read)
    assert not lags
    lags += [3, 3]
    assert len(values_of(source, source.earliest(), read)) == 10
    assert not lags


def test_a_broker_that_is_killed_while_a_range_is_read_is_waited_for(topic: Topic, kafka_server: Server[str]) -> None:
    value = b"x" * 1000
    topic.add([b"%06d" % number + value for number in range(60_000)])
    source = topic.source()
    start, end = source.earliest(), source.newest()
    (split,) = source.plan(start, end)
    seen: list[Any] = []
    for batch in source.read(split):
        if not seen:
            kafka_server.kill()
            kafka_server.start()
        seen += batch.column("offset").to_pylist()
    assert seen == list(range(60_000))


# ---- through Spark ----


def stream(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    told = {"kafka.bootstrap.servers": topic.bootstrap, "subscribe": topic.name, **options}
    return spark.readStream.format("twophase-kafka").options(**told).load()


def copy(rows: DataFrame, topic: Topic, checkpoint: Path, **options: str) -> Any:
    told = {"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.name, "checkpointLocation": str(checkpoint)}
    told |= options
    return rows.writeStream.format("twophase-kafka").options(**told).trigger(availableNow=True).start()


@pytest.fixture
def other(kafka_server: Server[str]) -> Topic:
    return Topic(kafka_server.endpoint)


def values_in(topic: Topic) -> list[bytes]:
    return sorted(record.value() for record in committed_records(topic.bootstrap, topic.name))


def test_records_go_from_topic_to_topic_once_and_in_their_order(
    spark: SparkSession, topic: Topic, other: Topic, tmp_path: Path
) -> None:
    for partition in (0, 1):
        topic.add([b"%d %03d" % (partition, number) for number in range(100)], partition=partition)
    rows = stream(spark, topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    for _ in range(2):
        run(copy(rows.select("key", "value", "partition"), other, tmp_path / "checkpoint"))
        topic.add([b"0 100"])

    records = committed_records(other.bootstrap, other.name)
    by_partition = [[r.value() for r in records if r.partition() == number] for number in (0, 1)]
    assert by_partition == [[b"%d %03d" % (n, i) for i in range(100 if n else 101)] for n in (0, 1)]
    logged = (tmp_path / "checkpoint" / "offsets" / "1").read_text("utf-8").splitlines()[-1]
    assert json.loads(logged) == {topic.name: {"0": 20, "1": 20}}, "offsets are spelled as Spark spells them"


def test_a_stream_begins_where_it_was_when_the_query_was_first_started(
    spark: SparkSession, topic: Topic, other: Topic, tmp_path: Path
) -> None:
    """The default is the latest. A crash in the first epoch must not move it: Spark does not log where that begins."""
    topic.add([b"before"])
    checkpoint = tmp_path / "checkpoint"
    run(copy(stream(spark, topic).select("value"), other, checkpoint))
    topic.add([b"first"])
    run(copy(stream(spark, topic).select("value"), other, checkpoint))
    assert values_in(other) == [b"first"]

    # As if the driver had died in the very first epoch: its offsets are logged, and its commit is not.
    second = Topic(topic.bootstrap)
    replayed = tmp_path / "replayed"
    shutil.copytree(checkpoint, replayed)
    for folder in ("commits", "twophase"):
        shutil.rmtree(replayed / folder, ignore_errors=True)
    for number in (replayed / "offsets").iterdir():
        if number.name.strip(".").split(".")[0] != "0":
            number.unlink()
    topic.add([b"second"])
    run(copy(stream(spark, topic).select("value"), second, replayed, owner="replayed"))
    assert values_in(second) == [b"first", b"second"]


@pytest.mark.usefixtures("spark")
def test_the_example_copies_what_it_says(topic: Topic, other: Topic, tmp_path: Path) -> None:
    """In this session: the example asks for the one that is there."""
    topic.add([json.dumps({"id": n, "amount": n / 4, "paid": n % 3 == 0}).encode() for n in range(30)], key=b"k")
    for _ in range(2):
        kafka_to_kafka.main(topic.bootstrap, topic.name, other.name, str(tmp_path / "checkpoint"))
    found = [json.loads(value) for value in values_in(other)]
    assert sorted(order["id"] for order in found) == list(range(0, 30, 3))
    assert all(order["amount"] == order["id"] / 4 for order in found)


def test_a_batch_reads_what_is_between_two_offsets(spark: SparkSession, topic: Topic) -> None:
    topic.add([b"%d" % number for number in range(10)])
    reader = spark.read.format("twophase-kafka").option("kafka.bootstrap.servers", topic.bootstrap)
    reader = reader.option("subscribe", topic.name)
    rows = reader.load()
    assert dict(rows.dtypes) == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "timestampType": "int",
    }
    assert sorted(bytes(row.value) for row in rows.collect()) == [b"%d" % number for number in range(10)]
    ending = reader.option("endingOffsets", json.dumps({topic.name: {"0": 7, "1": 0}}))
    starting = ending.option("startingOffsets", json.dumps({topic.name: {"0": 3, "1": -2}}))
    found = starting.option("minPartitions", "3").load()
    assert found.rdd.getNumPartitions() >= 3
    assert sorted(row.offset for row in found.select("offset").collect()) == [3, 4, 5, 6]
    by_time = starting.option("startingTimestamp", "0").option("endingTimestamp", "4000000000000").load()
    assert by_time.count() == 10


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"startingOffsets": "latest"},
        {"startingTimestamp": "4000000000000"},
        {"subscribePattern": "nothing-is-called-so"},
    ],
    ids=["empty topic", "from the end", "from the future", "no topic"],
)
def test_a_batch_of_nothing_has_no_rows_and_all_columns(
    spark: SparkSession, topic: Topic, options: dict[str, str]
) -> None:
    if options:
        topic.add([b"before"])
    which = {} if "subscribePattern" in options else {"subscribe": topic.name}
    reader = spark.read.format("twophase-kafka").option("kafka.bootstrap.servers", topic.bootstrap)
    rows = reader.options(**options, **which).load()
    assert rows.collect() == []
    assert rows.count() == 0
    assert rows.columns == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]


def test_a_stream_that_lost_data_says_where(spark: SparkSession, topic: Topic, other: Topic, tmp_path: Path) -> None:
    rows = stream(spark, topic, startingOffsets="earliest").select("value")
    topic.add([b"0"])
    run(copy(rows, other, tmp_path / "checkpoint"))
    topic.add([b"1", b"2", b"3"])
    topic.delete_before(3)
    said = failure_of(copy(rows, other, tmp_path / "checkpoint"))
    assert (
        f"topic {topic.name!r}, partition 0: the offsets 1 to 3 are to be read, and the broker has only 3 to 3" in said
    )
    assert "failOnDataLoss" in said
    lax = stream(spark, topic, startingOffsets="earliest", failOnDataLoss="false").select("value")
    run(copy(lax, other, tmp_path / "checkpoint"))
    assert values_in(other) == [b"0", b"3"]


def test_a_stream_from_a_topic_that_was_made_anew_says_so_or_goes_on_from_its_end(
    spark: SparkSession, topic: Topic, other: Topic, tmp_path: Path
) -> None:
    told = {"startingOffsets": "earliest", "requestTimeoutMs": str(IMPATIENT_MS)}
    rows = stream(spark, topic, **told).select("value")
    topic.add([b"%d" % number for number in range(10)])
    run(copy(rows, other, tmp_path / "checkpoint"))
    topic.delete()
    topic.make_anew()
    topic.add([b"new"] * 3)
    said = failure_of(copy(rows, other, tmp_path / "checkpoint"))
    assert "DATA_LOST" in said
    assert f"topic {topic.name!r}, partition 0: the offsets from 10 on are to be read" in said
    lax = stream(spark, topic, **told, failOnDataLoss="false").select("value")
    run(copy(lax, other, tmp_path / "checkpoint"))
    topic.add([b"later"])
    run(copy(rows, other, tmp_path / "checkpoint"))
    assert values_in(other) == [*(b"%d" % number for number in range(10)), b"later"]
