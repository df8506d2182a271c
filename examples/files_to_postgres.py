"""Orders from a folder of JSON files to a table of PostgreSQL, each once::

    export ORDERS_DSN=postgresql://user:password@host/shop
    python -m examples.files_to_postgres FOLDER env:ORDERS_DSN sales.orders CHECKPOINT

Kill it at any moment, and start it again: whoever reads the table sees every order once, and an epoch whole or not at all. The
password is looked up where it is needed, on the driver and on every executor, and is written down nowhere.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import twophase


def main(folder: str, dsn: str, table: str, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("orders").getOrCreate()
    twophase.register(spark)

    orders = (
        spark.readStream.schema("id bigint, customer string, amount decimal(10,2), at timestamp, items array<string>")
        .option("maxFilesPerTrigger", 100)
        .json(folder)
    )
    query = (
        orders.where("amount > 0")
        .writeStream.format("twophase-postgres")
        .option("dsn", dsn)
        .option("table", table)
        .option("createTable", "true")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # what is there now; without it, what comes too
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
