"""What a column of PostgreSQL is in Arrow, how SQL asks for it, and how its text is read.

Rows come as csv, whose values Arrow parses without a Python object for each. What Arrow has no parser for comes as something that
it has one for. A value is never altered: what does not fit its type fails the task (a date before the year 0 or after 9999,
`infinity`, a decimal of more than 38 digits, `NaN` among decimals, an array within an array).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.json

from twophase.clients.postgres.database import Connection
from twophase.clients.postgres.table_name import quoted

pc: Any = pyarrow.compute  # the stubs reject what the functions take
read_json: Any = pyarrow.json.read_json  # the stubs know of files alone
Column = Any  # an array of pyarrow: its stubs have one type for each kind
Finish = Callable[[Column], Column]

_PLAIN: Mapping[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "text": pa.string(),
    "varchar": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}
_IN_JSON = ("bool", "int2", "int4", "int8", "text", "varchar")
"""Elements of arrays that JSON has as they are: of numbers with a fraction it has no infinite ones."""
_WIDEST_DECIMAL = 38
_UNBOUNDED = pa.decimal128(38, 18)
"""What a numeric without a precision is, as in Spark's own JDBC source."""
_FITS = r"^-?[0-9]{1,20}(\.[0-9]{1,18})?$"
_NUMERIC_HEADER = 4
_COLUMNS = """
SELECT a.attname, CASE WHEN b.typnamespace = 'pg_catalog'::regnamespace THEN b.typname ELSE '' END,
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END,
       CASE WHEN e.typnamespace = 'pg_catalog'::regnamespace THEN e.typname ELSE '' END
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""


@dataclass(frozen=True)
class ReadColumn:
    name: str
    type: pa.DataType
    """What rows have."""
    sql: str
    """What is asked for."""
    parsed: pa.DataType
    """As what the answer's text is parsed."""
    finish: Finish | None = None
    """From what was parsed to what rows have."""

    @property
    def field(self) -> pa.Field[Any]:
        return pa.field(self.name, self.type)


def columns_of(connection: Connection, oid: int) -> list[ReadColumn]:
    return [_column(*row) for row in connection.execute(_COLUMNS, (oid,)).fetchall()]


def _column(name: str, kind: str, modifier: int, element: str) -> ReadColumn:
    sql = quoted(name)
    if kind in _PLAIN:
        return ReadColumn(name, _PLAIN[kind], sql, _PLAIN[kind])
    if kind == "numeric" and modifier < 0:
        return ReadColumn(name, _UNBOUNDED, f"trim_scale({sql})", pa.string(), _from_digits)
    if kind == "numeric" and (decimal := _decimal(modifier)) is not None:
        return ReadColumn(name, decimal, sql, decimal)
    if kind == "bytea":
        return ReadColumn(name, pa.binary(), f"encode({sql}, 'hex')", pa.string(), _from_hex)
    if element in _IN_JSON:
        wanted = pa.list_(_PLAIN[element])
        return ReadColumn(name, wanted, f"to_json({sql})::text", pa.string(), lambda texts: _from_json(texts, wanted))
    # Everything else as PostgreSQL writes it: json, uuid, enumerations, times, intervals, arrays of these. No cast to text, which
    # cuts the blanks of char(n).
    return ReadColumn(name, pa.string(), sql, pa.string())


def _decimal(modifier: int) -> pa.DataType | None:
    precision, scale = (modifier - _NUMERIC_HEADER) >> 16, (modifier - _NUMERIC_HEADER) & 0x7FF
    if scale >= 0x400:  # eleven bits, the first of which is the sign
        scale -= 0x800
    fits = 0 <= scale <= precision <= _WIDEST_DECIMAL
    return pa.decimal128(precision, scale) if fits else None


def _from_digits(texts: Column) -> Column:
    """Arrow's own parser does not look whether a number still fits when it has got its digits after the point."""
    fits = pc.match_substring_regex(texts, _FITS)
    if pc.all(fits, min_count=0).as_py() is False:
        strange = texts.filter(pc.invert(fits.fill_null(True)))[0].as_py()
        raise pa.ArrowInvalid(f"{strange[:60]} is no decimal of 20 digits before the point and 18 after it")
    return texts.cast(_UNBOUNDED)


def _from_hex(texts: Column) -> Column:
    """Two digits a byte."""
    count = len(texts)
    _, ends, digits = texts.buffers()
    offsets = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + count + 1]
    data = np.frombuffer(digits or b"", np.uint8)[offsets[0] : offsets[-1]]
    values = np.where(data >= ord("a"), data - (ord("a") - 10), data - ord("0")).astype(np.uint8)
    joined = (values[0::2] << 4) | values[1::2]
    starts = ((offsets - offsets[0]) // 2).astype(np.int32)
    valid = None if texts.null_count == 0 else texts.is_valid()
    return pa.Array.from_buffers(pa.binary(), count, [_bits(valid), _buffer(starts), _buffer(joined)])


def _bits(valid: Column | None) -> pa.Buffer | None:
    return None if valid is None else _buffer(np.packbits(valid.to_numpy(zero_copy_only=False), bitorder="little"))


def _buffer(values: np.ndarray[Any, Any]) -> pa.Buffer:
    return pa.py_buffer(values.data)


def _from_json(texts: Column, wanted: pa.DataType) -> Column:
    if len(texts) == 0:
        return pa.array([], wanted)
    lines = "\n".join('{"v":' + (text if text is not None else "null") + "}" for text in texts.to_pylist()).encode()
    read = read_json(
        pa.BufferReader(lines),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=pa.schema([("v", wanted)]), unexpected_field_behavior="error"
        ),
    )
    return read.column("v").combine_chunks()
