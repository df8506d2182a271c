"""PostgresVersions keeps the contract of a source, on a real server."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from integration_tests.postgres_tables import VersionsUnderTest, ask
from twophase.sources import PostgresVersions
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps
from twophase.testing.source_suite import SourceOrigin, SourceSuite

pytestmark = pytest.mark.servers


class VersionsOrigin(SourceOrigin):
    """A unit is an epoch, whose rows two tasks have written. Before it one was tried, and not decided."""

    limits = frozenset({"rows"})
    ordered = True
    many_units = 60  # each is an epoch of a table

    def __init__(self, dsn: str):
        self.target = VersionsUnderTest(dsn)
        self.steps = SinkSteps(self.target)
        self.units = 0
        self.steps.prepare(0)

    def source(self) -> PostgresVersions:
        return PostgresVersions(self.target.dsn, self.target.table)

    def split_in(self, tasks: int) -> PostgresVersions:
        return PostgresVersions(self.target.dsn, self.target.table, parallelism=tasks)

    def add(self, values: Sequence[int]) -> None:
        self.steps.decided(self.units, [-1], [-2])
        self.steps.sweep()
        half = len(values) // 2
        self.steps.epoch(self.units, values[:half], values[half:])
        self.units += 1

    def lose(self, unit: int) -> str:
        ask(self.target.dsn, f"DELETE FROM {self.target.table}_versions WHERE twophase_position = {unit}")
        return f"epoch {unit} has 0 rows of"


class TestPostgresVersions(SourceSuite):
    @pytest.fixture
    def origin(self, postgres_server: Server[str]) -> VersionsOrigin:
        return VersionsOrigin(postgres_server.endpoint)
