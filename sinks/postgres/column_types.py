"""Which type of PostgreSQL holds which type of Arrow, and by which binary form.

A value is never altered: a column that could not hold every value of its type is refused by name. Text may be too long for its
column, a date or a time beyond what PostgreSQL has: such a value fails its task, and nothing of its epoch is visible.

Lists of plain values are arrays; structs, maps and whatever is nested deeper are JSON, as Spark's `to_json` writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from twophase import json_lines
from twophase.errors import SchemaMismatch
from twophase.sinks.postgres.binary_copy import ArrayOf, Column, Encode, Matrix, beside, big_endian, pc, prefixed
from twophase.sinks.postgres.numerics import numeric
from twophase.tagged_struct import spark_type_of

_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = _DAYS_TO_2000 * 86_400_000_000
_TEXTS = ("text", "varchar", "bpchar", "citext")
_JSON = ("jsonb", "json")
_INTEGERS = {"int2": 2, "int4": 4, "int8": 8}
_DIGITS_OF = {1: 3, 2: 5, 4: 10, 8: 19}
"""Decimal digits of the widest integer of so many bytes."""
_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType)
_ROUNDING = ("timestamp", "timestamptz", "time", "interval")
_MICROSECONDS = 6


@dataclass(frozen=True)
class ColumnType:
    """What a column of a table is."""

    shown: str
    """As SQL writes it: `character varying(20)`."""
    name: str
    """As the catalog calls it, below any domain: `varchar`, `_int4`."""
    kind: str = "b"
    """`e` is an enumeration."""
    modifier: int = -1
    element: str = ""
    """Of an array: the name of its elements' type."""
    element_oid: int = 0

    @property
    def of_elements(self) -> ColumnType:
        return ColumnType(self.shown, self.element, modifier=self.modifier)


def sql_type(kind: pa.DataType) -> str | None:
    """What a column is created as; None if PostgreSQL has nothing that holds it."""
    plain = _plain_sql_type(kind)
    if plain is not None:
        return plain
    if isinstance(kind, _LISTS) and (element := _plain_sql_type(kind.value_type)) is not None:
        return f"{element}[]"
    return "jsonb" if _is_json(kind) else None


def encoder(kind: pa.DataType, column: ColumnType) -> Encode | None:
    """How values of this type are written to that column; None if it can't hold all of them."""
    if types.is_dictionary(kind):
        inner = encoder(kind.value_type, column)
        return None if inner is None else _after(lambda values: values.cast(kind.value_type), inner)
    if isinstance(kind, _LISTS) and column.element and _plain_sql_type(kind.value_type) is not None:
        element = encoder(kind.value_type, column.of_elements)
        return None if element is None else ArrayOf(element, column.element_oid)
    if column.name in _JSON and _is_json(kind):
        return _after(json_lines.texts, partial(_text, kind=column.name))
    return _plain_encoder(kind, column)


# ---- plain values ----


def _plain_sql_type(kind: pa.DataType) -> str | None:
    if types.is_dictionary(kind):
        return _plain_sql_type(kind.value_type)
    if types.is_uint64(kind):
        return "numeric(20,0)"
    if types.is_integer(kind):
        return {2: "smallint", 4: "integer", 8: "bigint"}[_bytes_needed(kind)]
    if types.is_decimal128(kind) and kind.scale >= 0:
        return f"numeric({kind.precision},{kind.scale})"
    for holds, name in _PLAIN:
        if holds(kind):
            return name
    return None


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], str], ...] = (
    (types.is_boolean, "boolean"),
    (types.is_float32, "real"),
    (types.is_float64, "double precision"),
    (types.is_string, "text"),
    (types.is_large_string, "text"),
    (types.is_binary, "bytea"),
    (types.is_large_binary, "bytea"),
    (types.is_fixed_size_binary, "bytea"),
    (types.is_date32, "date"),
    (types.is_time, "time without time zone"),
    (types.is_duration, "interval"),
    (lambda kind: types.is_timestamp(kind) and kind.tz is None, "timestamp without time zone"),
    (types.is_timestamp, "timestamp with time zone"),
)


def _plain_encoder(kind: pa.DataType, column: ColumnType) -> Encode | None:
    name = column.name
    if types.is_integer(kind):
        return _integer_encoder(kind, column)
    if types.is_decimal128(kind) and kind.scale >= 0 and name == "numeric":
        return numeric if _has_room(column.modifier, kind.precision, kind.scale) else None
    if types.is_string(kind) or types.is_large_string(kind):
        return partial(_text, kind=name) if name in (*_TEXTS, *_JSON) or column.kind == "e" else None
    if types.is_floating(kind) and not types.is_float16(kind) and name in ("float4", "float8"):
        return (
            partial(_numbers, kind="f8" if name == "float8" else "f4")
            if name == "float8" or kind == pa.float32()
            else None
        )
    if name in _ROUNDING and column.modifier not in (-1, _MICROSECONDS):
        return None  # timestamp(3) and the like: the server would round without a word
    if types.is_timestamp(kind):
        return _timestamps if name == ("timestamp" if kind.tz is None else "timestamptz") else None
    for holds, wanted, encode in (
        (types.is_boolean, "bool", partial(_numbers, kind="i1")),
        (types.is_binary, "bytea", _bytes),
        (types.is_large_binary, "bytea", _bytes),
        (types.is_fixed_size_binary, "bytea", _bytes),
        (types.is_date32, "date", _dates),
        (types.is_time, "time", _times),
        (types.is_duration, "interval", _intervals),
    ):
        if holds(kind) and name == wanted:
            return encode
    return None


