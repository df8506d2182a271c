"""The hash that keys are placed by: XXH64 over the columns of a key, with the values and the seed of Spark's `xxhash64`.

Spark computes it in its own engine, where rows are sent to tasks; tasks and readers compute it here, over whole Arrow columns,
and must come to the same number. A column's hash is the seed of the next one's; a null leaves the seed as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from twophase.state.byte_rows import Column, bytes_of, fixed_bytes, is_valid

Hashes = npt.NDArray[np.uint64]

SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def xx_hash(columns: Iterable[Column], rows: int) -> npt.NDArray[np.int64]:
    """Of each row of these columns."""
    hashes = np.full(rows, SEED, np.uint64)
    with np.errstate(over="ignore"):
        for column in columns:
            hashes = np.where(is_valid(column), _hash_column(column, hashes), hashes)
    return hashes.view(np.int64)


def is_hashable(kind: Any) -> bool:
    """Whether Spark has this type, and hashes equal values to equal numbers."""
    return (
        pa.types.is_boolean(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
        or _is_small_decimal(kind)
        or is_bytes(kind)
    )


def is_bytes(kind: Any) -> bool:
    return (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    )


def _is_small_decimal(kind: Any) -> bool:
    return isinstance(kind, pa.Decimal128Type) and kind.precision <= 18


def _hash_column(column: Column, seeds: Hashes) -> Hashes:
    kind = column.type
    if is_bytes(kind):
        return _hash_bytes(*bytes_of(column), seeds)
    if _is_small_decimal(kind):  # two words of 64 bits, of which the low one has all of such a value
        return _hash_longs(fixed_bytes(column)[:, :8].copy().view("<i8").ravel(), seeds)
    if pa.types.is_timestamp(kind) and kind != pa.timestamp("us", kind.tz):
        column = column.cast(pa.timestamp("us", kind.tz))
    if pa.types.is_boolean(kind):
        return _hash_ints(np.asarray(pc.fill_null(column, False)).astype(np.int32), seeds)
    values = _integers(column)
    return _hash_longs(values, seeds) if values.itemsize == 8 else _hash_ints(values.astype(np.int32), seeds)


def _integers(column: Column) -> npt.NDArray[Any]:
    matrix = fixed_bytes(column)
    return matrix.view(f"<i{matrix.shape[1]}").ravel()


def _rotated(hashes: Hashes, bits: int) -> Hashes:
    return (hashes << np.uint64(bits)) | (hashes >> np.uint64(64 - bits))


def _mixed(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(33))) * _P2
    hashes = (hashes ^ (hashes >> np.uint64(29))) * _P3
    return hashes ^ (hashes >> np.uint64(32))


def _hash_ints(values: npt.NDArray[np.int32], seeds: Hashes) -> Hashes:
    words = values.view(np.uint32).astype(np.uint64)
    hashes = (seeds + _P5 + np.uint64(4)) ^ (words * _P1)
    return _mixed(_rotated(hashes, 23) * _P2 + _P3)


def _hash_longs(values: npt.NDArray[np.int64], seeds: Hashes) -> Hashes:
    return _mixed(_with_word(seeds + _P5 + np.uint64(8), values.view(np.uint64)))


def _with_word(hashes: Hashes, words: Hashes) -> Hashes:
    return _rotated(hashes ^ (_rotated(words * _P2, 31) * _P1), 27) * _P1 + _P4


def _hash_bytes(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: Any, seeds: Hashes) -> Hashes:
    """All rows at once, a step for each 32, 8, 4 or 1 bytes; rows that are done are left out of the next step."""
    hashes = seeds + _P5
    long_rows = np.flatnonzero(lengths >= 32)
    if len(long_rows):
        hashes[long_rows] = _hash_stripes(data, starts[long_rows], lengths[long_rows], seeds[long_rows])
    hashes += lengths.astype(np.uint64)
    position, ends = starts + (lengths // 32) * 32, starts + lengths
    for width in (8, 4, 1):
        while len(rows := np.flatnonzero(position + width <= ends)):
            words = _words(data, position[rows], width)
            if width == 8:
                hashes[rows] = _with_word(hashes[rows], words)
            elif width == 4:
                hashes[rows] = _rotated(hashes[rows] ^ (words * _P1), 23) * _P2 + _P3
            else:
                hashes[rows] = _rotated(hashes[rows] ^ (words * _P5), 11) * _P1
            position[rows] += width
    return _mixed(hashes)


def _hash_stripes(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: Any, seeds: Hashes) -> Hashes:
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
    position, ends = starts.copy(), starts + lengths
    while len(rows := np.flatnonzero(position + 32 <= ends)):
        for at, lane in enumerate(lanes):
            words = _words(data, position[rows] + 8 * at, 8)
            lane[rows] = _rotated(lane[rows] + words * _P2, 31) * _P1
        position[rows] += 32
    hashes = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
    assert isinstance(hashes, np.ndarray)
    for lane in lanes:
        hashes = (hashes ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    return hashes


def _words(data: npt.NDArray[np.uint8], positions: npt.NDArray[np.int64], width: int) -> Hashes:
    found = data[positions[:, None] + np.arange(width)]
    return np.ascontiguousarray(found).view(f"<u{width}").ravel().astype(np.uint64)
