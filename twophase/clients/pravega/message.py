"""Messages of Protocol Buffers, as far as the controller's are: whole numbers, doubles, texts, and messages in messages.

    text(1, scope) + number(3, lease_ms)        a message is the bytes of its fields, one after the other
    Message(reply).number(1)                    a field that is not there is 0, or empty

Two dozen requests of a few fields each are shorter so than generated code, and need no compiler and no runtime.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ALL_BITS = (1 << 64) - 1


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; negative numbers as their two's complement in 64 bits."""
    rest, encoded = value & _ALL_BITS, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def number(field: int, value: int) -> bytes:
    return varint(field << 3 | _VARINT) + varint(value)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | _FIXED64) + struct.pack("<d", value)


def message(field: int, content: bytes) -> bytes:
    return varint(field << 3 | _BYTES) + varint(len(content)) + content


def text(field: int, value: str) -> bytes:
    return message(field, value.encode())


def numbers_by_number(field: int, entries: Mapping[int, int]) -> bytes:
    """A map of whole numbers: an entry is a message of a key and a value."""
    return b"".join(message(field, number(1, key) + number(2, value)) for key, value in sorted(entries.items()))


class Message:
    """The fields of a message that was received, by their numbers."""

    def __init__(self, data: bytes):
        self._numbers: dict[int, list[int]] = {}
        self._contents: dict[int, list[bytes]] = {}
        at = 0
        while at < len(data):
            key, at = _varint_at(data, at)
            field, kind = key >> 3, key & 7
            if kind == _VARINT:
                value, at = _varint_at(data, at)
                self._numbers.setdefault(field, []).append(_signed(value))
                continue
            if kind == _BYTES:
                length, at = _varint_at(data, at)
            elif kind in (_FIXED64, _FIXED32):
                length = 8 if kind == _FIXED64 else 4
            else:
                raise ValueError(f"a message has a field of kind {kind}, which nothing that is asked for has")
            if at + length > len(data):
                raise ValueError("a message ends within a field")
            self._contents.setdefault(field, []).append(data[at : at + length])
            at += length

    def number(self, field: int) -> int:
        return self._numbers.get(field, [0])[-1]

    def numbers(self, field: int) -> list[int]:
        """A repeated number: packed into one field, as a rule, or one by one."""
        found = list(self._numbers.get(field, ()))
        for packed in self._contents.get(field, ()):
            at = 0
            while at < len(packed):
                value, at = _varint_at(packed, at)
                found.append(_signed(value))
        return found

    def double(self, field: int) -> float:
        content = self._contents.get(field)
        return 0.0 if content is None else float(struct.unpack("<d", content[-1])[0])

    def text(self, field: int) -> str:
        return self._contents.get(field, [b""])[-1].decode()

    def message(self, field: int) -> Message:
        return Message(self._contents.get(field, [b""])[-1])

    def messages(self, field: int) -> Iterable[Message]:
        return [Message(content) for content in self._contents.get(field, ())]


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, and where the next thing does."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("a message ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & _ALL_BITS, at


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