def _integer_encoder(kind: pa.DataType, column: ColumnType) -> Encode | None:
    if column.name == "numeric":
        digits = 20 if types.is_uint64(kind) else _DIGITS_OF[kind.bit_width // 8]
        wide = pa.decimal128(max(digits, 20), 0)
        return _after(lambda values: values.cast(wide), numeric) if _has_room(column.modifier, digits, 0) else None
    width = _INTEGERS.get(column.name, 0)
    if types.is_uint64(kind) or width < _bytes_needed(kind):
        return None
    return partial(_numbers, kind=f"i{width}")


def _bytes_needed(kind: pa.DataType) -> int:
    """Of the signed integer that holds it; PostgreSQL has none of one byte, and none without a sign."""
    return max(kind.bit_width // 8 * (2 if types.is_unsigned_integer(kind) else 1), 2)


def _has_room(modifier: int, precision: int, scale: int) -> bool:
    """Whether a numeric of this modifier holds every decimal: the server would round what is too fine without a word."""
    if modifier < 0:
        return True
    its_precision, its_scale = (modifier - 4) >> 16 & 0xFFFF, ((modifier - 4) & 0x7FF ^ 0x400) - 0x400
    return its_scale >= scale and its_precision - its_scale >= precision - scale


def _numbers(column: Column, *, kind: str) -> Matrix:
    return big_endian(pc.fill_null(column, False if types.is_boolean(column.type) else 0), kind)


def _text(column: Column, *, kind: str) -> Column:
    values = column.cast(pa.large_binary())
    # Its binary form begins with a version.
    return prefixed(b"\x01", values) if kind == "jsonb" else values


def _bytes(column: Column) -> Column:
    return column.cast(pa.large_binary())


def _dates(column: Column) -> Matrix:
    days = pc.fill_null(column.cast(pa.int32()).cast(pa.int64()), _DAYS_TO_2000).to_numpy(zero_copy_only=False)
    return big_endian(_since_2000(days, _DAYS_TO_2000, np.int32, column.type), "i4")


def _timestamps(column: Column) -> Matrix:
    exact = _in_microseconds(column, pa.timestamp("us", column.type.tz))
    moments = pc.fill_null(exact.cast(pa.int64()), _MICROSECONDS_TO_2000).to_numpy(zero_copy_only=False)
    return big_endian(_since_2000(moments, _MICROSECONDS_TO_2000, np.int64, column.type), "i8")


def _times(column: Column) -> Matrix:
    return big_endian(pc.fill_null(_in_microseconds(column, pa.time64("us")).cast(pa.int64()), 0), "i8")


def _intervals(column: Column) -> Matrix:
    length = pc.fill_null(_in_microseconds(column, pa.duration("us")).cast(pa.int64()), 0)
    no_days_no_months = bytes(8)
    return beside([big_endian(length, "i8"), no_days_no_months], len(column))


def _since_2000(values: Column, offset: int, kind: type, shown: pa.DataType) -> Column:
    """PostgreSQL counts from the year 2000, and calls the ends of the range infinity."""
    lowest, highest = np.iinfo(kind).min + offset, np.iinfo(kind).max
    if len(values) and (values.min() <= lowest or values.max() >= highest):
        raise SchemaMismatch(f"a {shown} in the rows is beyond what PostgreSQL holds")
    return values - offset


def _in_microseconds(column: Column, kind: pa.DataType) -> Column:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid:
        raise SchemaMismatch(
            f"a {column.type} in the rows has nanoseconds, or is too large: PostgreSQL keeps microseconds"
        ) from None


# ---- nested values ----


def _is_json(kind: pa.DataType) -> bool:
    """Whether it is nested, and all in it has a place in JSON."""
    if isinstance(kind, _LISTS):
        return _is_json_value(kind.value_field)
    if types.is_map(kind):
        return _is_json_value(kind.key_field) and _is_json_value(kind.item_field)
    return types.is_struct(kind) and spark_type_of(kind) is None and all(map(_is_json_value, kind))


def _is_json_value(field: pa.Field[Any]) -> bool:
    return _is_json(field.type) or (_plain_sql_type(field.type) is not None and not types.is_duration(field.type))


def _after(first: Callable[[Column], Column], then: Encode) -> Encode:
    return lambda column: then(first(column))
