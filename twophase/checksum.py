"""Checksum of rows: tells whether a replayed share has the same rows as the one it replaces, in whatever order.

::

    value ─► 2 × 64 bits ─┐
    value ─► 2 × 64 bits ─┴─► mixed in column order ─► row ─┐
                                                      row ─┴─► added (mod 2**64, each lane) ─► r1:<32 hex digits>

Rows are added, so their order, the batches they came in and the tasks that wrote them do not matter, while a row that
is there twice counts twice. Within a row every value is bound to its column and to the values beside it, so exchanging
one column's values between two rows shows. One changed number always changes the sum; any other difference goes
unnoticed about once in 2**128 cases, for the worst pairs of strings once in 2**64. It guards against accidents, not
against an adversary: the constants are public.

Equal values are equal however Arrow lays them out: slices and offsets, dictionaries, the width of integers, `string` or
`large_string` or `string_view`, the time zone of a timestamp (it is the session's, not the data's) and the order of a
map's entries make no difference. Floats are taken by their bits. The names of columns do not count, their order does.

All is done by numpy on whole columns; the two innermost loops in C, where `_row_hashes` could be built when twophase was installed
(one fifth of the time for rows of 112 bytes). Memory is bounded for long strings, which are taken in blocks; a row with a huge
list needs about 50 bytes for each of its elements.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types

native: Any
"""The loops in C."""
try:
    native = importlib.import_module("twophase._row_hashes")
except ImportError:  # there was no compiler where twophase was installed
    native = None

Words = npt.NDArray[np.uint64]  # hashes have the shape (lanes, values)
Indexes = npt.NDArray[np.int64]

VERSION = "r1"
_LANES = 2
_FORMAT = re.compile(VERSION + ":([0-9a-f]{16})([0-9a-f]{16})")
_MODULUS = 1 << 64

# Sized so that the arrays at work stay in a core's cache.
_CHUNK_ROWS = 16_384
_CHUNK_BYTES = 4 << 20
_CHUNK_BLOCKS = 8_192
_BLOCK_BYTES = 64


class Checksum:
    """The checksum of all rows added so far."""

    def __init__(self) -> None:
        self.rows = 0
        self._sums = [0] * _LANES

    def add(self, batch: pa.RecordBatch) -> None:
        rows = batch.num_rows
        step = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES * rows // max(1, batch.nbytes)))
        for start in range(0, rows, step):
            part = batch.slice(start, step)
            hashes = _bind(part.columns, part.num_rows, _tag("row"))
            self._sums = [(total + int(lane.sum())) % _MODULUS for total, lane in zip(self._sums, hashes, strict=True)]
        self.rows += rows

    @property
    def value(self) -> str:
        return _text(self._sums)


def combine(values: Iterable[str]) -> str:
    """The checksum of all rows of several shares, from the checksum of each."""
    sums = [0] * _LANES
    for value in values:
        match = _FORMAT.fullmatch(value)
        if match is None:
            raise ValueError(f"{value!r} is not a checksum of version {VERSION}")
        sums = [(total + int(digits, 16)) % _MODULUS for total, digits in zip(sums, match.groups(), strict=True)]
    return _text(sums)


def _text(sums: Sequence[int]) -> str:
    return f"{VERSION}:" + "".join(f"{total:016x}" for total in sums)


def _constants(purpose: str, number: int = 1) -> Words:
    """Constants for each lane, `number` of them, with nothing up the sleeve."""
    digest = hashlib.shake_128(f"twophase {VERSION} {purpose}".encode()).digest(8 * _LANES * number)
    return np.frombuffer(digest, "<u8").astype(np.uint64).reshape(_LANES, number)


@cache
def _tag(kind: str) -> Words:
    """What is added to the values of a kind, so that the same bits differ as another kind of value."""
    return _constants(f"kind {kind}")


_NULL = _tag("null")
# Factors: odd, so that no two numbers have the same product.
_NUMBER = _constants("number") | np.uint64(1)
_POSITION = _constants("position") | np.uint64(1)
_LENGTH = _constants("length") | np.uint64(1)
_BLOCK_LOWS = _constants("block, low halves", _BLOCK_BYTES // 8)
_BLOCK_HIGHS = _constants("block, high halves", _BLOCK_BYTES // 8)
_LOW_HALF = np.uint64(0xFFFFFFFF)
# Row n is what all places from n on add to a block's hash if their words are 0.
_ZERO_WORDS = [
    (_BLOCK_LOWS[:, place:] * _BLOCK_HIGHS[:, place:]).sum(axis=1, keepdims=True)
    for place in range(_BLOCK_BYTES // 8 + 1)
]


@cache
def _kept_bytes(places: int) -> Words:
    """Row n keeps the first n bytes of so many words and clears the rest."""
    kept = np.where(np.arange(8 * places) < np.arange(8 * places + 1)[:, None], 255, 0).astype(np.uint8)
    return kept.view(np.uint64)


def _mix(words: Words) -> Words:
    """Spread every bit over all, in place and reversibly: the finisher of splitmix64."""
    shifted = np.empty_like(words)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        np.bitwise_xor(words, np.right_shift(words, np.uint64(shift), out=shifted), out=words)
        np.multiply(words, np.uint64(factor), out=words)
    np.bitwise_xor(words, np.right_shift(words, np.uint64(31), out=shifted), out=words)
    return words


def _bind(columns: Sequence[pa.Array[Any]], rows: int, tag: Words) -> Words:
    """One hash a row, of its values in their order."""
    state = np.repeat(tag, rows, axis=1)
    for column in columns:
        hashes = _hash(column)
        if native is not None:
            native.mix_into(state, np.ascontiguousarray(hashes))
        else:
            state += hashes
            _mix(state)
    return state


def _hash(array: pa.Array[Any]) -> Words:
    """One hash a value: equal for equal values, whatever their layout."""
    if isinstance(array, pa.ExtensionArray):
        return _hash(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return _hash(array.dictionary_decode())
    if len(array) == 0 or types.is_null(array.type):  # these have no buffers
        return np.repeat(_NULL, len(array), axis=1)
    hashes = _hash_values(array)
    if array.null_count:
        # What lies below a null is arbitrary.
        hashes = np.where(array.is_valid().to_numpy(zero_copy_only=False), hashes, _NULL)
    return hashes


def _hash_values(array: pa.Array[Any]) -> Words:
    kind: Any = array.type
    if types.is_integer(kind):
        return _hash_numbers(array, "integer")
    if types.is_boolean(kind):
        return _hash_numbers(array.cast(pa.uint8()), "boolean")
    if types.is_timestamp(kind):
        return _hash_numbers(array, f"timestamp[{kind.unit}]")
    if types.is_floating(kind) or types.is_date(kind) or types.is_time(kind) or types.is_duration(kind):
        return _hash_numbers(array, str(kind))
    if types.is_decimal(kind):
        return _hash_fixed_bytes(array, f"decimal{kind.bit_width} scale {kind.scale}")
    if types.is_interval(kind):
        return _hash_fixed_bytes(array, str(kind))
    if types.is_fixed_size_binary(kind):
        return _hash_fixed_bytes(array, "binary")
    if types.is_string(kind) or types.is_large_string(kind):
        return _hash_bytes(_bytes(array.buffers()[2]), _offsets(array), _tag("string"))
    if types.is_binary(kind) or types.is_large_binary(kind):
        return _hash_bytes(_bytes(array.buffers()[2]), _offsets(array), _tag("binary"))
    if types.is_string_view(kind):
        return _hash_values(array.cast(pa.large_string()))
    if types.is_binary_view(kind):
        return _hash_values(array.cast(pa.large_binary()))
    return _hash_nested(array)


def _hash_nested(array: Any) -> Words:
    kind = array.type
    if types.is_struct(kind):
        fields = [array.field(index) for index in range(kind.num_fields)]
        return _bind(fields, len(array), _tag("struct"))
    if types.is_map(kind):
        offsets = _offsets(array)
        entries = [_within(array.keys, offsets), _within(array.items, offsets)]
        return _hash_groups(_bind(entries, len(entries[0]), _tag("entry")), offsets, _tag("map"))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        offsets = _offsets(array)
        elements = _hash(_within(array.values, offsets))
        positions = np.arange(elements.shape[1]) - np.repeat(offsets[:-1] - offsets[0], np.diff(offsets))
        elements += positions.astype(np.uint64) * _POSITION
        return _hash_groups(_mix(elements), offsets, _tag("list"))
    raise TypeError(f"the checksum does not know the Arrow type {kind}")


def _hash_numbers(array: pa.Array[Any], kind: str) -> Words:
    """Up to 64 bits a value. Integers are extended by their sign, so that their width does not matter."""
    width = array.type.bit_width // 8
    sign = "u" if types.is_unsigned_integer(array.type) else "i"
    values = _elements(array.buffers()[1], f"{sign}{width}", array.offset, len(array))
    return values.astype(np.uint64) * _NUMBER + _tag(kind)


def _hash_fixed_bytes(array: pa.Array[Any], kind: str) -> Words:
    width = array.type.bit_width // 8
    offsets = np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * width
    return _hash_bytes(_bytes(array.buffers()[1]), offsets, _tag(kind))


def _hash_bytes(data: npt.NDArray[np.uint8], offsets: Indexes, tag: Words) -> Words:
    """Byte strings, cut into blocks: a value's hash is the sum of its blocks' hashes, each bound to where it ends."""
    if native is not None:
        hashes = np.empty((_LANES, len(offsets) - 1), np.uint64)
        native.hash_bytes(data, offsets, _BLOCK_LOWS, _BLOCK_HIGHS, _LENGTH, tag, hashes)
        return hashes
    sizes = np.diff(offsets)
    if int(sizes.max()) <= _BLOCK_BYTES:
        return _hash_short_bytes(data, offsets[:-1], sizes, tag)
    blocks = np.maximum(1, -(-sizes // _BLOCK_BYTES))
    first = np.concatenate(([0], np.cumsum(blocks)))
    hashes = np.zeros((_LANES, len(blocks)), np.uint64)
    for start in range(0, int(first[-1]), _CHUNK_BLOCKS):
        stop = min(start + _CHUNK_BLOCKS, int(first[-1]))
        low = int(np.searchsorted(first, start, "right")) - 1
        high = int(np.searchsorted(first, stop, "left"))
        bounds = np.clip(first[low : high + 1], start, stop) - start
        value = np.repeat(np.arange(low, high), np.diff(bounds))
        before = (np.arange(start, stop) - first[value]) * _BLOCK_BYTES
        begin = offsets[value] + before
        size = np.minimum(offsets[value + 1] - begin, _BLOCK_BYTES)
        parts = _hash_blocks(data, begin, size)
        parts += (before + size).astype(np.uint64) * _LENGTH + tag
        hashes[:, low:high] += _sums(_mix(parts), bounds)
    return hashes


def _hash_short_bytes(data: npt.NDArray[np.uint8], begin: Indexes, size: Indexes, tag: Words) -> Words:
    """The same, where every value is one block: the common case, and no sums."""
    hashes = np.empty((_LANES, len(begin)), np.uint64)
    for start in range(0, len(begin), _CHUNK_BLOCKS):
        chunk = slice(start, start + _CHUNK_BLOCKS)
        parts = _hash_blocks(data, begin[chunk], size[chunk])
        parts += size[chunk].astype(np.uint64) * _LENGTH + tag
        hashes[:, chunk] = _mix(parts)
    return hashes


def _hash_blocks(data: npt.NDArray[np.uint8], begin: Indexes, size: Indexes) -> Words:
    """Blocks that lie one after the other in `data`, of `size` bytes each.

    Multilinear hashing (Lemire and Kaser, "Strongly universal string hashing is fast"): the sum over a block's words of
    (low half + constant) × (high half + constant). Whatever the difference of two blocks, at most one in 2**33 choices
    of the constants gives them the same sum, in each lane. Words times constants would not do, even if their high bits
    are folded into the low ones first: some changes of high bits then cancel out for all constants.
    """
    words = _words(data, begin, size)
    # What the words add that are zero in every block, whatever the constants of their places are.
    hashes = np.repeat(_ZERO_WORDS[len(words)], len(begin), axis=1)
    for place, word in enumerate(words):
        low, high = word & _LOW_HALF, word >> np.uint64(32)
        products = low + _BLOCK_LOWS[:, place, None]
        products *= high + _BLOCK_HIGHS[:, place, None]
        hashes += products
    return hashes


def _words(data: npt.NDArray[np.uint8], begin: Indexes, size: Indexes) -> Words:
    """The words of every block by their place, up to the last place at which any block has bytes; beyond its end a block is 0."""
    places = -(-int(size.max()) // 8)
    if places == 0:
        return np.empty((0, len(begin)), np.uint64)
    start, length = int(begin[0]), int(begin[-1] + size[-1] - begin[0])
    padded = np.zeros(length + 8 * places, np.uint8)
    padded[:length] = data[start : start + length]
    # A view of a block at every byte: numpy gathers whole blocks ten times faster than unaligned words.
    everywhere: npt.NDArray[np.void] = np.ndarray(length + 1, f"V{8 * places}", padded, strides=(1,))
    words = everywhere[begin - start].view(np.uint64).reshape(-1, places)
    words &= _kept_bytes(places).take(size, axis=0)
    return np.ascontiguousarray(words.T)


def _hash_groups(elements: Words, offsets: Indexes, tag: Words) -> Words:
    """Lists, from the mixed hashes of their elements: the sum of each. An empty one is not null: it has a tag."""
    return _sums(elements, offsets - offsets[0]) + tag


def _sums(hashes: Words, bounds: Indexes) -> Words:
    """The sum of each group of neighbours; group n is from bounds[n] up to bounds[n + 1], and may be empty."""
    running = np.zeros((_LANES, hashes.shape[1] + 1), np.uint64)
    np.cumsum(hashes, axis=1, out=running[:, 1:])
    return np.diff(running.take(bounds, axis=1), axis=1)


def _offsets(array: Any) -> Indexes:
    """Where in its values each element of a string or list array begins, and where the last one ends."""
    kind = array.type
    if types.is_fixed_size_list(kind):
        return np.arange(array.offset, array.offset + len(array) + 1, dtype=np.int64) * int(kind.list_size)
    wide = types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind)
    offsets = _elements(array.buffers()[1], "i8" if wide else "i4", array.offset, len(array) + 1)
    return offsets.astype(np.int64)


def _within(values: pa.Array[Any], offsets: Indexes) -> pa.Array[Any]:
    return values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _bytes(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    # All values may be empty: then there need not be a buffer, and numpy takes no empty one.
    data: npt.NDArray[np.uint8] = _elements(buffer, "u1", 0, buffer.size if buffer else 0)
    return data


def _elements(buffer: Any, kind: str, start: int, number: int) -> npt.NDArray[Any]:
    if number == 0:
        return np.empty(0, kind)
    return np.frombuffer(buffer, kind, number, start * np.dtype(kind).itemsize)
