"""Messages of librdkafka as Arrow columns, without a Python object for each.

::

    pointers ─► the structures that they point to ─► addresses and lengths ─► views ─► columns that own their bytes

librdkafka gives an array of pointers to structures, which in turn point into the buffers that it has fetched. numpy follows the
pointers: to it, all of this process's memory is one array. Where values lie becomes an Arrow array of views, and Arrow's own cast
copies them to one piece of memory each column.

What it relies on: machines with 64 bits, little end first; `rd_kafka_message_t`, which is public; and where the time of a record
lies behind that, which is not, and is so compared with what the library's function says, for some records of every batch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from twophase.clients.kafka.librdkafka import library

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

_WORD = 8
_FIRST_ADDRESS, _ADDRESS_BITS = 4096, 48
_REGION_BITS = 30
_INLINE = 12
_LOW = np.uint64(0xFFFF_FFFF)
_ERR, _PAYLOAD, _LENGTH, _KEY, _KEY_LENGTH, _OFFSET = 0, 3, 4, 5, 6, 7
_TIME_KIND, _TIME = 11, 12
"""In words from the beginning of a message. The last two are private; the kind is the high half of its word."""
_PROBES = 4


class _AllMemory:
    """As an array of words. Only what a pointer leads to is ever looked at."""

    words = ((1 << _ADDRESS_BITS) - _FIRST_ADDRESS) // _WORD
    __array_interface__ = {"shape": (words,), "typestr": "<u8", "data": (_FIRST_ADDRESS, True), "version": 3}  # noqa: RUF012


_MEMORY = cast(U64, np.asarray(_AllMemory()))


class Messages:
    """Some messages, alive until the library is told to destroy them."""

    def __init__(self, pointers: U64):
        self.pointers = pointers
        self._at: I64 = ((pointers - np.uint64(_FIRST_ADDRESS)) >> np.uint64(3)).astype(np.int64)

    def __len__(self) -> int:
        return len(self.pointers)

    def where(self, wanted: npt.NDArray[np.bool_]) -> Messages:
        return Messages(self.pointers[wanted])

    def errors(self) -> npt.NDArray[np.int32]:
        """Codes of the library; 0 for a record."""
        return (self._word(_ERR) & _LOW).astype(np.uint32).view(np.int32)

    def offsets(self) -> I64:
        return self._word(_OFFSET).view(np.int64)

    def sizes(self) -> U64:
        """Bytes of key and value."""
        return self._word(_LENGTH) + self._word(_KEY_LENGTH)

    def values(self) -> pa.Array[Any]:
        return _owned(self._word(_PAYLOAD), self._word(_LENGTH))

    def keys(self) -> pa.Array[Any]:
        return _owned(self._word(_KEY), self._word(_KEY_LENGTH))

    def times(self) -> tuple[I64, npt.NDArray[np.int32]]:
        """Milliseconds since 1970, and what they say: 0 when it was made, 1 when it was appended, -1 nothing."""
        times = self._word(_TIME).view(np.int64)
        kinds = (self._word(_TIME_KIND) >> np.uint64(32)).astype(np.int32)
        probes = np.linspace(0, len(self) - 1, min(_PROBES, len(self)), dtype=np.int64)
        if any((times[each], kinds[each]) != _time(int(self.pointers[each])) for each in probes):
            said = [_time(pointer) for pointer in self.pointers.tolist()]
            times = np.array([time for time, _ in said], np.int64)
            kinds = np.array([kind for _, kind in said], np.int32)
        return times, kinds - 1

    def headers(self) -> pa.Array[Any]:
        return pa.array([_headers(pointer) for pointer in self.pointers.tolist()], HEADERS)

    def _word(self, number: int) -> U64:
        return _MEMORY[self._at + number]


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def destroy(pointers: U64) -> None:
    """Give the messages back. The library has no call for several."""
    one: Callable[[int], None] = library().message_destroy
    for pointer in pointers.tolist():
        one(pointer)


def _owned(addresses: U64, lengths: U64) -> pa.Array[Any]:
    """The bytes at these addresses; null where the address is 0."""
    count = len(addresses)
    views = np.zeros((count, 4), np.int32)
    views[:, 0] = lengths.astype(np.int32)
    short = lengths <= _INLINE
    if short.any():
        _inline(views, addresses, lengths, np.flatnonzero(short & (lengths > 0)))
    # An offset has 31 bits, and memory may lie anywhere: a buffer for every region that there is something in.
    regions, region_of = np.unique(addresses[~short] >> np.uint64(_REGION_BITS), return_inverse=True)
    views[~short, 2] = region_of
    views[~short, 3] = (addresses[~short] & np.uint64((1 << _REGION_BITS) - 1)).astype(np.int32)
    longest = int(lengths.max(initial=0))
    buffers = [pa.foreign_buffer(int(region) << _REGION_BITS, (1 << _REGION_BITS) + longest) for region in regions]
    missing = addresses == 0
    valid = None if not missing.any() else pa.py_buffer(np.packbits(~missing, bitorder="little").data)
    viewed = pa.Array.from_buffers(pa.binary_view(), count, [valid, pa.py_buffer(views.data), *buffers])
    return viewed.cast(pa.binary())


def _inline(views: npt.NDArray[np.int32], addresses: U64, lengths: U64, rows: I64) -> None:
    """Values of up to 12 bytes lie in the view itself. Only whole words that have a byte of the value are read: what comes after it
    may be on a page that is not there."""
    lengths = lengths[rows]
    before = addresses[rows] & np.uint64(_WORD - 1)
    at = ((addresses[rows] - np.uint64(_FIRST_ADDRESS)) >> np.uint64(3)).astype(np.int64)
    words = np.zeros((3, len(rows)), np.uint64)
    words[0] = _MEMORY[at]
    for number in (1, 2):
        reached = before + lengths > np.uint64(_WORD * number)
        words[number, reached] = _MEMORY[at[reached] + number]
    low, high = _shifted(words[0], words[1], before), _shifted(words[1], words[2], before)
    low &= _first_bytes(lengths)
    high &= _first_bytes(np.where(lengths > _WORD, lengths - np.minimum(lengths, np.uint64(_WORD)), np.uint64(0)))
    places = views.view(np.uint32)
    places[rows, 1], places[rows, 2], places[rows, 3] = low & _LOW, low >> np.uint64(32), high & _LOW


def _shifted(word: U64, following: U64, by: U64) -> U64:
    """The eight bytes that begin so many bytes into a word."""
    bits = by << np.uint64(3)
    rest = np.where(by == 0, np.uint64(0), following << ((np.uint64(64) - bits) & np.uint64(63)))
    return cast(U64, np.bitwise_or(word >> bits, rest))


def _first_bytes(count: U64) -> U64:
    """A mask of so many."""
    bits = np.minimum(count, np.uint64(_WORD)) << np.uint64(3)
    every = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
    return np.where(bits == 64, every, (np.uint64(1) << (bits & np.uint64(63))) - np.uint64(1))


def _time(pointer: int) -> tuple[int, int]:
    kind = ctypes.c_int()
    return int(library().message_timestamp(pointer, ctypes.byref(kind))), kind.value


def _headers(pointer: int) -> list[dict[str, Any]] | None:
    found = ctypes.c_void_p()
    if library().message_headers(pointer, ctypes.byref(found)) != 0:
        return None
    name, value, size = ctypes.c_char_p(), ctypes.c_void_p(), ctypes.c_size_t()
    headers: list[dict[str, Any]] = []
    while (
        library().header_get_all(found, len(headers), ctypes.byref(name), ctypes.byref(value), ctypes.byref(size)) == 0
    ):
        content = None if value.value is None else ctypes.string_at(value.value, size.value)
        headers.append({"key": (name.value or b"").decode(errors="replace"), "value": content})
    return headers
