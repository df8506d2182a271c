"""The contenders that keep sums by key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.run import Run

SCHEMA = "customer bigint, amount bigint"
TASKS = 2
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def state_of(folder: str) -> str:
    return f"{folder}/state"


def _rows(spark: Any, told: Run) -> Any:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", told.files_per_epoch).parquet(told.input)


def _writer(rows: Any, told: Run) -> Any:
    return rows.writeStream.option("checkpointLocation", f"{told.folder}/checkpoint").trigger(availableNow=True)


def _twophase(spark: Any, told: Run) -> Any:
    """Rows go to the state as they are, which adds them up."""
    import twophase
    from twophase.sinks import RocksDBSink

    sink = RocksDBSink(
        state_of(told.folder), "customer", merge_mode="sum", tasks=TASKS, working_dir=f"{told.folder}/working"
    )
    return _writer(_rows(spark, told), told).foreachBatch(twophase.exactly_once(sink)).start()


def _spark_state(spark: Any, told: Run) -> Any:
    """Spark's own: an aggregation with its RocksDB state store, whose updates go nowhere."""
    return _writer(_summed(spark, told), told).outputMode("update").format("noop").start()


def _both(spark: Any, told: Run) -> Any:
    """Spark's own aggregation, and its updates in a state that others can read."""
    import twophase
    from twophase.sinks import RocksDBSink

    sink = RocksDBSink(state_of(told.folder), "customer", tasks=TASKS, working_dir=f"{told.folder}/working")
    writer = _writer(_summed(spark, told), told).outputMode("update")
    return writer.foreachBatch(twophase.exactly_once(sink)).start()


def _summed(spark: Any, told: Run) -> Any:
    from pyspark.sql import functions as sf

    spark.conf.set("spark.sql.streaming.stateStore.providerClass", _PROVIDER)
    spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
    return _rows(spark, told).groupBy("customer").agg(sf.sum("amount").alias("amount"))


SINKS: dict[str, Callable[[Any, Run], Any]] = {"spark state": _spark_state, "twophase sum": _twophase, "both": _both}
