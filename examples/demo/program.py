"""The pipeline of the demo: a folder of orders into files and into PostgreSQL, through twophase or by plain appends.

Run as a child of the demo, which kills it. The two ways differ in the lines of `_exactly_once` and `_plain` alone.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from examples.demo.gate import Gate

DRIVER = "org.postgresql.Driver"
SCHEMA = "id bigint, customer string, amount double"


@dataclass(frozen=True)
class Told:
    """What the demo tells its pipeline."""

    way: str
    input: str
    files_per_epoch: int
    place: str
    """Where its checkpoint and its files go."""
    dsn: str
    url: str
    """The same database as JDBC names it."""
    table: str
    driver: str
    """The jar by which JDBC comes there."""

    @classmethod
    def from_text(cls, text: str) -> Told:
        return cls(**json.loads(text))

    def to_text(self) -> str:
        return json.dumps(asdict(self))


def main(text: str) -> int:
    from pyspark.sql import SparkSession

    from twophase.testing.quick_start import quick_start

    told = Told.from_text(text)
    spark = quick_start(SparkSession.builder.master("local[2]")).config("spark.jars", told.driver).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    orders = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", told.files_per_epoch).parquet(told.input)
    query = _exactly_once(orders, told) if told.way == "twophase" else _plain(orders, told, Gate.of(told.place))
    query.awaitTermination()
    spark.stop()
    return 0


def _exactly_once(orders: Any, told: Told) -> Any:
    import twophase
    from twophase.sinks import FilesSink, PostgresSink

    def write(batch: Any, epoch: Any) -> None:
        epoch.write("files", batch)
        epoch.write("postgres", batch)

    files, table = FilesSink(f"{told.place}/table"), PostgresSink(told.dsn, told.table, create_table=True)
    return _started(orders, told, twophase.exactly_once(write, files=files, postgres=table))


def _plain(orders: Any, told: Told, gate: Gate) -> Any:
    def append(batch: Any, number: int) -> None:
        batch.write.mode("append").parquet(f"{told.place}/table")
        gate.pass_by("half", number)
        batch.write.format("jdbc").options(url=told.url, dbtable=told.table, driver=DRIVER).mode("append").save()
        gate.pass_by("appended", number)

    return _started(orders.mapInArrow(_Passing(gate), SCHEMA), told, append)


def _started(orders: Any, told: Told, function: Any) -> Any:
    writer = orders.writeStream.option("checkpointLocation", f"{told.place}/checkpoint")
    return writer.trigger(availableNow=True).foreachBatch(function).start()


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
