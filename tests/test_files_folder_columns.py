"""Columns that are folders: their text is read as it was written, whoever wrote it, and found by the names that people give."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from tests.file_tables import all_rows, drop, source
from tests.files_query import query, quick
from twophase.errors import SchemaMismatch
from twophase.sinks import FilesSink

INSTANT = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
PLANNED = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def rows(zone: str, *numbers: int) -> pa.RecordBatch:
    """As Spark hands them over: instants, in the zone of the session, which the plan is not told."""
    kind = pa.timestamp("us", zone)
    instants = pa.array([INSTANT.astimezone(ZoneInfo(zone))] * len(numbers), kind)
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "at": instants})


def table_by(folder: Path, column: str) -> FilesSink:
    return FilesSink(str(folder / "table"), partition_by=[column], storage=quick())


@pytest.mark.parametrize(
    "epochs",
    [
        [[("UTC", ()), ("America/New_York", (1,))]],
        [[("America/New_York", (1,))], [("UTC", ())]],
        [[("America/New_York", (1,))], [("Asia/Tokyo", (2,))]],
    ],
    ids=["the first slot is empty", "the newest epoch is empty", "the session's zone has changed"],
)
def test_an_instant_in_a_folders_name_is_read_in_the_zone_that_wrote_it(tmp_path: Path, epochs: Any) -> None:
    writer = query(tmp_path, table_by(tmp_path, "at"), schema=PLANNED)
    for number, slots in enumerate(epochs):
        writer.epoch(number, *(rows(zone, *numbers) for zone, numbers in slots))

    found = all_rows(source(tmp_path / "table"))

    assert len(found) == sum(len(numbers) for slots in epochs for _, numbers in slots)
    assert {row["at"].astimezone(datetime.UTC) for row in found} == {INSTANT}


def test_a_folder_is_found_in_any_case_as_spark_finds_it(tmp_path: Path) -> None:
    drop(tmp_path / "in", "K=2/a.parquet", pa.table({"id": pa.array([1], pa.int64())}))
    kinds: dict[str, pa.DataType] = {"id": pa.int64(), "k": pa.string()}
    schema = pa.schema(kinds)

    assert all_rows(source(tmp_path / "in", schema)) == [{"id": 1, "k": "2"}]


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
def test_text_that_is_not_utf_8_is_refused_by_its_column_where_it_can_not_be_read_again(
    tmp_path: Path, file_format: Any
) -> None:
    wrong = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xffA")])
    batch = pa.record_batch({"n": pa.array([1], pa.int64()), "text": wrong})
    partition_by = ["text"] if file_format == "parquet" else []
    sink = FilesSink(str(tmp_path / "table"), file_format=file_format, partition_by=partition_by, storage=quick())
    writer = query(tmp_path, sink)
    writer.log(0)
    writer.prepare()
    with pytest.raises(SchemaMismatch, match=r"'text' .* not UTF-8"):
        writer.run(batch)


def test_a_text_that_readers_of_folders_take_for_null_is_refused(tmp_path: Path) -> None:
    writer = query(tmp_path, FilesSink(str(tmp_path / "table"), partition_by=["text"], storage=quick()))
    writer.log(0)
    writer.prepare()
    texts = ["x", "__HIVE_DEFAULT_PARTITION__", None]
    with pytest.raises(SchemaMismatch, match="'text' has the text __HIVE_DEFAULT_PARTITION__"):
        writer.run(pa.record_batch({"n": pa.array([1, 2, 3], pa.int64()), "text": pa.array(texts)}))


def test_a_variant_is_refused_by_its_name(tmp_path: Path) -> None:
    """Spark hands it over as a struct of bytes, and nobody would read it as a variant again."""
    kind = pa.struct([pa.field("value", pa.binary(), metadata={"variant": "true"}), pa.field("metadata", pa.binary())])
    for schema in (pa.schema([("v", kind)]), pa.schema([("list", pa.list_(pa.field("element", kind)))])):
        writer = query(tmp_path, schema=schema)
        writer.log(0)
        with pytest.raises(SchemaMismatch, match="variant"):
            writer.prepare()
