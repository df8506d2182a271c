"""Which columns of a parquet file get a dictionary: those that it makes smaller, judged by the first rows.

Spark's writer drops a column's dictionary after the first page (20,000 rows) if dictionary and indexes together are not smaller
than the plain values. Arrow's drops it only when it has grown to 1 MiB: until then it looks every value up, for nothing where
values hardly repeat, and leaves a dictionary of no use in the file. So it is decided here, before the file is begun.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

SAMPLE_ROWS = 8_192
_LENGTH_BYTES = 4  # what parquet writes before each plain string


def worthwhile(table: pa.Table) -> list[str]:
    """The columns to be written with a dictionary, by their paths in the file."""
    sample = table.slice(0, SAMPLE_ROWS)
    return [path for field in sample.schema for path in _paths(field, sample.column(field.name))]


def _paths(field: pa.Field[Any], values: pa.ChunkedArray[Any]) -> Iterator[str]:
    if types.is_nested(field.type):
        yield from _leaves(field.name, field.type)
    elif _pays(values):
        yield field.name


def _pays(values: pa.ChunkedArray[Any]) -> bool:
    present = len(values) - values.null_count
    plain_bytes = _plain_bytes(values, present)
    if not plain_bytes:
        return True  # as Arrow and Spark begin
    distinct: int = pc.count_distinct(values, mode="only_valid").as_py()
    index_bytes = present * max(1, (distinct - 1).bit_length()) / 8
    return plain_bytes * distinct / present + index_bytes < plain_bytes


def _plain_bytes(values: pa.ChunkedArray[Any], present: int) -> int:
    """The size of the values as they are; 0 if there is none, or nothing can be said about their type."""
    kind = values.type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind):
        return (pc.sum(pc.binary_length(values)).as_py() or 0) + _LENGTH_BYTES * present
    if types.is_integer(kind) or types.is_floating(kind) or types.is_temporal(kind) or types.is_decimal128(kind):
        return present * max(kind.bit_width // 8, 4)
    return 0


def _leaves(path: str, kind: Any) -> Iterator[str]:
    """The paths that parquet gives to what is inside a nested column."""
    if isinstance(kind, pa.StructType):
        for field in kind:
            yield from _leaves(f"{path}.{field.name}", field.type)
    elif isinstance(kind, pa.MapType):
        yield from _leaves(f"{path}.key_value.key", kind.key_type)
        yield from _leaves(f"{path}.key_value.value", kind.item_type)
    elif types.is_nested(kind):
        yield from _leaves(f"{path}.list.element", kind.field(0).type)
    else:
        yield path
