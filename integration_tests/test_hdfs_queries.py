"""Real queries with their checkpoint, their table, or both on a real HDFS, by both clients.

Spark itself has to reach the checkpoint too, and the Hadoop that comes with pyspark can't speak WebHDFS (its jar lacks classes):
so checkpoints are at hdfs://, and ledgers at webhdfs:// have the option of their own.
"""

from __future__ import annotations

import io
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import twophase
from examples import orders_on_hdfs
from integration_tests.hdfs_tables import CLIENTS, PlainReader, staged, url_of
from integration_tests.streams import SCHEMA, Place, failure_of, orders, run
from twophase.connectors.command_line import main
from twophase.connectors.inspection import inspect
from twophase.file_table import open_table
from twophase.sinks import FilesSink
from twophase.storage import FileStorage
from twophase.storage_of import storage_of
from twophase.testing.crash.orders import Order, compare, order, write_orders
from twophase.testing.servers.hdfs import HdfsEndpoint
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers

ROWS_AN_EPOCH = 100


@dataclass
class HdfsPlace:
    """A query's input on this disk; its checkpoint and its table in a new folder of HDFS."""

    spark: SparkSession
    local: Place
    endpoint: HdfsEndpoint
    top: str
    folder: str

    @property
    def table(self) -> str:
        return f"{self.top}{self.folder}/table"

    @property
    def checkpoint(self) -> str:
        return f"{self.endpoint.url}{self.folder}/checkpoint"

    @property
    def ledger(self) -> str:
        return f"{self.top}{self.folder}/checkpoint/twophase"

    @property
    def storage(self) -> FileStorage:
        return storage_of(self.endpoint.url + "/")

    def start(self, options: Mapping[str, str] | None = None, *, table: str | None = None) -> StreamingQuery:
        settings = {"checkpointLocation": self.checkpoint, "ledger": self.ledger, **(options or {})}
        writer = orders(self.spark, self.local).writeStream.format("twophase-files").options(**settings)
        return writer.trigger(availableNow=True).start(table or self.table)

    def run(self, files: int, options: Mapping[str, str] | None = None) -> None:
        self.local.add_orders(files)
        run(self.start(options))

    def rows(self) -> list[Order]:
        rows: list[Order] = []
        for table in PlainReader(self.endpoint.url).tables(f"{self.folder}/table"):
            rows += zip(*(table.column(name).to_pylist() for name in ("id", "name", "amount")), strict=True)
        return rows

    def require_every_row_once(self) -> None:
        assert not compare(self.local.ids, self.rows())
        assert staged(storage_of(self.table), self.table) == []

    def refused(self, says: str, options: Mapping[str, str] | None = None) -> str:
        before = sorted(self.rows())
        said = failure_of(self.start(options))
        assert says in said, said
        assert sorted(self.rows()) == before
        return said

    def copy(self, source: str, target: str) -> None:
        """As distcp does: files, folders, and empty folders."""
        self.storage.make_folder(target)
        for entry in self.storage.list(source):
            if entry.is_folder:
                self.copy(f"{source}/{entry.name}", f"{target}/{entry.name}")
            else:
                with self.storage.create(f"{target}/{entry.name}") as file:
                    file.write(self.storage.read(f"{source}/{entry.name}"))


@pytest.fixture(params=CLIENTS)
def hdfs(
    request: pytest.FixtureRequest, spark: SparkSession, place: Place, hdfs_server: Server[HdfsEndpoint]
) -> HdfsPlace:
    return _placed(spark, place, hdfs_server, request.param)


@pytest.fixture
def native(spark: SparkSession, place: Place, hdfs_server: Server[HdfsEndpoint]) -> HdfsPlace:
    """Where the client makes no difference."""
    return _placed(spark, place, hdfs_server, "native")


def _placed(spark: SparkSession, place: Place, server: Server[HdfsEndpoint], client: str) -> HdfsPlace:
    return HdfsPlace(spark, place, server.endpoint, url_of(server.endpoint, client), f"/query-{uuid.uuid4().hex}")


