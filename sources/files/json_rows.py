"""Rows of json lines: by Arrow's reader where that can, by Python's elsewhere.

Arrow's reader has no maps, and no binary values, instants or times of day inside of others. And it takes no `"NaN"`, `"Infinity"`
or `"-Infinity"` for a number: json has no literal for them, so Spark and this library write them as text. Which of the two reads a
block is told by the schema, and where that has such numbers by the block's bytes; both give the same rows. Python's is slower by
far, and reads only what Arrow's can't.

A value is what the file says, or the read fails with the column's name: no number is made of a text, no whole one of a fraction.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.json
from pyarrow import types

from twophase.sources.files.casts import cast, is_binary
from twophase.sources.files.line_blocks import line_blocks

Column = Any
"""An Arrow array: the stubs reject much of what these are made from."""
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_QUOTED_NO_NUMBER = re.compile(rb'"(?:NaN|-?Infinity)"')


def json_rows(stream: Any, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The columns of `wanted` by name, null where a row has none; some still as text that `cast` understands."""
    readable = all(_arrow_reads(field.type) for field in wanted)
    has_reals = any(_has_reals(field.type) for field in wanted)
    for block in line_blocks(stream):
        if not block.strip():
            continue
        if readable and not (has_reals and _QUOTED_NO_NUMBER.search(block)):
            yield from by_arrow(block, wanted)
        else:
            yield by_python(block, wanted)


# ---- Arrow's ----


def by_arrow(block: bytes, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    as_text = pa.schema([pa.field(field.name, _read_as(field.type)) for field in wanted])
    table = pyarrow.json.read_json(
        io.BytesIO(block),
        read_options=pyarrow.json.ReadOptions(block_size=len(block)),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=as_text, unexpected_field_behavior="ignore"),
    )
    yield from table.to_batches()


def _read_as(kind: pa.DataType) -> pa.DataType:
    if types.is_list(kind):
        return pa.list_(_read_as(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _read_as(field.type)) for field in kind])
    is_time = types.is_date(kind) or types.is_time(kind) or _is_instant(kind)
    return pa.string() if is_time or is_binary(kind) else kind


def _arrow_reads(kind: pa.DataType, *, inside: bool = False) -> bool:
    if types.is_list(kind):
        return _arrow_reads(kind.value_type, inside=True)
    if types.is_struct(kind):
        return kind.num_fields > 0 and all(_arrow_reads(field.type, inside=True) for field in kind)
    if is_binary(kind) or _is_instant(kind) or types.is_time(kind):
        return not inside  # they are read as text, and Arrow can't cast that where it lies inside of something
    is_text = types.is_string(kind) or types.is_large_string(kind)
    is_number = types.is_integer(kind) or types.is_float32(kind) or types.is_float64(kind) or types.is_decimal(kind)
    is_time = types.is_date(kind) or types.is_timestamp(kind)
    return is_text or is_number or is_time or types.is_boolean(kind) or types.is_null(kind)


def _is_instant(kind: pa.DataType) -> bool:
    return types.is_timestamp(kind) and kind.tz is not None


def _has_reals(kind: pa.DataType) -> bool:
    return types.is_floating(kind) or any(_has_reals(kind.field(at).type) for at in range(kind.num_fields))


# ---- Python's ----


def by_python(block: bytes, wanted: pa.Schema) -> pa.RecordBatch:
    rows = [_members(_parsed(line)) for line in block.split(b"\n") if line.strip()]
    return pa.RecordBatch.from_arrays([_column(rows, field) for field in wanted], schema=wanted)


def _parsed(text: bytes | str) -> Any:
    """Objects as tuples of pairs, since a map may have a key twice; fractions with all their digits."""
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=_refused_constant, object_pairs_hook=tuple)
    except (ValueError, RecursionError) as error:
        raise pa.ArrowInvalid(f"a line is no json: {error}") from error


def _refused_constant(name: str) -> None:
    raise ValueError(f"{name} is no json")


def _column(rows: Sequence[dict[str, Any]], field: pa.Field[Any]) -> Column:
    try:
        return _array([row.get(field.name) for row in rows], field.type)
    except (pa.ArrowException, UnicodeEncodeError, OverflowError) as error:
        raise pa.ArrowInvalid(f"column {field.name!r} can't be read as {field.type}: {error}") from error


def _array(values: Sequence[Any], kind: Any) -> Column:
    if types.is_struct(kind):
        return _structs(values, kind)
    if types.is_map(kind):
        return _maps(values, kind)
    if types.is_list(kind):
        items, ends = _flat(values, list)
        return pa.ListArray.from_arrays(ends, _array(items, kind.value_type), type=kind)
    if types.is_nested(kind):  # other kinds of lists: unions can't be written
        return _array(values, pa.list_(kind.field(0).type)).cast(kind)
    if types.is_dictionary(kind):
        return _array(values, kind.value_type).cast(kind)
    if types.is_floating(kind):
        return pa.array([_real(value) for value in values], pa.float64()).cast(kind)
    if types.is_decimal(kind):
        return pa.array([None if v is None else Decimal(_only(v, int, Decimal)) for v in values], kind)
    if types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind):
        allowed = int if types.is_integer(kind) else bool if types.is_boolean(kind) else type(None)
        return pa.array([_only(value, allowed) for value in values], kind)
    return cast(pa.array([_only(value, str) for value in values], pa.string()), kind)


def _structs(values: Sequence[Any], kind: Any) -> Column:
    rows = [None if value is None else _members(value) for value in values]
    if kind.num_fields == 0:
        return pa.array([None if row is None else {} for row in rows], kind)
    fields = list(kind)
    columns = [_array([None if row is None else row.get(each.name) for row in rows], each.type) for each in fields]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array([row is None for row in rows]))


def _maps(values: Sequence[Any], kind: Any) -> Column:
    pairs, ends = _flat(values, tuple)
    keys = _keys([key for key, _ in pairs], kind.key_type)
    items = _array([item for _, item in pairs], kind.item_type)
    return pa.MapArray.from_arrays(ends, keys, items, type=kind)


def _keys(texts: list[str], kind: Any) -> Column:
    """A key is text: that of the value itself, or of what json would have for it."""
    if types.is_nested(kind):
        return _array([_parsed(text) for text in texts], kind)
    if types.is_decimal(kind) or types.is_integer(kind):
        return _array([_parsed(text) for text in texts], kind)
    return cast(pa.array(texts, pa.string()), kind)


def _flat(values: Sequence[Any], container: type) -> tuple[list[Any], Column]:
    """What is in all lists, and where each one begins: null for a list that is null."""
    items: list[Any] = []
    begins: list[int | None] = []
    for value in values:
        begins.append(None if value is None else len(items))
        items.extend(_only(value, container) or ())
    return items, pa.array([*begins, len(items)], pa.int32())


def _members(value: Any) -> dict[str, Any]:
    pairs = _only(value, tuple)
    members = dict(pairs)
    if len(members) < len(pairs):
        raise pa.ArrowInvalid("an object has two members of one name")
    return members


def _real(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, str) and value in _NO_NUMBERS:
        return _NO_NUMBERS[value]
    real = float(_only(value, int, Decimal))
    if math.isinf(real):
        raise pa.ArrowInvalid("a number is too large")
    return real


def _only(value: Any, *allowed: type) -> Any:
    """The value, if it is null or of such a type. (To Python a bool is an int.)"""
    if value is not None and (not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed)):
        raise pa.ArrowInvalid(f"a value is of the type {_JSON_NAMES.get(type(value), 'number')}")
    return value


_JSON_NAMES = {str: "text", bool: "boolean", list: "list", tuple: "object"}
