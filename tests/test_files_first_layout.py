"""Tables of the first layout, whose manifests lie bare at `epoch=N/.manifest` whatever the table: they are read, and go on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.file_tables import all_rows, source
from tests.files_query import query, quick, staged, visible
from tests.pipeline import crash_at
from twophase.file_table import MANIFEST, Manifest, open_table
from twophase.sinks import FilesSink
from twophase.sinks.files.sink import FileFormat

PARTITIONS = pytest.mark.parametrize("partition_by", [[], ["key"]], ids=["plain", "partitioned"])


def as_first_laid_out(epoch: Path) -> None:
    """The folder as a release of the first layout would have left it."""
    (file,) = epoch.rglob(MANIFEST)
    text = Manifest.decode(file.read_bytes(), str(file)).text()
    file.unlink()
    if file.parent != epoch and not any(file.parent.iterdir()):
        file.parent.rmdir()
    (epoch / MANIFEST).write_bytes(text)


def by_key(value: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": [f"k{value}"], "value": [value]})


@PARTITIONS
@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_a_table_of_the_first_layout_goes_on(tmp_path: Path, partition_by: list[str], file_format: FileFormat) -> None:
    table = tmp_path / "table"
    sink = FilesSink(str(table), partition_by=partition_by, file_format=file_format, storage=quick())
    pipeline = query(tmp_path, sink)
    pipeline.epoch(0, by_key(0))
    pipeline.epoch(1, by_key(1))
    pipeline.log(2)
    with crash_at(tmp_path, "files.renamed"):
        pipeline.finish(by_key(2))
    for number in range(3):
        as_first_laid_out(table / f"epoch={number}")

    query(tmp_path, sink).finish(by_key(2))
    query(tmp_path, sink).epoch(3, by_key(3))

    assert visible(table, file_format) == [(number, [number]) for number in range(4)]
    assert [open_table(str(table)).manifest(number).position for number in range(4)] == [0, 1, 2, 3]
    assert sorted(row["value"] for row in all_rows(source(table))) == [0, 1, 2, 3]
    assert staged(table) == []


@PARTITIONS
def test_an_epoch_that_was_sealed_in_the_first_layout_is_committed(tmp_path: Path, partition_by: list[str]) -> None:
    table = tmp_path / "table"
    sink = FilesSink(str(table), partition_by=partition_by, storage=quick())
    pipeline = query(tmp_path, sink)
    pipeline.epoch(0, by_key(0))
    pipeline.log(1)
    with crash_at(tmp_path, "files.manifest_published"):
        pipeline.finish(by_key(1))
    (sealed,) = (tmp_path / ".table.twophase").glob("*/*/*.sealed")
    as_first_laid_out(sealed)

    query(tmp_path, sink).finish(by_key(1))

    assert visible(table) == [(0, [0]), (1, [1])]
    assert len(list((table / "epoch=1").rglob(MANIFEST))) == 1
    assert staged(table) == []
