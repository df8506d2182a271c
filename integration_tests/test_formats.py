"""`writeStream.format("twophase-files")` through a real Spark: what a pipeline meets that is not a crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import twophase
from integration_tests.streams import SCHEMA, Place, failure_of, orders, run, write
from integration_tests.tables import compare, residue_of


def test_a_table_holds_every_row_once_and_one_folder_an_epoch(spark: SparkSession, place: Place) -> None:
    place.add_orders(6)

    run(write(orders(spark, place), place))

    assert not place.difference()
    assert place.epochs() == [0, 1, 2]
    assert residue_of(place.table) == []
    assert spark.read.parquet(str(place.table)).count() == len(place.ids)


def test_a_query_that_is_started_again_goes_on_where_it_was(spark: SparkSession, place: Place) -> None:
    for _ in range(3):
        place.add_orders(2)
        run(write(orders(spark, place), place))

    assert not place.difference()
    assert place.epochs() == [0, 1, 2]


def test_two_queries_in_one_driver_do_not_disturb_each_other(spark: SparkSession, tmp_path: Path) -> None:
    first, second = Place(tmp_path / "first"), Place(tmp_path / "second")
    first.add_orders(8)
    second.add_orders(6)

    queries = [write(orders(spark, place, files_per_epoch=1), place) for place in (first, second)]
    for query in queries:
        run(query)

    assert not first.difference()
    assert not second.difference()


def test_epochs_and_tasks_without_rows_are_ordinary(spark: SparkSession, place: Place) -> None:
    place.add_orders(6)
    some = orders(spark, place).where("id >= 250")  # the last task of the last epoch alone

    run(write(some, place))

    assert not compare([i for i in place.ids if i >= 250], place.table)
    assert place.epochs() == [0, 1, 2]


def test_a_table_of_empty_epochs_has_a_schema(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)

    run(write(orders(spark, place).where("id < 0"), place))

    read = spark.read.parquet(str(place.table))
    assert read.count() == 0
    assert {"id", "name", "amount"} <= set(read.columns)


def test_a_replay_with_another_number_of_partitions_writes_each_row_once(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)
    run(write(orders(spark, place).repartition(2), place))
    place.add_orders(2)
    run(write(orders(spark, place).repartition(3), place))
    place.forget_commit(1)
    place.add_orders(2)

    run(write(orders(spark, place).repartition(5), place))

    assert not place.difference()


def test_a_task_that_fails_and_is_retried_leaves_one_copy(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)

    def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        yield from batches
        if context is not None and context.attemptNumber() == 0 and context.partitionId() == 1:
            raise RuntimeError("this attempt was to fail, after it wrote all its rows")

    stumbling = orders(spark, place).mapInArrow(stumble, SCHEMA)

    run(write(stumbling, place))

    assert not place.difference()
    assert residue_of(place.table) == []


@pytest.mark.parametrize("by", ["", "third"], ids=["plain", "partitioned"])
def test_spark_reads_every_committed_row_once_by_any_path(spark: SparkSession, place: Place, by: str) -> None:
    place.add_orders(6)
    rows = orders(spark, place).where("id >= 150").selectExpr("id", "nullif(CAST(id % 3 AS INT), 0) AS third")
    run(write(rows, place, {"partitionBy": by} if by else {}))  # the first epoch has no rows, and some rows no third
    table, deeper = str(place.table), "/*/*" if by else "/*"
    from_base = spark.read.option("basePath", table)
    recursive = spark.read.option("recursiveFileLookup", True)
    with_columns = {
        "the folder": spark.read.parquet(table),
        "mergeSchema": spark.read.option("mergeSchema", True).parquet(table),
        "SQL": spark.sql(f"SELECT * FROM parquet.`{table}`"),
        "*": from_base.parquet(f"{table}/*"),
        "epoch=*": from_base.parquet(f"{table}/epoch=*"),
        "every file": from_base.parquet(f"{table}/*{deeper}"),
    }
    without = {
        "every file": spark.read.parquet(f"{table}/*{deeper}"),
        "recursive": recursive.parquet(table),
        "recursive *": recursive.parquet(f"{table}/*"),
        "recursive, every file": recursive.parquet(f"{table}/*{deeper}"),
        "*/*": spark.read.parquet(f"{table}/*/*"),
    }

    wanted = sorted((i, i % 3 or None) for i in place.ids if i >= 150)
    for way, found in with_columns.items():
        assert sorted((row.id, row.third) for row in found.collect()) == wanted, way
        assert dict(found.dtypes) == {"id": "bigint", "third": "int", "epoch": "int"}, way
    for way, found in without.items():
        assert sorted(row.id for row in found.collect()) == [i for i, _ in wanted], way


def test_partition_by_of_the_writer_reaches_the_sink(spark: SparkSession, place: Place) -> None:
    """Spark drops it without a word for Python sinks: a pipeline would lose its partitioning by changing its format."""
    place.add_orders(2)
    rows = orders(spark, place).selectExpr("*", "id % 3 as third")
    writer = rows.writeStream.format("twophase-files").partitionBy("THIRD")  # in any case, as Spark has it by default

    run(writer.option("checkpointLocation", str(place.checkpoint)).trigger(availableNow=True).start(str(place.table)))

    assert {path.parent.name for path in place.table.glob("epoch=0/*/part-*")} == {"third=0", "third=1", "third=2"}
    assert not place.difference()
    assert spark.read.parquet(str(place.table)).where("third = id % 3").count() == len(place.ids)


def test_pipelines_chain_table_to_table(spark: SparkSession, place: Place) -> None:
    place.add_orders(6)
    run(write(orders(spark, place), place))
    second = Place(place.root / "second")
    second.ids = place.ids
    table = spark.readStream.format("twophase-files").option("maxEpochsPerTrigger", 1).load(str(place.table))

    run(write(table, second))

    assert not second.difference()
    assert second.epochs() == [0, 1, 2]


@pytest.mark.parametrize("file_format", ["json", "csv"])
def test_other_file_formats_are_read_back_by_spark(spark: SparkSession, place: Place, file_format: str) -> None:
    place.add_orders(2)

    header = {"header": "true"} if file_format == "csv" else {}

    run(write(orders(spark, place), place, {"fileFormat": file_format, **header}))

    read = spark.read.format(file_format).option("header", "true").schema("id bigint, name string, amount double")
    rows = read.load(str(place.table)).orderBy("id").collect()
    assert [(row.id, row.name, row.amount) for row in rows] == [(i, f"order {i} ½", i / 4) for i in place.ids]


def test_registering_twice_changes_nothing(spark: SparkSession) -> None:
    assert twophase.register(spark) == twophase.register(spark)
    assert "twophase-files" in twophase.register(spark)


def test_a_table_is_a_pyarrow_dataset_of_whole_epochs(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)
    run(write(orders(spark, place), place))

    data = ds.dataset(place.table, format="parquet", partitioning="hive")

    assert sorted(data.to_table(columns=["id"])["id"].to_numpy()) == place.ids


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_every_type_comes_back_as_it_was_and_chains(spark: SparkSession, place: Place, file_format: str) -> None:
    place.add_orders(2)
    rows = orders(spark, place).selectExpr(
        "id",
        "if(id % 3 = 0, null, cast(id as string)) as text",
        "cast(id as byte) as small",
        "cast(id / 7 as decimal(20, 6)) as price",
        "timestamp_seconds(id * 1000.5) as at",
        "cast(timestamp_seconds(id) as timestamp_ntz) as wall_clock",
        "date_add(date'2020-02-29', cast(id as int)) as day",
        "cast(name as binary) as bytes",
        "id % 2 = 0 as flag",
        "array(name, null, '') as list",
        "map('a', id, 'b', null) as map",
        "named_struct('x', id, 'y', array(named_struct('z', amount))) as nested",
        "cast('NaN' as double) as nan",
    )
    run(write(rows, place, {"fileFormat": file_format}))
    second = Place(place.root / "second")
    chained = spark.readStream.format("twophase-files").load(str(place.table))
    run(write(chained, second))

    expected = rows_as_batch(spark, place, rows).collect()
    for table in (place.table, second.table) if file_format == "parquet" else (second.table,):
        read = spark.read.parquet(str(table)).drop("epoch").orderBy("id")
        assert [str(row) for row in read.collect()] == [str(row) for row in expected]
        assert read.schema.simpleString() == chained.schema.simpleString()


def rows_as_batch(spark: SparkSession, place: Place, rows: DataFrame) -> DataFrame:
    """The same rows, computed by Spark alone."""
    out = place.root / "plain"
    checkpoint = str(place.root / "plain-checkpoint")
    run(
        rows.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(str(out))
    )
    return spark.read.parquet(str(out)).orderBy("id")


def test_a_type_that_no_python_sink_can_take_is_named(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)
    rows = orders(spark, place).selectExpr("id", "make_ym_interval(1, 2) as months")

    said = failure_of(write(rows, place))

    assert "'months'" in said
    assert place.epochs() == []


def test_columns_that_are_added_work_and_columns_that_change_are_refused_by_name(
    spark: SparkSession, place: Place
) -> None:
    place.add_orders(2)
    run(write(orders(spark, place), place))
    place.add_orders(2)
    run(write(orders(spark, place).selectExpr("*", "id * 2 as twice"), place))
    place.add_orders(2)

    said = failure_of(write(orders(spark, place).selectExpr("cast(id as string) as id", "name", "amount"), place))
    assert "SCHEMA_MISMATCH" in said
    assert "'id'" in said or "id " in said
    assert place.epochs() == [0, 1]

    run(write(orders(spark, place).selectExpr("*", "id * 2 as twice"), place))
    assert not place.difference()
    merged = spark.read.option("mergeSchema", "true").parquet(str(place.table))
    assert merged.where("twice = id * 2").count() == 200
