"""`twophase-socket` through Spark: columns, limits, restarts, a query that stops, two queries on one journal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration_tests.streams import failure_of
from tests.line_sender import PlainSender, SpoolingSender, wait_for
from twophase.local_storage import LocalStorage
from twophase.sources.socket.journal import Journal

pytestmark = pytest.mark.servers

WITHIN_S = 120.0


@pytest.fixture
def plain() -> Iterator[PlainSender]:
    sender = PlainSender()
    yield sender
    sender.close()


@pytest.fixture
def spooling(tmp_path: Path) -> Iterator[SpoolingSender]:
    sender = SpoolingSender(tmp_path)
    yield sender
    sender.close()


def lines(spark: SparkSession, folder: Path, port: int, **options: Any) -> DataFrame:
    reader = spark.readStream.format("twophase-socket").option("host", "127.0.0.1").option("port", port)
    return reader.option("journal", str(folder / "journal")).options(**options).load()


def started(rows: DataFrame, folder: Path, name: str = "table", **trigger: Any) -> StreamingQuery:
    writer = rows.writeStream.format("twophase-files").option("checkpointLocation", str(folder / f"{name}-checkpoint"))
    return (writer.trigger(**trigger) if trigger else writer).start(str(folder / name))


def values(spark: SparkSession, table: Path) -> list[str]:
    if not any(table.glob("epoch=*")):
        return []
    return [row.value for row in spark.read.parquet(str(table)).select("value").collect()]


def test_lines_go_from_a_socket_into_a_table_and_a_stopped_query_listens_no_more(
    spark: SparkSession, tmp_path: Path, plain: PlainSender
) -> None:
    rows = lines(spark, tmp_path, plain.port, includeTimestamp=True, maxRowsPerTrigger=2)
    assert [(field.name, field.dataType.simpleString()) for field in rows.schema] == [
        ("value", "string"),
        ("timestamp", "timestamp"),
    ]
    query = started(rows, tmp_path)
    try:
        plain.send(b"a\nb\nc\n")
        wait_for(lambda: len(values(spark, tmp_path / "table")) == 3, "three rows", WITHIN_S)
    finally:
        query.stop()
    assert len(list((tmp_path / "table").glob("epoch=*"))) >= 2, "two rows an epoch"
    plain.connected().settimeout(10)
    assert plain.connected().recv(1) == b"", "the connection is closed"

    again = started(rows, tmp_path)
    try:
        plain.connected(2).sendall(b"d\n")
        wait_for(lambda: len(values(spark, tmp_path / "table")) == 4, "the fourth row", WITHIN_S)
    finally:
        again.stop()
    assert sorted(values(spark, tmp_path / "table")) == ["a", "b", "c", "d"]


def test_a_replayed_epoch_has_the_same_lines_and_times(
    spark: SparkSession, tmp_path: Path, spooling: SpoolingSender
) -> None:
    """What a crash between the sink's commit and Spark's log of it leaves: into a sink that shows what it was given."""
    given: dict[int, list[list[Any]]] = {}

    def note(batch: DataFrame, epoch: int) -> None:
        rows = batch.collect()
        given.setdefault(epoch, []).append(rows)

    def run() -> StreamingQuery:
        rows = lines(spark, tmp_path, spooling.port, includeTimestamp=True, acknowledge=True)
        return rows.writeStream.foreachBatch(note).option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    query = run()
    try:
        spooling.put([b"one", b"two"])
        spooling.wait()
        wait_for(lambda: sum(len(rows[0]) for rows in list(given.values())) == 2, "two rows", WITHIN_S)
        wait_for(lambda: query.lastProgress is not None and not query.status["isTriggerActive"], "idle", WITHIN_S)
    finally:
        query.stop()
    last = max(given)
    for name in (str(last), f".{last}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    spooling.put([b"three"])
    again = run()
    try:
        wait_for(lambda: last + 1 in given, "the next epoch", WITHIN_S)
    finally:
        again.stop()
    assert len(given[last]) == 2
    assert given[last][0] == given[last][1]
    assert [row.value for row in given[last + 1][0]] == ["three"]


def test_the_journal_is_emptied_as_the_query_goes_on(
    spark: SparkSession, tmp_path: Path, spooling: SpoolingSender
) -> None:
    rows = lines(spark, tmp_path, spooling.port, acknowledge=True, segmentBytes=4096, maxLineBytes=1000)
    query = started(rows, tmp_path)
    try:
        for round_ in range(6):
            spooling.put([b"%d %s" % (number, b"x" * 500) for number in range(20)])
            spooling.wait()
            wait_for(
                lambda count=20 * (round_ + 1): len(values(spark, tmp_path / "table")) == count,  # type: ignore[misc]
                "the rows",
                WITHIN_S,
            )
    finally:
        query.stop()
    assert Journal(LocalStorage(), str(tmp_path / "journal")).required().first_line >= 80


def test_a_second_query_on_a_journal_stops_the_first_one(
    spark: SparkSession, tmp_path: Path, plain: PlainSender
) -> None:
    rows = lines(spark, tmp_path, plain.port)
    first = started(rows, tmp_path)
    plain.send(b"a\n")
    wait_for(lambda: len(values(spark, tmp_path / "table")) == 1, "a row", WITHIN_S)
    second = started(rows, tmp_path, "second")
    try:
        text = failure_of(first)
    finally:
        second.stop()
    assert "[FENCED]" in text
    assert "a journal is one query's alone" in text


def test_wrong_options_and_senders_that_are_not_there_are_told_to_whoever_runs_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    plain = PlainSender()
    plain.close()
    text = failure_of(started(lines(spark, tmp_path, plain.port, connectTimeoutMs=500), tmp_path))
    assert "no connection to the sender at 127.0.0.1" in text
    with pytest.raises(Exception, match="journal is required"):
        spark.readStream.format("twophase-socket").option("host", "h").option("port", 1).load()
