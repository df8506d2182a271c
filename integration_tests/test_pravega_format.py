"""`twophase-pravega` through a real Spark: written, followed and read as a batch, over restarts and replays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import twophase
from integration_tests.pravega_streams import controller_at, events_of, new_stream, open_transactions
from integration_tests.streams import Place, orders, run
from twophase.clients.pravega.stream import Stream
from twophase.connectors.command_line import main
from twophase.query import AnySink
from twophase.sinks import FilesSink, PravegaSink
from twophase.testing.crash import orders as order_rows
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers


def options(address: str, stream: Stream) -> dict[str, str]:
    return {"controller": address, "scope": stream.scope, "stream": stream.name}


def as_events(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("to_json(struct(id, name, amount)) AS value", "name")


def write(rows: DataFrame, checkpoint: Path, address: str, stream: Stream) -> StreamingQuery:
    told = {**options(address, stream), "routingKeyColumn": "name", "checkpointLocation": str(checkpoint)}
    return rows.writeStream.format("twophase-pravega").options(**told).trigger(availableNow=True).start()


def difference(place: Place, events: list[bytes]) -> order_rows.Difference:
    found = [json.loads(event) for event in events]
    return order_rows.compare(place.ids, [(each["id"], each["name"], each["amount"]) for each in found])


def test_a_stream_holds_every_row_once_over_restarts_and_replays_and_another_query_follows_it(
    spark: SparkSession, place: Place, pravega_server: Server[str]
) -> None:
    address = pravega_server.endpoint
    stream, copied = new_stream(address, segments=2), new_stream(address, segments=1)
    controller = controller_at(address)
    for _ in range(2):
        place.add_orders(4)
        run(write(as_events(orders(spark, place)), place.checkpoint, address, stream))
        place.forget_commit(max(int(path.name) for path in (place.checkpoint / "commits").glob("[0-9]*")))
        events = spark.readStream.format("twophase-pravega").options(**options(address, stream))
        followed = events.option("startingCut", "earliest").option("maxBytesPerTrigger", "2000").load()
        with_key = followed.selectExpr("value", "get_json_object(cast(value AS string), '$.name') AS name")
        run(write(with_key, place.root / "copy", address, copied))

    assert not difference(place, events_of(controller, stream))
    assert not difference(place, events_of(controller, copied))
    assert open_transactions(controller, stream) + open_transactions(controller, copied) == []
    batch = spark.read.format("twophase-pravega").options(**options(address, copied)).load()
    assert batch.columns == ["value", "scope", "stream", "segment", "offset"]
    assert not difference(place, [bytes(row[0]) for row in batch.select("value").collect()])


def test_one_decision_for_a_stream_and_a_table_and_the_command_line_knows_both(
    spark: SparkSession, place: Place, pravega_server: Server[str], capsys: pytest.CaptureFixture[str]
) -> None:
    address = pravega_server.endpoint
    stream = new_stream(address)
    place.add_orders(3)

    def route(batch: DataFrame, epoch: Any) -> None:
        epoch.write("events", as_events(batch))
        epoch.write("table", batch)

    sinks: dict[str, AnySink] = {
        "events": PravegaSink(address, stream.scope, stream.name),
        "table": FilesSink(str(place.table)),
    }
    query = (
        orders(spark, place)
        .writeStream.foreachBatch(twophase.exactly_once(route, **sinks))
        .option("checkpointLocation", str(place.checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    run(query)

    assert not difference(place, events_of(controller_at(address), stream))
    assert not place.difference()
    assert main(["inspect", str(place.checkpoint)]) == 0
    assert "twophase-pravega" in capsys.readouterr().out
