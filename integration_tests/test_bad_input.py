"""Bad input through Spark: the user sees one sentence that says what to do; when it is done, every row is there once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import twophase
from integration_tests.complaints import ROOT, sentence_in
from integration_tests.streams import Place, failure_of, orders, run, write, write_by
from integration_tests.tables import FILES, residue_of, rows_of
from twophase import failpoints
from twophase.connectors.for_each_batch import EpochWriter
from twophase.failpoints import Fault, arm, trace
from twophase.sinks import FilesSink
from twophase.testing.child import running
from twophase.testing.crash.program import QueryDescription
from twophase.testing.crash.victim import TIMEOUT_S, command_of

NOTHING_LOST = "Nothing of the epoch is visible in part, and nothing is lost"


# ---- disks ----


@dataclass(frozen=True)
class Disk:
    """A small file system of its own."""

    root: Path

    def fill(self, leave_bytes: int = 0) -> None:
        with open(self.root / "filling", "wb", buffering=0) as file, suppress(OSError):
            while shutil.disk_usage(self.root).free:
                file.write(bytes(4096))
        os.truncate(self.root / "filling", (self.root / "filling").stat().st_size - leave_bytes)

    def free(self) -> None:
        (self.root / "filling").unlink()

    def remount(self, how: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{how}", self.root], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "twophase-test", root], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        why = f"a full disk and a read-only one need the right to mount a tmpfs: run as root ({mounted.stderr.strip()})"
        if "CI" in os.environ:
            pytest.fail(why)
        pytest.skip(why)
    try:
        yield Disk(root)
    finally:
        subprocess.run(["umount", "--lazy", root], check=True)


def incompressible(rows: DataFrame) -> DataFrame:
    """20 KB a row, so that a task finds the disk full, and not prepare before it."""
    return rows.selectExpr("id", "name", "amount", "repeat(md5(name), 600) as filling")


def test_a_disk_that_is_full_in_a_task_is_named_and_loses_nothing(
    spark: SparkSession, place: Place, disk: Disk
) -> None:
    place.add_orders(2)
    table = disk.root / "table"
    disk.fill(leave_bytes=64 * 1024)

    def start() -> str:
        return failure_of(write(incompressible(orders(spark, place)), place, {"compression": "none"}, table=table))

    sentence = sentence_in(start(), "TARGET_UNAVAILABLE")
    assert "the disk is full: free some space, and start the query again" in sentence
    assert "slot=" in sentence
    assert NOTHING_LOST in sentence
    assert rows_of(table) == []

    disk.free()
    subprocess.run(["mount", "-o", "remount,size=16m", disk.root], check=True)
    run(write(incompressible(orders(spark, place)), place, {"compression": "none"}, table=table))
    assert not place.difference(table)
    assert residue_of(table) == []


def test_a_disk_that_is_full_in_a_task_of_foreach_batch_is_named_too(
    spark: SparkSession, place: Place, disk: Disk
) -> None:
    place.add_orders(2)
    table = disk.root / "table"
    disk.fill(leave_bytes=64 * 1024)
    function = twophase.exactly_once(FilesSink(str(table), compression="none"))

    said = failure_of(write_by(function, incompressible(orders(spark, place)), place))

    # More of a trace than with a format: Spark shows the function's own way to the job that failed.
    assert "the disk is full: free some space" in sentence_in(said, "TARGET_UNAVAILABLE", frames=7)
    assert rows_of(table) == []

    disk.free()
    subprocess.run(["mount", "-o", "remount,size=16m", disk.root], check=True)
    run(write_by(function, incompressible(orders(spark, place)), place))
    assert not place.difference(table)
    assert residue_of(table) == []


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(0, id="before prepare"),
        pytest.param(
            1,
            id="before decide",
        ),
    ],
)
def test_a_ledgers_disk_that_is_full_is_named_and_loses_nothing(
    spark: SparkSession, place: Place, disk: Disk, records: int
) -> None:
    ledger = disk.root / "ledger"
    settings = {"ledger": str(ledger)}
    place.add_orders(2)
    run(write(orders(spark, place), place, settings))
    place.add_orders(2)
    before = len(list(ledger.glob("*.record")))
    disk.fill(leave_bytes=records * os.sysconf("SC_PAGE_SIZE"))

    said = failure_of(write(orders(spark, place), place, settings))

    sentence = sentence_in(said, "TARGET_UNAVAILABLE")
    assert "the disk is full: free some space" in sentence
    assert NOTHING_LOST in sentence
    assert len(list(ledger.glob("*.record"))) == before + records
    assert place.epochs() == [0]
    disk.free()
    run(write(orders(spark, place), place, settings))
    assert not place.difference()
    assert place.epochs() == [0, 1]
    assert residue_of(place.table) == []


def test_a_disk_that_becomes_read_only_is_named_and_loses_nothing(
    spark: SparkSession, place: Place, disk: Disk
) -> None:
    table = disk.root / "table"
    place.add_orders(2)
    run(write(orders(spark, place), place, table=table))
    place.add_orders(2)
    disk.remount("ro")

    said = failure_of(write(orders(spark, place), place, table=table))

    assert "the file system is mounted read-only: mount it for writing" in sentence_in(said, "TARGET_UNAVAILABLE")
    disk.remount("rw")
    run(write(orders(spark, place), place, table=table))
    assert not place.difference(table)


# ---- rights ----

# Root may write anywhere; without these capabilities (dac_override, dac_read_search, fowner) it obeys the rights of files as
# anybody does. Who is not root has none of them, and the calls fail.
_OBEY_RIGHTS = """
import ctypes, os, sys
PR_CAPBSET_DROP = 24
for capability in (1, 2, 3):
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_missing_rights_are_named_and_lose_nothing(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)
    run(write(orders(spark, place), place))
    place.add_orders(2)
    program = command_of(QueryDescription(FILES, str(place.root)))
    staging = place.root / ".table.twophase"
    owner = next(staging.glob("*/*"))
    owner.chmod(0o500)
    try:
        command = [sys.executable, "-c", _OBEY_RIGHTS, *program]
        with running(command, output=place.root / "output.txt", cwd=ROOT) as child:
            said = child.result(timeout_s=TIMEOUT_S)["error"]
    finally:
        owner.chmod(0o700)

    sentence = sentence_in(said, "TARGET_UNAVAILABLE")
    assert "Permission denied" in sentence
    assert str(owner) in sentence
    assert "the user that runs Spark has no rights there: grant them" in sentence
    assert place.epochs() == [0]
    run(write(orders(spark, place), place))
    assert not place.difference()


