"""PostgresVersions: values, what vanished, what is nobody's to read; and through a real Spark, chained and as it was."""

from __future__ import annotations

import json
import math
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from integration_tests.postgres_tables import VersionsUnderTest, ask
from integration_tests.streams import Place, orders, run
from integration_tests.test_postgres_sink import wait_for_lock
from twophase.errors import DataLost, OptionError, SchemaMismatch, TargetUnavailable, Unreadable
from twophase.source import ReadLimit
from twophase.sources import PostgresVersions
from twophase.testing.arrow_columns import ARROW_COLUMNS, same_values
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps

pytestmark = pytest.mark.servers

AS_THEY_WERE = (
    "bool",
    "int16",
    "int32",
    "int64",
    "float",
    "double",
    "decimal128(20, 4)",
    "decimal128(38, 0)",
    "string",
    "binary",
    "date32[day]",
    "timestamp[us, tz=UTC]",
    "timestamp[us]",
    "list<item: int32>",
)


@pytest.fixture
def target(postgres_server: Server[str]) -> VersionsUnderTest:
    return VersionsUnderTest(postgres_server.endpoint)


@pytest.fixture
def steps(target: VersionsUnderTest) -> SinkSteps:
    return SinkSteps(target)


def rows_of(source: PostgresVersions, start: str, end: str) -> list[dict[str, Any]]:
    return [row for split in source.plan(start, end) for batch in source.read(split) for row in batch.to_pylist()]


def all_rows(target: VersionsUnderTest, **options: Any) -> list[dict[str, Any]]:
    source = PostgresVersions(target.dsn, target.table, **options)
    return rows_of(source, source.earliest(), source.newest())


@pytest.mark.parametrize("kind", AS_THEY_WERE)
def test_values_come_back_as_they_were(steps: SinkSteps, target: VersionsUnderTest, kind: str) -> None:
    batch = target.typed_batch(ARROW_COLUMNS[kind])
    assert batch is not None
    plan = steps.prepare(0, schema=batch.schema)
    steps.commit(steps.order(plan, steps.write(plan, 0, batch)))

    found = sorted(all_rows(target), key=lambda row: int(row["value"]))

    assert PostgresVersions(target.dsn, target.table).schema() == batch.schema
    for row, expected in zip(found, ARROW_COLUMNS[kind].to_pylist(), strict=True):
        assert same_values(row["typed"], expected), f"{row['typed']!r} is not {expected!r}"


def test_what_arrow_has_no_type_for_comes_as_text(steps: SinkSteps, target: VersionsUnderTest) -> None:
    steps.epoch(0, [1])
    versions = f"{target.table}_versions"
    ask(
        target.dsn,
        f"ALTER TABLE {versions} ADD u uuid, ADD j jsonb, ADD t time, ADD n numeric, ADD w numeric(60,2), ADD l text[], "
        "ADD d float8[], ADD c char(5) DEFAULT 'ab'",
    )
    ask(
        target.dsn,
        f"UPDATE {versions} SET u = '00000000-0000-0000-0000-00000000000a', j = '{{\"a\": [1, null]}}', t = '23:59:59.5', n = 1.5, "
        "w = 2.25, l = ARRAY['a,\"b', NULL, ''], d = '{{1.5,NaN}}'".replace("{{", "{").replace("}}", "}"),
    )

    ((row,),) = ([row] for row in all_rows(target))

    assert (row["u"], json.loads(row["j"]), row["t"]) == (
        "00000000-0000-0000-0000-00000000000a",
        {"a": [1, None]},
        "23:59:59.5",
    )
    assert (str(row["n"]), row["w"], row["l"]) == ("1.500000000000000000", "2.25", ['a,"b', None, ""])
    assert (row["d"], row["c"]) == ("{1.5,NaN}", "ab   ")


@pytest.mark.parametrize(
    ("column", "value", "says"),
    [("date", "infinity", "'typed'"), ("numeric(10,2)", "NaN", "'typed'"), ("int4[]", "{{1,2},{3,4}}", "JSON")],
)
def test_a_value_that_its_type_can_not_hold_is_an_error(
    steps: SinkSteps, target: VersionsUnderTest, column: str, value: str, says: str
) -> None:
    steps.epoch(0, [1])
    ask(target.dsn, f"ALTER TABLE {target.table}_versions ADD typed {column} DEFAULT '{value}'")

    with pytest.raises(Unreadable, match=says):
        all_rows(target)


