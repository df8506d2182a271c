"""Replies that are lost between a real server and its client: what was asked for is done, and the client can't know."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from confluent_kafka import KafkaException, Producer

from integration_tests.test_servers import WITHIN_S, consume
from twophase.testing.framing import kafka_frames, kafka_request, postgres_messages
from twophase.testing.servers import kafka
from twophase.testing.servers.ports import free_ports
from twophase.testing.servers.server import Server
from twophase.testing.tcp_proxy import Fault, TcpProxy

pytestmark = pytest.mark.servers

END_TRANSACTION = 26


def test_a_row_is_there_when_the_reply_to_its_commit_was_lost(postgres_server: Server[str]) -> None:
    endpoint = psycopg.conninfo.conninfo_to_dict(postgres_server.endpoint)
    port = int(str(endpoint["port"]))
    with psycopg.connect(postgres_server.endpoint, autocommit=True) as direct:
        direct.execute("CREATE TABLE lost (id int)")
        with TcpProxy(port, server_host=str(endpoint["host"]), framing=postgres_messages) as proxy:
            through = psycopg.connect(postgres_server.endpoint, host="127.0.0.1", port=proxy.port, sslmode="disable")
            lost = proxy.arm(
                Fault.DROP_REPLY_AND_CUT, matching=lambda message: message.startswith(b"Q") and b"COMMIT" in message
            )
            through.execute("INSERT INTO lost VALUES (1)")
            with pytest.raises(psycopg.OperationalError):
                through.commit()
            through.close()

            assert b"COMMIT" in proxy.wait_until_fired(lost).reply
        assert direct.execute("SELECT id FROM lost").fetchall() == [(1,)]
        direct.execute("DROP TABLE lost")


def test_a_transaction_is_committed_once_when_the_reply_to_its_end_was_lost(tmp_path: Path) -> None:
    """The client asks again on a new connection, by itself; the rows are there once."""
    (port,) = free_ports(1)
    with TcpProxy(port, framing=kafka_frames, reply_framing=kafka_frames) as proxy:
        setup = kafka.Setup(client_ports=(port,), advertised_ports=(proxy.port,))
        with kafka.on_this_machine(tmp_path, setup) as server:
            assert server.endpoint == f"127.0.0.1:{proxy.port}"
            producer = Producer({"bootstrap.servers": server.endpoint, "transactional.id": "lost"})
            producer.init_transactions(WITHIN_S)
            producer.begin_transaction()
            producer.produce("lost", b"1")
            lost = proxy.arm(Fault.DROP_REPLY_AND_HANG, matching=kafka_request(END_TRANSACTION))
            with pytest.raises(KafkaException):
                producer.commit_transaction(3.0)

            assert proxy.wait_until_fired(lost).reply != b""
            assert consume(server.endpoint, "lost", 1) == [b"1"]
            assert proxy.cut() > 0
            producer.commit_transaction(WITHIN_S)
            assert consume(server.endpoint, "lost", 1) == [b"1"]
