"""Keys as bytes that sort as the keys do: so a range of keys is a range of bytes.

::

    group (2 bytes) │ each key column: 0 if it is null; or 1 and its value
                    │   integers, dates, instants   big endian, with the sign bit turned over
                    │   decimals                    the same, of their 16 bytes
                    │   texts, bytes                every 00 as 00 FF, and 00 01 at the end

Nulls come first. Texts sort by their UTF-8, which is the order of their code points, as in Spark. Floating-point numbers are no
keys: which of them are equal is a matter of opinion (-0.0, NaN).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from twophase.state.byte_rows import (
    Column,
    Cursor,
    bitmap,
    buffer_of,
    bytes_of,
    fixed_bytes,
    is_valid,
    joined,
    of_matrix,
    of_pieces,
)
from twophase.state.xx_hash import is_bytes

GROUP_BYTES = 2
MAX_GROUPS = 1 << 15
_END = b"\x00\x01"
_SIGN = np.uint8(0x80)


def encode_keys(groups: npt.NDArray[np.int64] | None, columns: Sequence[Column], rows: int) -> Column:
    """The keys of all rows; without their groups if these are None."""
    parts = [_encode(column) for column in columns]
    if groups is not None:
        parts.insert(0, of_matrix(groups.astype(">u2").view(np.uint8).reshape(rows, GROUP_BYTES)))
    return joined(parts, rows)


def decode_keys(keys: Column, kinds: Sequence[pa.DataType]) -> list[Column]:
    """The key columns again."""
    cursor = Cursor.at_start(keys, GROUP_BYTES)
    ends = np.flatnonzero((cursor.data[:-1] == _END[0]) & (cursor.data[1:] == _END[1])) if len(keys) else None
    return [_decode(kind, cursor, ends) for kind in kinds]


def group_prefix(group: int) -> bytes:
    """What all keys of the group begin with; and what all of those before it are less than."""
    return group.to_bytes(GROUP_BYTES, "big")


def _encode(column: Column) -> Column:
    valid = is_valid(column)
    if is_bytes(column.type):
        escaped = pc.replace_substring(of_pieces(*bytes_of(column)), pattern=b"\x00", replacement=b"\x00\xff")
        begin = of_matrix(valid.astype(np.uint8).reshape(-1, 1))
        endings: Column = pa.array([b"", _END], pa.large_binary())
        ending = endings.take(pa.array(valid.astype(np.int8)))
        return joined([begin, escaped, ending], len(column))
    matrix = _big_endian(column)
    matrix[:, 0] ^= _SIGN
    flagged = np.concatenate([valid.astype(np.uint8).reshape(-1, 1), matrix], axis=1)
    if valid.all():
        return of_matrix(flagged)
    width = flagged.shape[1]
    starts = np.arange(len(column), dtype=np.int64) * width
    return of_pieces(flagged.ravel(), starts, np.where(valid, width, 1).astype(np.int64))


def _big_endian(column: Column) -> npt.NDArray[np.uint8]:
    if pa.types.is_boolean(column.type):
        return np.asarray(pc.fill_null(column, False)).astype(np.uint8).reshape(-1, 1)
    return np.ascontiguousarray(fixed_bytes(column)[:, ::-1])


def _decode(kind: Any, cursor: Cursor, ends: npt.NDArray[np.int64] | None) -> Column:
    if len(cursor) == 0:
        return pa.array([], kind)
    valid = cursor.take_flags()
    if is_bytes(kind):
        return _decode_bytes(kind, cursor, valid, ends)
    width = 1 if pa.types.is_boolean(kind) else kind.bit_width // 8
    matrix = np.zeros((len(valid), width), np.uint8)
    some = Cursor(cursor.data, cursor.positions[valid])
    matrix[valid] = some.take(width)
    cursor.positions = cursor.positions + np.where(valid, width, 0)
    matrix[valid, 0] ^= _SIGN
    if pa.types.is_boolean(kind):
        return pa.array(matrix.ravel() != 0, mask=~valid)
    data = buffer_of(np.ascontiguousarray(matrix[:, ::-1]))
    return pa.Array.from_buffers(kind, len(valid), [bitmap(valid), data])


def _decode_bytes(
    kind: Any, cursor: Cursor, valid: npt.NDArray[np.bool_], ends: npt.NDArray[np.int64] | None
) -> Column:
    assert ends is not None
    lengths = np.zeros(len(valid), np.int64)
    begun = cursor.positions[valid]
    lengths[valid] = ends[np.searchsorted(ends, begun)] - begun
    escaped = cursor.take_pieces(lengths)
    cursor.positions = cursor.positions + np.where(valid, len(_END), 0)
    plain = pc.replace_substring(escaped, pattern=b"\x00\xff", replacement=b"\x00")
    return as_bytes_type(plain, kind, valid)


def as_bytes_type(found: Column, kind: Any, valid: npt.NDArray[np.bool_]) -> Column:
    """A column of bytes as this type of texts or bytes: without a look at the bytes, which Spark does not check either."""
    data, starts, lengths = bytes_of(found)
    wide = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if len(starts):
        data = data[starts[0] : starts[0] + offsets[-1]]
    buffers = [bitmap(valid), buffer_of(offsets.astype("<i8" if wide else "<i4")), buffer_of(data)]
    return pa.Array.from_buffers(kind, len(starts), buffers)
