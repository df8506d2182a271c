"""The Spark application that is measured: one session, which runs the query that each line of its standard input describes.

One session for all contenders, so that none of them pays for Spark's start and all have the same warm JVM. For each line it answers
with one line of JSON: the duration of every epoch as Spark's own progress reports it.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SCHEMA = "id bigint, customer string, city string, amount double, at timestamp, note string"


@dataclass(frozen=True)
class Run:
    """One run of one contender."""

    contender: str
    input: str
    folder: str
    files_per_epoch: int

    def to_line(self) -> str:
        return json.dumps(asdict(self))


def main() -> int:
    spark = _session()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        told = Run(**json.loads(line))
        print(json.dumps(_measured(spark, told)), flush=True)
    spark.stop()
    return 0


def _session() -> Any:
    from pyspark.sql import SparkSession

    import twophase

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    twophase.register(spark)
    return spark


def _measured(spark: Any, told: Run) -> dict[str, Any]:
    shutil.rmtree(told.folder, ignore_errors=True)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", told.files_per_epoch).parquet(told.input)
    writer = rows.writeStream.option("checkpointLocation", f"{told.folder}/checkpoint").trigger(availableNow=True)
    began = time.perf_counter()
    query = CONTENDERS[told.contender](writer, f"{told.folder}/table")
    query.awaitTermination()
    seconds = time.perf_counter() - began
    progress = [each for each in query.recentProgress if each["numInputRows"] > 0]
    return {
        "seconds": seconds,
        "rows": sum(each["numInputRows"] for each in progress),
        "epoch_ms": [each["durationMs"]["triggerExecution"] for each in progress],
    }


def _parquet(writer: Any, table: str) -> Any:
    return writer.format("parquet").start(table)


def _twophase(writer: Any, table: str) -> Any:
    return writer.format("twophase-files").start(table)


def _append(writer: Any, table: str) -> Any:
    return writer.foreachBatch(lambda batch, _: batch.write.mode("append").parquet(table)).start()


def _exactly_once(writer: Any, table: str) -> Any:
    import twophase
    from twophase.sinks import FilesSink

    return writer.foreachBatch(twophase.exactly_once(FilesSink(table))).start()


CONTENDERS: dict[str, Callable[[Any, str], Any]] = {
    "parquet": _parquet,
    "append": _append,
    "twophase": _twophase,
    "exactly_once": _exactly_once,
}


def found_rows(table: Path) -> int:
    """What is in a contender's table; a fast sink that loses rows is not fast."""
    import pyarrow.parquet as pq

    files = [path for path in table.rglob("*.parquet") if not path.name.startswith((".", "_"))]
    return sum(pq.read_metadata(path).num_rows for path in files)


if __name__ == "__main__":
    sys.exit(main())
