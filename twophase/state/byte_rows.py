"""Rows of bytes: how Arrow columns become one text of bytes a row, and how such texts are read again, without Python objects for
each row.

A column of bytes is an Arrow array of large_binary. `joined` puts columns beside each other, row by row; `Cursor` walks through
all rows at once, and takes the next field of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bytes = npt.NDArray[np.uint8]
Positions = npt.NDArray[np.int64]
Column = Any
"""An Arrow array. The stubs of pyarrow know too little of what is done with one here."""


def is_valid(column: Column) -> npt.NDArray[np.bool_]:
    valid: Column = pc.is_valid(column)
    return np.asarray(valid.to_numpy(zero_copy_only=False), np.bool_)


def fixed_bytes(column: Column) -> Bytes:
    """The values of a column of fixed width, a row of bytes each; zeros where it is null."""
    width = column.type.bit_width // 8
    buffer = column.buffers()[1]
    if buffer is None or len(column) == 0:
        return np.zeros((len(column), width), np.uint8)
    flat: Bytes = np.frombuffer(buffer, np.uint8, count=len(column) * width, offset=column.offset * width)
    matrix = flat.reshape(len(column), width).copy()
    if column.null_count:
        matrix[~is_valid(column)] = 0
    return matrix


def bytes_of(column: Column) -> tuple[Bytes, Positions, Positions]:
    """The data of a column of texts or bytes, and where each row begins in it and how long it is; 0 where it is null."""
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    if offsets is None or len(column) == 0:
        zeros = np.zeros(len(column), np.int64)
        return np.zeros(0, np.uint8), zeros, zeros
    step = 8 if wide else 4
    ends = np.frombuffer(offsets, "<i8" if wide else "<i4", count=len(column) + 1, offset=column.offset * step).astype(
        np.int64
    )
    lengths = np.where(is_valid(column), np.diff(ends), 0)
    return np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8), ends[:-1].copy(), lengths


def of_matrix(matrix: Bytes) -> Column:
    """A column of bytes, all of one length."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int64) * width
    return _of_buffers(offsets, np.ascontiguousarray(matrix).ravel())


def of_pieces(data: Bytes, starts: Positions, lengths: Positions) -> Column:
    """A column of bytes, each row a piece of the data."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if len(starts) and np.array_equal(
        starts[1:], starts[:-1] + lengths[:-1]
    ):  # they follow each other: no need to gather
        return _of_buffers(offsets, data[starts[0] : starts[0] + offsets[-1]])
    index = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    return _of_buffers(offsets, data[index])


def _of_buffers(offsets: Positions, data: Bytes) -> Column:
    buffers = [None, buffer_of(offsets), buffer_of(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def joined(columns: Sequence[Column], rows: int) -> Column:
    """Each row's bytes of all columns, one after the other."""
    if not columns:
        return of_matrix(np.zeros((rows, 0), np.uint8))
    if len(columns) == 1:
        return columns[0]
    nothing: Any = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(*columns, nothing)


def buffer_of(values: Any) -> pa.Buffer:
    """The memory of a numpy array, for Arrow."""
    return pa.py_buffer(values)


def bitmap(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    """As Arrow has it, for an array that is built of buffers."""
    return None if valid.all() else pa.array(valid).buffers()[1]


class Cursor:
    """Where the next field begins, in each row of a column of bytes."""

    def __init__(self, data: Bytes, positions: Positions):
        self.data = data
        self.positions = positions

    @classmethod
    def at_start(cls, rows: Column, skip: int = 0) -> Cursor:
        data, starts, _ = bytes_of(rows)
        return cls(data, starts + skip)

    def __len__(self) -> int:
        return len(self.positions)

    def take(self, width: int) -> Bytes:
        """The next bytes of every row."""
        found = self.data[self.positions[:, None] + np.arange(width)]
        self.positions = self.positions + width
        return np.ascontiguousarray(found)

    def take_flags(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self.take(1).ravel() != 0, np.bool_)

    def take_lengths(self) -> Positions:
        return self.take(4).view("<u4").ravel().astype(np.int64)

    def take_pieces(self, lengths: Positions) -> Column:
        found = of_pieces(self.data, self.positions, lengths)
        self.positions = self.positions + lengths
        return found
