"""FilesSink on a disk that fails: a power cut at any moment, an error at any system call."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tests.disk import CrashState, CrashStates, Fault, FaultyPosix, When
from tests.files_query import FilesQuery, query, quick, staged, visible
from tests.pipeline import crash_at
from twophase.errors import TwophaseError
from twophase.file_table import MANIFEST, TableForm
from twophase.identity import Owner
from twophase.local_storage import LocalStorage, Posix
from twophase.sink import WHOLE, CommitOrder, Outcome
from twophase.sinks import FilesSink
from twophase.sinks.files.sink import FileFormat
from twophase.sinks.files.transaction import FilesHandle


def rows(*values: int) -> pa.RecordBatch:
    keys = [f"k{value % 2}" for value in values]
    return pa.RecordBatch.from_pydict({"key": keys, "other": keys, "value": list(values)})


def order(pipeline: FilesQuery) -> CommitOrder[FilesHandle]:
    decision = pipeline.tail().decision
    assert decision is not None
    return decision.sinks["s"].order(Owner(pipeline.name, "s"), decision.epoch, FilesHandle)


def epoch_files(files: dict[str, bytes]) -> dict[str, bytes]:
    """What is in the epoch, without the manifest, which says when it was written."""
    return {path: data for path, data in files.items() if path.startswith("table/epoch=0/") and MANIFEST not in path}


def has_manifest(state: CrashState, form: TableForm) -> bool:
    path = f"table/epoch=0/{form.manifest_name}"
    return any(name == path or name.startswith(f"{path}/") for name in (*state.files, *state.folders))


@pytest.mark.parametrize(
    ("file_format", "partition_by"),
    [("parquet", []), ("parquet", ["key"]), ("parquet", ["key", "other"]), ("csv", []), ("csv", ["key"])],
)
def test_after_any_power_cut_an_epoch_is_whole_or_absent_and_a_vote_can_still_be_committed(
    tmp_path: Path, file_format: FileFormat, partition_by: list[str]
) -> None:
    root = tmp_path / "data"
    root.mkdir()
    posix = FaultyPosix(fsync=False)
    sink = FilesSink(
        str(root / "table"), file_format=file_format, partition_by=partition_by, storage=LocalStorage(posix)
    )
    pipeline = query(tmp_path, sink)
    pipeline.log(0)
    pipeline.prepare()
    posix.operations.clear()  # begins with the empty folders that prepare made, durably
    initial: dict[str, bytes | None] = {path.relative_to(root).as_posix(): None for path in root.rglob("*")}
    votes = pipeline.run(rows(1, 2), rows(3))
    pipeline.task("s", 0, rows(98, 99))  # a twin that loses
    posix.note("voted")
    pipeline.commit(votes)
    posix.note("committed")
    wanted = epoch_files({p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()})
    assert len(wanted) == (3 if partition_by else 2)

    states = list(CrashStates(str(root), tuple(posix.operations), initial))
    copy = tmp_path / "copy"
    again = 0
    for state in states:
        if "table/epoch=0" in state.folders:
            assert epoch_files(state.files) == wanted
            assert has_manifest(state, TableForm(file_format, tuple(partition_by)))
        else:
            assert "committed" not in state.notes
        if "voted" in state.notes:
            state.materialise(copy)
            again_sink = FilesSink(
                str(copy / "table"), file_format=file_format, partition_by=partition_by, storage=quick()
            )
            outcome = again_sink.commit(order(pipeline))
            assert again_sink.status(Owner(pipeline.name, "s"), settled=True).markers[WHOLE].epoch.number == 0
            after = {p.relative_to(copy).as_posix(): p.read_bytes() for p in copy.rglob("*") if p.is_file()}
            assert epoch_files(after) == wanted
            assert (outcome is Outcome.COMMITTED) == ("table/epoch=0" not in state.folders)
            again += 1
    assert again > 10


class WithoutFolderSync(FaultyPosix):
    """A mistake: names are never made durable."""

    def fsync(self, descriptor: int) -> None:
        if not self.is_folder(descriptor):
            super().fsync(descriptor)


def test_a_missing_folder_sync_is_caught_by_some_power_cut(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    posix = WithoutFolderSync(fsync=False)
    pipeline = query(tmp_path, FilesSink(str(root / "table"), storage=LocalStorage(posix)))
    pipeline.log(0)
    pipeline.prepare()
    posix.operations.clear()
    initial: dict[str, bytes | None] = {path.relative_to(root).as_posix(): None for path in root.rglob("*")}
    pipeline.run(rows(1))
    pipeline.commit()
    posix.note("committed")
    states = list(CrashStates(str(root), tuple(posix.operations), initial))
    assert any("committed" in state.notes and not epoch_files(state.files) for state in states)


@pytest.mark.parametrize(
    ("when", "partition_by"),
    [("before", []), ("after", []), ("after", ["key"])],
    ids=["before", "after", "partitioned"],
)
def test_an_error_at_any_call_loses_and_repeats_nothing(tmp_path: Path, when: When, partition_by: list[str]) -> None:
    fired = 0
    for at in range(400):
        folder = tmp_path / str(at)
        table = folder / "table"
        posix = FaultyPosix(Fault(at, "EIO", when), fsync=False)
        good = FilesSink(str(table), partition_by=partition_by, storage=quick())
        query(folder, good).epoch(0, rows(0))
        bad = FilesSink(str(table), partition_by=partition_by, storage=LocalStorage(posix))
        failing = query(folder, bad)
        failing.log(1)
        try:
            failing.finish(rows(1, 2), rows(3))
        except (OSError, TwophaseError):
            query(folder, good).finish(rows(1, 2), rows(3))
        query(folder, good).epoch(2, rows(4))
        assert visible(table) == [(0, [0]), (1, [1, 2, 3]), (2, [4])], f"call {at}: {posix.fired}"
        assert staged(table) == [], f"call {at}: {posix.fired}"
        shutil.rmtree(folder)
        fired += posix.fired is not None
        if posix.calls <= at:
            break
    assert fired > 60


class FullDisk(Posix):
    def write(self, file: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_in_the_commit_is_told_as_such_and_the_epoch_is_committed_later(tmp_path: Path) -> None:
    sink = FilesSink(str(tmp_path / "table"), storage=quick())
    pipeline = query(tmp_path, sink)
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    with crash_at(tmp_path, "decide.published"):
        pipeline.commit()
    with pytest.raises(OSError, match="No space"):
        FilesSink(str(tmp_path / "table"), storage=LocalStorage(FullDisk())).commit(order(pipeline))
    assert visible(tmp_path / "table") == []
    pipeline.restart().finish([1])
    assert visible(tmp_path / "table") == [(0, [1])]
    assert staged(tmp_path / "table") == []
