"""Columns that a table gets from its rows: once, whoever dies, by the newest driver alone, and shown to every reader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import psycopg
import pyarrow as pa
import pytest

from integration_tests.postgres_tables import TableUnderTest, ask, hidden_in, prepared_in, staged_in
from twophase.errors import Fenced, SchemaMismatch, TargetUnavailable
from twophase.sink import Outcome
from twophase.sinks.postgres.sink import PostgresSink
from twophase.sources import PostgresVersions
from twophase.testing.query_steps import QuerySteps, dies_at
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps

pytestmark = pytest.mark.servers

MODES = ("wal", "wal upsert", "mvcc", "mvcc upsert", "xa")
MORE: Sequence[tuple[str, pa.DataType]] = (
    ('it\'s % "more"', pa.string()),
    ("price", pa.decimal128(10, 2)),
    ("parts", pa.list_(pa.int32())),
)


class Widened(TableUnderTest):
    """Rows have a number, and after `widen` more than that."""

    def __init__(self, dsn: str, told: str, schema_change: Literal["refuse", "add"] = "add"):
        super().__init__(dsn)
        self.mode, _, self.write_mode = told.partition(" ")
        self.schema_change, self.more = schema_change, list[tuple[str, pa.DataType]]()

    def sink(self) -> PostgresSink:
        return PostgresSink(
            self.dsn,
            self.table,
            mode=self.mode,  # type: ignore[arg-type]
            write_mode=self.write_mode or "append",  # type: ignore[arg-type]
            key_columns=["value"] if self.write_mode else [],
            create_table=True,
            schema_change=self.schema_change,
            lock_timeout_ms=2_000,
        )

    def batch(self, values: Sequence[int]) -> pa.RecordBatch:
        batch = super().batch(values)
        for name, kind in self.more:
            made: list[Any] = [None if value % 2 else self.made(kind, value) for value in values]
            batch = batch.append_column(name, pa.array(made, pa.string() if kind == pa.string() else None).cast(kind))
        return batch

    @staticmethod
    def made(kind: pa.DataType, value: int) -> Any:
        return [value] if isinstance(kind, pa.ListType) else str(value)

    def columns(self) -> list[str]:
        with psycopg.connect(self.dsn) as connection:
            found = connection.execute(f"SELECT * FROM {self.table} LIMIT 0".encode())
            return [column.name for column in found.description or ()]

    def residue(self) -> Sequence[str]:
        look = {"wal": staged_in, "mvcc": hidden_in, "xa": prepared_in}[self.mode]
        return look(self.dsn, self.table)


@pytest.fixture(params=MODES)
def target(request: pytest.FixtureRequest, postgres_server: Server[str]) -> Iterator[Widened]:
    target = Widened(postgres_server.endpoint, request.param)
    yield target
    for gid in prepared_in(target.dsn, target.table):
        ask(target.dsn, f"ROLLBACK PREPARED '{gid}'")


@pytest.fixture
def steps(target: Widened) -> SinkSteps:
    return SinkSteps(target)


def names(target: Widened) -> list[str]:
    return ["value", *(name for name, _ in target.more)]


def test_columns_are_added_one_after_the_other_and_earlier_rows_have_nothing_in_them(
    steps: SinkSteps, target: Widened
) -> None:
    steps.epoch(0, [1, 2])
    for number, column in enumerate(MORE, start=1):
        target.more.append(column)
        steps.epoch(number, [10 * number], [10 * number + 1])
        assert target.columns() == names(target)
    rows = {int(row["value"]): row for row in target.read()}
    assert sorted(rows) == [1, 2, 10, 11, 20, 21, 30, 31]
    first, *_, last = (name for name, _ in target.more)
    assert [rows[value][first] for value in (1, 2, 10, 11, 20)] == [None, None, "10", None, "20"]
    assert [rows[value][last] for value in (1, 20, 30, 31)] == [None, None, [30], None]
    assert list(target.residue()) == []


def test_rows_may_come_without_the_columns_again(steps: SinkSteps, target: Widened) -> None:
    steps.epoch(0, [1])
    target.more.append(MORE[0])
    steps.epoch(1, [2])
    target.more.clear()
    steps.epoch(2, [3])
    assert (steps.visible(), target.columns()) == ([1, 2, 3], ["value", MORE[0][0]])


def test_a_driver_that_dies_anywhere_adds_columns_once_and_loses_nothing(target: Widened, tmp_path: Path) -> None:
    """After it has added one, before the tasks; with an epoch decided that lacks it; and within the commit of one that has it."""
    committing = "postgres.slot_committed" if target.mode == "xa" else "postgres.committed"
    query = QuerySteps(tmp_path / "checkpoint", target)
    query.epoch(0, [1])
    query.log(1)
    target.more.append(MORE[0])
    query.prepare()
    assert target.columns() == names(target)
    query = query.restart()
    query.finish([2], [3])

    query.log(2)
    query.decided(tmp_path, [4], [5])
    target.more.append(MORE[1])
    query = query.restart()
    query.finish([4], [5])
    assert target.columns() == names(target)[:-1], "nothing was written"

    query.log(3)
    target.more.append(MORE[2])
    with dies_at(tmp_path, committing):
        query.finish([6], [7])
    query = query.restart()
    query.finish([6], [7])
    query.epoch(4, [8])
    assert target.columns() == names(target)
    assert query.findings() == []
    assert query.residue() == []


def test_an_overtaken_driver_adds_nothing(steps: SinkSteps, target: Widened) -> None:
    steps.epoch(0, [1])
    plan = steps.prepare(1)
    steps.prepare(1)  # another driver has come
    target.more.append(MORE[0])
    old = plan.prepared
    late = type(old)(**{**old.__dict__, "schema": target.batch([]).schema})
    with pytest.raises(Fenced):
        target.sink().prepare(late)
    assert target.columns() == ["value"]


def test_what_does_not_fit_for_another_reason_adds_nothing(steps: SinkSteps, target: Widened) -> None:
    """And all reasons are in one error."""
    steps.epoch(0, [1])
    wrong: list[tuple[str, pa.DataType]] = [("value", pa.string()), ("fine", pa.string()), ("void", pa.null())]
    for schema, said in (
        (pa.schema(wrong), r"'value' is bigint.*'void' is null|'void' is null.*'value' is bigint"),
        (target.batch([]).schema.append(pa.field("Value", pa.int64())), "it has 'value': case counts"),
        (target.batch([]).schema.append(pa.field("x" * 64, pa.int64())), "longer than the 63 bytes"),
    ):
        with pytest.raises(SchemaMismatch, match=said):
            steps.prepare(1, schema=schema)
    assert target.columns() == ["value"]
    target.schema_change = "refuse"
    target.more.append(MORE[0])
    with pytest.raises(SchemaMismatch, match="the table has no column"):
        steps.prepare(1)
    assert target.columns() == ["value"]


def test_a_reader_that_holds_the_table_is_named_and_nothing_is_lost(steps: SinkSteps, target: Widened) -> None:
    steps.epoch(0, [1])
    target.more.append(MORE[0])
    with psycopg.connect(target.dsn) as reader:
        reader.execute(f"SELECT * FROM {target.table}".encode())
        with pytest.raises(TargetUnavailable, match="lockTimeoutMs"):
            steps.prepare(1)
        assert target.columns() == ["value"]
    steps.epoch(1, [2])
    assert (steps.visible(), target.columns()) == ([1, 2], names(target))


def test_a_role_that_does_not_own_the_table_is_told_what_to_run(steps: SinkSteps, target: Widened) -> None:
    steps.epoch(0, [1])
    role = target.table.partition(".")[2].replace("orders", "role")
    ask(target.dsn, f"CREATE ROLE {role} LOGIN")
    ask(target.dsn, f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
    ask(target.dsn, f"GRANT ALL ON SCHEMA twophase TO {role}")
    ask(target.dsn, f"GRANT ALL ON ALL TABLES IN SCHEMA twophase TO {role}")
    target.more.append(MORE[1])
    owner, target.dsn = target.dsn, target.dsn.replace("postgres@", f"{role}@")
    with pytest.raises(TargetUnavailable, match=r"lacks a right: only the owner of .* may run ALTER TABLE") as caught:
        steps.prepare(1)
    target.dsn = owner
    if target.mode != "mvcc":  # its view must be made anew, too
        with psycopg.connect(owner, autocommit=True) as connection:
            connection.execute(caught.value.message.partition("may run ")[2].encode())
        target.dsn = owner.replace("postgres@", f"{role}@")
    steps.epoch(1, [2])
    assert (steps.visible(), target.columns()) == ([1, 2], names(target))


def test_two_queries_that_add_the_same_column_get_one(postgres_server: Server[str]) -> None:
    targets = [Widened(postgres_server.endpoint, "wal") for _ in range(4)]
    everyone = [SinkSteps(target) for target in targets]
    for number, steps in enumerate(everyone):
        assert isinstance(steps.target, Widened)
        steps.target.table = targets[0].table
        steps.owner = type(steps.owner)(f"query{number}", "sink")
        steps.epoch(0, [number])
    for target in targets:
        target.more.append(MORE[0])
    with ThreadPoolExecutor(4) as threads:
        done = [threads.submit(steps.epoch, 1, [10 + number]) for number, steps in enumerate(everyone)]
        for each in done:
            each.result(60)
    assert targets[0].columns() == names(targets[0])
    assert everyone[0].visible() == [0, 1, 2, 3, 10, 11, 12, 13]


# ---- versions ----


@pytest.fixture(params=["mvcc", "mvcc upsert"])
def versions(request: pytest.FixtureRequest, postgres_server: Server[str]) -> Widened:
    return Widened(postgres_server.endpoint, request.param)


def test_versions_are_shown_with_the_column_as_they_were_too(versions: Widened) -> None:
    """By the function and to those who were granted the view before; and to those who follow the table."""
    steps, target = SinkSteps(versions), versions
    deleting = {"delete_column": "gone"} if target.write_mode else {}
    steps.epoch(0, [1])
    role = target.table.partition(".")[2].replace("orders", "reader")
    ask(target.dsn, f"CREATE ROLE {role} LOGIN")
    ask(target.dsn, f"GRANT SELECT ON {target.table} TO {role}")
    ask(target.dsn, f"GRANT EXECUTE ON FUNCTION {target.table}_as_of TO {role}")
    running = PostgresVersions(target.dsn, target.table, **deleting)
    started_with = running.schema()
    old = PostgresVersions.from_options(
        {"dsn": target.dsn, "versionsOf": target.table, **({"deleteColumn": "gone"} if deleting else {})}, started_with
    )
    target.more.append(("price", pa.decimal128(10, 2)))
    steps.epoch(1, [2])
    reader = target.dsn.replace("postgres@", f"{role}@")
    assert ask(reader, f"SELECT value, price::text FROM {target.table} ORDER BY 1") == [(1, None), (2, "2.00")]
    assert ask(reader, f"SELECT value, price::text FROM {target.table}_as_of(0)") == [(1, None)]

    def read(source: PostgresVersions) -> list[dict[str, Any]]:
        splits = source.plan(source.earliest(), source.newest())
        return [row for split in splits for batch in source.read(split) for row in batch.to_pylist()]

    assert [(row["value"], row["price"] and str(row["price"])) for row in read(running)] == [(1, None), (2, "2.00")]
    assert [list(row) for row in read(old)] == [started_with.names] * 2, "a query that runs has its columns to its end"


def test_a_column_that_the_view_does_not_show_is_not_written_in_silence(versions: Widened) -> None:
    """Somebody has added it to the versions alone."""
    steps, target = SinkSteps(versions), versions
    steps.epoch(0, [1])
    ask(target.dsn, f"ALTER TABLE {target.table}_versions ADD price numeric(10,2)")
    target.more.append(("price", pa.decimal128(10, 2)))
    target.schema_change = "refuse"
    with pytest.raises(SchemaMismatch, match="does not show price"):
        steps.prepare(1)
    target.schema_change = "add"
    assert steps.commit(steps.decided(1, [2])) is Outcome.COMMITTED
    assert ask(target.dsn, f"SELECT value, price::text FROM {target.table} ORDER BY 1") == [(1, None), (2, "2.00")]


def test_a_table_of_an_older_release_is_written_to_and_gets_columns(postgres_server: Server[str]) -> None:
    """Its function for time travel, and its schema, are what that release made."""
    target = Widened(postgres_server.endpoint, "mvcc")
    steps = SinkSteps(target)
    steps.epoch(0, [1])
    ask(target.dsn, "ALTER TABLE twophase.lines DROP COLUMN kept_from")
    ask(target.dsn, "ALTER TABLE twophase.attempts DROP COLUMN versions")
    ask(target.dsn, "DELETE FROM twophase.layout WHERE version <> 3")
    ask(target.dsn, "UPDATE twophase.layout SET version = 2")
    source = PostgresVersions(target.dsn, target.table)
    assert [split.rows for split in source.plan(source.earliest(), source.newest())] == [1]
    target.more.append(MORE[0])
    steps.epoch(1, [2])
    assert (steps.visible(), target.columns()) == ([1, 2], names(target))
    assert ask(target.dsn, f"SELECT value FROM {target.table}_as_of(0)") == [(1,)]
