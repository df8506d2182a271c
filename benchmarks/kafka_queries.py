"""The contenders that write topics, and those that read one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.run import Run

SPARK, SPARK_TUNED, PLAIN, OURS = "Spark, default", "Spark, tuned", "no transaction", "twophase-kafka"
"""Spark's own connector as it comes and with larger batches; our way of writing without a transaction, and with it."""
TUNED_SINK = {"kafka.linger.ms": "20", "kafka.batch.size": "524288"}
TUNED_SOURCE = {
    "kafka.max.partition.fetch.bytes": "4194304",
    "kafka.fetch.max.wait.ms": "20",
    # Java's client hands over 500 at a time unless it is told otherwise; librdkafka has no such setting.
    "kafka.max.poll.records": "20000",
    "kafka.isolation.level": "read_committed",
}


def _sink(spark: Any, told: Run, format_name: str, settings: dict[str, str]) -> Any:
    rows = spark.readStream.schema("key binary, value binary")
    rows = rows.option("maxFilesPerTrigger", told.files_per_epoch).parquet(told.input)
    writer = rows.writeStream.format(format_name).options(**told.settings, **settings)
    return writer.option("checkpointLocation", f"{told.folder}/checkpoint").trigger(availableNow=True).start()


def _plain_sink(spark: Any, told: Run) -> Any:
    from benchmarks.plain_kafka import PlainKafka

    spark.dataSource.register(PlainKafka)
    return _sink(spark, told, PlainKafka.name(), TUNED_SINK)


def _source(spark: Any, told: Run, format_name: str, settings: dict[str, str]) -> Any:
    from pyspark.sql import functions as f

    rows = spark.readStream.format(format_name).options(**told.settings, **settings)
    rows = rows.option("startingOffsets", "earliest").load()
    # Counted in the query itself: a fast source that loses rows is not fast.
    seen = rows.observe("seen", f.count("*").alias("rows"), f.sum(f.length("key") + f.length("value")).alias("bytes"))
    writer = seen.writeStream.format("noop").option("checkpointLocation", f"{told.folder}/checkpoint")
    return writer.trigger(availableNow=True).start()


SINKS: dict[str, Callable[[Any, Run], Any]] = {
    SPARK: lambda spark, told: _sink(spark, told, "kafka", {}),
    SPARK_TUNED: lambda spark, told: _sink(spark, told, "kafka", TUNED_SINK),
    PLAIN: _plain_sink,
    OURS: lambda spark, told: _sink(spark, told, "twophase-kafka", TUNED_SINK),
}
SOURCES: dict[str, Callable[[Any, Run], Any]] = {
    SPARK_TUNED: lambda spark, told: _source(spark, told, "kafka", TUNED_SOURCE),
    OURS: lambda spark, told: _source(spark, told, "twophase-kafka", TUNED_SOURCE),
}
