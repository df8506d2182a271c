"""`writeStream.format("twophase-postgres")` and `exactly_once` with a PostgresSink, through a real Spark."""

from __future__ import annotations

import datetime
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import twophase
from integration_tests.postgres_tables import ask, hidden_in, prepared_in, staged_in
from integration_tests.streams import Place, failure_of, orders, run, write_by
from twophase.connectors.command_line import main
from twophase.sinks import FilesSink, PostgresSink
from twophase.testing.crash import orders as order_rows
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers


@pytest.fixture
def table() -> str:
    return f"public.orders_{uuid.uuid4().hex}"


def write(rows: DataFrame, place: Place, dsn: str, table: str, **options: str) -> StreamingQuery:
    told = {"dsn": dsn, "table": table, "createTable": "true", "checkpointLocation": str(place.checkpoint), **options}
    return rows.writeStream.format("twophase-postgres").options(**told).trigger(availableNow=True).start()


def difference(place: Place, dsn: str, table: str) -> order_rows.Difference:
    found = ask(dsn, f"SELECT id, name, amount FROM {table}")
    return order_rows.compare(place.ids, [(row[0], row[1], row[2]) for row in found])


@pytest.mark.parametrize("mode", ["wal", "mvcc", "xa"])
def test_a_table_holds_every_row_once_over_restarts_and_replays(
    spark: SparkSession, place: Place, postgres_server: Server[str], table: str, mode: str
) -> None:
    dsn = postgres_server.endpoint
    for _ in range(2):
        place.add_orders(4)
        run(write(orders(spark, place), place, dsn, table, mode=mode))
        place.forget_commit(max(int(path.name) for path in (place.checkpoint / "commits").glob("[0-9]*")))
    run(write(orders(spark, place), place, dsn, table, mode=mode))

    assert not difference(place, dsn, table)
    assert staged_in(dsn, table) + hidden_in(dsn, table) + prepared_in(dsn, table) == []
    markers = "slots" if mode == "xa" else "markers"
    assert ask(dsn, f"SELECT max(epoch) FROM twophase.{markers} WHERE target = %s", table) == [(3,)]


TYPES = {
    "b": ("true", True),
    "i8": ("cast(-128 AS byte)", -128),
    "i16": ("cast(32767 AS short)", 32767),
    "i32": ("-7", -7),
    "i64": ("9223372036854775807L", 2**63 - 1),
    "f32": ("cast(0.5 AS float)", 0.5),
    "f64": ("1e300D", 1e300),
    "dec": ("cast('-1234567890.0123' AS decimal(20,4))", Decimal("-1234567890.0123")),
    "s": ("'ä漢🎉\"'", 'ä漢🎉"'),
    "bin": ("X'00FF'", b"\x00\xff"),
    "d": ("DATE'1582-01-01'", datetime.date(1582, 1, 1)),
    "ts": ("TIMESTAMP'2024-02-29 23:59:59.123456Z'", datetime.datetime(2024, 2, 29, 23, 59, 59, 123456, datetime.UTC)),
    "ntz": ("TIMESTAMP_NTZ'2024-02-29 23:59:59.123456'", datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)),
    "dt": ("INTERVAL '1 02:03:04.5' DAY TO SECOND", datetime.timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
    "arr": ("array(1, null, 3)", [1, None, 3]),
    "st": ("named_struct('a', 1, 'b', array(named_struct('c', 'x')))", {"a": 1, "b": [{"c": "x"}]}),
    "m": ("map('k', 1.5D)", {"k": 1.5}),
    "nested": ("array(array(1), array())", [[1], []]),
}


def test_values_of_every_type_of_spark_come_back_as_they_were_and_nulls_as_nulls(
    spark: SparkSession, place: Place, postgres_server: Server[str], table: str
) -> None:
    place.add_orders(1)
    expressions = [f"if(id % 2 = 0, {sql}, null) AS {name}" for name, (sql, _) in TYPES.items()]
    run(write(orders(spark, place).selectExpr("id", *expressions), place, postgres_server.endpoint, table))

    names = ", ".join(TYPES)
    even, odd = (
        ask(postgres_server.endpoint, f"SELECT DISTINCT ROW({names})::text FROM {table} WHERE id %% 2 = {rest}")
        for rest in (0, 1)
    )
    assert (len(even), odd) == (1, [(f"({',' * (len(TYPES) - 1)})",)])
    [found] = ask(postgres_server.endpoint, f"SELECT {names} FROM {table} WHERE id = 0")
    assert dict(zip(TYPES, found, strict=True)) == {name: value for name, (_, value) in TYPES.items()}


def test_an_epoch_is_in_a_table_of_files_and_in_postgres_or_in_neither(
    spark: SparkSession, place: Place, postgres_server: Server[str], table: str
) -> None:
    dsn = postgres_server.endpoint
    place.add_orders(4)

    def route(rows: DataFrame, epoch: Any) -> None:
        epoch.write("files", rows)
        epoch.write("database", rows)

    function = twophase.exactly_once(
        route, files=FilesSink(str(place.table)), database=PostgresSink(dsn, table, create_table=True)
    )
    run(write_by(function, orders(spark, place), place))
    place.forget_commit(1)
    place.add_orders(2)
    run(write_by(function, orders(spark, place), place))

    assert not place.difference()
    assert not difference(place, dsn, table)
    assert staged_in(dsn, table) == []


def test_what_is_wrong_is_said_in_one_sentence_without_a_password(
    spark: SparkSession, place: Place, postgres_server: Server[str], table: str
) -> None:
    place.add_orders(1)
    ask(postgres_server.endpoint, f"CREATE TABLE {table} (id bigint, name integer, amount real)")
    dsn = f"{postgres_server.endpoint}?password=s3cretW0rd"
    said = failure_of(write(orders(spark, place), place, dsn, table, createTable="false"))

    assert "[SCHEMA_MISMATCH]" in said
    assert "'name' is integer" in said
    assert "'amount' is real" in said
    assert "s3cretW0rd" not in said
    ledger = b"".join(path.read_bytes() for path in Path(place.checkpoint).rglob("*") if path.is_file())
    assert b"s3cretW0rd" not in ledger


def test_a_query_is_inspected_and_recovered_by_what_its_ledger_says(
    spark: SparkSession, place: Place, postgres_server: Server[str], table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place.add_orders(2)
    run(write(orders(spark, place), place, postgres_server.endpoint, table))
    for command in ("inspect", "recover"):
        assert main([command, str(place.checkpoint)]) == 0
        shown = capsys.readouterr().out
        assert "Epoch 0 is committed everywhere" in shown
        assert f"sink sink: twophase-postgres dsn={postgres_server.endpoint}" in shown
    assert main(["inspect", "--json", str(place.checkpoint)]) == 0
    assert json.loads(capsys.readouterr().out)
