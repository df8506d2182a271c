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
from twophase.testing.servers.server import Server
from twophase.testing.sink_suite import SinkSuite

pytestmark = pytest.mark.servers


class TestPostgresSink(SinkSuite):
    @pytest.fixture
    def target(self, postgres_server: Server[str]) -> TableUnderTest:
        return TableUnderTest(postgres_server.endpoint)


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