# ---- other people's things ----


def test_a_table_below_a_file_is_refused(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)
    (place.root / "file").write_text("mine")

    said = failure_of(write(orders(spark, place), place, table=place.root / "file" / "table"))

    assert "is a file and not a folder" in sentence_in(said, "CHECKPOINT_MISMATCH")
    run(write(orders(spark, place), place))
    assert not place.difference()
    assert (place.root / "file").read_text() == "mine"


def test_a_ledger_below_a_file_is_refused(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)
    (place.root / "file").write_text("mine")

    said = failure_of(write(orders(spark, place), place, {"ledger": str(place.root / "file" / "ledger")}))

    sentence = sentence_in(said, "TARGET_UNAVAILABLE")
    assert "a file is where a folder should be: move it away, or use another path" in sentence
    assert place.epochs() == []
    run(write(orders(spark, place), place))
    assert not place.difference()


def plain_files(_: SparkSession, place: Place) -> None:
    shutil.copytree(place.input, place.table)


def table_of_sparks_sink(spark: SparkSession, place: Place) -> None:
    writer = orders(spark, place).writeStream.format("parquet").trigger(availableNow=True)
    run(writer.option("checkpointLocation", str(place.root / "theirs")).start(str(place.table)))
    assert (place.table / "_spark_metadata").is_dir()


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (plain_files, "which twophase did not put there"),
        (table_of_sparks_sink, "is a table of Spark's own file sink (it has _spark_metadata)"),
    ],
)
def test_somebody_elses_folder_is_refused_and_stays_as_it_was(
    spark: SparkSession, place: Place, make: Callable[[SparkSession, Place], None], says: str
) -> None:
    place.add_orders(2)
    make(spark, place)
    before = sorted((path, path.stat().st_mtime_ns) for path in place.table.rglob("*"))

    said = failure_of(write(orders(spark, place), place))

    sentence = sentence_in(said, "CHECKPOINT_MISMATCH")
    assert says in sentence
    assert "Choose an empty or a new folder" in sentence
    assert sorted((path, path.stat().st_mtime_ns) for path in place.table.rglob("*")) == before
    # A query that never had an epoch in the refused folder goes on in another, with the checkpoint that it has.
    run(write(orders(spark, place), place, table=place.root / "new"))
    assert not place.difference(place.root / "new")


