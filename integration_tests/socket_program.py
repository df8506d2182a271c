"""The driver that is killed: lines of a sender, into a table of files, until it is stopped.

``python -m integration_tests.socket_program FOLDER PORT``
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import twophase
from twophase.testing.quick_start import quick_start


def main(folder: Path, port: int) -> None:
    spark = quick_start(SparkSession.builder.master("local[2]")).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    twophase.register(spark)
    query = (
        spark.readStream.format("twophase-socket")
        .option("host", "127.0.0.1")
        .option("port", port)
        .option("acknowledge", "true")
        .option("journal", str(folder / "journal"))
        .option("segmentBytes", 4096)
        .option("maxLineBytes", 100)
        .option("maxRowsPerTrigger", 5000)
        .option("includeTimestamp", "true")
        .load()
        .selectExpr("cast(value AS bigint) AS number", "timestamp")
        .writeStream.format("twophase-files")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(folder / "table"))
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
