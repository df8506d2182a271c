"""Every piece of Python of docs/postgres.md, and how it says that everything is removed: what stands there is what runs here."""

from __future__ import annotations

import ast
import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from examples import files_to_postgres
from integration_tests.jdbc_program import FROM_JDBC, PAGE
from integration_tests.postgres_tables import ask
from integration_tests.streams import Place, orders, run
from tests.markdown import blocks, section
from twophase.clients.postgres.database import close_idle
from twophase.testing.child import running
from twophase.testing.crash import orders as order_rows
from twophase.testing.servers import postgres
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers

COLUMNS = "id bigint, name text, amount double precision"


@pytest.fixture
def dsn(postgres_server: Server[str]) -> Iterator[str]:
    """A database of its own, with the schema of the page."""
    name = f"shop_{uuid.uuid4().hex}"
    ask(postgres_server.endpoint, f"CREATE DATABASE {name}")
    dsn = psycopg.conninfo.make_conninfo(postgres_server.endpoint, dbname=name)
    ask(dsn, "CREATE SCHEMA sales")
    yield dsn
    close_idle()


@pytest.fixture
def reference(dsn: str, tmp_path: Path) -> str:
    """By a file, since workers that run already do not see what is new in the environment."""
    (tmp_path / "dsn").write_text(dsn)
    return f"file:{tmp_path}/dsn"


def code_of(heading: str) -> list[str]:
    return blocks(section(PAGE.read_text("utf-8"), heading), "python")


def run_code(code: str, place: Place, reference: str, **names: Any) -> Any:
    """Run a piece of the page; a query that it starts reads all there is. What its last line gives, if that is a value."""
    code = code.replace("/data/", f"{place.root}/").replace("env:ORDERS_DSN", reference)
    parsed, value = ast.parse(code), None
    for statement in parsed.body:
        if isinstance(statement, ast.Expr):
            value = eval(compile(ast.Expression(statement.value), str(PAGE), "eval"), names)
        else:
            exec(compile(ast.Module([statement], []), str(PAGE), "exec"), names)
    query = names.get("query")
    if isinstance(query, StreamingQuery):
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    return names.get("changes", value)


def difference(place: Place, dsn: str) -> order_rows.Difference:
    found = ask(dsn, "SELECT id, name, amount FROM sales.orders")
    return order_rows.compare(place.ids, [(row[0], row[1], row[2]) for row in found])


def test_the_first_query_of_the_page_and_how_all_of_it_is_removed(
    spark: SparkSession, place: Place, dsn: str, reference: str
) -> None:
    ask(dsn, f"CREATE TABLE sales.orders ({COLUMNS})")
    [code] = code_of("Use it")
    for _ in range(2):
        place.add_orders(2)
        run_code(code, place, reference, spark=spark, orders=orders(spark, place))
    assert not difference(place, dsn)
    ((owner,),) = ask(dsn, "SELECT owner FROM twophase.markers")
    [removing] = blocks(section(PAGE.read_text("utf-8"), "Removing everything"), "sql")
    for statement in removing.replace("the owner", owner).strip().splitlines():
        ask(dsn, statement)
    assert ask(dsn, "SELECT count(*) FROM twophase.markers") == [(0,)]
    ask(dsn, "DROP SCHEMA twophase CASCADE")
    assert not difference(place, dsn)


def test_upserts_of_the_page(spark: SparkSession, place: Place, dsn: str, reference: str) -> None:
    ask(dsn, f"CREATE TABLE sales.orders ({COLUMNS}, PRIMARY KEY (id))")
    ask(dsn, "INSERT INTO sales.orders VALUES (1, 'old', 0), (2, 'old', 0), (100000, 'stays', 0)")
    place.add_orders(2)
    changes = orders(spark, place).selectExpr("*", "id % 2 = 0 AS is_deleted")
    [code] = code_of("Upserts")
    run_code(code, place, reference, spark=spark, changes=changes)
    found = dict(ask(dsn, "SELECT id, name FROM sales.orders"))
    assert set(found) == {100000, *(number for number in place.ids if number % 2)}
    assert (found[100000], found[1] == "old") == ("stays", False)


