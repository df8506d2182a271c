"""Arrow columns as rows of PostgreSQL's binary COPY, by Arrow's and numpy's own loops: no object is made for a row or a value.

    a row       how many fields (two bytes), then its fields
    a field     how long it is (four bytes, -1 for null), then the value as the type's binary form

Fields of a fixed width lie side by side in one matrix of bytes, a line for each row. Where widths differ by row, what lies between
two such columns becomes an array of byte strings, and Arrow joins them row by row: what comes out lies in memory exactly as the
server wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
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
_WHOLE = (1, 2, 4, 8)
"""How many bytes a number has."""

Values: TypeAlias = Matrix | Column
"""Binary forms, one for each row: a matrix where all have the same width, else an array of byte strings. What is null is
anything."""
Part: TypeAlias = bytes | Values
"""What comes next in each row; bytes are the same in all of them."""
Encode: TypeAlias = Callable[[Column], Values]


def rows(columns: Sequence[Column], encoders: Sequence[Encode]) -> memoryview:
    """The rows of a batch, at least one column wide."""
    parts: list[Part] = [len(columns).to_bytes(2, "big")]
    for column, encode in zip(columns, encoders, strict=True):
        parts += fields(column, encode)
    pieces = _gathered(parts, len(columns[0]))
    if len(pieces) == 1 and isinstance(pieces[0], np.ndarray):
        return pieces[0].reshape(-1).data
    return _data(_joined([byte_strings(piece) for piece in pieces]))


def fields(column: Column, encode: Encode) -> list[Part]:
    """The length and the value of each row."""
    values = encode(column)
    if isinstance(values, np.ndarray):
        length = values.shape[1].to_bytes(4, "big")
        if column.null_count == 0:
            return [length, values]
        full = byte_strings(beside([length, values], len(column)))
        return [pc.if_else(column.is_valid(), full, pa.scalar(_NULL, pa.large_binary()))]
    if column.null_count == 0:
        return [big_endian(pc.binary_length(values), "i4"), values]
    valid = column.is_valid()
    lengths = pc.if_else(valid, pc.binary_length(values), -1).fill_null(-1)
    return [big_endian(lengths, "i4"), pc.if_else(valid, values, pa.scalar(b"", pa.large_binary())).fill_null(b"")]


def _gathered(parts: Sequence[Part], count: int) -> list[Values]:
    """The same, with everything of a fixed width that lies between two columns of byte strings as one matrix."""
    pieces: list[Values] = []
    for is_fixed, group in groupby(parts, lambda part: isinstance(part, bytes | np.ndarray)):
        some = list(group)
        pieces += [beside(some, count)] if is_fixed else some
    return pieces


# ---- parts of encoders ----


def beside(parts: Sequence[bytes | Matrix], count: int) -> Matrix:
    """Each line of one after the same line of the other. Each part is a field of a record, which numpy fills by whole values:
    matrices that are put together as such are copied byte by byte."""
    widths = [len(part) if isinstance(part, bytes) else part.shape[1] for part in parts]
    kinds = [f"u{width}" if width in _WHOLE else f"V{width}" for width in widths]
    lines = np.empty(count, np.dtype([(str(at), kind) for at, kind in enumerate(kinds)]))
    for at, (part, kind) in enumerate(zip(parts, kinds, strict=True)):
        if isinstance(part, bytes):
            lines[str(at)] = np.frombuffer(part, kind)[0]
        else:
            lines[str(at)] = np.ascontiguousarray(part).view(kind)[:, 0]
    return lines.view(np.uint8).reshape(count, sum(widths))


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
        flat = column.flatten()
        parts = _gathered(fields(flat, self.element), len(flat))
        elements = _joined([byte_strings(part) for part in parts])
        ends = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int64())
        bodies = pc.binary_join(pa.LargeListArray.from_arrays(ends, elements), pa.scalar(b"", pa.large_binary()))
        return _joined([self._headers(lengths), bodies])

    def _headers(self, lengths: np.ndarray[Any, np.dtype[np.int64]]) -> Column:
        # Dimensions, whether there are nulls (the server looks itself), type; and for each dimension its length and first index.
        oid = self.element_oid.to_bytes(4, "big")
        before, after = _ONE_DIMENSION.to_bytes(4, "big") + bytes(4) + oid, _FROM_ONE.to_bytes(4, "big")
        full = byte_strings(beside([before, big_endian(lengths, "i4"), after], len(lengths)))
        return pc.if_else(pa.array(lengths > 0), full, pa.scalar(bytes(8) + oid, pa.large_binary()))


def _joined(parts: Sequence[Column]) -> Column:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _data(strings: Column) -> memoryview:
    """All byte strings, one after the other: Arrow has them like that."""
    _, offsets, data = strings.buffers()
    ends = np.frombuffer(offsets, np.int64)[strings.offset : strings.offset + len(strings) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]
