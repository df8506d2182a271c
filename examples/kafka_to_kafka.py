"""Orders from one topic to another, each once: ``python -m examples.kafka_to_kafka broker:9092 orders paid-orders CHECKPOINT``.

Kill it at any moment, and start it again: consumers with ``isolation.level=read_committed`` see every paid order once.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import twophase


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.appName("paid orders").getOrCreate()
    twophase.register(spark)

    orders = (
        spark.readStream.format("twophase-kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100_000)
        .load()
        .selectExpr("key", "from_json(cast(value AS string), 'id bigint, amount double, paid boolean') AS order")
    )
    query = (
        orders.where("order.paid")
        .selectExpr("key", "to_json(struct(order.id, order.amount)) AS value")
        .writeStream.format("twophase-kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)  # what is there now; without it, what comes too
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