# ---- the ledger and Spark's checkpoint ----


def test_a_query_on_local_files_keeps_its_checkpoint_and_ledger_on_hdfs(hdfs: HdfsPlace) -> None:
    local = str(hdfs.local.table)
    hdfs.local.add_orders(4)
    run(hdfs.start(table=local))
    hdfs.storage.delete(f"{hdfs.checkpoint}/commits/1")
    hdfs.local.add_orders(2)

    run(hdfs.start(table=local))

    assert not hdfs.local.difference()
    assert hdfs.local.epochs() == [0, 1, 2]
    assert len(hdfs.storage.list(f"{hdfs.checkpoint}/twophase")) >= 6
    assert (
        "Epoch 2 is committed everywhere, and Spark has logged it"
        in inspect(hdfs.checkpoint, ledger=hdfs.ledger).verdict
    )


def test_a_query_has_everything_on_hdfs(hdfs: HdfsPlace) -> None:
    hdfs.run(4)
    hdfs.run(2)

    hdfs.require_every_row_once()
    assert open_table(hdfs.table).positions() == [0, 1, 2]


def test_exactly_once_writes_two_tables_on_hdfs_by_one_decision(native: HdfsPlace) -> None:
    native.local.add_orders(4)
    other = f"{native.table}-2"
    sinks = {"even": FilesSink(native.table), "odd": FilesSink(other, hdfs={"patienceMs": "30000"})}

    def route(batch: object, epoch: object) -> None:
        epoch.write("even", batch.where("id % 2 = 0"))  # type: ignore[attr-defined]
        epoch.write("odd", batch.where("id % 2 = 1"))  # type: ignore[attr-defined]

    writer = orders(native.spark, native.local).writeStream.foreachBatch(twophase.exactly_once(route, **sinks))
    run(writer.option("checkpointLocation", native.checkpoint).trigger(availableNow=True).start())

    reader = PlainReader(native.endpoint.url)
    even, odd = (reader.ids(f"{native.folder}/{name}") for name in ("table", "table-2"))
    assert sorted(even + odd) == sorted(native.local.ids)
    assert {id_ % 2 for id_ in even} == {0}


# ---- what people do to checkpoints ----


def test_a_deleted_commit_is_a_replay_that_writes_nothing(hdfs: HdfsPlace) -> None:
    hdfs.run(6)
    before = sorted(hdfs.rows())
    hdfs.storage.delete(f"{hdfs.checkpoint}/commits/2")
    assert "Spark has not logged it" in inspect(hdfs.checkpoint, ledger=hdfs.ledger).verdict

    run(hdfs.start())

    assert sorted(hdfs.rows()) == before
    hdfs.require_every_row_once()


def test_a_copied_checkpoint_is_refused_until_it_is_said_to_have_moved(native: HdfsPlace) -> None:
    native.run(4)
    copy = f"{native.checkpoint}-copy"
    native.copy(native.checkpoint, copy)
    native.local.add_orders(2)

    native.refused("movedFrom", {"checkpointLocation": copy, "ledger": f"{copy}/twophase"})
    run(native.start({"checkpointLocation": copy, "ledger": f"{copy}/twophase", "movedFrom": native.checkpoint}))

    native.require_every_row_once()


def test_a_checkpoint_restored_from_an_older_backup_is_refused(native: HdfsPlace) -> None:
    native.run(4)
    native.copy(native.checkpoint, f"{native.checkpoint}-backup")
    native.run(2)
    native.storage.delete(native.checkpoint)
    native.copy(f"{native.checkpoint}-backup", native.checkpoint)
    write_orders(native.local.input, 1, first=50)

    native.refused("CHECKPOINT_MISMATCH")


def test_sparks_part_rewound_without_the_ledger_is_refused(native: HdfsPlace) -> None:
    native.run(6)
    for folder in ("offsets", "commits"):
        native.storage.delete(f"{native.checkpoint}/{folder}/2")
    native.local.add_orders(1)

    native.refused("CHECKPOINT_MISMATCH")