def test_a_table_of_versions_is_followed_and_read_as_it_was(spark: SparkSession, place: Place, reference: str) -> None:
    place.add_orders(2)
    told = {"dsn": reference, "table": "sales.orders", "mode": "mvcc", "createTable": "true"}
    writer = orders(spark, place, files_per_epoch=1).writeStream.format("twophase-postgres").options(**told)
    run(writer.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True).start())
    code, _ = code_of("Versions: the mode mvcc")  # the other is about upserts, and tested in test_postgres_upsert.py
    follow, read = (ast.unparse(statement) for statement in ast.parse(code.replace("41", "0")).body)
    followed: DataFrame = run_code(follow, place, reference, spark=spark)
    assert followed.isStreaming
    assert set(followed.columns) == {"id", "name", "amount"}
    first = {row.id for row in run_code(read, place, reference, spark=spark).collect()}
    assert first == set(place.ids[: len(place.ids) // 2])


def test_changes_of_a_published_table(spark: SparkSession, place: Place, dsn: str, reference: str) -> None:
    ask(dsn, f"CREATE TABLE sales.orders ({COLUMNS})")
    ask(dsn, "CREATE PUBLICATION orders FOR TABLE sales.orders")
    slot = f"orders_{uuid.uuid4().hex}"
    ask(dsn, "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", slot)
    ask(dsn, "INSERT INTO sales.orders VALUES (1, 'new', 2.5)")
    [code] = code_of("Changes of published tables")
    changes = run_code(code.replace("orders_query", slot), place, reference, spark=spark)
    try:
        writer = changes.writeStream.format("twophase-files").option("checkpointLocation", str(place.checkpoint))
        run(writer.trigger(availableNow=True).start(str(place.table)))
        found = [json.loads(row.new) for row in spark.read.parquet(str(place.table)).collect()]
        assert found == [{"id": 1, "name": "new", "amount": 2.5}]
    finally:
        ask(dsn, "SELECT pg_drop_replication_slot(%s)", slot)


def test_a_query_that_wrote_by_jdbc_goes_on_by_the_format(
    spark: SparkSession, place: Place, dsn: str, reference: str
) -> None:
    told = psycopg.conninfo.conninfo_to_dict(dsn)
    url = f"jdbc:postgresql://{told['host']}:{told['port']}/{told['dbname']}?user={told['user']}"
    _, after = code_of(FROM_JDBC)
    place.add_orders(2)
    command = [
        sys.executable,
        "-m",
        "integration_tests.jdbc_program",
        str(place.root),
        url,
        str(postgres.jdbc_driver()),
    ]
    with running(command, output=place.root / "output.txt", cwd=PAGE.parents[1]) as child:
        child.wait_for((place.root / "appended").exists, "what JDBC appends", timeout_s=240)
    assert not difference(place, dsn)
    place.add_orders(3)
    run_code(after, place, reference, spark=spark, orders=orders(spark, place))
    assert not difference(place, dsn)
    assert ask(dsn, "SELECT epoch FROM twophase.markers") == [(2,)]


@pytest.mark.usefixtures("spark")
def test_the_example_writes_what_it_says(dsn: str, reference: str, tmp_path: Path) -> None:
    """In this session: the example asks for the one that is there."""
    folder = tmp_path / "orders"
    folder.mkdir()
    for number in range(2):
        rows = [
            {
                "id": 10 * number + n,
                "customer": f"c{n}",
                "amount": n / 4,
                "at": "2026-11-18T12:00:00Z",
                "items": ["a", "b"],
            }
            for n in range(10)
        ]
        (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)))
        files_to_postgres.main(str(folder), reference, "sales.orders", str(tmp_path / "checkpoint"))
    found = ask(dsn, "SELECT id, amount::float8, items FROM sales.orders ORDER BY id")
    assert found == [(n, n % 10 / 4, ["a", "b"]) for n in range(20) if n % 10]
