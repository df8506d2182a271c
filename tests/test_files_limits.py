"""What is noticed of changes behind twophase's back, and what is not: the table in docs/operations.md#limits, line by line."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.file_tables import all_rows, source
from tests.files_query import query, quick, visible
from twophase.errors import CheckpointMismatch, DataLost, NotCommitted
from twophase.file_table import FileTable, open_table
from twophase.sinks import FilesSink


def values(table: Path) -> list[int]:
    return sorted(row["value"] for row in all_rows(source(table)))


@pytest.mark.parametrize("change", ["delete", "cut", "lengthen"])
def test_a_staged_file_of_another_length_is_noticed(tmp_path: Path, change: str) -> None:
    pipeline = query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    (file,) = (tmp_path / ".table.twophase").rglob("part-*")
    data = file.read_bytes()
    file.unlink()
    if change != "delete":
        file.write_bytes(data[:-1] if change == "cut" else data + b"x")
    with pytest.raises(NotCommitted):
        pipeline.commit()
    pipeline.restart().finish([1])
    assert visible(tmp_path / "table") == [(0, [1])]


def test_a_staged_file_that_keeps_its_length_is_committed_as_it_is(tmp_path: Path) -> None:
    """The honest limit: nothing is read twice, and times of change are not compared."""
    pipeline = query(tmp_path, FilesSink(str(tmp_path / "table"), file_format="csv", storage=quick()))
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    (file,) = (tmp_path / ".table.twophase").rglob("part-*")
    file.write_bytes(file.read_bytes().replace(b"1", b"7"))
    pipeline.commit()
    assert values(tmp_path / "table") == [7]


def test_a_file_in_the_tables_own_folder_is_noticed_by_who_sees_the_table_first(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.epoch(0, [0])
    pipeline.epoch(1, [1])
    pq.write_table(pa.table({"value": [9]}), tmp_path / "table" / "stray.parquet")
    pipeline.epoch(2, [2])
    FileTable._hints.clear()  # as in another process
    pipeline.log(3)
    with pytest.raises(CheckpointMismatch, match=r"stray\.parquet"):
        pipeline.restart().prepare()
    assert open_table(str(tmp_path / "table")).manifest(2).rows == 1


def test_a_file_in_the_folder_of_an_epoch_is_found_by_its_manifest_and_not_followed(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.epoch(0, [1])
    pq.write_table(pa.table({"value": [9]}), tmp_path / "table" / "epoch=0" / "stray.parquet")
    FileTable._hints.clear()
    pipeline.restart().epoch(1, [2])

    assert visible(tmp_path / "table") == [(0, [1, 9]), (1, [2])], "readers of plain files see it"
    assert values(tmp_path / "table") == [1, 2]
    named = {file.name for file in open_table(str(tmp_path / "table")).manifest(0).files}
    assert {path.name for path in (tmp_path / "table" / "epoch=0").glob("*.parquet")} - named == {"stray.parquet"}


def test_a_committed_file_that_was_changed_is_noticed_by_a_follower(tmp_path: Path) -> None:
    query(tmp_path).epoch(0, [1])
    (file,) = (tmp_path / "table").rglob("part-*")
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(DataLost, match="bytes, and had"):
        values(tmp_path / "table")
