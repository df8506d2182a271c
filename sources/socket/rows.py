"""Rows of lines: the bytes of frames as columns, without a loop over the lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

_LINE_FEED, _CARRIAGE_RETURN = 10, 13
VALUE: pa.Field[Any] = pa.field("value", pa.string())
TIMESTAMP: pa.Field[Any] = pa.field("timestamp", pa.timestamp("us", "UTC"))


def schema_of(*, include_timestamp: bool) -> pa.Schema:
    return pa.schema([VALUE, TIMESTAMP] if include_timestamp else [VALUE])


def values_of(payload: bytes) -> pa.Array[Any]:
    """The lines, without their ends: a line feed, or a carriage return and a line feed.

    What is not UTF-8 becomes the replacement character, as with Spark's own source.
    """
    data = np.frombuffer(payload, np.uint8)
    ends = np.flatnonzero(data == _LINE_FEED)
    begins = np.concatenate(([0], ends[:-1] + 1))
    # The byte before an end belongs to the line if the line has any.
    has_return = (ends > begins) & (data[ends - 1] == _CARRIAGE_RETURN)
    kept = np.ones(len(data), np.bool_)
    kept[ends] = False
    kept[ends[has_return] - 1] = False
    # Before the end of a line lie its bytes, those of the lines before it, and their ends, which are left out.
    offsets = np.concatenate(([0], ends - np.arange(len(ends)) - np.cumsum(has_return))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(data[kept].data)]
    values: pa.Array[Any] = pa.Array.from_buffers(pa.string(), len(ends), buffers)
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        lines: list[Any] = values.view(pa.binary()).to_pylist()
        return pa.array([line.decode("utf-8", "replace") for line in lines], pa.string())
    return values


def batch_of(
    payloads: Sequence[bytes], received_us: Sequence[int], counts: Sequence[int], *, include_timestamp: bool
) -> pa.RecordBatch:
    """One batch of the lines of several frames, each received at one time."""
    columns: list[pa.Array[Any]] = [values_of(b"".join(payloads))]
    if include_timestamp:
        times = np.repeat(np.array(received_us, np.int64), np.array(counts, np.int64))
        columns.append(pa.array(times).view(TIMESTAMP.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(include_timestamp=include_timestamp))
