"""Events as they lie in segments: four bytes 0, four bytes of length (the highest first), and the content.

Columns of Arrow become such bytes, and bytes such columns, without a Python object for each event.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from twophase.errors import SchemaMismatch, Unreadable

HEADER_BYTES = 8
LARGEST_EVENT = 8 << 20
"""Of content: what Pravega's own clients write at the most."""
_BLOCK_BYTES = 1 << 20
_HEADER = struct.Struct(">ii")


@dataclass(frozen=True)
class Block:
    """A run of whole events."""

    data: memoryview
    events: int


def blocks_of(values: Any) -> Iterator[Block]:
    """The events of a column of bytes or text without nulls, in its order, in blocks of about a megabyte."""
    if not len(values):
        return
    joined = _framed(values)
    ends = np.frombuffer(joined.buffers()[1], np.int64)[joined.offset : joined.offset + len(joined) + 1]
    data = memoryview(joined.buffers()[2]).cast("B")
    at = 0
    while at < len(joined):
        # To the last event that ends within the block; a larger one is a block of its own.
        to = max(at + 1, int(np.searchsorted(ends, ends[at] + _BLOCK_BYTES, side="right")) - 1)
        yield Block(data[int(ends[at]) : int(ends[to])], to - at)
        at = to


def _framed(values: Any) -> Any:
    content = values.cast(pa.large_binary())
    lengths = pc.binary_length(content).to_numpy(zero_copy_only=False)
    if int(lengths.max()) > LARGEST_EVENT:
        raise SchemaMismatch(f"a value has {int(lengths.max())} bytes, and an event at most {LARGEST_EVENT}")
    headers = np.zeros((len(lengths), 2), ">i4")
    headers[:, 1] = lengths
    offsets = np.arange(len(lengths) + 1, dtype=np.int64) * HEADER_BYTES
    framed: Any = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(headers.tobytes())]
    )
    return pc.binary_join_element_wise(framed, content, pa.scalar(b"", pa.large_binary()))


@dataclass(frozen=True)
class Events:
    """Whole events that were read."""

    values: Any
    positions: Any
    """Where each begins, as numpy has it."""


def whole_events(data: bytes, begin: int, segment: str, *, most: int | None = None) -> list[int]:
    """Where events end in bytes that begin with one, the last of which may not be whole; at most so many."""
    ends = [0]
    at, size, unpack = 0, len(data), _HEADER.unpack_from
    while size - at >= HEADER_BYTES and (most is None or len(ends) <= most):
        kind, length = unpack(data, at)
        if kind != 0 or length < 0:
            raise Unreadable(
                f"{segment} has no event at {begin + at}: it is written to by something that does not write events"
            )
        at += HEADER_BYTES + length
        if at > size:
            break
        ends.append(at)
    return ends


def events_of(data: bytes, ends: list[int], begin: int) -> Events:
    """The events that end there."""
    bounds = np.array(ends, np.int64)
    # Headers and contents by turns; then every second one. (pyarrow's binary_slice fails where nothing is left of a value.)
    offsets = np.empty(2 * len(ends) - 1, np.int64)
    offsets[0::2], offsets[1::2] = bounds, bounds[:-1] + HEADER_BYTES
    both: Any = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)]
    )
    contents = both.take(np.arange(1, len(offsets), 2))
    return Events(contents.cast(pa.binary()), bounds[:-1] + begin)