def test_undecided_rows_and_losers_are_never_read(steps: SinkSteps, target: VersionsUnderTest) -> None:
    steps.epoch(0, [1])
    plan = steps.prepare(1)
    steps.share(plan, 0, [8])
    order = steps.order(plan, steps.share(plan, 0, [2]))
    assert [row["value"] for row in all_rows(target)] == [1]
    steps.commit(order)
    steps.decided(2, [9])

    assert [(row["value"], row["epoch"]) for row in all_rows(target, include_epoch=True)] == [(1, 0), (2, 1)]


def test_where_a_query_begins_and_how_much_it_takes(steps: SinkSteps, target: VersionsUnderTest) -> None:
    for number in range(4):
        steps.epoch(number, [number, 10 + number])

    def positions(**options: Any) -> list[int]:
        source = PostgresVersions(target.dsn, target.table, **options)
        at = [source.earliest()]
        while at[-1] != source.newest():
            at.append(source.latest(at[-1]))
        return [json.loads(each)["position"] for each in at]

    assert positions() == [-1, 3]
    assert positions(starting_epoch="latest") == [3]
    assert positions(starting_epoch="2", max_epochs_per_trigger=1) == [1, 2, 3]
    assert positions(max_epochs_per_trigger=3) == [-1, 2, 3]
    assert positions(max_rows_per_trigger=5) == [-1, 1, 3]
    assert positions(max_rows_per_trigger=1) == [-1, 0, 1, 2, 3]
    source = PostgresVersions(target.dsn, target.table)
    assert json.loads(source.latest(source.earliest(), ReadLimit(rows=3)))["position"] == 0


def test_a_table_that_is_another_or_was_set_back_is_data_lost(steps: SinkSteps, target: VersionsUnderTest) -> None:
    for number in range(2):
        steps.epoch(number, [number])
    source = PostgresVersions(target.dsn, target.table)
    start, end = source.earliest(), source.newest()
    ask(target.dsn, f"UPDATE twophase.lines SET position = 0 WHERE target = '{target.table}'")
    for call in (lambda: source.latest(end), lambda: source.plan(start, end)):
        with pytest.raises(DataLost, match="is at epoch 0, and was read up to epoch 1"):
            call()
    ask(target.dsn, f"UPDATE twophase.lines SET position = 1 WHERE target = '{target.table}'")
    ask(target.dsn, f"INSERT INTO {target.table}_versions VALUES (7, 1, 1)")
    with pytest.raises(DataLost, match="epoch 1 has 2 rows of 1"):
        source.plan(start, end)
    ask(target.dsn, f"CREATE TABLE {target.table}_copy AS TABLE {target.table}_versions")
    ask(target.dsn, f"DROP TABLE {target.table}_versions CASCADE")
    name = target.table.partition(".")[2]
    ask(target.dsn, f"ALTER TABLE {target.table}_copy RENAME TO {name}_versions")
    with pytest.raises(DataLost, match="is another table than the one that was read up to epoch 1"):
        source.latest(end)


def test_rows_that_go_or_move_between_plan_and_read_are_noticed(steps: SinkSteps, target: VersionsUnderTest) -> None:
    steps.epoch(0, [1, 2, 3])
    source = PostgresVersions(target.dsn, target.table)
    (split,) = source.plan(source.earliest(), source.newest())
    ask(target.dsn, f"DELETE FROM {target.table}_versions WHERE value = 2")
    with pytest.raises(DataLost, match="2 rows are there, and a moment ago there were 3"):
        list(source.read(split))
    ask(target.dsn, f"VACUUM FULL {target.table}_versions")
    with pytest.raises(DataLost, match="rewritten"):
        list(source.read(split))


def test_a_table_that_is_rewritten_while_a_task_waits_for_it_is_noticed(
    steps: SinkSteps, target: VersionsUnderTest
) -> None:
    """Rows of equal size fill pages equally: a rewritten table has as many rows in the same pages, and others."""
    plan = steps.prepare(0)
    steps.share(plan, 0, range(-3_000, 0))
    steps.commit(steps.order(plan, steps.share(plan, 0, range(20_000))))
    source = PostgresVersions(target.dsn, target.table, parallelism=4)
    split, *others = source.plan(source.earliest(), source.newest())
    read = [row for each in others for batch in source.read(each) for row in batch.to_pylist()]
    assert len(read) < 20_000
    with (
        ThreadPoolExecutor(2) as threads,
        psycopg.connect(target.dsn) as holder,
        psycopg.connect(target.dsn, autocommit=True) as rewriter,
    ):
        holder.execute(f"LOCK TABLE {target.table}_versions IN ACCESS SHARE MODE".encode())
        rewriting = threads.submit(rewriter.execute, f"VACUUM FULL {target.table}_versions".encode())
        wait_for_lock(target.dsn, "VACUUM FULL")
        reading = threads.submit(lambda: list(source.read(split)))
        wait_for_lock(target.dsn, "LOCK TABLE")
        holder.rollback()
        rewriting.result(60)
        with pytest.raises(DataLost, match="rewritten"):
            reading.result(60)


