"""Orders from one stream to another, each once: ``python -m examples.pravega_to_pravega controller:9090 shop orders paid PLACE``.

Kill it at any moment, and start it again: readers see every paid order once.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import twophase


def main(controller: str, scope: str, source: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("paid orders").getOrCreate()
    twophase.register(spark)

    orders = (
        spark.readStream.format("twophase-pravega")
        .option("controller", controller)
        .option("scope", scope)
        .option("stream", source)
        .option("startingCut", "earliest")
        .load()
        .selectExpr("from_json(cast(value AS string), 'id bigint, amount double, paid boolean') AS order")
    )
    query = (
        orders.where("order.paid")
        .selectExpr("cast(order.id AS string) AS id", "to_json(struct(order.id, order.amount)) AS value")
        .writeStream.format("twophase-pravega")
        .option("controller", controller)
        .option("scope", scope)
        .option("stream", target)
        .option("createStream", "true")
        .option("routingKeyColumn", "id")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # what is there now; without it, what comes too
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
