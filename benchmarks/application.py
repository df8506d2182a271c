"""The Spark application that is measured: one session, which runs the query that each line of its standard input describes.

One session for all contenders, so that none of them pays for Spark's start and all have the same warm JVM. For each line it answers
with one line of JSON: the duration of every epoch as Spark's own progress reports it, or why the query failed.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from typing import Any

from benchmarks import file_queries, kafka_queries, postgres_queries, state_queries
from benchmarks.run import Run

CONTENDERS = {
    "files": file_queries.SINKS,
    "kafka-sink": kafka_queries.SINKS,
    "kafka-source": kafka_queries.SOURCES,
    "postgres": postgres_queries.SINKS,
    "rocksdb": state_queries.SINKS,
}


def main() -> int:
    spark = _session(jars=sys.argv[1:])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            answer = _measured(spark, Run.from_line(line))
        except Exception as error:  # noqa: BLE001 - whoever asked decides what a failure means
            answer = {"failed": str(error)}
        print(json.dumps(answer), flush=True)
    spark.stop()
    return 0


def _session(jars: list[str]) -> Any:
    from pyspark.sql import SparkSession

    import twophase

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", ",".join(jars))
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
    began = time.perf_counter()
    query = CONTENDERS[told.target][told.contender](spark, told)
    query.awaitTermination()
    seconds = time.perf_counter() - began
    progress = [each for each in query.recentProgress if each["numInputRows"] > 0]
    return {
        "seconds": seconds,
        "rows": sum(each["numInputRows"] for each in progress),
        "epoch_ms": [each["durationMs"]["triggerExecution"] for each in progress],
        "seen": _seen(progress),
    }


def _seen(progress: list[Any]) -> dict[str, int]:
    """What the query has observed of its rows, if it does, of all epochs."""
    total: dict[str, int] = {}
    for each in progress:
        for row in each.observedMetrics.values():
            for name, value in row.asDict().items():
                total[name] = total.get(name, 0) + value
    return total


if __name__ == "__main__":
    sys.exit(main())
