"""PostgreSQL over TLS, with a server that was built with it: the one of the system's packages, which is also another version.

Its certificate is for 127.0.0.1, by an authority of the test's own; whoever comes without TLS, and is no superuser, is not let in.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from integration_tests.postgres_tables import TableUnderTest, ask
from twophase.clients.postgres.database import close_idle
from twophase.errors import TargetUnavailable
from twophase.sink import Outcome
from twophase.sinks.postgres.sink import PostgresSink
from twophase.testing.servers import postgres
from twophase.testing.servers.certificates import Certificate, certificate, private_key
from twophase.testing.sink_steps import SinkSteps

pytestmark = pytest.mark.servers

PASSWORD = "s3cr:et/W0rd%"
ROLE = "orders_query"
ENTRIES = "'host all postgres 127.0.0.1/32 trust', 'hostssl all all 127.0.0.1/32 scram-sha-256'"


@dataclass(frozen=True)
class SecureServer:
    admin: str
    """The superuser's connection string, without TLS."""
    certificate: Certificate
    stranger: Certificate
    """By an authority that has signed nothing of this server."""

    def dsn(self, **settings: str) -> str:
        """The role's, with TLS as it should be, but for these."""
        proper = {"sslmode": "verify-full", "sslrootcert": str(self.certificate.authority)}
        return psycopg.conninfo.make_conninfo(self.admin, user=ROLE, password=PASSWORD, **{**proper, **settings})


@pytest.fixture(scope="module")
def secure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureServer]:
    folder = tmp_path_factory.mktemp("tls")
    made = certificate(folder)
    with postgres.of_the_system(tmp_path_factory.mktemp("server")) as server:
        ((data, hba),) = ask(server.endpoint, "SELECT current_setting('data_directory'), current_setting('hba_file')")
        # The server takes a key only from a file that is its own, and that nobody else may read.
        shown = shutil.copy(private_key(made, folder / "server.pem"), f"{data}/server.pem")
        os.chmod(shown, 0o600)
        os.chown(shown, Path(data).stat().st_uid, Path(data).stat().st_gid)
        for setting, value in (("ssl", "on"), ("ssl_cert_file", "server.pem"), ("ssl_key_file", "server.pem")):
            ask(server.endpoint, f"ALTER SYSTEM SET {setting} = '{value}'")
        ask(server.endpoint, f"COPY (SELECT unnest(ARRAY[{ENTRIES}])) TO '{hba}'")
        server.restart()
        ask(server.endpoint, f"CREATE ROLE {ROLE} LOGIN PASSWORD '{PASSWORD.replace('%', '%%')}'")
        ask(server.endpoint, f"GRANT CREATE ON DATABASE postgres TO {ROLE}")
        ask(server.endpoint, f"GRANT CREATE ON SCHEMA public TO {ROLE}")
        yield SecureServer(server.endpoint, made, certificate(tmp_path_factory.mktemp("stranger")))
        close_idle()


class SecureTable(TableUnderTest):
    """A table that is read without TLS, and written with it."""

    def __init__(self, server: SecureServer, **settings: str):
        super().__init__(server.admin)
        self.by_tls = server.dsn(**settings)

    def sink(self) -> PostgresSink:
        return PostgresSink(self.by_tls, self.table, create_table=True, request_timeout_ms=20_000)


def test_rows_are_written_over_tls_to_a_server_that_is_who_it_says(secure_server: SecureServer) -> None:
    steps = SinkSteps(SecureTable(secure_server))
    plan = steps.prepare(0)
    transaction = steps.sink().begin(plan, task := steps.task(plan, 0))
    transaction.write(batch := steps.target.batch([1, 2]))
    sessions = ask(
        secure_server.admin,
        "SELECT DISTINCT ssl, version FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'twophase'",
    )
    order = steps.order(plan, steps.vote(transaction, task, batch))
    assert steps.commit(order) is Outcome.COMMITTED
    assert (steps.visible(), list(steps.target.residue())) == ([1, 2], [])
    assert sessions == [(True, "TLSv1.3")]


def refused(server: SecureServer, caplog: pytest.LogCaptureFixture, **settings: str) -> str:
    """What is said when the query starts; at once, and without the password."""
    target = SecureTable(server, **settings)
    began = time.monotonic()
    with caplog.at_level(logging.DEBUG), pytest.raises(TargetUnavailable) as caught:
        SinkSteps(target).prepare(0)
    assert time.monotonic() - began < 10.0, "what no waiting changes is waited for"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert PASSWORD not in f"{caught.value!r} {caplog.text}"
    assert ask(server.admin, "SELECT to_regclass(%s)", target.table) == [(None,)]
    return caught.value.message


def test_a_server_of_another_name_is_refused_at_once(
    secure_server: SecureServer, caplog: pytest.LogCaptureFixture
) -> None:
    said = refused(secure_server, caplog, host="localhost", hostaddr="127.0.0.1")
    assert "sslmode, sslrootcert and host in dsn" in said
    assert 'does not match host name "localhost"' in said


def test_a_server_of_another_authority_is_refused_at_once(
    secure_server: SecureServer, caplog: pytest.LogCaptureFixture
) -> None:
    said = refused(secure_server, caplog, sslrootcert=str(secure_server.stranger.authority))
    assert "sslmode, sslrootcert and host in dsn" in said
    assert "certificate verify failed" in said


def test_an_authority_whose_file_is_not_there_is_said_at_once(
    secure_server: SecureServer, caplog: pytest.LogCaptureFixture
) -> None:
    said = refused(secure_server, caplog, sslrootcert="/nowhere/authority.pem")
    assert "sslmode, sslrootcert and host in dsn" in said
    assert "/nowhere/authority.pem" in said


def switch_tls(server: SecureServer, to: str) -> None:
    """While the server runs; it tells its sessions when it has taken the setting over itself."""
    ask(server.admin, f"ALTER SYSTEM SET ssl = '{to}'")
    ask(server.admin, "SELECT pg_reload_conf()")
    deadline = time.monotonic() + 10.0
    while ask(server.admin, "SHOW ssl") != [(to,)]:
        assert time.monotonic() < deadline, f"ssl is not {to}"
        time.sleep(0.05)


def test_a_server_without_tls_is_refused_at_once(secure_server: SecureServer, caplog: pytest.LogCaptureFixture) -> None:
    switch_tls(secure_server, "off")
    try:
        said = refused(secure_server, caplog)
    finally:
        switch_tls(secure_server, "on")
    assert "sslmode, sslrootcert and host in dsn" in said
    assert "does not support SSL" in said


def test_a_server_that_wants_tls_refuses_who_comes_without(
    secure_server: SecureServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert "no encryption" in refused(secure_server, caplog, sslmode="disable")
