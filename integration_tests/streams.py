"""Streaming queries over a folder of orders, run to their end in the session of the tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration_tests.tables import compare, rows_of
from twophase.testing.crash.orders import Difference, write_orders

SCHEMA = "id bigint, name string, amount double"


@dataclass
class Place:
    """Where a query reads, writes and keeps its checkpoint; and the ids that were put in."""

    root: Path

    def __post_init__(self) -> None:
        self.ids: list[int] = []

    @property
    def input(self) -> Path:
        return self.root / "input"

    @property
    def table(self) -> Path:
        return self.root / "table"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    def add_orders(self, files: int) -> None:
        self.ids += write_orders(self.input, files, first=len(list(self.input.glob("*.parquet"))))

    def difference(self, table: Path | None = None) -> Difference:
        return compare(self.ids, table or self.table)

    def epochs(self) -> list[int]:
        return sorted(int(path.name.removeprefix("epoch=")) for path in self.table.glob("epoch=*"))

    def rows(self) -> int:
        return len(rows_of(self.table))

    def forget_commit(self, number: int) -> None:
        """What a crash between the sink's commit and Spark's log of it leaves."""
        for name in (str(number), f".{number}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def copy_checkpoint(self, name: str) -> Path:
        return Path(shutil.copytree(self.checkpoint, self.root / name))

    def restore_checkpoint(self, backup: Path) -> None:
        shutil.rmtree(self.checkpoint)
        shutil.copytree(backup, self.checkpoint)


def orders(spark: SparkSession, place: Place, *, files_per_epoch: int = 2) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", files_per_epoch).parquet(str(place.input))


def write(rows: DataFrame, place: Place, options: Mapping[str, str] | None = None, **more: Any) -> StreamingQuery:
    """Start a query to the place's table by our format."""
    settings = {"checkpointLocation": str(place.checkpoint), **(options or {})}
    writer = rows.writeStream.format("twophase-files").options(**settings).trigger(availableNow=True)
    if more.get("mode"):
        writer = writer.outputMode(more["mode"])
    return writer.start(str(more.get("table", place.table)))


def write_by(
    function: Callable[[DataFrame, int], None], rows: DataFrame, place: Place, *, mode: str = "append"
) -> StreamingQuery:
    """Start a query by foreachBatch."""
    writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", str(place.checkpoint))
    return writer.outputMode(mode).trigger(availableNow=True).start()


def run(query: StreamingQuery) -> None:
    query.awaitTermination(120)
    assert not query.isActive


def failure_of(query: StreamingQuery) -> str:
    """What the user sees of a query that must fail."""
    try:
        query.awaitTermination(120)
    except StreamingQueryException as error:
        return str(error)
    raise AssertionError("the query did not fail")
