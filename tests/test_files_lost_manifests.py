"""Manifests that were removed by hand: one sentence says which epoch, and what to do; nothing is guessed, read or written.

In a table of csv files a manifest is a folder of empty folders, which some tools remove, or leave out of a copy.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from tests.file_tables import all_rows, drop, numbers, source
from tests.files_query import FilesQuery, query, quick
from twophase.errors import DataLost, TableCorrupt
from twophase.file_table import MANIFEST, FileTable
from twophase.sinks import FilesSink
from twophase.sources.files import FilesSource

PARTITIONS = pytest.mark.parametrize("partition_by", [[], ["key"]], ids=["plain", "partitioned"])
FORMATS = pytest.mark.parametrize("file_format", ["csv", "parquet"])
SAID = r"epoch=2/?.* has no manifest.*removed.*made by hand.*Nothing was changed\. Restore"


def keyed(value: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": [f"k{value}"], "value": [value]})


def writing(tmp_path: Path, partition_by: list[str], file_format: Literal["csv", "parquet"]) -> FilesQuery:
    sink = FilesSink(str(tmp_path / "table"), file_format=file_format, partition_by=partition_by, storage=quick())
    return query(tmp_path, sink)


def lose(epoch: Path) -> None:
    """As `find -type d -empty -delete`, or a copy without hidden files, leaves it."""
    (manifest,) = epoch.rglob(MANIFEST)
    if manifest.is_dir():
        shutil.rmtree(manifest)
    else:
        manifest.unlink()
    if manifest.parent != epoch and not any(manifest.parent.iterdir()):
        manifest.parent.rmdir()


def forget() -> None:
    """As another process, which has seen nothing yet."""
    FileTable._hints.clear()
    FileTable._names.clear()


@pytest.fixture(params=["fresh", "running"])
def process(request: pytest.FixtureRequest) -> Callable[[], None]:
    return forget if request.param == "fresh" else (lambda: None)


@FORMATS
@PARTITIONS
def test_a_query_whose_newest_epoch_has_lost_its_manifest_is_told_so(
    tmp_path: Path, partition_by: list[str], file_format: Literal["csv", "parquet"], process: Callable[[], None]
) -> None:
    pipeline = writing(tmp_path, partition_by, file_format)
    for number in range(3):
        pipeline.epoch(number, keyed(number))
    shutil.copytree(tmp_path / "table", tmp_path / "backup")
    lose(tmp_path / "table" / "epoch=2")
    before = sorted((tmp_path / "table").rglob("*"))
    process()
    pipeline.log(3)
    with pytest.raises(TableCorrupt, match=SAID):
        pipeline.restart().prepare()
    assert sorted((tmp_path / "table").rglob("*")) == before

    shutil.rmtree(tmp_path / "table" / "epoch=2")
    shutil.copytree(tmp_path / "backup" / "epoch=2", tmp_path / "table" / "epoch=2")
    writing(tmp_path, partition_by, file_format).finish(keyed(3))
    assert sorted(row["value"] for row in all_rows(source(tmp_path / "table"))) == [0, 1, 2, 3]


@FORMATS
@PARTITIONS
@pytest.mark.parametrize("lost", [[2], [0, 1, 2]], ids=["the newest", "all"])
def test_a_follower_of_a_table_that_has_lost_manifests_is_told_so(
    tmp_path: Path,
    partition_by: list[str],
    file_format: Literal["csv", "parquet"],
    lost: list[int],
    process: Callable[[], None],
) -> None:
    pipeline = writing(tmp_path, partition_by, file_format)
    for number in range(2):
        pipeline.epoch(number, keyed(number))
    files = source(tmp_path / "table")
    start = files.earliest()
    middle = files.latest(start)
    pipeline.epoch(2, keyed(2))
    end = source(tmp_path / "table").latest(start) if process is forget else middle
    for number in lost:
        lose(tmp_path / "table" / f"epoch={number}")
    process()

    steps: list[Callable[[FilesSource], object]] = [
        lambda files: files.latest(middle),
        lambda files: files.newest(),
        lambda files: files.schema(),
    ]
    for step in steps:
        with pytest.raises(TableCorrupt, match="has no manifest"):
            step(source(tmp_path / "table"))
    if end != middle:
        with pytest.raises(TableCorrupt, match="has no manifest"):
            source(tmp_path / "table", files.schema()).plan(middle, end)
    assert not (tmp_path / ".table.twophase" / "taken").exists(), "it was taken for a plain folder"


def test_an_epoch_in_between_that_has_lost_its_manifest_is_not_said_to_be_deleted(tmp_path: Path) -> None:
    pipeline = writing(tmp_path, [], "csv")
    for number in range(4):
        pipeline.epoch(number, keyed(number))
    files = source(tmp_path / "table")
    start, end = files.earliest(), files.newest()
    lose(tmp_path / "table" / "epoch=2")
    with pytest.raises(TableCorrupt, match=SAID):
        files.plan(start, end)
    shutil.rmtree(tmp_path / "table" / "epoch=0")
    with pytest.raises(DataLost, match="epoch 0 of the table"):
        files.plan(start, end)


def test_a_manifest_whose_folders_were_removed_from_within_is_not_taken_for_none(tmp_path: Path) -> None:
    pipeline = writing(tmp_path, [], "csv")
    for number in range(3):
        pipeline.epoch(number, keyed(number))
    manifest = tmp_path / "table" / "epoch=2" / MANIFEST
    for folder in manifest.iterdir():
        folder.rmdir()
    pipeline.log(3)
    for _ in range(2):
        with pytest.raises(TableCorrupt, match=r"epoch=2/\.manifest is empty.*Nothing was changed\. Restore"):
            pipeline.restart().prepare()
        with pytest.raises(TableCorrupt, match=r"epoch=2/\.manifest is empty"):
            source(tmp_path / "table").newest()
        forget()


def test_an_owner_that_is_looked_for_in_a_table_that_has_lost_manifests_is_told_so(tmp_path: Path) -> None:
    first = writing(tmp_path, [], "csv")
    for number in range(2):
        first.epoch(number, keyed(number))
    lose(tmp_path / "table" / "epoch=0")
    stranger = FilesQuery(tmp_path / "second", writing(tmp_path, [], "csv").sinks, owner="second")
    stranger.log(0)
    with pytest.raises(TableCorrupt, match="has no manifest"):
        stranger.prepare()


def test_a_plain_folder_with_folders_called_epoch_is_still_a_plain_folder(tmp_path: Path) -> None:
    drop(tmp_path / "plain" / "epoch=0", "part-00000-8d7e0a3c-63f2-4d3b-9d4b-0a3c63f24d3b-c000.parquet", numbers(1))
    drop(tmp_path / "plain" / "epoch=1", "a.parquet", numbers(2))
    files = source(tmp_path / "plain")
    assert sorted(row["n"] for row in all_rows(files)) == [1, 2]


def test_what_was_a_table_can_be_read_as_a_plain_folder_if_that_is_asked_for(tmp_path: Path) -> None:
    pipeline = writing(tmp_path, [], "parquet")
    pipeline.epoch(0, keyed(5))
    lose(tmp_path / "table" / "epoch=0")
    forget()
    with pytest.raises(TableCorrupt, match="sourceKind"):
        source(tmp_path / "table").earliest()
    assert [row["value"] for row in all_rows(source(tmp_path / "table", sourceKind="folder"))] == [5]
