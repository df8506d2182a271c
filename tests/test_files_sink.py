"""FilesSink through the real coordinator, on a real folder: what readers find after each step."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.files_query import FilesQuery, LossyStorage, WithoutSync, query, staged, visible
from tests.pipeline import batch_of, crash_at
from twophase import failpoints, json_lines
from twophase.errors import (
    CheckpointMismatch,
    Fenced,
    NotCommitted,
    OptionError,
    OutcomeUnknown,
    SchemaMismatch,
    TableCorrupt,
)
from twophase.file_table import MANIFEST, TableForm, open_table
from twophase.identity import Owner
from twophase.local_storage import LocalStorage
from twophase.sink import CommitOrder, Outcome, TakeOver
from twophase.sinks import FilesSink
from twophase.sinks.files import partitions, table_schema
from twophase.sinks.files.sink import FileFormat
from twophase.sinks.files.transaction import FilesHandle


def order(pipeline: FilesQuery) -> CommitOrder[FilesHandle]:
    """The newest decision, as the sink gets it."""
    decision = pipeline.tail().decision
    assert decision is not None
    return decision.sinks["s"].order(Owner(pipeline.name, "s"), decision.epoch, FilesHandle)


def decided(tmp_path: Path, sink: FilesSink, *rows: list[int]) -> tuple[FilesQuery, CommitOrder[FilesHandle]]:
    """Epoch 0 is committed; epoch 1 is decided, with these rows, and not committed."""
    pipeline = query(tmp_path, sink)
    pipeline.epoch(0, [0])
    pipeline.log(1)
    pipeline.prepare()
    pipeline.run(*rows)
    with crash_at(tmp_path, "decide.published"):
        pipeline.commit()
    return pipeline, order(pipeline)


def generation_folder(table: Path) -> Path:
    (folder,) = (table.parent / f".{table.name}.twophase").glob("*/*/*")
    return folder


# ---- the ordinary way ----


def test_each_epoch_is_visible_once_after_its_commit_and_not_before(tmp_path: Path) -> None:
    table, pipeline = tmp_path / "table", query(tmp_path)
    for number in range(3):
        pipeline.log(number)
        pipeline.prepare()
        pipeline.run([10 * number, 10 * number + 1], [10 * number + 2])
        assert [epoch for epoch, _ in visible(table)] == list(range(number))
        pipeline.commit()
        pipeline.log_commit()
    assert visible(table) == [(0, [0, 1, 2]), (1, [10, 11, 12]), (2, [20, 21, 22])]
    assert staged(table) == []


def test_replaying_a_committed_epoch_changes_nothing(tmp_path: Path) -> None:
    table, pipeline = tmp_path / "table", query(tmp_path)
    pipeline.epoch(0, [1], [2])
    before = {path: path.read_bytes() for path in table.rglob("*") if path.is_file()}

    again = order(pipeline)
    sink = FilesSink(str(table))
    assert sink.commit(again) is Outcome.ALREADY_COMMITTED
    pipeline.commit()
    (pipeline.root / "commits" / "0").unlink()
    pipeline.restart().finish([1], [2])

    assert {path: path.read_bytes() for path in table.rglob("*") if path.is_file()} == before
    assert staged(table) == []


def test_a_commit_replayed_after_later_epochs_says_already(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.epoch(0, [1])
    first = order(pipeline)
    pipeline.epoch(1, [2])
    assert FilesSink(str(tmp_path / "table")).commit(first) is Outcome.ALREADY_COMMITTED


def test_epochs_without_rows_are_epochs_and_keep_the_columns_readable(tmp_path: Path) -> None:
    table, pipeline = tmp_path / "table", query(tmp_path)
    for number in range(2):
        pipeline.epoch(number, [], [], [])
        assert len(list(table.glob(f"epoch={number}/*.parquet"))) == 1
    assert pq.read_table(table).schema.names == ["value", "epoch"]
    pipeline.epoch(2, [], [], [5])
    assert visible(table) == [(2, [5])]
    (file,) = table.glob("epoch=2/*.parquet")
    assert file.name.startswith("part-00002-")


def test_an_epoch_without_tasks_has_the_columns_that_prepare_was_told(tmp_path: Path) -> None:
    pipeline = query(tmp_path, schema=pa.schema([("value", pa.int64())]))
    pipeline.log(0)
    pipeline.prepare()
    pipeline.commit([])
    assert pq.read_table(tmp_path / "table").schema.field("value").type == pa.int64()
    assert open_table(str(tmp_path / "table")).positions() == [0]


def test_an_epoch_of_which_nothing_is_known_is_one_too(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    pipeline.commit([])
    pipeline.log_commit()
    pipeline.epoch(1, [1])
    assert [p.name for p in (tmp_path / "table" / "epoch=0").iterdir()] == [MANIFEST]
    assert visible(tmp_path / "table") == [(1, [1])]


def test_the_manifest_says_what_the_epoch_is(tmp_path: Path) -> None:
    table, pipeline = tmp_path / "table", query(tmp_path)
    pipeline.epoch(0, [1, 2], [], [3])

    manifest = open_table(str(table)).manifest(0)

    assert manifest.rows == 3
    assert {file.name: file.bytes for file in manifest.files} == {
        path.name: path.stat().st_size for path in table.glob("epoch=0/*.parquet")
    }
    assert manifest.form == TableForm("parquet", (), pa.schema([("value", pa.int64())]))
    assert manifest.marker.by == str(order(pipeline).decision)


def test_a_sink_travels_and_can_be_built_again_from_its_description(tmp_path: Path) -> None:
    sink = FilesSink(str(tmp_path / "t"), file_format="csv", partition_by=["a", "b"], compression="gzip", header=True)
    description = sink.describe()
    assert description is not None
    again = FilesSink.from_options({key.lower(): text for key, text in description.options.items()})
    assert description.format == "twophase-files"
    assert again.describe() == description == pickle.loads(pickle.dumps(sink)).describe()
    assert again.target == sink.target == f"file://{tmp_path}/t"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "path is required"),
        ({"path": "/t", "fileFormat": "orc"}, "fileFormat"),
        ({"path": "/t", "compression": "snapy"}, "compression"),
        ({"path": "/t", "fileFormat": "json", "compression": "snappy"}, "json"),
        ({"path": "/t", "header": "true"}, "csv files only"),
        ({"path": "/t", "partitionBy": "a,a"}, "twice"),
        ({"path": "/t", "partitionBy": "a,A"}, "twice"),
        ({"path": "/t", "schemaChange": "maybe"}, "schemaChange"),
        ({"path": "abfs://c/t"}, "abfs"),
        ({"path": "/t", "pth": "x"}, "did you mean path"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        FilesSink.from_options(options)


def test_complete_mode_is_refused(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.log(0)
    with pytest.raises(OptionError, match="complete mode"):
        pipeline.prepare(overwrite=True)


@pytest.mark.parametrize("name", ["with space", "ünïcode", "a%20b", "-dash", "a=b", "x" * 200])
def test_any_table_name_works(tmp_path: Path, name: str) -> None:
    table = tmp_path / name
    pipeline = query(tmp_path, FilesSink(str(table)), owner="team/örders ..%")
    pipeline.epoch(0, [1])
    pipeline.epoch(1, [2])
    assert [epoch.position for epoch in map(open_table(str(table)).manifest, (0, 1))] == [0, 1]
    assert len(list(table.glob("epoch=*/*.parquet"))) == 2
    assert staged(table) == []


def test_an_owner_whose_name_can_not_be_a_folder_is_refused(tmp_path: Path) -> None:
    pipeline = query(tmp_path, owner="x" * 300)
    pipeline.log(0)
    with pytest.raises(OptionError, match="too long"):
        pipeline.prepare()


# ---- crashes ----

DRIVER_POINTS = [
    "prepare.published",
    "prepare.planned",
    "decide.before_publish",
    "decide.published",
    "files.sealed",
    "files.manifest_published",
    "files.renamed",
    "commit.done",
]


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_driver_that_dies_anywhere_loses_and_repeats_nothing(tmp_path: Path, point: str) -> None:
    table, pipeline = tmp_path / "table", query(tmp_path)
    pipeline.epoch(0, [0])
    pipeline.log(1)
    with crash_at(tmp_path, point):
        pipeline.finish([1, 2], [3])

    pipeline.restart().finish([1, 2], [3])
    pipeline.restart().epoch(2, [4])

    assert visible(table) == [(0, [0]), (1, [1, 2, 3]), (2, [4])]
    assert staged(table) == []


@pytest.mark.parametrize("point", ["task.begun", "task.written", "task.pre_committed"])
def test_what_a_dead_task_left_is_swept(tmp_path: Path, point: str) -> None:
    table, pipeline = tmp_path / "table", query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    with crash_at(tmp_path, point, hit=2):
        pipeline.run([1], [2])
    pipeline.restart().finish([1], [2])
    assert visible(table) == [(0, [1, 2])]
    assert staged(table) == []


# What runs in the process that is killed.
PROGRAM = """
import sys
from pathlib import Path
from tests.files_query import query
query(Path(sys.argv[1])).finish([1, 2], [3])
"""


@pytest.mark.parametrize("point", ["files.sealed", "files.manifest_published", "files.renamed"])
def test_kill_9_inside_the_commit_loses_and_repeats_nothing(tmp_path: Path, point: str) -> None:
    table, pipeline = tmp_path / "table", query(tmp_path)
    pipeline.epoch(0, [0])
    pipeline.log(1)
    arming = tmp_path / "failpoints"
    failpoints.arm(arming, failpoints.Fault(point, "kill"))
    environment = os.environ | {failpoints.VARIABLE: str(arming)}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ended = subprocess.run(command, env=environment, cwd=Path(__file__).parent.parent, capture_output=True)
    assert ended.returncode == -9, ended.stderr
    assert [hit.point for hit in failpoints.trace(arming) if hit.action] == [point]

    pipeline.restart().finish([1, 2], [3])
    pipeline.restart().epoch(2, [4])

    assert visible(table) == [(0, [0]), (1, [1, 2, 3]), (2, [4])]
    assert staged(table) == []


def test_recover_finishes_a_dead_query(tmp_path: Path) -> None:
    pipeline, _ = decided(tmp_path, FilesSink(str(tmp_path / "table")), [1], [2])
    pipeline.restart().coordinator().recover()
    assert visible(tmp_path / "table") == [(0, [0]), (1, [1, 2])]
    assert staged(tmp_path / "table") == []


def test_an_abort_leaves_nothing(tmp_path: Path) -> None:
    table, pipeline = tmp_path / "table", query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1], [2])
    assert staged(table)
    pipeline.abort()
    assert staged(table) == []
    assert visible(table) == []


def test_aborting_again_or_what_is_gone_is_fine(tmp_path: Path) -> None:
    sink, pipeline = FilesSink(str(tmp_path / "table")), query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    owner = Owner(pipeline.name, "s")
    found = list(sink.leftovers(owner))
    assert len(found) == 1
    sink.abort(owner, found)
    sink.abort(owner, found)
    assert staged(tmp_path / "table") == []
    shutil.rmtree(tmp_path / ".table.twophase")
    sink.abort(owner, found)
    assert not (tmp_path / ".table.twophase").exists()


def test_what_a_dead_publication_left_is_swept_when_it_is_old(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.epoch(0, [1])
    (owner,) = (tmp_path / ".table.twophase").glob("*/*")
    left = owner / ".tmp-1-0123456789abcdef"
    left.touch()
    pipeline.epoch(1, [2])
    assert left.exists()
    os.utime(left, (0, 0))
    pipeline.epoch(2, [3])
    assert not left.exists()


# ---- late and losing tasks ----


def test_a_task_of_an_aborted_generation_finds_no_folder(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    zombie = pipeline.restart()
    zombie.number, zombie._plan = pipeline.number, pipeline._plan
    pipeline.restart().finish([1])
    with pytest.raises(Fenced, match="is gone"):
        zombie.run([99])
    assert visible(tmp_path / "table") == [(0, [1])]
    assert staged(tmp_path / "table") == []


def test_a_task_that_is_still_writing_when_the_folder_is_sealed_changes_nothing(tmp_path: Path) -> None:
    table, sink = tmp_path / "table", FilesSink(str(tmp_path / "table"))
    pipeline = query(tmp_path, sink)
    pipeline.log(0)
    plan = pipeline.prepare().sinks["s"].plan
    assert plan is not None
    votes = pipeline.run([1], [2])
    late = pipeline.task("s", 0, [99])  # a twin that loses
    writing = sink.table.storage.create(f"file://{generation_folder(table)}/part-00001-still-open.parquet")
    writing.write(b"half")
    pipeline.commit(votes)
    writing.write(b" a file")
    writing.close()
    assert late.share is not None
    assert visible(table) == [(0, [1, 2])]
    assert len(list(table.glob("epoch=0/part-*"))) == 2
    assert staged(table) == []


@pytest.mark.parametrize("call", range(1, 4))
def test_a_file_that_appears_after_the_seal_is_not_in_the_epoch(tmp_path: Path, call: int) -> None:
    """A task may have been inside its open() while the folder was renamed: the kernel can then make the file afterwards."""
    storage = LossyStorage()
    table = tmp_path / "table"
    pipeline, _ = decided(tmp_path, FilesSink(str(table), storage=storage), [1], [2])

    def late(*_: object) -> None:
        for folder in (tmp_path / ".table.twophase").glob("*/*/*.sealed"):
            (folder / "part-00001-late.parquet").write_bytes(b"late")
            (folder / "k=1").mkdir(exist_ok=True)
            (folder / "k=1" / "part.parquet").write_bytes(b"late")

    if call == 1:
        storage.before("publish_through", late)
    else:
        for _ in range(call - 2):
            storage.before("list", lambda *_: None)
        storage.before("list", late)
    pipeline.restart().finish([1], [2])
    assert visible(table) == [(0, [0]), (1, [1, 2])]


def test_a_file_that_appears_right_before_the_last_rename_does_not_stay(tmp_path: Path) -> None:
    storage = LossyStorage()
    table = tmp_path / "table"
    pipeline, _ = decided(tmp_path, FilesSink(str(table), storage=storage), [1], [2])

    def late(source: str, *_: object) -> None:
        Path(source.removeprefix("file://"), "part-00001-late.parquet").write_bytes(b"late")

    storage.before("rename", lambda *_: None)  # the seal
    storage.before("rename", late)
    pipeline.restart().finish([1], [2])

    assert visible(table) == [(0, [0]), (1, [1, 2])]
    assert not list(table.glob("epoch=*/*late*"))


def test_a_table_that_is_deleted_during_the_commit_is_not_begun_anew(tmp_path: Path) -> None:
    storage = LossyStorage()
    table = tmp_path / "table"
    pipeline, _ = decided(tmp_path, FilesSink(str(table), storage=storage), [1], [2])

    storage.before("rename", lambda *_: None)  # the seal
    storage.before("rename", lambda *_: shutil.rmtree(table))
    with pytest.raises(CheckpointMismatch, match="is gone"):
        pipeline.restart().finish([1], [2])

    assert not table.exists()


# ---- several committers ----


def test_two_committers_that_race_commit_once(tmp_path: Path) -> None:
    for attempt in range(10):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        _, wanted = decided(folder, FilesSink(str(folder / "table")), [1, 2], [3])
        barrier = threading.Barrier(3)
        outcomes: list[Outcome] = []

        def commit(
            folder: Path = folder,
            wanted: CommitOrder[FilesHandle] = wanted,
            barrier: threading.Barrier = barrier,
            outcomes: list[Outcome] = outcomes,
        ) -> None:
            sink = FilesSink(str(folder / "table"))
            barrier.wait()
            outcomes.append(sink.commit(wanted))

        threads = [threading.Thread(target=commit) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(outcome.value for outcome in outcomes) == ["already committed"] * 2 + ["committed"]
        assert visible(folder / "table") == [(0, [0]), (1, [1, 2, 3])]
        assert staged(folder / "table") == []


PUBLISHES: dict[FileFormat, str] = {"parquet": "publish_through", "csv": "publish_folders"}


@pytest.mark.parametrize("file_format", PUBLISHES)
@pytest.mark.parametrize("method", ["rename", "publish", "list", "read"])
@pytest.mark.parametrize("nth", range(6))
def test_another_committer_may_finish_between_any_two_steps(
    tmp_path: Path, method: str, nth: int, file_format: FileFormat
) -> None:
    table = tmp_path / "table"
    _, wanted = decided(
        tmp_path, FilesSink(str(table), file_format=file_format, header=file_format == "csv"), [1, 2], [3]
    )
    storage = LossyStorage()
    if method == "publish":
        method = PUBLISHES[file_format]
    for _ in range(nth):
        storage.before(method, lambda *_: None)
    others: list[Outcome] = []
    storage.before(
        method,
        lambda *_: others.append(
            FilesSink(str(table), file_format=file_format, header=file_format == "csv").commit(wanted)
        ),
    )
    outcome = FilesSink(str(table), file_format=file_format, header=file_format == "csv", storage=storage).commit(
        wanted
    )
    assert [outcome, *others].count(Outcome.COMMITTED) == 1
    assert visible(table, file_format) == [(0, [0]), (1, [1, 2, 3])]


def test_a_commit_that_comes_too_late_is_fenced(tmp_path: Path) -> None:
    table = tmp_path / "table"
    pipeline, wanted = decided(tmp_path, FilesSink(str(table)), [1])
    shutil.rmtree(tmp_path / ".table.twophase")
    with pytest.raises(NotCommitted):
        FilesSink(str(table)).commit(wanted)
    again = pipeline.restart()
    again.finish([1])
    with pytest.raises(Fenced):
        FilesSink(str(table)).commit(wanted)
    assert visible(table) == [(0, [0]), (1, [1])]


# ---- lost replies ----


@pytest.mark.parametrize(
    ("method", "file_format"),
    [("rename", "parquet"), ("rename", "csv"), ("publish_through", "parquet"), ("publish_folders", "csv")],
)
@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("times", [1, 2, 20])
def test_a_lost_reply_is_looked_up_and_never_guessed(
    tmp_path: Path, method: str, file_format: FileFormat, what: Literal["request", "reply"], times: int
) -> None:
    table, storage = tmp_path / "table", LossyStorage()
    sink = FilesSink(str(table), file_format=file_format, header=file_format == "csv", storage=storage)
    pipeline, wanted = decided(tmp_path, sink, [1, 2], [3])
    storage.lose(method, what, times)
    try:
        assert sink.commit(wanted) in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)
        assert [epoch for epoch, _ in visible(table, file_format)] == [0, 1]
    except OutcomeUnknown:
        assert times > 2
    storage.lost.clear()
    pipeline.restart().finish([1, 2], [3])
    assert visible(table, file_format) == [(0, [0]), (1, [1, 2, 3])]
    assert staged(table) == []


# ---- what was staged is lost or altered ----


def test_a_lost_file_is_proven_dead_and_written_again(tmp_path: Path) -> None:
    table, sink = tmp_path / "table", FilesSink(str(tmp_path / "table"))
    pipeline, wanted = decided(tmp_path, sink, [1], [2])
    (file,) = generation_folder(table).glob("part-00001-*")
    file.unlink()
    with pytest.raises(NotCommitted) as caught:
        sink.commit(wanted)
    assert caught.value.dead_slots == (1,)
    assert visible(table) == [(0, [0])]
    pipeline.restart().finish([1], [2])
    pipeline.restart().epoch(2, [3])
    assert visible(table) == [(0, [0]), (1, [1, 2]), (2, [3])]
    assert staged(table) == []


def test_a_file_that_was_cut_is_not_committed(tmp_path: Path) -> None:
    table, sink = tmp_path / "table", FilesSink(str(tmp_path / "table"))
    _, wanted = decided(tmp_path, sink, [1], [2])
    (file,) = generation_folder(table).glob("part-00000-*")
    os.truncate(file, file.stat().st_size - 1)
    with pytest.raises(NotCommitted, match="not as long"):
        sink.commit(wanted)
    assert visible(table) == [(0, [0])]


def test_the_sealed_folder_gone_is_not_a_commit(tmp_path: Path) -> None:
    table, sink = tmp_path / "table", FilesSink(str(tmp_path / "table"))
    _, wanted = decided(tmp_path, sink, [1], [2])
    with crash_at(tmp_path, "files.manifest_published"):
        sink.commit(wanted)
    shutil.rmtree(generation_folder(table))
    with pytest.raises(NotCommitted) as caught:
        sink.commit(wanted)
    assert caught.value.dead_slots == (0, 1)


def test_a_share_that_is_gone_before_the_decision_is_not_decided(tmp_path: Path) -> None:
    table, pipeline = tmp_path / "table", query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1], [2])
    (file,) = generation_folder(table).glob("part-00000-*")
    file.write_bytes(b"short")
    with pytest.raises(NotCommitted, match="5 bytes"):
        pipeline.commit()
    assert pipeline.tail().decision is None
    pipeline.restart().finish([1], [2])
    assert visible(table) == [(0, [1, 2])]


@pytest.mark.parametrize(
    "end", [b"", b"\xff\xff\x00\x00PAR1", b"\x20\x00\x00\x00PAR1"], ids=["none", "too long", "torn"]
)
def test_a_file_that_is_no_parquet_any_more_is_dead_although_its_length_is_right(tmp_path: Path, end: bytes) -> None:
    table, sink = tmp_path / "table", FilesSink(str(tmp_path / "table"))
    pipeline, wanted = decided(tmp_path, sink, [1], [2])
    (file,) = generation_folder(table).glob("part-00000-*")
    file.write_bytes(b"\xff" * (file.stat().st_size - len(end)) + end)
    with pytest.raises(NotCommitted, match="is not a parquet file any more") as caught:
        sink.commit(wanted)
    assert caught.value.dead_slots == (0,)
    assert visible(table) == [(0, [0])]
    pipeline.restart().finish([1], [2])
    assert visible(table) == [(0, [0]), (1, [1, 2])]
    assert staged(table) == []


def test_a_torn_manifest_stops_the_query(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.epoch(0, [1])
    manifest = tmp_path / "table" / "epoch=0" / MANIFEST
    manifest.write_bytes(manifest.read_bytes()[:-10])
    pipeline.log(1)
    with pytest.raises(TableCorrupt, match="epoch=0"):
        pipeline.restart().prepare()


def test_a_folder_in_the_way_is_not_replaced(tmp_path: Path) -> None:
    table, sink = tmp_path / "table", FilesSink(str(tmp_path / "table"))
    _, wanted = decided(tmp_path, sink, [1])
    (table / "epoch=1").mkdir()
    with pytest.raises(TableCorrupt, match="has no manifest"):
        sink.commit(wanted)
    (table / "epoch=1").rmdir()
    assert sink.commit(wanted) is Outcome.COMMITTED


def test_an_emptied_table_is_refused(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.epoch(0, [1])
    shutil.rmtree(tmp_path / "table")
    pipeline.log(1)
    with pytest.raises(CheckpointMismatch):
        pipeline.restart().prepare()


def test_a_table_folder_deleted_before_the_first_commit_is_made_again(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    (tmp_path / "table").rmdir()
    pipeline.commit()
    assert visible(tmp_path / "table") == [(0, [1])]


def test_what_somebody_else_put_there_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table({"value": [1]}), tmp_path / "table" / "part-0.parquet")
    pipeline = query(tmp_path)
    pipeline.log(0)
    with pytest.raises(CheckpointMismatch, match=r"part-0\.parquet"):
        pipeline.prepare()
    assert not (tmp_path / ".table.twophase").exists()


# ---- owners ----


def test_a_second_query_is_refused_and_a_take_over_goes_on_in_the_same_line(tmp_path: Path) -> None:
    table = tmp_path / "table"
    first = query(tmp_path, owner="first")
    first.epoch(0, [1])
    first.epoch(1, [2])
    first.log(2)
    first.prepare()
    first.run([99])
    second = FilesQuery(tmp_path / "second", {"s": FilesSink(str(table))}, owner="second")
    second.log(0)
    with pytest.raises(CheckpointMismatch, match="owned by first/s"):
        second.prepare()

    taking = second.restart(take_over={"s": Owner("first", "s")})
    taking.finish([3])
    taking.epoch(1, [4])

    assert visible(table) == [(0, [1]), (1, [2]), (3, [3]), (4, [4])]
    empty = open_table(str(table)).manifest(2)
    assert (empty.replaced, empty.files, empty.marker.owner) == (Owner("first", "s"), (), Owner("second", "s"))
    assert empty.form.schema == pa.schema([("value", pa.int64())])
    assert staged(table) == []
    with pytest.raises((CheckpointMismatch, Fenced)):
        first.restart().prepare()
    assert visible(table) == [(0, [1]), (1, [2]), (3, [3]), (4, [4])]


@pytest.mark.parametrize("point", ["take_over.before", "files.sealed", "files.manifest_published", "files.renamed"])
def test_a_take_over_that_dies_is_done_once(tmp_path: Path, point: str) -> None:
    table = tmp_path / "table"
    query(tmp_path, owner="first").epoch(0, [1])
    second = FilesQuery(
        tmp_path / "second", {"s": FilesSink(str(table))}, owner="second", take_over={"s": Owner("first", "s")}
    )
    second.log(0)
    with crash_at(tmp_path, point):
        second.prepare()
    second.restart().finish([2])
    assert visible(table) == [(0, [1]), (2, [2])]
    assert open_table(str(table)).positions() == [0, 1, 2]
    assert staged(table) == []


def test_a_take_over_from_a_place_where_the_table_is_no_more_is_fenced(tmp_path: Path) -> None:
    pipeline = query(tmp_path, owner="first")
    pipeline.epoch(0, [1])
    sink = FilesSink(str(tmp_path / "table"))
    origin = open_table(str(tmp_path / "table")).manifest(0).marker
    pipeline.epoch(1, [2])
    marker = origin.__class__(Owner("second", "s"), origin.epoch, "other.1", 1)
    with pytest.raises(Fenced):
        sink.take_over(TakeOver(origin, marker))
    assert staged(tmp_path / "table") == []


def test_a_restored_ledger_is_noticed_by_the_table(tmp_path: Path) -> None:
    table, pipeline = tmp_path / "table", query(tmp_path)
    pipeline.epoch(0, [1])
    shutil.copytree(pipeline.root, tmp_path / "backup")
    pipeline.epoch(1, [2])
    shutil.rmtree(pipeline.root / "twophase")
    shutil.copytree(tmp_path / "backup" / "twophase", pipeline.root / "twophase")
    pipeline.restart().epoch(2, [3])
    assert visible(table) == [(0, [1]), (1, [2]), (2, [3])]
    assert staged(table) == []


# ---- a disk that does not take it ----


def test_a_read_only_folder_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    storage = LossyStorage()
    pipeline, wanted = decided(tmp_path, FilesSink(str(tmp_path / "table"), storage=storage), [1])

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for _ in range(2):  # the seal, then the last rename
        storage.before("rename", refuse)
        with pytest.raises(PermissionError):
            FilesSink(str(tmp_path / "table"), storage=storage).commit(wanted)
        storage.before("rename", lambda *_: None)
    pipeline.restart().finish([1])
    assert visible(tmp_path / "table") == [(0, [0]), (1, [1])]


@pytest.mark.parametrize(
    ("number", "sentence"), [(errno.EXDEV, "another file system"), (errno.EOPNOTSUPP, "replacing")]
)
def test_a_table_into_which_no_folder_can_be_renamed_is_refused_before_any_task(
    tmp_path: Path, number: int, sentence: str
) -> None:
    class NoRename(WithoutSync):
        def rename(self, name: str, target: str, folder: int | None = None) -> None:
            raise OSError(number, os.strerror(number), name, None, target)

    pipeline = query(tmp_path, FilesSink(str(tmp_path / "table"), storage=LocalStorage(NoRename())))
    pipeline.log(0)
    with pytest.raises(OptionError, match=sentence):
        pipeline.prepare()
    assert list((tmp_path / "table").iterdir()) == []
    query(tmp_path).finish([1])
    assert visible(tmp_path / "table") == [(0, [1])]
    assert staged(tmp_path / "table") == []


def test_rows_come_back_in_their_order(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    pipeline.votes = [pipeline.task("s", 0, [batch_of([3, 1]), batch_of([2]), batch_of([])])]
    pipeline.commit()
    (file,) = (tmp_path / "table").glob("epoch=0/*.parquet")
    assert pq.read_table(file, partitioning=None).column("value").to_pylist() == [3, 1, 2]
    assert pq.ParquetFile(file).num_row_groups == 1


# ---- rows that no table should take ----


def nested(depth: int) -> pa.DataType:
    kind: pa.DataType = pa.int64()
    for _ in range(depth):
        kind = pa.list_(kind)
    return kind


def test_a_column_that_is_nested_too_deep_to_be_read_again_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    pipeline = query(tmp_path, schema=pa.schema([("deep", nested(60))]))
    pipeline.log(0)
    with pytest.raises(SchemaMismatch, match="'deep' is nested more than 32 levels deep"):
        pipeline.prepare()
    assert visible(tmp_path / "table") == []


@pytest.mark.parametrize("name", ["_p", ".p"])
def test_a_partition_column_whose_folders_readers_would_ignore_is_refused(name: str) -> None:
    rows = TableForm("parquet", (name,), pa.schema([("id", pa.string()), (name, pa.string())]))
    with pytest.raises(SchemaMismatch, match="many readers ignore folders"):
        table_schema.after(None, rows, "add")


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ms", "UTC"), pa.date32()])
def test_a_year_that_has_no_right_text_is_refused_and_not_written_wrong(kind: pa.DataType) -> None:
    far = pa.array([2_147_483_000 if pa.types.is_date32(kind) else 9_223_372_036_854_775_807], pa.int64())
    column = (far.cast(pa.int32()) if pa.types.is_date32(kind) else far).cast(kind)
    batch = pa.record_batch([column], names=["at"])
    with pytest.raises(SchemaMismatch, match="beyond ±32,767"):
        json_lines.render(batch)
    with pytest.raises(SchemaMismatch, match="beyond ±32,767"):
        list(partitions.split(batch, ["at"]))


def test_what_a_driver_that_died_while_it_tried_a_rename_left_in_the_table_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "table" / ".twophase-probe-dead.1"
    left.mkdir(parents=True)
    query(tmp_path).epoch(0, [1])
    assert not left.exists()
    assert visible(tmp_path / "table") == [(0, [1])]
