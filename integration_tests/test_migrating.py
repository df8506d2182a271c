"""Every step of docs/migrating.md, with real queries and their checkpoints: the code in the page is what runs here."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration_tests.streams import Place, failure_of, orders, run, write, write_by
from integration_tests.tables import rows_of
from tests.markdown import blocks, section
from twophase.connectors.command_line import main

PAGE = Path(__file__).resolve().parent.parent / "docs" / "migrating.md"


class Migration(Place):
    """A place whose table is the page's new one, with the old one beside it."""

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoints" / "orders"

    @property
    def old(self) -> Path:
        return self.root / "orders"

    @property
    def table(self) -> Path:
        return self.root / "orders-2"


@pytest.fixture
def place(tmp_path: Path) -> Migration:
    return Migration(tmp_path)


def run_code(code: str, place: Place, **names: Any) -> dict[str, Any]:
    """Run a piece of the page on this place; what it starts is run until it has read all there is."""
    exec(compile(code.replace("/data/", f"{place.root}/"), str(PAGE), "exec"), names)
    query = names.get("query")
    if query is not None:
        finish(query)
    return names


def finish(query: StreamingQuery) -> None:
    try:
        query.processAllAvailable()
    finally:
        query.stop()


def code_of(heading: str) -> list[str]:
    return blocks(section(PAGE.read_text("utf-8"), heading), "python")


def by_parquet(spark: SparkSession, place: Migration) -> None:
    """Two epochs by Spark's own file sink."""
    place.add_orders(4)
    writer = orders(spark, place).writeStream.format("parquet").option("checkpointLocation", str(place.checkpoint))
    run(writer.trigger(availableNow=True).start(str(place.old)))


def by_append(spark: SparkSession, place: Migration) -> None:
    """Everything that is new, by an ordinary foreachBatch."""

    def append(batch: DataFrame, _: int) -> None:
        batch.write.mode("append").parquet(str(place.old))

    run(write_by(append, orders(spark, place), place))


def sparks_logs(place: Place) -> str:
    out = io.StringIO()
    assert main(["inspect", str(place.checkpoint)], out=out) == 0
    return next(line for line in out.getvalue().splitlines() if line.startswith("Spark's logs"))


def ids(*rows: DataFrame) -> list[int]:
    return sorted(row.id for part in rows for row in part.select("id").collect())


def test_a_parquet_query_goes_on_in_a_new_table_with_its_checkpoint(spark: SparkSession, place: Migration) -> None:
    by_parquet(spark, place)
    assert sparks_logs(place).endswith("offsets up to 1, commits up to 1")
    place.add_orders(2)

    switch, _ = code_of("2. Start it with twophase, and a new folder")
    run_code(switch, place, spark=spark, orders=orders(spark, place))

    assert place.epochs() == [2]
    (read,) = code_of("3. Read old and new together")
    assert ids(run_code(read, place, spark=spark)["orders_so_far"]) == place.ids
    assert len(rows_of(place.table)) == 100


def test_an_appending_query_goes_on_by_the_format(spark: SparkSession, place: Migration) -> None:
    place.add_orders(4)
    by_append(spark, place)
    place.add_orders(2)

    run(write(orders(spark, place), place))

    assert place.epochs() == [2]
    assert ids(spark.read.parquet(str(place.old)), spark.read.parquet(str(place.table))) == place.ids


def test_an_appending_function_goes_on_by_exactly_once(spark: SparkSession, place: Migration) -> None:
    place.add_orders(4)
    by_append(spark, place)
    place.add_orders(2)

    _, switch = code_of("2. Start it with twophase, and a new folder")
    run_code("import twophase\n" + switch, place, spark=spark, orders=orders(spark, place))

    assert place.epochs() == [2]
    assert ids(spark.read.parquet(str(place.old)), spark.read.parquet(str(place.table))) == place.ids


def test_an_epoch_that_was_open_is_in_both_and_can_be_left_out(spark: SparkSession, place: Migration) -> None:
    by_parquet(spark, place)
    place.forget_commit(1)
    assert sparks_logs(place).endswith("offsets up to 1, commits up to 0")
    place.add_orders(2)

    run(write(orders(spark, place), place))

    old, new = spark.read.parquet(str(place.old)), spark.read.parquet(str(place.table))
    assert place.epochs() == [1, 2]
    assert len(ids(old, new)) == len(place.ids) + 100
    assert ids(old, new.where("epoch > 1")) == place.ids


def test_the_old_query_started_once_more_finishes_its_open_epoch(spark: SparkSession, place: Migration) -> None:
    by_parquet(spark, place)
    place.forget_commit(1)

    by_parquet(spark, place)

    assert sparks_logs(place).endswith("offsets up to 3, commits up to 3")
    place.add_orders(2)
    run(write(orders(spark, place), place))
    assert place.epochs() == [4]
    assert ids(spark.read.parquet(str(place.old)), spark.read.parquet(str(place.table))) == place.ids


@pytest.mark.parametrize("way", ["parquet", "append"])
def test_the_old_folder_is_refused_as_a_table_and_the_query_goes_on_in_a_new_one(
    spark: SparkSession, place: Migration, way: str
) -> None:
    if way == "parquet":
        by_parquet(spark, place)
    else:
        place.add_orders(4)
        by_append(spark, place)
    place.add_orders(2)
    before = sorted(place.old.rglob("*"))

    said = failure_of(write(orders(spark, place), place, table=place.old))

    assert "docs/migrating.md" in said
    assert ("_spark_metadata" if way == "parquet" else "which twophase did not put there") in said
    assert sorted(place.old.rglob("*")) == before
    run(write(orders(spark, place), place))
    assert place.epochs() == [2]
    assert ids(spark.read.parquet(str(place.old)), spark.read.parquet(str(place.table))) == place.ids


def test_the_way_back_is_an_append_and_the_way_there_again_a_new_ledger(spark: SparkSession, place: Migration) -> None:
    place.add_orders(2)
    by_append(spark, place)
    place.add_orders(2)
    run(write(orders(spark, place), place))
    place.add_orders(2)

    by_append(spark, place)

    old, new = spark.read.parquet(str(place.old)), spark.read.parquet(str(place.table))
    assert ids(old, new) == place.ids
    place.add_orders(2)
    assert "CHECKPOINT_MISMATCH" in failure_of(write(orders(spark, place), place))
    assert "CHECKPOINT_MISMATCH" in failure_of(write(orders(spark, place), place, table=place.root / "orders-3"))

    (again,) = code_of("Coming back to twophase later")
    run_code(again, place, spark=spark, orders=orders(spark, place))

    newest = spark.read.parquet(str(place.root / "orders-3"))
    assert ids(old, new, newest) == place.ids
    assert [row.epoch for row in newest.select("epoch").distinct().collect()] == [3]


def test_sparks_own_file_sink_can_not_take_a_checkpoint_that_is_not_its_own(
    spark: SparkSession, place: Migration
) -> None:
    """Spark's limit, and why the page has no such way back. If this fails, Spark can do more now: say so in the page."""
    place.add_orders(2)
    run(write(orders(spark, place), place))

    by_parquet(spark, place)

    with pytest.raises(Exception, match=r"_spark_metadata/0 doesn't exist"):
        spark.read.parquet(str(place.old))
