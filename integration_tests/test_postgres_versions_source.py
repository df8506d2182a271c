"""PostgresVersions: values, what vanished, what is nobody's to read; and through a real Spark, chained and as it was."""

from __future__ import annotations

import json
import math
import uuid
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from integration_tests.postgres_tables import VersionsUnderTest, ask
from integration_tests.streams import Place, orders, run
from twophase.errors import DataLost, OptionError, TargetUnavailable, Unreadable
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
        "ADD d float8[]",
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
    assert row["d"] == "{1.5,NaN}"


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
