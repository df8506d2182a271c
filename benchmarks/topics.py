"""The topics of the benchmark: made for each run, filled, counted by a consumer that knows nothing of twophase, and deleted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from twophase.clients.kafka import settings
from twophase.clients.kafka.rows import Rows
from twophase.sinks.kafka.producer import Producer

PARTITIONS = 4
_WITHIN_S = 60.0


@contextmanager
def topics_at(bootstrap: str) -> Iterator[Topics]:
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        yield Topics(bootstrap, admin)


class Topics:
    def __init__(self, bootstrap: str, admin: AdminClient):
        self.bootstrap = bootstrap
        self._admin = admin
        self._numbers = count(1)

    @contextmanager
    def new(self) -> Iterator[str]:
        """A topic that is there for as long as it is needed: some gigabytes would pile up."""
        name = f"bench-{next(self._numbers)}"
        self._admin.create_topics([NewTopic(name, num_partitions=PARTITIONS)])[name].result(_WITHIN_S)
        try:
            yield name
        finally:
            self._admin.delete_topics([name])[name].result(_WITHIN_S)

    def fill(self, topic: str, folder: Path) -> None:
        """With the rows of parquet files, as many in each partition: so an epoch is a whole part of each."""
        producer = Producer(settings.for_librdkafka({"bootstrap.servers": self.bootstrap}), patience_s=_WITHIN_S)
        try:
            for file in sorted(folder.glob("*.parquet")):
                for batch in pq.read_table(file).to_batches(max_chunksize=10_000):
                    partitions = np.arange(batch.num_rows, dtype=np.int32) % PARTITIONS
                    keys, values = batch.column("key"), batch.column("value")
                    producer.produce(topic, Rows(values, keys, partitions))
            producer.flush()
        finally:
            producer.drop()

    def committed(self, topic: str) -> int:
        """How many records a consumer of committed ones reads. The last offset would not do: ends of transactions count there."""
        self._wait_until_stable(topic)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
            }
        )
        try:
            consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
            return _count_to_the_end(consumer)
        finally:
            consumer.close()

    def _wait_until_stable(self, topic: str) -> None:
        """The broker writes the ends of transactions after it has promised them."""
        deadline = time.monotonic() + _WITHIN_S
        while self._ends(topic, IsolationLevel.READ_COMMITTED) != self._ends(topic, IsolationLevel.READ_UNCOMMITTED):
            if time.monotonic() > deadline:
                raise SystemExit(f"a transaction is open in {topic} after {_WITHIN_S:.0f} s")
            time.sleep(0.1)

    def _ends(self, topic: str, level: IsolationLevel) -> list[int]:
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(topic, number): latest for number in range(PARTITIONS)}
        found = self._admin.list_offsets(asked, isolation_level=level)
        return [found[each].result(_WITHIN_S).offset for each in asked]


def _count_to_the_end(consumer: Consumer) -> int:
    records, at_end, progress = 0, set[int | None](), time.monotonic()
    while len(at_end) < PARTITIONS:
        if time.monotonic() - progress > _WITHIN_S:
            raise SystemExit(f"no record and no end of a partition came within {_WITHIN_S:.0f} s")
        for message in consumer.consume(10_000, timeout=0.1):
            progress, error = time.monotonic(), message.error()
            if error is None:
                records += 1
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            else:
                raise SystemExit(f"the records could not be counted: {error}")
    return records
