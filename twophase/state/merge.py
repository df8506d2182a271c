"""How rows of one key become one: `sum` and `max` of each column, over what the state has and what a batch brings.

Nulls count for nothing: a column is null for a key only if no row had a value. A sum that its column can't hold is an error, never
a smaller number. (`replace` and `delete-flag` need none of this: the last row of a key counts.)
"""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from twophase.errors import SchemaMismatch

_ROW = "\x00row"
_FLOAT_LIMIT = 2.0**63


def merged(rows: pa.Table, index: pa.Array[Any], groups: int, how: Literal["sum", "max"]) -> pa.Table:
    """One row for each number from 0 to `groups`, of all rows that have this number in `index`."""
    names = [f"c{number}" for number in range(rows.num_columns)]
    plain = rows.rename_columns(names)
    table = plain.append_column(_ROW, index)
    widened = [(name, how) for name in names]
    if how == "sum":
        widened += [(name, "sum") for name in _as_floats(table, names)]
        table = _with_floats(table, names)
    found = table.group_by(_ROW, use_threads=False).aggregate(widened).sort_by(_ROW)
    if found.num_rows != groups:
        raise AssertionError(f"{groups} keys became {found.num_rows}")
    columns = [_narrowed(found, name, how, field) for name, field in zip(names, rows.schema, strict=True)]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _as_floats(table: pa.Table, names: list[str]) -> list[str]:
    """Copies by which a sum of integers that went around is noticed: Arrow's own sum says nothing."""
    return [f"{name}.float" for name in names if pa.types.is_integer(table.schema.field(name).type)]


def _with_floats(table: pa.Table, names: list[str]) -> pa.Table:
    for copy in _as_floats(table, names):
        table = table.append_column(copy, table.column(copy.removesuffix(".float")).cast(pa.float64(), safe=False))
    return table


def _narrowed(found: pa.Table, name: str, how: str, field: Any) -> Any:
    column = found.column(f"{name}_{how}")
    if how == "sum" and pa.types.is_integer(field.type):
        limit = 2.0**64 if pa.types.is_unsigned_integer(field.type) else _FLOAT_LIMIT
        largest = pc.max(pc.abs(found.column(f"{name}.float_sum"))).as_py()
        if largest is not None and largest >= limit:
            raise _too_large(field)
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise _too_large(field) from error


def _too_large(field: Any) -> SchemaMismatch:
    return SchemaMismatch(
        f"a sum in the column {field.name!r} is too large for its type, {field.type}: cast it to a wider one, in a new state"
    )
