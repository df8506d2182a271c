"""The program that is killed: one streaming query, described by a JSON object in its first argument.

It reads a folder of parquet files, some files an epoch, writes them as it was told, and ends when it has read all. The last line
that it prints is a JSON object: {"epochs": …} if it came to the end, {"error": …} with what the user would have seen if not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from twophase.failpoints import VARIABLE, trace
from twophase.testing.crash.orders import SCHEMA
from twophase.testing.crash.target import CrashTarget, load

VOTES_WITHIN_S = 60.0
VOTE_TRAVELS_S = 5.0

Way = Literal["format", "sink", "function"]


@dataclass(frozen=True)
class QueryDescription:
    """What the child runs, and where."""

    target: str
    """The target's class, as `module:Class`."""
    folder: str
    """Where the input, the checkpoint and, if it lies on a disk, the target are."""
    way: Way = "format"
    """`format`: writeStream.format. `sink`: exactly_once(sink). `function`: exactly_once with two sinks, the even ids in the
    target called `table` and the odd ones in the one called `second`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    input_name: str = "input"
    checkpoint_name: str = "checkpoint"
    master: str = "local[2]"
    files_per_epoch: int = 2
    options: Mapping[str, str] = field(default_factory=dict)
    """Of the sink (for the ways with a sink: of the query)."""
    conf: Mapping[str, str] = field(default_factory=dict)
    schema: str = SCHEMA
    linger_s: float = 0.0
    """How long the first attempt of slot 0 of epoch 1 waits after its last row, before it says that it was the last."""
    poison: str | None = None
    """A file; while it is there, slot 1 of every epoch but the first fails."""

    @property
    def input(self) -> Path:
        return Path(self.folder, self.input_name)

    @property
    def checkpoint(self) -> str:
        return self.targets[0].checkpoint(self.checkpoint_name)

    @property
    def targets(self) -> tuple[CrashTarget, ...]:
        """One, or two for the way with a function."""
        made, names = load(self.target), ("table", "second") if self.way == "function" else ("table",)
        return tuple(made(Path(self.folder), name, self.settings) for name in names)

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
    from twophase.testing.quick_start import quick_start

    builder = quick_start(SparkSession.builder.master(told.master))
    for key, value in {"spark.sql.streaming.numRecentProgressUpdates": "1000", **told.conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    twophase.register(spark)
    return spark


def _start(spark: Any, told: QueryDescription) -> Any:
    import twophase

    rows = (
        spark.readStream.schema(told.schema)
        .option("maxFilesPerTrigger", told.files_per_epoch)
        .option("latestFirst", "false")
        .parquet(str(told.input))
    )
    if told.linger_s:
        rows = rows.mapInArrow(_lingering(told.linger_s), told.schema)
    if told.poison:
        rows = rows.mapInArrow(_poisoned(told.poison), told.schema)
    first, *rest = told.targets
    if told.way != "function":
        rows = first.shaped(rows)
    writer = rows.writeStream.option("checkpointLocation", told.checkpoint).trigger(availableNow=True)
    if told.way == "format":
        return writer.format(first.format).options(**first.options(), **told.options).start()
    if told.way == "sink":
        function = twophase.exactly_once(first.sink())
    else:
        function = twophase.exactly_once(_split(first, rest[0]), even=first.sink(), odd=rest[0].sink())
    return writer.foreachBatch(function.options(**told.options)).start()


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


def _poisoned(path: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        import os

        from pyspark import TaskContext

        from twophase.testing.crash.program import wait_for_vote

        yield from batches
        context = TaskContext.get()
        epoch = 0 if context is None else int(context.getLocalProperty("streaming.sql.batchId") or 0)
        if context is not None and context.partitionId() == 1 and epoch > 0 and os.path.exists(path):
            wait_for_vote(epoch)
            raise RuntimeError("a row that can't be read")

    return fail


def wait_for_vote(epoch: int) -> None:
    """Until slot 0 has voted: Spark's abort brings the votes, and one without any has nothing to act on."""
    deadline = time.monotonic() + VOTES_WITHIN_S
    while not any((h.point, h.epoch, h.slot) == ("task.pre_committed", epoch, 0) for h in trace(os.environ[VARIABLE])):
        if time.monotonic() > deadline:
            raise TimeoutError(f"slot 0 has not voted within {VOTES_WITHIN_S} s")
        time.sleep(0.05)
    time.sleep(
        VOTE_TRAVELS_S
    )  # it is durable; what is left is its way through the executor to the driver, which nothing traces


def _split(even: CrashTarget, odd: CrashTarget) -> Callable[[Any, Any], None]:
    def split(batch: Any, epoch: Any) -> None:
        epoch.write("even", even.shaped(batch.where("id % 2 = 0")))
        epoch.write("odd", odd.shaped(batch.where("id % 2 = 1")))

    return split


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
