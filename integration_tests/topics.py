"""Topics as consumers see them that know nothing of twophase, and as a target of the suites."""

from __future__ import annotations

import copy
import json
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaAdminClient  # type: ignore[import-untyped]
from kafka.errors import KafkaError as KafkaPythonError  # type: ignore[import-untyped]

from twophase.clients.kafka.connections import close_connections
from twophase.sink import Description
from twophase.sinks.kafka.sink import KafkaSink
from twophase.sources.kafka.consumer import close_idle
from twophase.testing.crash.orders import Order
from twophase.testing.crash.target import CrashTarget, Surroundings
from twophase.testing.servers import kafka
from twophase.testing.sink_target import SinkTarget

WITHIN_S = 60.0
_UNFINISHED = ("PrepareCommit", "PrepareAbort")


def create_topic(bootstrap: str, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = NewTopic(name, num_partitions=partitions, config=dict(config or {}))
    admin.create_topics([wanted])[name].result(WITHIN_S)


def producer_in_order(bootstrap: str, **settings: Any) -> Producer:
    """A producer whose records are in the log in the order in which they were given to it.

    Without idempotence a batch that the broker refused for a moment (its topic was created just now) comes after those that were
    sent behind it.
    """
    return Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})


def committed_records(bootstrap: str, topic: str) -> list[Any]:
    """Every record that a consumer of committed ones can have now, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,  # the end of a partition is told when a fetch has waited in vain
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=WITHIN_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        records, at_end, deadline = [], set[int](), time.monotonic() + WITHIN_S
        while len(at_end) < len(partitions):
            assert time.monotonic() < deadline, f"{topic} was not read to its end within {WITHIN_S} s"
            for record in consumer.consume(10_000, timeout=0.1):
                error = record.error()
                if error is None:
                    records.append(record)
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end.add(record.partition() or 0)
                else:
                    raise AssertionError(error)
        return sorted(records, key=lambda record: (record.partition(), record.offset()))
    finally:
        consumer.close()


_admins: dict[str, Any] = {}


def close_clients() -> None:
    """Their threads use Python's random numbers, which Hypothesis notices in whatever test runs next."""
    close_connections()
    close_idle()
    for admin in _admins.values():
        admin.close()
    _admins.clear()


def _admin(bootstrap: str) -> Any:
    if bootstrap not in _admins:
        _admins[bootstrap] = KafkaAdminClient(bootstrap_servers=bootstrap)
    return _admins[bootstrap]


def transactions(bootstrap: str, prefix: str, *states: str) -> list[str]:
    """The names of transactions in these states, as the brokers list them."""
    deadline = time.monotonic() + WITHIN_S
    listed = None
    while listed is None:
        try:
            listed = _admin(bootstrap).list_transactions(state_filters=states)
        except KafkaPythonError:  # a broker that was killed comes back
            assert time.monotonic() < deadline, "the broker does not answer"
            _admins.pop(bootstrap).close()
            time.sleep(0.2)
    names = [each.transactional_id for of_broker in listed.values() for each in of_broker]
    return sorted(name for name in names if name.startswith(prefix))


class TopicUnderTest(SinkTarget):
    """A new topic, with names of its own for transactions and markers."""

    arrow_types = ("string", "large_string", "binary")
    leaves_out_columns = True  # as Spark's own sink does
    many_slots = 60  # each is a producer; and more than one group of markers has room for
    many_rows = 100_000
    many_failures = 10

    def __init__(self, bootstrap: str):
        self.bootstrap = bootstrap
        self.topic = f"orders-{uuid.uuid4().hex}"
        self.prefix = f"suite-{uuid.uuid4().hex}"
        self._typed_as_text = False
        self._timeout_ms = 900_000
        self.kafka: dict[str, str] = {}
        """Settings of the clients."""
        self.create()

    def create(self) -> None:
        create_topic(self.bootstrap, self.topic)

    def sink(self) -> KafkaSink:
        return KafkaSink(
            self.bootstrap,
            self.topic,
            kafka=self.kafka,
            transactional_id_prefix=self.prefix,
            transaction_timeout_ms=self._timeout_ms,
            request_timeout_ms=20_000,
        )

    def rebuilt(self, description: Description) -> KafkaSink:
        return KafkaSink.from_options(description.options)

    def short_lived(self) -> TopicUnderTest:
        same = copy.copy(self)
        same._timeout_ms = 10_000
        return same

    def read(self) -> Sequence[dict[str, Any]]:
        self._wait_for_ends()
        return [
            {"value": None if record.value() is None else int(record.value()), "typed": self._key(record.key())}
            for record in committed_records(self.bootstrap, self.topic)
        ]

    def residue(self) -> Sequence[str]:
        self._wait_for_ends()
        return transactions(self.bootstrap, self.prefix, "Ongoing")

    def batch(self, values: Sequence[int]) -> pa.RecordBatch:
        return pa.record_batch([pa.array([str(value) for value in values], pa.string())], names=["value"])

    def typed_batch(self, column: pa.Array[Any]) -> pa.RecordBatch | None:
        self._typed_as_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
        return pa.record_batch([pa.array([str(i) for i in range(len(column))]), column], names=["value", "key"])

    def _key(self, key: bytes | None) -> str | bytes | None:
        return key.decode() if key is not None and self._typed_as_text else key

    def _wait_for_ends(self) -> None:
        """A transaction's end is certain when it is answered, and shown some milliseconds later."""
        deadline = time.monotonic() + WITHIN_S
        while transactions(self.bootstrap, self.prefix, *_UNFINISHED):
            assert time.monotonic() < deadline, "a transaction does not come to its end"
            time.sleep(0.02)


class KafkaTarget(CrashTarget):
    """A topic of the crash matrix; orders are JSON."""

    title = "kafka"
    format = "twophase-kafka"
    atomic = False  # slots commit one after the other
    fences = False  # brokers know no generations
    not_covered: ClassVar[Sequence[str]] = (
        "What a zombie leaves in Kafka right after it: brokers can't refuse what an overtaken driver begins, so residue is looked "
        "for after one more epoch there.",
    )

    @property
    def bootstrap(self) -> str:
        return self.settings["bootstrap"]

    @property
    def topic(self) -> str:
        return f"{self.folder.name}-{self.name}"

    def options(self) -> Mapping[str, str]:
        return {"kafka.bootstrap.servers": self.bootstrap, "topic": self.topic, "transactionalIdPrefix": self.topic}

    def sink(self) -> KafkaSink:
        return KafkaSink(self.bootstrap, self.topic, transactional_id_prefix=self.topic)

    def shaped(self, rows: Any) -> Any:
        return rows.selectExpr("to_json(struct(id, name, amount)) AS value", "cast(id AS string) AS key")

    def read(self) -> Sequence[Order]:
        orders = (json.loads(record.value()) for record in committed_records(self.bootstrap, self.topic))
        return [(order["id"], order["name"], order["amount"]) for order in orders]

    def residue(self) -> Sequence[str]:
        return transactions(self.bootstrap, self.topic, "Ongoing")

    @classmethod
    @contextmanager
    def surroundings(cls) -> Iterator[Surroundings]:
        with (
            tempfile.TemporaryDirectory(prefix="twophase-kafka-") as folder,
            kafka.on_this_machine(Path(folder)) as broker,
        ):
            yield Surroundings({"bootstrap": broker.endpoint}, {"broker": broker})
