"""PostgresVersions and PostgresLog keep the contract of a source, on a real server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from integration_tests.postgres_tables import VersionKeysUnderTest, VersionsUnderTest, ask
from twophase.sinks.postgres.sink import PostgresSink
from twophase.sources import PostgresLog, PostgresVersions
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
        self.target: VersionsUnderTest = VersionsUnderTest(dsn)
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


class _NumberedRows(VersionKeysUnderTest):
    """Each row has a key of its own, whatever its number is: equal rows are two."""

    keys = 0

    def sink(self) -> PostgresSink:
        return PostgresSink(
            self.dsn, self.table, mode="mvcc", write_mode="upsert", key_columns=["key"], create_table=True
        )

    def batch(self, values: Sequence[int]) -> pa.RecordBatch:
        self.keys += len(values)
        return pa.record_batch({"key": pa.array(range(self.keys - len(values), self.keys), pa.int64())}).append_column(
            "value", pa.array(values, pa.int64())
        )


class UpsertedOrigin(VersionsOrigin):
    """A unit is an epoch of an upserted table; what it has changed is read."""

    def __init__(self, dsn: str):
        self.target = _NumberedRows(dsn)
        self.steps = SinkSteps(self.target)
        self.units = 0
        self.steps.prepare(0)

    def source(self) -> PostgresVersions:
        return PostgresVersions(self.target.dsn, self.target.table, delete_column="gone")

    def split_in(self, tasks: int) -> PostgresVersions:
        return PostgresVersions(self.target.dsn, self.target.table, delete_column="gone", parallelism=tasks)


class TestPostgresUpsertedVersions(SourceSuite):
    @pytest.fixture
    def origin(self, postgres_server: Server[str]) -> UpsertedOrigin:
        return UpsertedOrigin(postgres_server.endpoint)


class LogOrigin(SourceOrigin):
    """A unit is a transaction. Beside it others commit, of a table that is not published, and some are rolled back."""

    limits = frozenset({"rows"})
    ordered = True
    loses_any_unit = False
    many_units = 300

    def __init__(self, dsn: str):
        self.dsn, self.name = dsn, f"numbers_{uuid.uuid4().hex}"
        ask(dsn, f"CREATE TABLE {self.name} (value bigint)")
        ask(dsn, f"CREATE TABLE {self.name}_not_published (value bigint)")
        ask(dsn, f"CREATE PUBLICATION {self.name} FOR TABLE {self.name}")
        self.ends: list[str] = []
        self.source().earliest()  # the slot is there before the first row

    def source(self) -> PostgresLog:
        return PostgresLog(self.dsn, self.name, self.name, request_timeout_ms=20_000)

    def add(self, values: Sequence[int]) -> None:
        insert = "INSERT INTO {} SELECT unnest(%s::bigint[])"
        with psycopg.connect(self.dsn) as connection:
            connection.execute(insert.format(self.name).encode(), ([-1],))
            connection.rollback()
            connection.execute(insert.format(f"{self.name}_not_published").encode(), ([-2],))
            connection.commit()
            connection.execute(insert.format(self.name).encode(), (list(values),))
        self.ends.append(self.source().newest())

    def lose(self, unit: int) -> str:
        assert unit == 0, "a slot is only ever moved on"
        self.source().acknowledge(self.ends[0])
        return f"the slot {self.name} is at {json.loads(self.ends[0])['lsn']}"

    def value(self, row: Mapping[str, Any]) -> int:
        assert (row["operation"], row["table"]) == ("insert", self.name)
        return int(json.loads(row["new"])["value"])

    def end(self) -> None:
        ask(self.dsn, "SELECT pg_drop_replication_slot(%s)", self.name)


class TestPostgresLog(SourceSuite):
    @pytest.fixture
    def origin(self, postgres_server: Server[str]) -> Iterator[LogOrigin]:
        origin = LogOrigin(postgres_server.endpoint)
        yield origin
        origin.end()
