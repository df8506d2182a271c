"""What people do to checkpoints, on targets that are servers and take several owners side by side.

`test_checkpoint_surgery` has the same for tables of files, and more of it. What differs here: without the option `owner` a query
whose checkpoint was deleted is a new owner, and nothing can tell (docs/protocol.md says so); so the owner is named where that
matters.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from integration_tests.streams import Place, failure_of, orders, run
from integration_tests.topics import KafkaTarget
from twophase.testing.crash.orders import compare, write_orders
from twophase.testing.crash.target import CrashTarget
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers


@dataclass
class Query:
    """One that was written to and can be started again."""

    spark: SparkSession
    place: Place
    target: CrashTarget

    def start(self, options: Mapping[str, str] | None = None) -> StreamingQuery:
        assert self.target.format is not None
        rows: DataFrame = self.target.shaped(orders(self.spark, self.place))
        settings = {**self.target.options(), "checkpointLocation": str(self.place.checkpoint), **(options or {})}
        return rows.writeStream.format(self.target.format).options(**settings).trigger(availableNow=True).start()

    def run(self, files: int, options: Mapping[str, str] | None = None) -> None:
        self.place.add_orders(files)
        run(self.start(options))

    def refused(self, options: Mapping[str, str] | None = None) -> str:
        """What it says when it is started; and nothing in the target has changed."""
        before = sorted(self.target.read())
        said = failure_of(self.start(options))
        assert sorted(self.target.read()) == before
        return said

    def require_every_row_once(self) -> None:
        assert not compare(self.place.ids, self.target.read())
        assert self.target.residue() == []


@pytest.fixture
def query(spark: SparkSession, place: Place, kafka_server: Server[str]) -> Query:
    return Query(spark, place, KafkaTarget(place.root, settings={"bootstrap": kafka_server.endpoint}))


@pytest.mark.parametrize("forgotten", [(2,), (2, 1)], ids=["the last", "the last two"])
def test_commits_that_were_deleted_are_replays_that_write_nothing(query: Query, forgotten: tuple[int, ...]) -> None:
    query.run(6)
    before = sorted(query.target.read())
    for number in forgotten:
        query.place.forget_commit(number)

    run(query.start())

    assert sorted(query.target.read()) == before
    query.require_every_row_once()


def test_a_copied_checkpoint_is_refused_until_it_is_said_to_have_moved(query: Query) -> None:
    query.run(4)
    copy = query.place.copy_checkpoint("copy")
    query.place.add_orders(2)

    assert "movedFrom" in query.refused({"checkpointLocation": str(copy)})

    run(query.start({"checkpointLocation": str(copy), "movedFrom": str(query.place.checkpoint)}))
    query.require_every_row_once()


@pytest.mark.parametrize("rows", ["the same", "other"])
def test_a_checkpoint_restored_from_an_older_backup_is_refused(query: Query, rows: str) -> None:
    query.run(4)
    backup = query.place.copy_checkpoint("backup")
    query.run(2)
    query.place.restore_checkpoint(backup)
    if rows == "other":
        write_orders(query.place.input, 1, first=50)

    assert "CHECKPOINT_MISMATCH" in query.refused()


def test_sparks_part_rewound_without_the_ledger_is_refused(query: Query) -> None:
    query.run(6)
    for folder in ("offsets", "commits"):
        for name in ("2", ".2.crc"):
            (query.place.checkpoint / folder / name).unlink(missing_ok=True)
    query.place.add_orders(1)  # the same number is logged with other offsets

    assert "CHECKPOINT_MISMATCH" in query.refused()


def test_an_emptied_checkpoint_of_a_named_owner_is_refused(query: Query) -> None:
    query.run(4, {"owner": "orders"})
    shutil.rmtree(query.place.checkpoint)

    assert "CHECKPOINT_MISMATCH" in query.refused({"owner": "orders"})
