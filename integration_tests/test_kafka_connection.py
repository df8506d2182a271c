"""kafka-python is what twophase/clients/kafka/connection.py takes it for, on a real broker: each private part that is used there.

Whoever raises the version in constraints.txt runs this file first.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType  # type: ignore[import-untyped]

from integration_tests.topics import create_topic
from twophase.clients.kafka import settings
from twophase.clients.kafka.connection import AT_ONCE, Connection
from twophase.clients.kafka.partition import Partition
from twophase.errors import TargetUnavailable
from twophase.testing.servers.ports import free_ports
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


def connection_to(bootstrap: str, patience_s: float = 30) -> Connection:
    told = settings.for_kafka_python({"bootstrap.servers": bootstrap})
    return Connection(told, patience_s=patience_s, trouble=lambda: None)


@pytest.fixture
def connection(kafka_server: Server[str]) -> Iterator[Connection]:
    connection = connection_to(kafka_server.endpoint)
    yield connection
    connection.close()


@pytest.fixture
def name() -> str:
    return f"connection-{uuid.uuid4().hex}"


def test_the_version_that_is_tested_is_the_one_that_is_pinned() -> None:
    assert f"kafka-python=={version('kafka-python')}" in CONSTRAINTS.read_text().split()


def test_brokers_are_known_by_their_numbers(connection: Connection) -> None:
    assert connection.brokers() == [1]
    connection.look_around()
    assert connection.brokers() == [1]


@pytest.mark.parametrize("kind", ["TRANSACTION", "GROUP"])
def test_the_coordinator_of_every_name_is_found_and_looked_up_again_when_it_was_forgotten(
    connection: Connection, name: str, kind: str
) -> None:
    names = [f"{name}-{number}" for number in range(20)]
    assert connection.run(connection.coordinators, names, kind) == dict.fromkeys(names, 1)
    assert connection.by_coordinator(names, kind) == {1: names}
    remembered = connection.admin._manager.cluster._coordinators
    before = len(remembered)
    assert before >= len(names)

    failures = [connection.errors.NotCoordinatorError()]

    def once_refused() -> str:
        if failures:
            raise failures.pop()
        return "answered"

    assert connection.patiently(once_refused, names, kind=kind) == "answered"
    assert len(remembered) == before - len(names)
    assert connection.run(connection.coordinators, names, kind) == dict.fromkeys(names, 1)


def test_leaders_are_found_and_only_a_producers_question_creates_a_topic(
    connection: Connection, kafka_server: Server[str], name: str
) -> None:
    create_topic(kafka_server.endpoint, name, 3)
    assert connection.patiently(lambda: connection.run(connection.leaders, name), ()) == {0: 1, 1: 1, 2: 1}
    assert connection.run(connection.leader, Partition(name, 2)) == 1

    missing = f"{name}-missing"
    with pytest.raises(connection.errors.UnknownTopicOrPartitionError):
        connection.run(connection.leader, Partition(missing, 0))
    assert missing not in connection.admin.list_topics()
    assert connection.patiently(lambda: connection.run(connection.leaders, missing), ()) == {0: 1}


def test_requests_that_are_sent_by_number_of_the_broker_are_answered_as_many_at_once_as_we_send(
    connection: Connection, name: str
) -> None:
    ids = [f"{name}-{number}" for number in range(AT_ONCE)]

    async def ask() -> list[Any]:
        asked = [connection.send(connection.describe_transactions_request([each]), 1) for each in ids]
        return [await each for each in asked]

    answers = connection.run(ask)
    unknown = connection.errors.TransactionalIdNotFoundError.errno
    assert [(s.transactional_id, s.error_code) for each in answers for s in each.transaction_states] == [
        (each, unknown) for each in ids
    ]


def test_settings_of_a_broker_are_answered_with_their_names(connection: Connection) -> None:
    resource = ConfigResource(ConfigResourceType.BROKER, "1", configs={"transaction.max.timeout.ms": None})
    answer = connection.run(connection.send, connection.describe_configs_request(resource), 1)
    ((found,),) = ([*each.configs] for each in answer.results)
    assert (found.name, int(found.value) > 0) == ("transaction.max.timeout.ms", True)


def test_a_connection_that_can_not_be_opened_leaves_no_thread() -> None:
    (port,) = free_ports(1)
    before = set(threading.enumerate())
    with pytest.raises(TargetUnavailable):
        connection_to(f"127.0.0.1:{port}", patience_s=0.5)
    left = [each for each in threading.enumerate() if each not in before]
    for each in left:
        each.join(10)
    assert [each for each in left if each.is_alive()] == []
