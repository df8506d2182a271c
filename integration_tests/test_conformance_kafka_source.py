"""KafkaSource keeps the contract, on a real broker: with plain records, and with those of transactions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition  # type: ignore[import-untyped]

from integration_tests.topics import create_topic, producer_in_order
from twophase.sources import KafkaSource
from twophase.testing.servers.server import Server
from twophase.testing.source_suite import SourceOrigin, SourceSuite

pytestmark = pytest.mark.servers


class PlainTopic(SourceOrigin):
    """A unit is a record for each of its numbers."""

    limits = frozenset({"rows"})
    ordered = True
    loses_any_unit = False

    def __init__(self, bootstrap: str):
        self.bootstrap, self.topic = bootstrap, f"numbers-{uuid.uuid4().hex}"
        create_topic(bootstrap, self.topic)
        self._producer: Any = None
        self.sizes: list[int] = []

    def source(self, **options: Any) -> KafkaSource:
        return KafkaSource(
            self.bootstrap, self.topic, starting_offsets="earliest", request_timeout_ms=20_000, **options
        )

    def split_in(self, tasks: int) -> KafkaSource:
        return self.source(min_partitions=tasks)

    def add(self, values: Sequence[int]) -> None:
        if self._producer is None:
            self._producer = producer_in_order(self.bootstrap, **{"linger.ms": 0})
        for value in values:
            self._producer.produce(self.topic, str(value).encode())
        assert self._producer.flush(30) == 0
        self.sizes.append(len(values))

    def lose(self, unit: int) -> str:
        assert unit == 0, "a topic loses its oldest records"
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap)
        try:
            admin.delete_records({TopicPartition(self.topic, 0): self.sizes[0]})
        finally:
            admin.close()
        return f"topic {self.topic!r}, partition 0"

    def value(self, row: Mapping[str, Any]) -> int:
        return int(row["value"])


class TopicOfTransactions(PlainTopic):
    """A unit is a transaction. Before it one was aborted, so that no unit begins where the last one has ended."""

    limits = frozenset()

    def add(self, values: Sequence[int]) -> None:
        if self._producer is None:
            name = f"writer-{uuid.uuid4().hex}"
            self._producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": name, "linger.ms": 0})
            self._producer.init_transactions(30)
        for kept, numbers in ((False, [999, 998]), (True, values)):
            self._producer.begin_transaction()
            for number in numbers:
                self._producer.produce(self.topic, str(number).encode())
            if kept:
                self._producer.commit_transaction(30)
            else:
                self._producer.flush(30)
                self._producer.abort_transaction(30)
        self.sizes.append(3 + len(values) + (1 if values else 0))


class TestPlainTopic(SourceSuite):
    @pytest.fixture
    def origin(self, kafka_server: Server[str]) -> PlainTopic:
        return PlainTopic(kafka_server.endpoint)


class TestTopicOfTransactions(SourceSuite):
    @pytest.fixture
    def origin(self, kafka_server: Server[str]) -> TopicOfTransactions:
        return TopicOfTransactions(kafka_server.endpoint)
