"""Every test server is a real one: written to and read by its vendor's client, killed with kill -9, and back again."""

from __future__ import annotations

import time
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import hdfs  # type: ignore[import-untyped]
import hdfs_native
import psycopg
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from twophase.testing.servers import kafka
from twophase.testing.servers.hdfs import HdfsEndpoint
from twophase.testing.servers.server import Server, Way

pytestmark = pytest.mark.servers

WITHIN_S = 60.0
CREATE_SCOPE = "/io.pravega.controller.stream.api.grpc.v1.ControllerService/createScope"
SUCCESS, SCOPE_EXISTS = 0, 2


def produce(bootstrap: str, topic: str, *values: bytes) -> None:
    """Write in one transaction, which needs the coordinator of transactions and its topic too."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"{topic}-writer"})
    producer.init_transactions(WITHIN_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(WITHIN_S)


def consume(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-reader",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    deadline = time.monotonic() + WITHIN_S
    found: list[bytes | None] = []
    while len(found) < count and time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.append(message.value())
    consumer.close()
    return found


def test_kafka_has_what_was_committed_after_kill_9(kafka_server: Server[str]) -> None:
    endpoint = kafka_server.endpoint
    produce(endpoint, "killed", b"1", b"2")
    assert consume(endpoint, "killed", 2) == [b"1", b"2"]

    kafka_server.kill()
    assert kafka_server.ended() == ["broker-1"]
    kafka_server.start()

    assert (kafka_server.endpoint, kafka_server.keeps_data) == (endpoint, True)
    produce(endpoint, "killed", b"3")
    assert consume(endpoint, "killed", 3) == [b"1", b"2", b"3"]


def test_three_brokers_serve_on_when_one_is_killed(tmp_path: Path) -> None:
    setup = kafka.Setup(brokers=3, properties={"min.insync.replicas": "2"}, features={"transaction.version": 0})
    with kafka.on_this_machine(tmp_path, setup) as server:
        admin = AdminClient({"bootstrap.servers": server.endpoint})
        admin.create_topics([NewTopic("orders", num_partitions=1, replication_factor=3)])["orders"].result(WITHIN_S)
        produce(server.endpoint, "orders", b"1")

        server.kill("broker-2")
        produce(server.endpoint, "orders", b"2")

        assert server.ended() == ["broker-2"]
        assert consume(server.endpoint, "orders", 2) == [b"1", b"2"]


def test_postgres_has_what_was_committed_or_prepared_after_kill_9(postgres_server: Server[str]) -> None:
    endpoint = postgres_server.endpoint
    connection = psycopg.connect(endpoint, autocommit=True)
    connection.execute("CREATE TABLE killed (id int)")
    connection.execute("INSERT INTO killed VALUES (1)")
    connection.execute("BEGIN; INSERT INTO killed VALUES (2); PREPARE TRANSACTION 'two'")
    connection.execute("BEGIN; INSERT INTO killed VALUES (3)")

    postgres_server.kill()
    postgres_server.start()
    connection.close()

    assert (postgres_server.endpoint, postgres_server.keeps_data) == (endpoint, True)
    with psycopg.connect(endpoint, autocommit=True) as connection:
        assert connection.execute("SELECT id FROM killed").fetchall() == [(1,)]
        connection.execute("COMMIT PREPARED 'two'")
        assert connection.execute("SELECT id FROM killed ORDER BY id").fetchall() == [(1,), (2,)]
        connection.execute("DROP TABLE killed")


def test_postgres_is_stopped_and_started_in_order(postgres_server: Server[str]) -> None:
    with psycopg.connect(postgres_server.endpoint, autocommit=True) as connection:
        connection.execute("CREATE TABLE stopped (id int)")

    postgres_server.restart()

    with psycopg.connect(postgres_server.endpoint, autocommit=True) as connection:
        connection.execute("DROP TABLE stopped")
    if postgres_server.way is Way.PROCESS:
        assert "database system is shut down" in postgres_server.log()


def test_hdfs_has_what_was_closed_after_kill_9_by_both_doors(hdfs_server: Server[HdfsEndpoint]) -> None:
    endpoint = hdfs_server.endpoint
    native = hdfs_native.Client(endpoint.url)
    web = hdfs.InsecureClient(endpoint.webhdfs_url, user="hdfs")
    with native.create("/native") as file:
        file.write(b"n" * 1_000_000)
    web.write("/web", data=b"w" * 1000)
    assert hdfs_server.parts == ("namenode", "datanode")

    hdfs_server.kill()
    hdfs_server.start()

    assert (hdfs_server.endpoint, hdfs_server.keeps_data) == (endpoint, True)
    with web.read("/native") as response:
        assert response.read() == b"n" * 1_000_000
    with hdfs_native.Client(endpoint.url).read("/web") as opened:
        assert opened.read() == b"w" * 1000


def create_scope(endpoint: str, scope: bytes) -> int:
    """Ask the controller for a scope; the number of its answer."""
    with grpc.insecure_channel(endpoint, [("grpc.enable_http_proxy", 0)]) as channel:
        answer: bytes = channel.unary_unary(CREATE_SCOPE)(b"\x0a" + bytes([len(scope)]) + scope, timeout=WITHIN_S)
    return dict(zip(answer[::2], answer[1::2], strict=True)).get(8, 0)


def test_pravega_is_empty_after_kill_9_and_says_so(pravega_server: Server[str]) -> None:
    endpoint = pravega_server.endpoint
    assert create_scope(endpoint, b"killed") == SUCCESS
    assert create_scope(endpoint, b"killed") == SCOPE_EXISTS

    pravega_server.kill()
    pravega_server.start()

    assert (pravega_server.endpoint, pravega_server.keeps_data) == (endpoint, False)
    assert create_scope(endpoint, b"killed") == SUCCESS
