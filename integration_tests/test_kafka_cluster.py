"""Three brokers: whichever dies, transactions are ended by the coordinator that takes over, and what was decided is there once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from integration_tests.topics import WITHIN_S, TopicUnderTest, close_clients
from twophase.clients.kafka.connections import control_of
from twophase.options import PassThrough
from twophase.sink import Outcome
from twophase.sinks.kafka.sink import KafkaSink
from twophase.sources import KafkaSource
from twophase.testing.query_steps import QuerySteps, dies_at
from twophase.testing.servers import kafka
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps

pytestmark = pytest.mark.servers

BROKERS = ("broker-1", "broker-2", "broker-3")


@pytest.fixture(scope="module")
def cluster_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server[str]]:
    # Several partitions of the logs of coordinators, so that every broker is one.
    properties = {
        "transaction.state.log.num.partitions": "6",
        "offsets.topic.num.partitions": "6",
        "min.insync.replicas": "2",
        "default.replication.factor": "3",
    }
    setup = kafka.Setup(brokers=3, properties=properties)
    with kafka.on_this_machine(tmp_path_factory.mktemp("cluster"), setup) as server:
        yield server
        close_clients()


class ReplicatedTopic(TopicUnderTest):
    """Three partitions, each on three brokers."""

    def create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        made = admin.create_topics([NewTopic(self.topic, num_partitions=3, replication_factor=3)])
        made[self.topic].result(WITHIN_S)

    def sink(self) -> KafkaSink:
        return KafkaSink(self.bootstrap, self.topic, transactional_id_prefix=self.prefix, request_timeout_ms=60_000)


@pytest.fixture
def target(cluster_server: Server[str]) -> ReplicatedTopic:
    cluster_server.start()  # whatever the test before has killed
    return ReplicatedTopic(cluster_server.endpoint)


@pytest.mark.timeout(600)
def test_a_decided_epoch_is_committed_whichever_broker_dies(
    target: ReplicatedTopic, cluster_server: Server[str]
) -> None:
    """Each in turn, after the votes and before the commit: coordinators of its transactions move to another broker."""
    steps = SinkSteps(target)
    expected: list[int] = []
    for number, broker in enumerate(BROKERS):
        values = [[10 * number + slot] for slot in range(6)]
        order = steps.decided(number, *values)
        cluster_server.kill(broker)
        assert steps.commit(order) is Outcome.COMMITTED
        expected += [value for rows in values for value in rows]
        assert steps.visible() == expected
        assert steps.commit(order) is Outcome.ALREADY_COMMITTED
        cluster_server.start(broker)
        cluster_server.start()
    assert target.residue() == []


class UnreplicatedTopic(TopicUnderTest):
    """Three partitions, each on a broker of its own: with it, its partition is gone."""

    def create(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        new = NewTopic(
            self.topic, num_partitions=3, replica_assignment=[[1], [2], [3]], config={"min.insync.replicas": "1"}
        )
        admin.create_topics([new])[self.topic].result(WITHIN_S)

    def sink(self) -> KafkaSink:
        return KafkaSink(self.bootstrap, self.topic, transactional_id_prefix=self.prefix, request_timeout_ms=60_000)


@pytest.mark.timeout(600)
def test_a_partition_that_nobody_leads_does_not_keep_an_epoch_from_being_committed_elsewhere(
    cluster_server: Server[str],
) -> None:
    """Rows without a key go where they are taken, and the end of their transactions is asked of nobody else."""
    cluster_server.start()
    target = UnreplicatedTopic(cluster_server.endpoint)
    steps = SinkSteps(target)
    steps.epoch(0, [1], [2])
    control = control_of(PassThrough({"bootstrap.servers": target.bootstrap}), patience_s=WITHIN_S)
    assert len(control.led([target.topic])) == 3
    cluster_server.kill("broker-3")
    deadline = time.monotonic() + WITHIN_S
    while len(control.led([target.topic])) == 3:
        assert time.monotonic() < deadline, "the broker's partition still has a leader"
        time.sleep(0.1)

    order = steps.decided(1, [3], [4])
    begun = time.monotonic()
    assert steps.commit(order) is Outcome.COMMITTED
    assert time.monotonic() - begun < 30, "whoever can't answer was waited for"
    cluster_server.start()
    assert steps.visible() == [1, 2, 3, 4]
    assert steps.commit(order) is Outcome.ALREADY_COMMITTED
    assert target.residue() == []


@pytest.mark.timeout(600)
def test_a_query_goes_on_with_two_of_three_brokers_and_recovers_when_it_dies_too(
    target: ReplicatedTopic, cluster_server: Server[str], tmp_path: Path
) -> None:
    """A broker dies while a share waits for its decision, and the driver dies in the middle of its commits."""
    query = QuerySteps(tmp_path / "query", target)
    query.epoch(0, [1], [2], [3])
    query.log(1)
    query.prepare()
    query.run([4], [5], [6])
    cluster_server.kill("broker-2")
    with dies_at(tmp_path, "decide.published"):
        query.commit()
    again = query.restart()
    again.finish([4], [5], [6])
    again.epoch(2, [7], [8])
    cluster_server.start("broker-2")
    cluster_server.start()
    again.restart().epoch(3, [9])
    assert again.findings() == []
    assert again.residue() == []
    assert sorted(target.values()) == list(range(1, 10))


@pytest.mark.timeout(600)
def test_a_range_is_read_whole_while_the_leader_of_its_partition_dies(
    target: ReplicatedTopic, cluster_server: Server[str]
) -> None:
    steps = SinkSteps(target)
    steps.epoch(0, *(range(slot * 30_000, (slot + 1) * 30_000) for slot in range(3)))
    source = KafkaSource(target.bootstrap, target.topic, starting_offsets="earliest")
    start, end = source.earliest(), source.newest()
    for broker in BROKERS:
        seen: list[int] = []
        killed = False
        for split in source.plan(start, end):
            for batch in source.read(split):
                if not killed:
                    cluster_server.kill(broker)
                    killed = True
                seen += [int(row["value"]) for row in batch.to_pylist()]
        assert sorted(seen) == list(range(90_000))
        cluster_server.start(broker)
        cluster_server.start()
