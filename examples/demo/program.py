"""The pipeline of the demo: a folder of orders into a table, through twophase or by a plain append.

Run as a child of the demo, which kills it. The two ways differ in the lines of `_start` alone.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from examples.demo.gate import Gate

SCHEMA = "id bigint, customer string, amount double"


def main(way: str, folder: str, files_per_epoch: str) -> int:
    from pyspark.sql import SparkSession

    import twophase
    from twophase.testing.quick_start import quick_start

    spark = quick_start(SparkSession.builder.master("local[2]")).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    twophase.register(spark)
    orders = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_epoch).parquet(f"{folder}/input")
    gate = Gate.of(f"{folder}/{way}")
    orders = orders.mapInArrow(_Passing(gate), SCHEMA) if way == "plain" else orders
    _start(orders, way, f"{folder}/{way}", gate).awaitTermination()
    spark.stop()
    return 0


def _start(orders: Any, way: str, place: str, gate: Gate) -> Any:
    writer = orders.writeStream.option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True)
    if way == "twophase":
        return writer.format("twophase-files").start(f"{place}/table")

    def append(batch: Any, number: int) -> None:
        batch.write.mode("append").parquet(f"{place}/table")
        gate.pass_by("appended", number)

    return writer.foreachBatch(append).start()


class _Passing:
    """Lets every row through, and is where a task of the plain pipeline can be caught: its own sink has no failpoints."""

    def __init__(self, gate: Gate):
        self._gate = gate

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        number = int(context.getLocalProperty("streaming.sql.batchId") or 0) if context else 0
        yield from batches
        self._gate.pass_by("written", number)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
