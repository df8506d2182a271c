"""Where events go: by the position, from 0 to 1, of their routing key, as Pravega's own clients compute it.

The position is the upper 52 bits of the first half of a 128-bit MurmurHash3 of the key's UTF-16 code units, with a seed that is
the hash by which Java knows the text `EventRouter`. The same key so goes to the same segment, whoever writes it.

Whole columns at once: keys of the same length are rows of a matrix, and the hash runs over its columns. Keys that are there more
than once are hashed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twophase.clients.pravega.stream import KeyRange

_C1, _C2 = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_MIX1, _MIX2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_ADD1, _ADD2, _FIVE = np.uint64(0x52DCE729), np.uint64(0x38495AB5), np.uint64(5)
_UNITS_A_BLOCK = 8
"""Of UTF-16: 16 bytes."""
_AT_ONCE = 65_536
_UPPER_52_BITS = np.uint64(12)


def _java_hash(text: str) -> int:
    value = 0
    for unit in text:
        value = (31 * value + ord(unit)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


_SEED = np.uint64(_java_hash("EventRouter") & (1 << 64) - 1)


def positions(keys: Any) -> Any:
    """Of a column of texts without nulls, as numpy has it."""
    distinct = keys.cast(pa.large_string()).dictionary_encode()
    hashed = _positions(distinct.dictionary)
    return hashed[distinct.indices.to_numpy(zero_copy_only=False)]


def segments_of(where: Any, ranges: Sequence[KeyRange]) -> Any:
    """Which of the ranges, which are in the order of their keys, each position is in."""
    highs = np.array([each.high for each in ranges])
    return np.minimum(np.searchsorted(highs, where, side="left"), len(ranges) - 1)


def _positions(keys: Any) -> Any:
    units, ends = _utf16(keys)
    lengths = np.diff(ends)
    found = np.empty(len(lengths))
    order = np.argsort(lengths, kind="stable")
    cuts = np.flatnonzero(np.diff(lengths[order])) + 1
    for group in np.split(order, cuts):
        for some in (group[at : at + _AT_ONCE] for at in range(0, len(group), _AT_ONCE)):
            length = int(lengths[some[0]]) if len(some) else 0
            found[some] = _hashed(units, ends[some], length) if len(some) else 0
    return found


def _utf16(keys: Any) -> tuple[Any, Any]:
    """The code units of all texts one after the other, and where each begins and ends."""
    if pc.all(pc.string_is_ascii(keys)).as_py() is not False:
        offsets = np.frombuffer(keys.buffers()[1], np.int64)[keys.offset : keys.offset + len(keys) + 1]
        data = keys.buffers()[2]
        return np.frombuffer(b"" if data is None else data, np.uint8), offsets
    encoded = [key.encode("utf-16-le") for key in keys.to_pylist()]
    lengths = np.array([len(each) // 2 for each in encoded], np.int64)
    return np.frombuffer(b"".join(encoded), "<u2"), np.concatenate(([0], np.cumsum(lengths)))


def _hashed(units: Any, begins: Any, length: int) -> Any:
    """The positions of keys with the same number of code units."""
    blocks = -(-length // _UNITS_A_BLOCK)
    matrix = np.zeros((len(begins), blocks * _UNITS_A_BLOCK), "<u2")
    matrix[:, :length] = units[begins[:, None] + np.arange(length)]
    halves = matrix.view("<u8").reshape(len(begins), 2 * blocks)
    h1 = np.full(len(begins), _SEED)
    h2 = h1.copy()
    whole = length // _UNITS_A_BLOCK
    for block in range(whole):
        k1, k2 = halves[:, 2 * block], halves[:, 2 * block + 1]
        h1 = (_rotated(h1 ^ _mixed(k1, _C1, 31, _C2), 27) + h2) * _FIVE + _ADD1
        h2 = (_rotated(h2 ^ _mixed(k2, _C2, 33, _C1), 31) + h1) * _FIVE + _ADD2
    if blocks > whole:
        h2 = h2 ^ _mixed(halves[:, -1], _C2, 33, _C1)
        h1 = h1 ^ _mixed(halves[:, -2], _C1, 31, _C2)
    size = np.uint64(2 * length)
    h1, h2 = h1 ^ size, h2 ^ size
    h1 = h1 + h2
    h2 = h2 + h1
    return ((_finished(h1) + _finished(h2)) >> _UPPER_52_BITS) / float(1 << 52)


def _mixed(k: Any, before: Any, bits: int, after: Any) -> Any:
    return _rotated(k * before, bits) * after


def _rotated(value: Any, bits: int) -> Any:
    return value << np.uint64(bits) | value >> np.uint64(64 - bits)


def _finished(value: Any) -> Any:
    value = (value ^ (value >> np.uint64(33))) * _MIX1
    value = (value ^ (value >> np.uint64(33))) * _MIX2
    return value ^ (value >> np.uint64(33))
