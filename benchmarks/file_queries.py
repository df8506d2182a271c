"""The contenders that write tables of files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.run import Run

SCHEMA = "id bigint, customer string, city string, amount double, at timestamp, note string"


def table_of(folder: str) -> str:
    return f"{folder}/table"


def _writer(spark: Any, told: Run) -> Any:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", told.files_per_epoch).parquet(told.input)
    return rows.writeStream.option("checkpointLocation", f"{told.folder}/checkpoint").trigger(availableNow=True)


def _parquet(spark: Any, told: Run) -> Any:
    return _writer(spark, told).format("parquet").start(table_of(told.folder))


def _twophase(spark: Any, told: Run) -> Any:
    return _writer(spark, told).format("twophase-files").start(table_of(told.folder))


def _append(spark: Any, told: Run) -> Any:
    table = table_of(told.folder)
    return _writer(spark, told).foreachBatch(lambda batch, _: batch.write.mode("append").parquet(table)).start()


def _exactly_once(spark: Any, told: Run) -> Any:
    import twophase
    from twophase.sinks import FilesSink

    return _writer(spark, told).foreachBatch(twophase.exactly_once(FilesSink(table_of(told.folder)))).start()


SINKS: dict[str, Callable[[Any, Run], Any]] = {
    "parquet": _parquet,
    "append": _append,
    "twophase": _twophase,
    "exactly_once": _exactly_once,
}
