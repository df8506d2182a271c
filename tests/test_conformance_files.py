"""FilesSink keeps the contract: parquet, json and csv, and a table in partitions."""

from __future__ import annotations

import base64
import datetime
import itertools
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from tests.files_query import quick, staged
from twophase.file_table import open_table
from twophase.identity import Owner
from twophase.sink import Description, Share
from twophase.sinks import FilesSink
from twophase.sinks.files.sink import FileFormat
from twophase.sources.files import FilesSource
from twophase.testing.arrow_columns import ARROW_COLUMNS
from twophase.testing.sink_suite import SinkSuite, SinkTarget

NOT_IN_PARQUET = {"duration[us]", "null"}
NOT_IN_JSON = {"duration[us]"}
NOT_IN_CSV = {"duration[us]", "binary", "large_binary", "fixed_size_binary[4]"} | {
    name for name, column in ARROW_COLUMNS.items() if pa.types.is_nested(column.type)
}


class FilesUnderTest(SinkTarget):
    """A table below a folder, without fsync: nobody cuts the power here (test_files_power_cut.py does)."""

    failpoints = ("files.sealed", "files.manifest_published", "files.renamed")

    def __init__(self, folder: Path, file_format: FileFormat, refused: Collection[str]):
        self.table = folder / "table"
        self.file_format = file_format
        self.arrow_types = frozenset(ARROW_COLUMNS) - frozenset(refused)
        if file_format != "parquet" or type(self) is not FilesUnderTest:  # what differs by format is few of the calls
            self.many_failures, self.many_slots = 10, 500

    def sink(self) -> FilesSink:
        return FilesSink(str(self.table), file_format=self.file_format, storage=quick())

    def rebuilt(self, description: Description) -> FilesSink:
        return FilesSink.from_options(description.options)

    def read(self) -> Sequence[dict[str, Any]]:
        """Parquet and json by readers that know nothing of twophase; csv by the source, which knows the dialect."""
        newest = open_table(str(self.table)).newest()
        if newest is None or newest.form.schema is None:
            return []
        if self.file_format == "parquet":
            dataset = ds.dataset(self.table, schema=newest.form.schema, format="parquet")
            return dataset.to_table().to_pylist()
        if self.file_format == "json":
            return [row for file in sorted(self.table.rglob("*.json")) for row in _json_rows(file, newest.form.schema)]
        return _rows_by_source(self.table, newest.form.schema)

    def residue(self) -> list[str]:
        return staged(self.table)

    def lose(self, owner: Owner, share: Share[Any]) -> None:
        """The files of one slot: what a broken disk does."""
        folder = self.table.parent / f".{self.table.name}.twophase"
        for generation in folder.glob(f"{owner}/*.{share.attempt.generation}*"):
            for name in share.handle.bytes:
                (generation / name).unlink(missing_ok=True)

    def lose_a_row(self, owner: Owner, share: Share[Any]) -> bool:
        """A file is cut short, as by a full disk."""
        folder = self.table.parent / f".{self.table.name}.twophase"
        (generation,) = folder.glob(f"{owner}/*.{share.attempt.generation}*")
        name, size = next(iter(share.handle.bytes.items()))
        with open(generation / name, "rb+") as file:
            file.truncate(size - 1)
        return True


class PartitionsUnderTest(FilesUnderTest):
    """The same in folders: a column beside the number says which."""

    def sink(self) -> FilesSink:
        return FilesSink(str(self.table), partition_by=["part"], storage=quick())

    def read(self) -> Sequence[dict[str, Any]]:
        newest = open_table(str(self.table)).newest()
        if newest is None or newest.form.schema is None:
            return []
        return _rows_by_source(self.table, newest.form.schema)

    def batch(self, values: Sequence[int]) -> pa.RecordBatch:
        return _in_parts(super().batch(values))

    def typed_batch(self, column: pa.Array[Any]) -> pa.RecordBatch | None:
        batch = super().typed_batch(column)
        return None if batch is None else _in_parts(batch)


def _in_parts(batch: pa.RecordBatch) -> pa.RecordBatch:
    values: list[Any] = batch.column("value").to_pylist()
    parts = [None if value % 3 == 2 else f"{value % 3}/ä" for value in values]
    return batch.append_column("part", pa.array(parts, pa.string()))


def _rows_by_source(table: Path, schema: pa.Schema) -> list[dict[str, Any]]:
    # A time of day in csv is text to the source: Arrow can't cast it.
    times = [field.name for field in schema if pa.types.is_time(field.type) and next(table.rglob("*.csv"), None)]
    fields = [pa.field(field.name, pa.string()) if field.name in times else field for field in schema]
    source = FilesSource.from_options({"path": str(table)}, pa.schema(fields))
    start = source.earliest()
    splits = source.plan(start, source.latest(start))
    rows = [row for split in splits for batch in source.read(split) for row in batch.to_pylist()]
    for row, name in itertools.product(rows, times):
        row[name] = None if row[name] is None else datetime.time.fromisoformat(row[name])
    return rows


def _json_rows(file: Path, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """What stands in the file, by json's own types, and then by the column's."""
    for line in file.read_text("utf-8").splitlines():
        row = json.loads(line, parse_float=Decimal)
        yield {field.name: _typed(row.get(field.name), field.type) for field in schema}


def _typed(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: _typed(value.get(field.name), field.type) for field in kind}
    if pa.types.is_map(kind):
        return [(_typed(key, kind.key_type), _typed(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return [_typed(element, kind.value_type) for element in value]
    for is_kind, parse in _PARSERS:
        if is_kind(kind):
            return parse(value)
    return value


_PARSERS: list[tuple[Callable[[Any], bool], Callable[[Any], Any]]] = [
    (pa.types.is_floating, float),
    (pa.types.is_decimal, Decimal),
    (pa.types.is_date, datetime.date.fromisoformat),
    (pa.types.is_time, datetime.time.fromisoformat),
    (pa.types.is_timestamp, datetime.datetime.fromisoformat),
    (lambda kind: "binary" in str(kind), base64.b64decode),
]


class TestParquet(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> FilesUnderTest:
        return FilesUnderTest(tmp_path, "parquet", NOT_IN_PARQUET)


class TestPartitions(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> FilesUnderTest:
        return PartitionsUnderTest(tmp_path, "parquet", NOT_IN_PARQUET)


class LinesUnderTest(FilesUnderTest):
    """Only the rows' format differs from parquet: calls to the storage are the same, and fail at fewer places."""

    many_failures = 10


class TestJson(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> FilesUnderTest:
        return LinesUnderTest(tmp_path, "json", NOT_IN_JSON)


class TestCsv(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> FilesUnderTest:
        return LinesUnderTest(tmp_path, "csv", NOT_IN_CSV)
