"""What can't be exactly once is refused, by us in one sentence or by Spark itself, and nothing is written."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit

import twophase
from integration_tests.complaints import ROOT, sentence_in
from integration_tests.streams import SCHEMA, Place, failure_of, orders, run, write
from integration_tests.tables import FILES
from twophase.connectors.query_options import checkpoint_of
from twophase.errors import OptionError
from twophase.sinks import FilesSink
from twophase.testing.crash.program import QueryDescription
from twophase.testing.crash.victim import run_to_the_end

REAL_TIME_CHECK = "spark.sql.streaming.realTimeMode.allowlistCheck"


@pytest.fixture
def filled(place: Place) -> Place:
    place.add_orders(2)
    return place


def untouched(place: Place) -> bool:
    """Neither a table, nor anything staged beside it."""
    return not place.table.exists() and not list(place.root.glob(".*.twophase"))


# ---- the checkpoint ----


def test_a_checkpoint_location_set_by_configuration_only_is_asked_for(spark: SparkSession, filled: Place) -> None:
    key = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(key, str(filled.checkpoint))
    try:
        writer = orders(spark, filled).writeStream.format("twophase-files").trigger(availableNow=True)
        said = failure_of(writer.start(str(filled.table)))
    finally:
        spark.conf.unset(key)

    sentence = sentence_in(said, "OPTION")
    assert "checkpointLocation is missing. Set it as an option of the query" in sentence
    assert untouched(filled)

    run(write(orders(spark, filled), filled))
    assert not filled.difference()


@pytest.mark.parametrize("location", ["s3a://bucket/checkpoint", "hdfs:///checkpoint", "abfss://a@b/checkpoint"])
def test_a_checkpoint_in_an_unsupported_place_is_refused_by_name(location: str) -> None:
    """Without its client Spark fails before us; with it, this is what our formats say."""
    with pytest.raises(OptionError) as caught:
        checkpoint_of(location)

    said = str(caught.value)
    assert repr(location) in said
    assert "supported is an absolute path on a local disk" in said
    assert "The option ledger" in said


def test_a_checkpoint_that_is_not_where_its_bare_path_says_is_asked_for_as_a_uri(tmp_path: Path) -> None:
    """Under another default file system Spark keeps a bare path there, and this machine has nothing at it."""
    with pytest.raises(OptionError, match=r"can't be reached as it is given .* full URI, such as file:///"):
        checkpoint_of(str(tmp_path / "checkpoint"))

    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_has_written_another_table_is_refused(spark: SparkSession, filled: Place) -> None:
    run(write(orders(spark, filled), filled))
    filled.add_orders(2)

    said = failure_of(write(orders(spark, filled), filled, table=filled.root / "other"))

    assert "Nothing was written" in sentence_in(said, "CHECKPOINT_MISMATCH")
    assert not list((filled.root / "other").glob("epoch=*"))
    run(write(orders(spark, filled), filled))
    assert not filled.difference()


def test_a_table_that_another_query_owns_is_refused_with_the_option_to_take_it_over(
    spark: SparkSession, filled: Place
) -> None:
    run(write(orders(spark, filled), filled, {"owner": "first"}))

    settings = {"owner": "second", "checkpointLocation": str(filled.root / "second")}
    said = failure_of(write(orders(spark, filled), filled, settings))

    sentence = sentence_in(said, "CHECKPOINT_MISMATCH")
    assert "is owned by first/sink" in sentence
    assert "set the option takeOver to 'first/sink'" in sentence
    assert not filled.difference()
    assert filled.epochs() == [0]


@pytest.mark.parametrize("by_format", [True, False], ids=["format", "foreachBatch"])
def test_a_take_over_by_other_columns_is_refused_and_the_owner_goes_on(
    spark: SparkSession, filled: Place, by_format: bool
) -> None:
    run(write(orders(spark, filled), filled, {"owner": "first"}))
    other = orders(spark, filled).withColumn("amount", lit("text"))
    assert dict(other.dtypes)["amount"] != dict(orders(spark, filled).dtypes)["amount"]
    second = filled.root / "second"
    if by_format:
        settings = {"owner": "second", "takeOver": "first/sink", "checkpointLocation": str(second)}
        said = failure_of(write(other, filled, settings))
    else:
        function = twophase.exactly_once(FilesSink(str(filled.table))).options(owner="second", takeOver="first/sink")
        writer = other.writeStream.foreachBatch(function).option("checkpointLocation", str(second))
        said = failure_of(writer.trigger(availableNow=True).start())

    assert "the column 'amount' was" in sentence_in(said, "SCHEMA_MISMATCH")
    assert filled.epochs() == [0]
    filled.add_orders(2)
    run(write(orders(spark, filled), filled, {"owner": "first"}))
    assert filled.epochs() == [0, 1]
    assert not filled.difference()


# ---- triggers and output modes ----


def test_cluster_by_is_refused_and_not_dropped(spark: SparkSession, place: Place) -> None:
    """Spark drops it without a word for Python sinks."""
    place.add_orders(1)
    writer = orders(spark, place).writeStream.format("twophase-files").clusterBy("id")

    said = failure_of(writer.option("checkpointLocation", str(place.checkpoint)).start(str(place.table)))

    assert "clusterBy (id) is not supported" in sentence_in(said, "OPTION")
    assert untouched(place)


def test_the_continuous_trigger_is_refused(spark: SparkSession, place: Place) -> None:
    rate = spark.readStream.format("rate").load()
    writer = rate.writeStream.format("twophase-files").option("checkpointLocation", str(place.checkpoint))

    query = writer.trigger(continuous="1 second").start(str(place.table))
    try:
        said = failure_of(query)
    finally:
        query.stop()

    assert "the continuous trigger" in sentence_in(said, "PROTOCOL_VIOLATION")
    assert untouched(place)


def test_the_output_mode_complete_is_refused_with_what_to_use_instead(spark: SparkSession, filled: Place) -> None:
    counts = orders(spark, filled).groupBy("name").count()

    said = failure_of(write(counts, filled, mode="complete"))

    assert "use the output mode append, or twophase.exactly_once with foreachBatch" in sentence_in(said, "OPTION")
    assert untouched(filled)


def test_spark_refuses_the_output_mode_update(spark: SparkSession, filled: Place) -> None:
    said = failure_of(write(orders(spark, filled), filled, mode="update"))

    assert "twophase-files does not support Update mode" in said
    assert untouched(filled)


def by_format(rows: DataFrame, place: Place) -> Any:
    return rows.writeStream.format("twophase-files").option("path", str(place.table))


def by_function(rows: DataFrame, place: Place) -> Any:
    return rows.writeStream.foreachBatch(twophase.exactly_once(FilesSink(str(place.table))))


@pytest.mark.parametrize("way", [by_format, by_function])
def test_spark_refuses_asynchronous_progress(
    spark: SparkSession, filled: Place, way: Callable[[DataFrame, Place], Any]
) -> None:
    writer = way(orders(spark, filled), filled).option("checkpointLocation", str(filled.checkpoint))

    with pytest.raises(IllegalArgumentException, match="does not support async progress tracking"):
        writer.option("asyncProgressTrackingEnabled", "true").trigger(processingTime="1 second").start()

    assert untouched(filled)


@pytest.mark.parametrize("way", [by_format, by_function])
def test_spark_refuses_real_time_mode(
    spark: SparkSession, place: Place, way: Callable[[DataFrame, Place], Any]
) -> None:
    rate = spark.readStream.format("rate").load()
    writer = way(rate, place).option("checkpointLocation", str(place.checkpoint)).outputMode("update")
    writer = writer.trigger(realTime="5 minutes")

    with pytest.raises(IllegalArgumentException, match=r"STREAMING_REAL_TIME_MODE\..*_NOT_IN_ALLOWLIST"):
        writer.start()
    spark.conf.set(REAL_TIME_CHECK, "false")  # as its own message proposes
    try:
        with pytest.raises(IllegalArgumentException, match="does not support async progress tracking"):
            writer.start()
    finally:
        spark.conf.unset(REAL_TIME_CHECK)

    assert untouched(place)


def test_spark_refuses_the_continuous_trigger_for_foreach_batch(spark: SparkSession, place: Place) -> None:
    writer = by_function(spark.readStream.format("rate").load(), place)

    with pytest.raises(AnalysisException, match="not supported with continuous trigger"):
        writer.option("checkpointLocation", str(place.checkpoint)).trigger(continuous="1 second").start()


# ---- options ----


def test_all_wrong_options_are_named_at_once_and_the_right_ones_work(spark: SparkSession, filled: Place) -> None:
    wrong = {"fileFromat": "json", "movedFrm": "/x", "compression": "zip", "schemaChange": "perhaps"}

    said = failure_of(write(orders(spark, filled), filled, wrong))

    sentence = sentence_in(said, "OPTION")
    for problem in ("'filefromat': did you mean fileFormat?", "unknown option 'movedfrm'", "schemaChange is 'perhaps'"):
        assert problem in sentence
    assert untouched(filled)
    run(write(orders(spark, filled), filled))
    assert not filled.difference()


def test_partition_by_given_twice_is_refused(spark: SparkSession, filled: Place) -> None:
    writer = orders(spark, filled).writeStream.format("twophase-files").partitionBy("id").option("partitionBy", "name")

    said = failure_of(
        writer.option("checkpointLocation", str(filled.checkpoint)).trigger(availableNow=True).start(str(filled.table))
    )

    assert "both as an option and by the method of that name: keep one" in sentence_in(said, "OPTION")
    assert untouched(filled)


def test_batch_use_says_to_use_streams(spark: SparkSession, filled: Place) -> None:
    run(write(orders(spark, filled), filled))

    with pytest.raises(AnalysisException) as written:
        spark.range(3).write.format("twophase-files").mode("append").save(str(filled.table))
    with pytest.raises(AnalysisException) as read:
        spark.read.format("twophase-files").load(str(filled.table)).collect()
    with pytest.raises(AnalysisException) as read_by_schema:
        spark.read.format("twophase-files").schema(SCHEMA).load(str(filled.table)).collect()

    assert "is for streams: use df.writeStream" in sentence_in(str(written.value), "OPTION")
    for caught in (read, read_by_schema):
        assert "is for streams: use spark.readStream" in sentence_in(str(caught.value), "OPTION")
    assert not filled.difference()


def test_a_sentence_in_a_page_of_trace_is_not_clear() -> None:
    sentence = "twophase.errors.OptionError: [OPTION] keep one"
    ours = f'  File "{ROOT}/connectors/format.py", line 1, in streamWriter'
    assert sentence_in(f"{ours}\n{ours}\n{sentence}", "OPTION") == "keep one"

    for page in (
        f"{ours}\n{ours}\n{ours}\n{sentence}",
        f"{sentence}\n\tat org.apache.spark.Query$.run(Query.scala:1)",
        ours,
    ):
        with pytest.raises(AssertionError):
            sentence_in(page, "OPTION")


# ---- where Spark runs ----


def test_exactly_once_through_spark_connect_is_refused(tmp_path: Path) -> None:
    """Only the function: a Connect server needs grpcio, which is not installed with twophase."""
    batch: Any = SimpleNamespace(sparkSession=object())

    with pytest.raises(OptionError, match="can't run through Spark Connect"):
        twophase.exactly_once(FilesSink(str(tmp_path / "table")))(batch, 0)

    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, symlinks=True)
    python = place / "bin" / "python3"
    imported = subprocess.run([python, "-c", "import twophase.connectors"], capture_output=True, check=False)
    assert imported.returncode != 0
    return python


def test_workers_told_to_run_a_python_without_twophase_are_refused(
    spark: SparkSession, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for python, why in ((str(bare_python), "No module named"), ("/nowhere/python3", "it is not there")):
        monkeypatch.setenv("PYSPARK_PYTHON", python)
        monkeypatch.setattr(spark.sparkContext, "pythonExec", python)

        with pytest.raises(OptionError) as caught:
            twophase.register(spark)

        said = str(caught.value)
        assert f"Spark's Python workers run {python!r}" in said
        assert why in said
        assert "Set PYSPARK_PYTHON, before Spark starts, to a Python that has twophase" in said
        assert sys.executable in said


def test_workers_that_nobody_told_what_to_run_run_the_drivers_python(
    place: Place, bare_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `register` they would run the `python3` of the PATH."""
    place.add_orders(2)
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setenv("PATH", f"{bare_python.parent}{os.pathsep}{os.environ['PATH']}")

    result = run_to_the_end(QueryDescription(FILES, str(place.root)))

    assert "error" not in result, result["error"]
    assert not place.difference()
