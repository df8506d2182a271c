"""Arrow columns as rows of PostgreSQL's binary COPY, by Arrow's and numpy's own loops: no object is made for a row or a value.

    a row       how many fields (two bytes), then its fields
    a field     how long it is (four bytes, -1 for null), then the value as the type's binary form

Fields of a fixed width lie side by side in one matrix of bytes, a line for each row. Where widths differ by row, each column
becomes an array of byte strings, and Arrow joins them row by row: what comes out lies in memory exactly as the server wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute

# An Arrow array, and Arrow's functions: the stubs reject much of what these take and give.
Column: TypeAlias = Any
Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
pc: Any = pyarrow.compute

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_ONE_DIMENSION, _FROM_ONE = 1, 1

Values: TypeAlias = Matrix | Column
"""Binary forms, one for each row: a matrix where all have the same width, else an array of byte strings. What is null is
anything."""
Encode: TypeAlias = Callable[[Column], Values]


def rows(columns: Sequence[Column], encoders: Sequence[Encode]) -> memoryview:
    """The rows of a batch, at least one column wide."""
    count = len(columns[0])
    pieces: list[Values] = [repeated(len(columns).to_bytes(2, "big"), count)]
    for column, encode in zip(columns, encoders, strict=True):
        for piece in fields(column, encode):
            last = pieces[-1]
            if isinstance(last, np.ndarray) and isinstance(piece, np.ndarray):
                pieces[-1] = np.concatenate((last, piece), axis=1)
            else:
                pieces.append(piece)
    if len(pieces) == 1:
        return np.ascontiguousarray(pieces[0]).reshape(-1).data
    return _data(_joined([byte_strings(piece) for piece in pieces]))


def fields(column: Column, encode: Encode) -> list[Values]:
    """The length and the value of each row, in one piece or in two."""
    values = encode(column)
    if isinstance(values, np.ndarray):
        fixed = np.concatenate((repeated(values.shape[1].to_bytes(4, "big"), len(column)), values), axis=1)
        if column.null_count == 0:
            return [fixed]
        return [pc.if_else(column.is_valid(), byte_strings(fixed), pa.scalar(_NULL, pa.large_binary()))]
    if column.null_count == 0:
        return [big_endian(pc.binary_length(values), "i4"), values]
    valid = column.is_valid()
    length = pc.if_else(valid, pc.binary_length(values), -1).fill_null(-1)
    return [big_endian(length, "i4"), pc.if_else(valid, values, pa.scalar(b"", pa.large_binary())).fill_null(b"")]


# ---- parts of encoders ----


def repeated(piece: bytes, count: int) -> Matrix:
    return np.broadcast_to(np.frombuffer(piece, np.uint8), (count, len(piece)))


def big_endian(numbers: Column, kind: str) -> Matrix:
    """`kind` as numpy spells it: i4, f8. There are no nulls in it."""
    plain = numbers if isinstance(numbers, np.ndarray) else numbers.to_numpy(zero_copy_only=False)
    ordered = np.ascontiguousarray(plain.astype(f">{kind}"))
    return ordered.view(np.uint8).reshape(len(plain), ordered.dtype.itemsize)


def byte_strings(values: Values) -> Column:
    if not isinstance(values, np.ndarray):
        return values
    count, width = values.shape
    data = pa.py_buffer(np.ascontiguousarray(values).reshape(-1).data)
    return pa.Array.from_buffers(pa.binary(width), count, [None, data]).cast(pa.large_binary())


def prefixed(prefix: bytes, values: Column) -> Column:
    return _joined([pa.scalar(prefix, pa.large_binary()), values])


@dataclass(frozen=True)
class ArrayOf:
    """Lists of values as an array of one dimension."""

    element: Encode
    element_oid: int

    def __call__(self, column: Column) -> Column:
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
        elements = _joined([byte_strings(piece) for piece in fields(column.flatten(), self.element)])
        ends = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int64())
        bodies = pc.binary_join(pa.LargeListArray.from_arrays(ends, elements), pa.scalar(b"", pa.large_binary()))
        return _joined([self._headers(lengths), bodies])

    def _headers(self, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> Column:
        # Dimensions, whether there are nulls (the server looks itself), type; and for each dimension its length and first index.
        oid = self.element_oid.to_bytes(4, "big")
        before = repeated(_ONE_DIMENSION.to_bytes(4, "big") + bytes(4) + oid, len(lengths))
        after = repeated(_FROM_ONE.to_bytes(4, "big"), len(lengths))
        full = byte_strings(np.concatenate((before, big_endian(lengths, "i4"), after), axis=1))
        return pc.if_else(pa.array(lengths > 0), full, pa.scalar(bytes(8) + oid, pa.large_binary()))


def _joined(parts: Sequence[Column]) -> Column:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _data(strings: Column) -> memoryview:
    """All byte strings, one after the other: Arrow has them like that."""
    _, offsets, data = strings.buffers()
    ends = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]
