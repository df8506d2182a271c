"""Frames: what a segment of the journal consists of, one for each time that something was received and made durable.

::

    magic  payload bytes  lines  number of the first line  received at, µs  crc32 │ the lines, each with its end

A frame is written whole, and synced, before the next one is written. So when a process or a machine dies, all frames but the last
are whole; and a last one that is not was neither offered to a query nor acknowledged to a sender.

The checksum is over the name of the segment too, which nobody can guess: a line that looks like a frame is not taken for one.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

_HEADER = struct.Struct("<4sIIqqI")
_MAGIC = b"2PL1"
HEADER_BYTES = _HEADER.size
_LOOK_BYTES = 1 << 16


@dataclass(frozen=True)
class Frame:
    """Where a frame lies, and what its header says."""

    byte: int
    payload_bytes: int
    lines: int
    first_line: int
    received_us: int
    crc: int

    @property
    def end_byte(self) -> int:
        return self.byte + HEADER_BYTES + self.payload_bytes

    @property
    def end_line(self) -> int:
        return self.first_line + self.lines

    def fits(self, payload: bytes, segment: str) -> bool:
        """Whether it is what was written to that segment: all of it, and nothing else."""
        return len(payload) == self.payload_bytes and self.crc == _crc(
            segment, self.lines, self.first_line, self.received_us, payload
        )


def encode(payload: bytes, *, segment: str, lines: int, first_line: int, received_us: int) -> bytes:
    crc = _crc(segment, lines, first_line, received_us, payload)
    return _HEADER.pack(_MAGIC, len(payload), lines, first_line, received_us, crc) + payload


def frame_at(data: bytes, at: int, byte: int) -> Frame | None:
    """The frame whose header is at place `at` of `data`, which is the byte `byte` of its segment; None if none is there."""
    if len(data) - at < HEADER_BYTES:
        return None
    magic, payload_bytes, lines, first_line, received_us, crc = _HEADER.unpack_from(data, at)
    if magic != _MAGIC or lines == 0 or payload_bytes < lines:
        return None
    return Frame(byte, payload_bytes, lines, first_line, received_us, crc)


def frames(file: int, *, byte: int, first_line: int, end_byte: int) -> Iterator[Frame]:
    """The frames of an open segment, one after the other, by their headers alone; ends where there is none, or at `end_byte`.

    Whoever needs more than it gives knows that something is wrong.
    """
    data, begin = b"", byte
    while byte + HEADER_BYTES <= end_byte:
        if byte - begin + HEADER_BYTES > len(data):
            data, begin = os.pread(file, _LOOK_BYTES, byte), byte
        frame = frame_at(data, byte - begin, byte)
        if frame is None or frame.first_line != first_line or frame.end_byte > end_byte:
            return
        yield frame
        byte, first_line = frame.end_byte, frame.end_line


def payload_of(file: int, frame: Frame, segment: str) -> bytes | None:
    """The lines of a frame; None if they are not what was written."""
    payload = os.pread(file, frame.payload_bytes, frame.byte + HEADER_BYTES)
    return payload if frame.fits(payload, segment) else None


def whole_frame_after(data: bytes, first_line: int, segment: str) -> bool:
    """Whether a frame with lines from `first_line` on is whole somewhere in `data`."""
    at = data.find(_MAGIC)
    while at >= 0:
        frame = frame_at(data, at, at)
        payload = b"" if frame is None else data[at + HEADER_BYTES : frame.end_byte]
        if frame is not None and frame.first_line >= first_line and frame.fits(payload, segment):
            return True
        at = data.find(_MAGIC, at + 1)
    return False


def _crc(segment: str, lines: int, first_line: int, received_us: int, payload: bytes) -> int:
    header = _HEADER.pack(_MAGIC, len(payload), lines, first_line, received_us, 0)
    return zlib.crc32(payload, zlib.crc32(header, zlib.crc32(segment.encode())))
