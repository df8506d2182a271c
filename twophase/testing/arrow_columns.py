"""A column of every Arrow type that rows may come in: edge values, and a null in each."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from twophase.testing.checkers import Exact

_DAY = datetime.date(2024, 2, 29)
_MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)
_INSTANT = _MOMENT.replace(tzinfo=datetime.UTC)
_FORMS = ["e\u0301", "\u00e9", "\u212b", "ﬁ"]  # of Unicode: equal to whoever folds them
_TEXTS = [
    *_FORMS,
    "ä漢🎉",
    "",
    None,
    "NULL",
    "null",
    "a\nb\tc",
    '"',
    "'",
    "\\",
    "\\N",
    "a,b",
    " x ",
    "%",
    "{x}",
    "a\r\nb\rc",
    "x" * 100_000,
]
_BYTES = [b"\x00\xff", b"", None, b"abc", bytes(range(256)), b"\xff" * 100_000]
_NO_DOUBLE = 2**53 + 1  # altered by whoever takes numbers for doubles


def _integers(kind: pa.DataType, low: int, high: int) -> pa.Array[Any]:
    return pa.array([low, high, 0, None, 1], kind)


def _columns() -> list[pa.Array[Any]]:
    person = pa.struct([("name", pa.string()), ("born", pa.date32()), ("tags", pa.list_(pa.string()))])
    return [
        pa.array([True, False, None]),
        *(_integers(pa.int8(), -(2**7), 2**7 - 1), _integers(pa.int16(), -(2**15), 2**15 - 1)),
        *(_integers(pa.int32(), -(2**31), 2**31 - 1), _integers(pa.int64(), -(2**63), 2**63 - 1)),
        *(_integers(pa.uint8(), 0, 2**8 - 1), _integers(pa.uint16(), 0, 2**16 - 1)),
        *(_integers(pa.uint32(), 0, 2**32 - 1), _integers(pa.uint64(), 0, 2**64 - 1)),
        pa.array([0.1, 2.0**24 - 1, -0.25, None, math.inf, -math.inf, math.nan], pa.float32()),
        pa.array([0.1, -1e300, 5e-324, None, -0.0, math.inf, -math.inf, math.nan], pa.float64()),
        pa.array([Decimal("1234567890123456.7891"), Decimal("-0.0001"), None, Decimal("0.0000")], pa.decimal128(20, 4)),
        pa.array([Decimal(10**38 - 1), Decimal(-(10**38) + 1), None, Decimal(0)], pa.decimal128(38, 0)),
        pa.array(_TEXTS, pa.string()),
        pa.array(_TEXTS, pa.large_string()),
        pa.array(_BYTES, pa.binary()),
        pa.array(_BYTES, pa.large_binary()),
        pa.array([b"abcd", b"\x00\xff\x00\xff", None], pa.binary(4)),
        pa.array([_DAY, datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None], pa.date32()),
        pa.array([datetime.time(23, 59, 59, 999999), datetime.time(0), None], pa.time64("us")),
        pa.array([_INSTANT, _INSTANT.replace(year=1904), None, _INSTANT.replace(year=9996)], pa.timestamp("us", "UTC")),
        pa.array([_INSTANT, None, _INSTANT.replace(year=1904)], pa.timestamp("us", "Asia/Kolkata")),
        pa.array([_MOMENT, _MOMENT.replace(year=4), None], pa.timestamp("us")),
        pa.array([_MOMENT.replace(microsecond=123000), None], pa.timestamp("ms")),
        pa.array([datetime.timedelta(days=-1, microseconds=7), datetime.timedelta(0), None], pa.duration("us")),
        pa.array(["x", None, "y", "x"]).dictionary_encode(),
        pa.array([[1, None], [], None, [7]], pa.list_(pa.int32())),
        pa.array([["a", None], [], None, ["b"]], pa.large_list(pa.string())),
        pa.array([[1, _NO_DOUBLE], None, [3, None]], pa.list_(pa.int64(), 2)),
        pa.array(
            [{"name": "ä", "born": _DAY, "tags": ["x", None]}, {"name": None, "born": None, "tags": []}, None], person
        ),
        pa.array([[("a", 1), ("b", None), ("c", _NO_DOUBLE)], [], None], pa.map_(pa.string(), pa.int64())),
        pa.array([[{"a": [[1], None]}], None], pa.list_(pa.struct([("a", pa.list_(pa.list_(pa.int8())))]))),
        pa.nulls(3),
    ]


ARROW_COLUMNS: Final[Mapping[str, pa.Array[Any]]] = MappingProxyType(
    {str(c.type): c for c in _columns()} | {"string with NUL": pa.array(["a\0b", "\0", "a", None])}
)
"""By the name of the type: `int64`, `decimal128(20, 4)`, `list<item: int32>`. Text with the character NUL is a type of its own: not
everyone has room for it."""


def same_values(one: Any, other: Any) -> bool:
    """Equal, and of one kind: 1, 1.0, True and Decimal(1) are four values. A NaN equals a NaN, and -0.0 does not equal 0.0."""
    if isinstance(one, (bool, int, float, Decimal)) or isinstance(other, (bool, int, float, Decimal)):
        return Exact(one) == Exact(other)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same_values, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same_values(one[name], other[name]) for name in one)
    return bool(one == other)