def test_the_checkpoint_of_another_query_is_refused_with_both_sides(spark: SparkSession, tmp_path: Path) -> None:
    first, second = Place(tmp_path / "first"), Place(tmp_path / "second")
    for place in (first, second):
        place.add_orders(4)
        run(write(orders(spark, place), place, {"owner": place.root.name}))
        place.add_orders(2)

    settings = {"owner": "second", "checkpointLocation": str(second.checkpoint)}
    said = failure_of(write(orders(spark, second), first, settings))

    sentence = sentence_in(said, "CHECKPOINT_MISMATCH")
    assert "first/sink" in sentence
    assert "second/sink" in sentence
    for place in (first, second):
        run(write(orders(spark, place), place, {"owner": place.root.name}))
        assert not place.difference()
        assert place.epochs() == [0, 1, 2]


def test_a_corrupt_ledger_is_named_and_goes_on_when_it_is_restored(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)
    run(write(orders(spark, place), place))
    place.add_orders(2)
    newest = max((place.checkpoint / "twophase").glob("*.record"))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-20])

    sentence = sentence_in(failure_of(write(orders(spark, place), place)), "LEDGER_CORRUPT")
    assert newest.name in sentence
    assert place.epochs() == [0, 1]

    newest.write_bytes(whole)
    run(write(orders(spark, place), place))
    assert not place.difference()


# ---- plans that are not deterministic ----


def both(batch: DataFrame, epoch: EpochWriter) -> None:
    epoch.write("first", batch)
    epoch.write("second", batch)


@pytest.fixture
def failpoints_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Failpoints of this process, in which the functions of foreachBatch run."""
    with monkeypatch.context() as patched:
        patched.setenv(failpoints.VARIABLE, str(tmp_path / "failpoints"))
        failpoints.reload()
        yield tmp_path / "failpoints"
    failpoints.reload()


def half_committed(place: Place, rows: DataFrame, failpoints_file: Path) -> Callable[[], StreamingQuery]:
    """A query that died with its epoch visible in its first sink, and in the second decided only; and how to start it."""
    sinks = {name: FilesSink(str(place.root / name)) for name in ("first", "second")}

    def start() -> StreamingQuery:
        return write_by(twophase.exactly_once(both, **sinks), rows, place)

    arm(failpoints_file, Fault("commit.after_sink", "raise"))
    failure_of(start())
    assert [hit.action for hit in trace(failpoints_file) if hit.point == "commit.after_sink"] == ["raise"]
    arm(failpoints_file)
    assert [len(rows_of(place.root / name)) for name in sinks] == [100, 0]
    return start


def test_decided_rows_that_were_lost_are_written_again_if_the_plan_gives_the_same(
    spark: SparkSession, place: Place, failpoints_file: Path
) -> None:
    place.add_orders(2)
    start = half_committed(place, orders(spark, place), failpoints_file)
    shutil.rmtree(place.root / ".second.twophase")

    run(start())

    for name in ("first", "second"):
        assert not place.difference(place.root / name)
        assert residue_of(place.root / name) == []


def test_decided_rows_that_were_lost_are_not_replaced_by_others(
    spark: SparkSession, place: Place, failpoints_file: Path
) -> None:
    place.add_orders(2)
    rows = orders(spark, place).selectExpr("id", "uuid() as name", "amount")
    start = half_committed(place, rows, failpoints_file)
    visible = rows_of(place.root / "first")
    shutil.copytree(place.root / ".second.twophase", place.root / "backup")
    shutil.rmtree(place.root / ".second.twophase")

    for _ in range(2):  # it stays so, however often it is tried
        sentence = sentence_in(failure_of(start()), "REPLAY_DIFFERS")
        assert "sink 'second'" in sentence
        assert "the decided epoch has 100 rows" in sentence
        assert "the plan is not deterministic" in sentence
        assert rows_of(place.root / "first") == visible
        assert rows_of(place.root / "second") == []

    shutil.copytree(place.root / "backup", place.root / ".second.twophase", dirs_exist_ok=True)
    run(start())
    assert sorted(rows_of(place.root / "first")) == sorted(rows_of(place.root / "second")) == sorted(visible)


def test_rows_that_were_visible_nowhere_may_be_replaced_by_others(
    spark: SparkSession, place: Place, failpoints_file: Path
) -> None:
    place.add_orders(2)
    rows = orders(spark, place).selectExpr("id", "uuid() as name", "amount")
    sink = FilesSink(str(place.table))
    arm(failpoints_file, Fault("decide.published", "raise"))
    failure_of(write_by(twophase.exactly_once(sink), rows, place))
    assert [hit.action for hit in trace(failpoints_file) if hit.point == "decide.published"] == ["raise"]
    arm(failpoints_file)
    shutil.rmtree(place.root / ".table.twophase")
    assert rows_of(place.table) == []

    run(write_by(twophase.exactly_once(sink), rows, place))

    assert sorted(row[0] for row in rows_of(place.table)) == place.ids
    assert residue_of(place.table) == []
