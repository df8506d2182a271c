"""The program that is killed: one streaming query, described by a JSON object in its first argument.

It reads a folder of parquet files, some files an epoch, writes them as it was told, and ends when it has read all. The last line
that it prints is a JSON object: {"epochs": …} if it came to the end, {"error": …} with what the user would have seen if not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Way = Literal["format", "sink", "function", "plain"]


@dataclass(frozen=True)
class QueryDescription:
    """What the child runs."""

    input: str
    table: str
    checkpoint: str
    way: Way = "format"
    """`format`: writeStream.format("twophase-files"). `sink`: exactly_once(sink). `function`: exactly_once with two sinks, the
    even ids in `table` and the odd ones in `second`. `plain`: foreachBatch with an ordinary append."""
    second: str | None = None
    master: str = "local[2]"
    files_per_epoch: int = 2
    options: dict[str, str] = field(default_factory=dict)
    """Of the sink (for the ways with a sink: of the query)."""
    conf: dict[str, str] = field(default_factory=dict)
    schema: str = "id bigint, name string, amount double"
    linger_s: float = 0.0
    """How long the first attempt of slot 0 of epoch 1 waits after its last row, before it says that it was the last."""

    def to_argument(self) -> str:
        return json.dumps(asdict(self))


def main(argument: str) -> int:
    told = QueryDescription(**json.loads(argument))
    spark = _session(told)
    try:
        query = _start(spark, told)
        query.awaitTermination()
        print(json.dumps({"epochs": len(query.recentProgress)}), flush=True)
        return 0
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what the user sees
        print(json.dumps({"error": str(error)}), flush=True)
        return 1
    finally:
        spark.stop()


def _session(told: QueryDescription) -> Any:
    from pyspark.sql import SparkSession

    import twophase

    builder = (
        SparkSession.builder.master(told.master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.numRecentProgressUpdates", "1000")
    )
    for key, value in told.conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    twophase.register(spark)
    return spark


def _start(spark: Any, told: QueryDescription) -> Any:
    import twophase
    from twophase.sinks import FilesSink

    rows = (
        spark.readStream.schema(told.schema)
        .option("maxFilesPerTrigger", told.files_per_epoch)
        .option("latestFirst", "false")
        .parquet(told.input)
    )
    if told.linger_s:
        rows = rows.mapInArrow(_lingering(told.linger_s), told.schema)
    writer = rows.writeStream.option("checkpointLocation", told.checkpoint).trigger(availableNow=True)
    if told.way == "format":
        return writer.format("twophase-files").options(**told.options).start(told.table)
    if told.way == "sink":
        return writer.foreachBatch(twophase.exactly_once(FilesSink(told.table)).options(**told.options)).start()
    if told.way == "function":
        assert told.second is not None
        sinks = {"even": FilesSink(told.table), "odd": FilesSink(told.second)}
        return writer.foreachBatch(twophase.exactly_once(_split, **sinks).options(**told.options)).start()
    return writer.foreachBatch(lambda batch, _: batch.write.mode("append").parquet(told.table)).start()


def _lingering(seconds: float) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def linger(batches: Iterator[Any]) -> Iterator[Any]:
        import time

        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is None or context.getLocalProperty("streaming.sql.batchId") != "1":
            return
        if context.partitionId() == 0 and context.attemptNumber() == 0:
            time.sleep(seconds)

    return linger


def _split(batch: Any, epoch: Any) -> None:
    epoch.write("even", batch.where("id % 2 = 0"))
    epoch.write("odd", batch.where("id % 2 = 1"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
