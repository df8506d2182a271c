"""PostgresSink keeps the contract, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration_tests.postgres_tables import (
    KeysUnderTest,
    PreparedUnderTest,
    TableUnderTest,
    VersionKeysUnderTest,
    VersionsUnderTest,
)
from twophase.testing.servers import postgres
from twophase.testing.servers.server import Server
from twophase.testing.sink_suite import SinkSuite

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def system_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server[str]]:
    with postgres.of_the_system(tmp_path_factory.mktemp("system")) as server:
        yield server


class TestPostgresSink(SinkSuite):
    @pytest.fixture
    def target(self, postgres_server: Server[str]) -> TableUnderTest:
        return TableUnderTest(postgres_server.endpoint)


@pytest.mark.thorough
class TestPostgresOfTheSystem(SinkSuite):
    """Another version of the server, mostly: the one of the system's packages."""

    @pytest.fixture
    def target(self, system_server: Server[str]) -> VersionsUnderTest:
        return VersionsUnderTest(system_server.endpoint)


class TestPostgresUpserts(SinkSuite):
    @pytest.fixture
    def target(self, postgres_server: Server[str]) -> KeysUnderTest:
        return KeysUnderTest(postgres_server.endpoint)


class TestPostgresVersions(SinkSuite):
    @pytest.fixture
    def target(self, postgres_server: Server[str]) -> VersionsUnderTest:
        return VersionsUnderTest(postgres_server.endpoint)


class TestPostgresUpsertedVersions(SinkSuite):
    @pytest.fixture
    def target(self, postgres_server: Server[str]) -> VersionKeysUnderTest:
        return VersionKeysUnderTest(postgres_server.endpoint)


class TestPostgresPrepared(SinkSuite):
    @pytest.fixture
    def target(self, postgres_server: Server[str]) -> Iterator[PreparedUnderTest]:
        target = PreparedUnderTest(postgres_server.endpoint)
        yield target
        target.end()
