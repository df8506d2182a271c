"""Arrow columns as binary COPY: what a server would read, byte by byte, and what is refused before one sees it."""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophase.errors import SchemaMismatch
from twophase.sinks.postgres import binary_copy
from twophase.sinks.postgres.column_types import ColumnType, encoder, sql_type
from twophase.sinks.postgres.numerics import numeric

INT8, TEXT = ColumnType("bigint", "int8"), ColumnType("text", "text")


def read(data: memoryview) -> list[list[bytes | None]]:
    """The fields of each row."""
    rows, at = [], 0
    while at < len(data):
        (count,), at = struct.unpack_from(">h", data, at), at + 2
        row: list[bytes | None] = []
        for _ in range(count):
            (length,), at = struct.unpack_from(">i", data, at), at + 4
            row.append(None if length < 0 else bytes(data[at : at + length]))
            at += max(length, 0)
        rows.append(row)
    return rows


def written(*columns: tuple[pa.Array[Any], ColumnType]) -> list[list[bytes | None]]:
    encoders = []
    for column, kind in columns:
        encode = encoder(column.type, kind)
        assert encode is not None
        encoders.append(encode)
    return read(binary_copy.rows([column for column, _ in columns], encoders))


@given(st.lists(st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text()), min_size=1), st.data())
def test_fields_of_any_length_with_nulls_anywhere_and_in_any_slice(
    rows: list[tuple[int | None, str | None]], data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    numbers = pa.array([n for n, _ in rows], pa.int64()).slice(first)
    texts = pa.array([t for _, t in rows], pa.string()).slice(first)
    expected = [[_of(n), None if t is None else t.encode(), _of(n)] for n, t in rows[first:]]

    assert written((numbers, INT8), (texts, TEXT), (numbers, INT8)) == expected


def _of(number: int | None) -> bytes | None:
    return None if number is None else number.to_bytes(8, "big", signed=True)


@given(
    st.integers(1, 38).flatmap(
        lambda p: st.tuples(
            st.just(p), st.integers(0, p), st.lists(st.integers(-(10**p) + 1, 10**p - 1), min_size=1, max_size=20)
        )
    )
)
def test_decimals_of_any_precision_and_scale_keep_every_digit(made: tuple[int, int, list[int]]) -> None:
    precision, scale, unscaled = made
    with localcontext(prec=50):  # Python would round to 28 digits
        values = [Decimal(number).scaleb(-scale) for number in unscaled]
    column = pa.array([None, *values], pa.decimal128(precision, scale)).slice(1)

    for form, number in zip(numeric(column), unscaled, strict=True):
        count, weight, sign, shown_scale, *digits = struct.unpack(f">{len(form) // 2}h", form.tobytes())
        assert (count, shown_scale, sign) == (len(digits), scale, 0x4000 if number < 0 else 0)
        assert all(0 <= digit < 10_000 for digit in digits)
        whole = sum(digit * 10 ** (4 * (weight - at) + 4 * count) for at, digit in enumerate(digits))
        assert whole == abs(number) * 10 ** (4 * count) // 10**scale


def test_an_array_without_elements_has_no_dimension() -> None:
    column = pa.array([[1, None], [], None], pa.list_(pa.int32()))
    kind = ColumnType("integer[]", "_int4", element="int4", element_oid=23)
    oid, one = struct.pack(">i", 23), struct.pack(">i", 1)

    assert written((column, kind)) == [
        [one + bytes(4) + oid + struct.pack(">ii", 2, 1) + struct.pack(">iii", 4, 1, -1)],
        [bytes(8) + oid],
        [None],
    ]


@pytest.mark.parametrize(
    ("kind", "column", "fits"),
    [
        (pa.int32(), ColumnType("bigint", "int8"), True),
        (pa.int64(), ColumnType("integer", "int4"), False),
        (pa.int64(), ColumnType("numeric", "numeric"), True),
        (pa.uint64(), ColumnType("bigint", "int8"), False),
        (pa.float64(), ColumnType("real", "float4"), False),
        (pa.float32(), ColumnType("double precision", "float8"), True),
        (pa.decimal128(10, 4), ColumnType("numeric(10,2)", "numeric", modifier=(10 << 16 | 2) + 4), False),
        (pa.decimal128(10, 2), ColumnType("numeric(10,4)", "numeric", modifier=(10 << 16 | 4) + 4), False),
        (pa.decimal128(10, 2), ColumnType("numeric(12,4)", "numeric", modifier=(12 << 16 | 4) + 4), True),
        (pa.timestamp("us"), ColumnType("timestamp with time zone", "timestamptz"), False),
        (pa.timestamp("us", "UTC"), ColumnType("timestamp without time zone", "timestamp"), False),
        (pa.timestamp("us"), ColumnType("timestamp(3)", "timestamp", modifier=3), False),
        (pa.timestamp("us"), ColumnType("timestamp(6)", "timestamp", modifier=6), True),
        (pa.time64("us"), ColumnType("time(0)", "time", modifier=0), False),
        (pa.string(), ColumnType("uuid", "uuid"), False),
        (pa.string(), ColumnType("mood", "mood", kind="e"), True),
        (pa.string(), ColumnType("jsonb", "jsonb"), True),
        (pa.struct([("a", pa.int8())]), ColumnType("jsonb", "jsonb"), True),
        (pa.struct([("a", pa.int8())]), ColumnType("text", "text"), False),
        (pa.list_(pa.int32()), ColumnType("integer[]", "_int4", element="int4", element_oid=23), True),
        (pa.list_(pa.int64()), ColumnType("integer[]", "_int4", element="int4", element_oid=23), False),
        (pa.list_(pa.list_(pa.int32())), ColumnType("integer[]", "_int4", element="int4", element_oid=23), False),
        (pa.list_(pa.list_(pa.int32())), ColumnType("jsonb", "jsonb"), True),
    ],
)
def test_a_column_takes_a_type_only_if_it_holds_every_value_of_it(
    kind: pa.DataType, column: ColumnType, fits: bool
) -> None:
    assert (encoder(kind, column) is not None) is fits


def test_types_that_nothing_holds_are_created_as_nothing() -> None:
    variant = pa.struct([("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})])

    assert [sql_type(kind) for kind in (pa.null(), pa.month_day_nano_interval(), pa.float16(), variant)] == [None] * 4
    assert sql_type(pa.struct([("a", variant)])) is None
    assert sql_type(pa.list_(pa.decimal128(10, 2))) == "numeric(10,2)[]"


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (pa.array([np.iinfo(np.int32).min], pa.int32()).cast(pa.date32()), "date"),
        (pa.array([np.iinfo(np.int64).min + 1], pa.int64()).cast(pa.timestamp("us")), "timestamp"),
        (pa.array([np.iinfo(np.int64).max], pa.int64()).cast(pa.timestamp("us")), "timestamp"),
        (pa.array([1], pa.int64()).cast(pa.time64("ns")), "time"),
        (pa.array([1], pa.int64()).cast(pa.timestamp("ns")), "timestamp"),
    ],
)
def test_a_time_that_would_be_altered_is_refused(column: pa.Array[Any], name: str) -> None:
    with pytest.raises(SchemaMismatch, match="PostgreSQL"):
        written((column, ColumnType(name, name)))


def test_dates_and_times_count_from_the_year_2000() -> None:
    day = pa.array([datetime.date(2000, 1, 2), datetime.date(1999, 12, 31), None], pa.date32())
    moment = pa.array([datetime.datetime(2000, 1, 1, 0, 0, 1)] * 2 + [None], pa.timestamp("ms"))

    assert written((day, ColumnType("date", "date")), (moment, ColumnType("timestamp", "timestamp"))) == [
        [struct.pack(">i", 1), struct.pack(">q", 1_000_000)],
        [struct.pack(">i", -1), struct.pack(">q", 1_000_000)],
        [None, None],
    ]
