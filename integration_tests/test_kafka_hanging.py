"""A transaction that its coordinator has ended, and a partition has not: the end is written there, and nothing else is touched.

How it comes about can't be commanded: a broker has to come back in the right milliseconds. So it is made by hand, with a record of
a transaction in a partition that the coordinator was never told of, which old brokers let pass, and new ones if they are told to.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka.protocol.producer import ProduceRequest  # type: ignore[import-untyped]
from kafka.record.default_records import DefaultRecordBatchBuilder  # type: ignore[import-untyped]

from integration_tests.topics import close_clients, committed_records, create_topic
from twophase.clients.kafka.connections import control_of
from twophase.clients.kafka.control import ControlClient
from twophase.clients.kafka.partition import LATEST, Partition
from twophase.options import PassThrough
from twophase.sinks.kafka.hanging import finish_hanging, finish_if_stuck
from twophase.testing.servers import kafka
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def lax_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server[str]]:
    setup = kafka.Setup(
        properties={"transaction.partition.verification.enable": "false"}, features={"transaction.version": 0}
    )
    with kafka.on_this_machine(tmp_path_factory.mktemp("lax"), setup) as server:
        yield server
        close_clients()


class Hanging:
    """One transaction that is ended, with a record that its end does not reach."""

    def __init__(self, bootstrap: str, *, commit: bool):
        self.bootstrap, self.prefix = bootstrap, f"twophase-{uuid.uuid4().hex}"
        self.told, self.topic = f"told-{uuid.uuid4().hex}", f"topic-{uuid.uuid4().hex}"
        for name in (self.told, self.topic):
            create_topic(bootstrap, name)
        self.producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{self.prefix}/q/s/1"})
        self.producer.init_transactions(30)
        self.transaction(commit=commit)
        (listed,) = self.control.transactions(self.prefix)
        self.produce(listed.producer_id, listed.producer_epoch, b"hanging")

    @property
    def control(self) -> ControlClient:
        return control_of(PassThrough({"bootstrap.servers": self.bootstrap}), patience_s=30)

    def transaction(self, *, commit: bool) -> None:
        self.producer.begin_transaction()
        self.producer.produce(self.told, b"told")
        self.producer.flush(30)
        if commit:
            self.producer.commit_transaction(30)
        else:
            self.producer.abort_transaction(30)

    def produce(self, producer_id: int, producer_epoch: int, value: bytes) -> None:
        batch = DefaultRecordBatchBuilder(2, 0, True, producer_id, producer_epoch, 0, 10_000)
        assert batch.append(0, None, None, value, []) is not None
        topic = ProduceRequest.TopicProduceData
        data = topic(
            name=self.topic, partition_data=[topic.PartitionProduceData(index=0, records=bytes(batch.build()))]
        )
        request = ProduceRequest(
            transactional_id=f"{self.prefix}/q/s/1", acks=-1, timeout_ms=30_000, topic_data=[data], max_version=11
        )
        admin: Any = self.control.connection.admin

        async def ask() -> Any:
            return await admin._manager.send(request, node_id=1)

        answer = admin._manager.run(ask)
        assert [p.error_code for t in answer.responses for p in t.partition_responses] == [0]

    def is_open(self) -> bool:
        place = [Partition(self.topic, 0)]
        return self.control.offsets(place, LATEST) != self.control.offsets(place, LATEST, committed=True)

    def values(self) -> list[bytes]:
        return [record.value() for record in committed_records(self.bootstrap, self.topic)]


@pytest.mark.parametrize("commit", [True, False])
def test_the_end_that_a_partition_was_not_told_is_written(lax_server: Server[str], commit: bool) -> None:
    hanging = Hanging(lax_server.endpoint, commit=commit)
    assert hanging.is_open()
    assert hanging.values() == []

    assert finish_hanging(hanging.control, f"{hanging.prefix}/q/s/", [hanging.topic]) == 1

    assert not hanging.is_open()
    assert hanging.values() == ([b"hanging"] if commit else [])
    assert finish_hanging(hanging.control, f"{hanging.prefix}/q/s/", [hanging.topic]) == 0


def test_a_transaction_that_is_open_or_somebody_elses_is_left_alone(lax_server: Server[str]) -> None:
    hanging = Hanging(lax_server.endpoint, commit=True)
    assert finish_hanging(hanging.control, f"{hanging.prefix}-not", [hanging.topic]) == 0
    hanging.producer.begin_transaction()
    hanging.producer.produce(hanging.told, b"goes on")
    hanging.producer.flush(30)
    assert finish_hanging(hanging.control, f"{hanging.prefix}/q/s/", [hanging.topic, hanging.told]) == 0
    assert hanging.is_open()
    hanging.producer.commit_transaction(30)
    finish_if_stuck(hanging.control, f"{hanging.prefix}/q/s/", [hanging.topic])
    assert hanging.values() == [b"hanging"]
    assert [r.value() for r in committed_records(hanging.bootstrap, hanging.told)] == [b"told", b"goes on"]


def test_what_hangs_is_looked_for_after_trouble_and_otherwise_now_and_then(
    lax_server: Server[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(lax_server.endpoint, commit=True)
    prefix, place = f"{hanging.prefix}/q/s/", [hanging.told]
    finish_if_stuck(hanging.control, prefix, place)  # nothing is open there, and that is remembered
    place.append(hanging.topic)

    monkeypatch.setattr(hanging.control.connection, "troubled_at", time.monotonic() - 1000)
    finish_if_stuck(hanging.control, prefix, place)
    assert hanging.is_open()

    monkeypatch.setattr(hanging.control.connection, "troubled_at", time.monotonic())
    finish_if_stuck(hanging.control, prefix, place)
    assert not hanging.is_open()
