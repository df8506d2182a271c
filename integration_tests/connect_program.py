"""A session of Spark Connect, in a process of its own: orders go to a partitioned table. said.json is what came of it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

import twophase
from integration_tests.streams import SCHEMA


def main(folder: Path) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the server's workers: `register` can't see to them
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    twophase.register(spark)
    orders = spark.readStream.schema(SCHEMA).parquet(str(folder / "input")).selectExpr("*", "id % 2 AS odd")
    writer = orders.writeStream.format("twophase-files").partitionBy("odd").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start(str(folder / "table"))
    query.awaitTermination(120)
    # Not printed: Spark has more to say when it stops than anybody keeps.
    (folder / "said.tmp").write_text(json.dumps({"failed": str(query.exception() or "")}))
    (folder / "said.tmp").rename(folder / "said.json")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