def test_a_value_may_begin_with_a_byte_order_mark(target: VersionsUnderTest) -> None:
    steps = SinkSteps(target)
    columns: list[tuple[str, pa.DataType]] = [("text", pa.string()), ("value", pa.int64())]
    schema = pa.schema(columns)
    plan = steps.prepare(0, schema=schema)
    texts = ["\ufeffhello", "", None, '"', "\\.", "a\r\nb"]
    batch = pa.record_batch([texts, range(len(texts))], schema=schema)
    steps.commit(steps.order(plan, steps.write(plan, 0, batch)))

    assert [row["text"] for row in all_rows(target)] == texts


@pytest.mark.parametrize("value", ["123456789012345678901234567890", "1e20", "-1e20", "170141183460469231731", "1e-19"])
def test_a_number_without_bounds_that_is_too_large_is_an_error(
    steps: SinkSteps, target: VersionsUnderTest, value: str
) -> None:
    steps.epoch(0, [1])
    ask(target.dsn, f"ALTER TABLE {target.table}_versions ADD n numeric DEFAULT {value}")

    with pytest.raises(Unreadable, match="no decimal of 20 digits"):
        all_rows(target)
    ask(target.dsn, f"UPDATE {target.table}_versions SET n = -99999999999999999999.9999999999999999990000000")
    assert [str(row["n"]) for row in all_rows(target)] == ["-99999999999999999999.999999999999999999"]


def test_a_name_with_a_percent_sign_works_with_losers_too(postgres_server: Server[str]) -> None:
    target = VersionsUnderTest(postgres_server.endpoint)
    target.table = f'public."50% off {uuid.uuid4().hex[:8]}"'
    steps = SinkSteps(target)
    plan = steps.prepare(0)
    steps.share(plan, 0, [9])
    steps.commit(steps.order(plan, steps.share(plan, 0, [1])))
    steps.decided(1, [8])
    steps.sweep()

    assert steps.visible() == [row["value"] for row in all_rows(target)] == [1]


def test_a_table_that_was_removed_as_the_page_says_can_be_made_again(
    steps: SinkSteps, target: VersionsUnderTest
) -> None:
    steps.epoch(0, [1])
    for statement in (f"DROP TABLE {target.table}_versions CASCADE", "DELETE FROM twophase.lines WHERE target = %s"):
        ask(target.dsn, statement, *([target.table] if "%s" in statement else []))
    ask(target.dsn, "DELETE FROM twophase.markers WHERE target = %s", target.table)
    again = SinkSteps(target)

    again.epoch(0, [2, 3])

    assert sorted(row["value"] for row in all_rows(target)) == [2, 3]


def test_rows_of_a_task_come_in_the_order_of_their_epochs(steps: SinkSteps, target: VersionsUnderTest) -> None:
    """An epoch's rows lie behind those of a loser; what that one leaves is filled by the next epoch."""
    plan = steps.prepare(0)
    steps.share(plan, 0, range(-4_000, 0))
    steps.commit(steps.order(plan, steps.share(plan, 0, [1])))
    steps.sweep()
    ask(target.dsn, f"VACUUM {target.table}_versions")
    steps.epoch(1, [2])
    ((lies_before,),) = ask(
        target.dsn,
        f"SELECT (SELECT ctid FROM {target.table}_versions WHERE value = 2) < "
        f"(SELECT ctid FROM {target.table}_versions WHERE value = 1)",
    )
    assert lies_before, "the test shows nothing otherwise"

    assert [row["value"] for row in all_rows(target)] == [1, 2]


def test_columns_are_those_that_the_query_was_started_with(steps: SinkSteps, target: VersionsUnderTest) -> None:
    steps.epoch(0, [1])
    told = {"dsn": target.dsn, "versionsOf": target.table}
    source = PostgresVersions.from_options(told, PostgresVersions.from_options(told).schema())
    ask(target.dsn, f"ALTER TABLE {target.table}_versions ADD more text DEFAULT 'x'")
    assert rows_of(source, source.earliest(), source.newest()) == [{"value": 1}]
    ask(target.dsn, f"ALTER TABLE {target.table}_versions DROP value CASCADE")
    with pytest.raises(SchemaMismatch, match="lost columns since the query was started: value"):
        rows_of(source, source.earliest(), source.newest())


