"""Dictionaries of parquet files: where they make a column smaller, as Spark's writer decides, and nowhere else."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from twophase.sinks.files import dictionaries
from twophase.sinks.files.writers import ParquetWriter

ROWS = 30_000
RANDOM = np.random.default_rng(5)
REPEATING: dict[str, pa.Array[Any]] = {
    "integer": pa.array(RANDOM.integers(0, 100, ROWS)),
    "ratio": pa.array(RANDOM.integers(0, 100, ROWS) / 7),
    "text": pa.array([f"city number {i % 500}" for i in range(ROWS)]),
    "some nulls": pa.array([None if i % 3 else f"city number {i % 500}" for i in range(ROWS)]),
    "day": pa.array(RANDOM.integers(0, 365, ROWS).astype(np.int32), pa.date32()),
    "instant": pa.array(RANDOM.integers(0, 365, ROWS), pa.timestamp("us", "UTC")),
    "money": pa.array(RANDOM.integers(0, 100, ROWS)).cast(pa.decimal128(30, 2)),
    "raw": pa.array([bytes([i % 7]) * 9 for i in range(ROWS)]),
    "nothing": pa.array([None] * ROWS, pa.string()),
}
DIFFERENT: dict[str, pa.Array[Any]] = {
    "integer": pa.array(range(ROWS)),
    "ratio": pa.array(RANDOM.random(ROWS)),
    "text": pa.array([f"order number {i}" for i in range(ROWS)]),
    "some nulls": pa.array([None if i % 3 else f"order number {i}" for i in range(ROWS)]),
    "instant": pa.array(np.arange(ROWS), pa.timestamp("us", "UTC")),
    "money": pa.array(np.arange(ROWS)).cast(pa.decimal128(30, 2)),
    "small texts": pa.array([str(i) for i in range(ROWS)]),
}


def has_dictionary(table: pa.Table) -> dict[str, bool]:
    """By column, what a file of this table has; read back it must be the same table."""
    file = _Kept()
    writer = ParquetWriter(file, table.schema, "snappy")
    writer.write(table)
    writer.close()
    assert pq.read_table(io.BytesIO(file.content)).equals(table)
    group = pq.ParquetFile(io.BytesIO(file.content)).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {column.path_in_schema: column.has_dictionary_page for column in columns}


class _Kept(io.BytesIO):
    content = b""

    def close(self) -> None:
        self.content = self.content or self.getvalue()
        super().close()


@pytest.mark.parametrize("name", REPEATING)
def test_values_that_repeat_have_a_dictionary(name: str) -> None:
    assert has_dictionary(pa.table({"column": REPEATING[name]})) == {"column": True}


@pytest.mark.parametrize("name", DIFFERENT)
def test_values_that_hardly_repeat_have_none(name: str) -> None:
    assert has_dictionary(pa.table({"column": DIFFERENT[name]})) == {"column": False}


def test_what_is_inside_of_nested_columns_begins_with_a_dictionary() -> None:
    nested = {
        "point": pa.array([{"x": 1, "tags": ["a"]}] * 9),
        "map": pa.array([[("k", [1])]] * 9, pa.map_(pa.string(), pa.list_(pa.int32()))),
        "matrix": pa.array([[[1]]] * 9),
        "pair": pa.array([[1, 2]] * 9, pa.list_(pa.int32(), 2)),
    }
    assert has_dictionary(pa.table(nested)) == {
        "point.x": True,
        "point.tags.list.element": True,
        "map.key_value.key": True,
        "map.key_value.value.list.element": True,
        "matrix.list.element.list.element": True,
        "pair.list.element": True,
    }


def test_types_that_nothing_is_known_of_begin_with_a_dictionary() -> None:
    strange = {"view": pa.array(["a", "b"], pa.string_view()), "word": pa.array(["a", "b"]).dictionary_encode()}
    assert dictionaries.worthwhile(pa.table(strange)) == ["view", "word"]


def test_a_table_without_rows_says_nothing() -> None:
    assert dictionaries.worthwhile(pa.table({"id": pa.array([], pa.int64()), "text": pa.array([], pa.string())})) == [
        "id",
        "text",
    ]
