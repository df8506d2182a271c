"""Orders from a folder into a table on HDFS, and the same table followed by a second query:
``python -m examples.orders_on_hdfs hdfs://namenode:8020/shop /data/incoming``.

Kill it at any moment, and start it again: `spark.read.parquet("hdfs://namenode:8020/shop/orders")` shows every order once, and so
does the table of large orders that is made of it. Both keep the newest 100 epochs, and what the second has not read yet.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import twophase


def main(top: str, incoming: str) -> None:
    spark = SparkSession.builder.appName("orders on HDFS").getOrCreate()
    twophase.register(spark)

    orders = spark.readStream.schema("id bigint, name string, amount double").parquet(incoming)
    writing = (
        orders.writeStream.format("twophase-hdfs")
        .option("checkpointLocation", f"{top}/checkpoints/orders")
        .option("retainEpochs", 100)
        .trigger(availableNow=True)  # what is there now; without it, what comes too
        .start(f"{top}/orders")
    )
    writing.awaitTermination()

    followed = spark.readStream.format("twophase-hdfs").option("reader", "large-orders").load(f"{top}/orders")
    following = (
        followed.where("amount > 10")
        .writeStream.format("twophase-hdfs")
        .option("checkpointLocation", f"{top}/checkpoints/large-orders")
        .option("retainEpochs", 100)
        .trigger(availableNow=True)
        .start(f"{top}/large-orders")
    )
    following.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
