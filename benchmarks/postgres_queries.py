"""The contenders that write tables of PostgreSQL: Spark's JDBC writer as people use it in `foreachBatch`, and our three modes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.file_queries import SCHEMA
from benchmarks.run import Run

JDBC, REWRITTEN = "JDBC, default", "JDBC, rewritten"
"""As it comes; and with `reWriteBatchedInserts`, by which the driver makes one INSERT of many, and larger batches."""
WAL, MVCC, XA = "wal", "mvcc", "xa"
OURS = (WAL, MVCC, XA)


def _writer(spark: Any, told: Run) -> Any:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", told.files_per_epoch).parquet(told.input)
    return rows.writeStream.option("checkpointLocation", f"{told.folder}/checkpoint").trigger(availableNow=True)


def _jdbc(spark: Any, told: Run, parameters: str, options: Mapping[str, str]) -> Any:
    place = {"url": told.settings["url"] + parameters, "dbtable": told.settings["table"]}
    settings = {**place, "driver": "org.postgresql.Driver", **options}

    def append(batch: Any, _: int) -> None:
        batch.write.format("jdbc").options(**settings).mode("append").save()

    return _writer(spark, told).foreachBatch(append).start()


def _rewritten(spark: Any, told: Run) -> Any:
    return _jdbc(spark, told, "&reWriteBatchedInserts=true", {"batchsize": told.settings["batchsize"]})


def _twophase(spark: Any, told: Run, mode: str) -> Any:
    writer = _writer(spark, told).format("twophase-postgres").option("mode", mode).option("createTable", "true")
    return writer.option("dsn", told.settings["dsn"]).option("table", told.settings["table"]).start()


SINKS: dict[str, Callable[[Any, Run], Any]] = {
    JDBC: lambda spark, told: _jdbc(spark, told, "", {}),
    REWRITTEN: _rewritten,
    WAL: lambda spark, told: _twophase(spark, told, WAL),
    MVCC: lambda spark, told: _twophase(spark, told, MVCC),
    XA: lambda spark, told: _twophase(spark, told, XA),
}