def test_an_emptied_checkpoint_is_another_owner_and_refused(native: HdfsPlace) -> None:
    native.run(4)
    native.storage.delete(native.checkpoint)

    assert "takeOver" in native.refused("is owned by")


def test_inspect_and_recover_find_a_query_on_hdfs(native: HdfsPlace) -> None:
    native.run(2)
    said = io.StringIO()

    assert main(["inspect", native.checkpoint], out=said) == 0
    assert "Epoch 0 is committed everywhere, and Spark has logged it." in said.getvalue()
    assert f"path={native.table}" in said.getvalue()
    assert main(["recover", native.checkpoint], out=said) == 0
    native.run(2)
    native.require_every_row_once()


# ---- readers ----


def test_spark_sees_exactly_the_committed_epochs_at_any_moment(native: HdfsPlace) -> None:
    looks: list[list[tuple[int, int]]] = []
    over = threading.Event()
    reader = threading.Thread(target=lambda: looks.extend(_looks(native, over)))
    native.local.add_orders(12)

    reader.start()
    try:
        run(native.start())
    finally:
        over.set()
        reader.join(120)

    native.require_every_row_once()
    assert looks[-1] == [(epoch, ROWS_AN_EPOCH) for epoch in range(6)]
    for look in looks:
        assert look == [(epoch, ROWS_AN_EPOCH) for epoch in range(len(look))]
    assert len({len(look) for look in looks}) > 2, "the reader was not there while the query ran"


def _looks(hdfs: HdfsPlace, over: threading.Event) -> Iterator[list[tuple[int, int]]]:
    """What Spark's own reader finds, again and again, and once more when the query is over."""
    while True:
        last = over.is_set()
        try:
            rows = hdfs.spark.read.schema(f"{SCHEMA}, epoch int").parquet(hdfs.table)
            found = rows.groupBy("epoch").count().collect()
        except AnalysisException:  # there is no folder yet
            found = []
        yield sorted((row["epoch"], row["count"]) for row in found)
        if last:
            return


def test_a_table_on_hdfs_is_followed_epoch_by_epoch(hdfs: HdfsPlace) -> None:
    hdfs.run(4)

    def follow() -> None:
        rows = hdfs.spark.readStream.format("twophase-hdfs").option("maxEpochsPerTrigger", 1).load(hdfs.table)
        settings = {"checkpointLocation": f"{hdfs.checkpoint}-follower", "path": f"{hdfs.table}-copy"}
        writer = rows.writeStream.format("twophase-hdfs").options(**settings).trigger(availableNow=True)
        run(writer.start())

    follow()
    hdfs.run(2)
    follow()

    assert PlainReader(hdfs.endpoint.url).ids(f"{hdfs.folder}/table-copy") == sorted(hdfs.local.ids)
    assert open_table(f"{hdfs.table}-copy").positions() == [0, 1, 2]


def test_the_example_writes_orders_once_and_follows_them(native: HdfsPlace) -> None:
    top = f"{native.endpoint.url}{native.folder}"
    for _ in range(2):
        native.local.add_orders(2)
        orders_on_hdfs.main(top, str(native.local.input))

    reader = PlainReader(native.endpoint.url)
    assert reader.ids(f"{native.folder}/orders") == sorted(native.local.ids)
    large = [id_ for id_ in native.local.ids if order(id_)[2] > 10]
    assert reader.ids(f"{native.folder}/large-orders") == sorted(large)
    assert storage_of(top).list(f"{top}/.orders.twophase/.readers") != []


def test_a_local_path_is_refused_by_the_format_for_hdfs(native: HdfsPlace) -> None:
    native.local.add_orders(1)
    writer = orders(native.spark, native.local).writeStream.format("twophase-hdfs").trigger(availableNow=True)

    said = failure_of(writer.option("checkpointLocation", native.checkpoint).start(str(native.local.table)))

    assert "which is on a local disk" in said
