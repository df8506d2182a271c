"""How a column becomes one of another type: without loss, or not at all.

Times without an offset are of the column's time zone. Binary values in text are base64, as Spark's and this library's.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # the stubs reject what the functions take


def cast(values: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    if values.type.equals(kind):
        return values
    if pa.types.is_string(values.type) and pa.types.is_timestamp(kind) and kind.tz is not None:
        return _instants(values, kind)
    if pa.types.is_string(values.type) and is_binary(kind):
        return _decoded(values, kind)
    if pa.types.is_string(values.type) and pa.types.is_time(kind):
        return _times_of_day(values, kind)
    return values.cast(kind)


def is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)


def _instants(texts: pa.Array[Any], kind: pa.TimestampType[Any, Any]) -> pa.Array[Any]:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        # Without offsets. The hour that comes twice in autumn is the first of the two, as for Spark.
        local = texts.cast(pa.timestamp(kind.unit))
        instants: pa.Array[Any] = pc.assume_timezone(local, kind.tz, ambiguous="earliest")
        return instants


def _times_of_day(texts: pa.Array[Any], kind: Any) -> pa.Array[Any]:
    """Arrow has no cast for them; with a day before, it has."""
    with_day = pc.binary_join_element_wise("1970-01-01T", texts, "")
    times: pa.Array[Any] = with_day.cast(pa.timestamp(kind.unit)).cast(kind)
    return times


def _decoded(texts: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """From base64, which Arrow can't do: so with a Python object for each value."""
    try:
        values = [None if text is None else base64.b64decode(text, validate=True) for text in texts.to_pylist()]
    except binascii.Error as error:
        raise pa.ArrowInvalid(f"a value is not base64: {error}") from error
    return pa.array(values, kind)