def test_many_rows_are_read_once_in_many_splits(steps: SinkSteps, target: VersionsUnderTest) -> None:
    for number in range(3):
        values = range(number * 20_000, (number + 1) * 20_000)
        steps.epoch(number, values[:15_000], values[15_000:])
    source = PostgresVersions(target.dsn, target.table, parallelism=7)
    start, end = source.earliest(), source.newest()

    splits = source.plan(start, end)
    found = [[int(row["value"]) for batch in source.read(split) for row in batch.to_pylist()] for split in splits]

    assert len(splits) >= 7
    assert sorted(value for part in found for value in part) == list(range(60_000))
    assert max(map(len, found)) < 2 * 60_000 / 7


def test_a_name_without_versions_is_called_so(target: VersionsUnderTest) -> None:
    with pytest.raises(TargetUnavailable, match="is no table with versions"):
        PostgresVersions(target.dsn, target.table).earliest()
    with pytest.raises(OptionError, match="startingEpoch is 'first'"):
        PostgresVersions(target.dsn, target.table, starting_epoch="first")
    SinkSteps(target).epoch(0, [1])
    name = target.table.partition(".")[2]
    ask(target.dsn, f"CREATE TABLE mine_{name}_versions (a int)")
    with pytest.raises(TargetUnavailable, match="is no table with versions"):
        PostgresVersions(target.dsn, f"mine_{name}").earliest()
    with pytest.raises(OptionError, match=r"startingEpoch is 9, and .* is at epoch 0"):
        PostgresVersions(target.dsn, target.table, starting_epoch="9").earliest()
    with pytest.raises(OptionError, match="startingEpoch is for a stream"):
        PostgresVersions(target.dsn, target.table, starting_epoch="0").bounded()
    with pytest.raises(OptionError, match="asOfEpoch is for a batch"):
        PostgresVersions(target.dsn, target.table, as_of_epoch=0).earliest()


def test_an_older_releases_epochs_which_were_not_counted_are_read(steps: SinkSteps, target: VersionsUnderTest) -> None:
    for number in range(3):
        steps.epoch(number, [number])
    ask(target.dsn, f"DELETE FROM twophase.epochs WHERE target = '{target.table}' AND position < 2")

    assert [row["value"] for row in all_rows(target)] == [0, 1, 2]

    ask(target.dsn, f"DELETE FROM {target.table}_versions WHERE twophase_position = 2")
    with pytest.raises(DataLost, match="epoch 2 has 0 rows of 1"):
        all_rows(target)


def test_tables_chain_through_spark_and_can_be_read_as_they_were(
    spark: SparkSession, place: Place, postgres_server: Server[str]
) -> None:
    dsn, table = postgres_server.endpoint, f"public.orders_{uuid.uuid4().hex}"
    told = {"dsn": dsn, "versionsOf": table}

    def write() -> None:
        settings = {"dsn": dsn, "table": table, "mode": "mvcc", "createTable": "true"}
        rows = orders(spark, place).writeStream.format("twophase-postgres").options(**settings)
        run(rows.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True).start())

    def follow() -> None:
        rows = spark.readStream.format("twophase-postgres").options(**told, maxEpochsPerTrigger="1").load()
        second = rows.writeStream.format("twophase-files").option("checkpointLocation", str(place.root / "second"))
        run(second.trigger(availableNow=True).start(str(place.table)))

    for _ in range(2):
        place.add_orders(4)
        write()
        follow()
    (place.root / "second" / "commits" / "4").unlink()
    (place.root / "second" / "commits" / ".4.crc").unlink(missing_ok=True)
    follow()

    assert not place.difference()
    assert place.epochs() == [0, 1, 2, 3, 4]  # the first is empty: where the table begins is logged by it
    read = spark.read.format("twophase-postgres").options(**told)
    assert read.load().count() == 400
    assert sorted(row.id for row in read.option("asOfEpoch", 1).load().select("id").collect()) == place.ids[:200]
    with pytest.raises(Exception, match=r"asOfEpoch is 9, and .* is at epoch 3"):
        read.option("asOfEpoch", 9).load().count()


def test_floats_of_every_kind(steps: SinkSteps, target: VersionsUnderTest) -> None:
    """Not by equality: NaN is none, and -0.0 equals 0.0."""
    batch = target.typed_batch(pa.array([math.nan, -0.0, math.inf, 0.1 + 0.2, 5e-324], pa.float64()))
    assert batch is not None
    plan = steps.prepare(0, schema=batch.schema)
    steps.commit(steps.order(plan, steps.write(plan, 0, batch)))
    found = [row["typed"] for row in all_rows(target)]
    assert [repr(value) for value in found] == ["nan", "-0.0", "inf", repr(0.1 + 0.2), "5e-324"]
