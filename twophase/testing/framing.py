"""Where one message ends and the next begins, for a proxy that is to match whole requests.

A *framing* looks at bytes that begin with a message and says how long that message is; 0 if it can't tell yet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

Framing = Callable[[bytes], int]

_LENGTH = struct.Struct(">I")


def kafka_frames(buffer: bytes) -> int:
    """Kafka: four bytes of length, which do not count themselves; requests and replies alike, one reply a request, in order."""
    return 0 if len(buffer) < 4 else 4 + _LENGTH.unpack_from(buffer)[0]


def kafka_request(api_key: int) -> Callable[[bytes], bool]:
    """Whether a frame of Kafka's asks for this, by its number: 0 is Produce, 22 InitProducerId, 26 EndTxn."""
    return lambda frame: len(frame) >= 6 and int.from_bytes(frame[4:6], "big", signed=True) == api_key


def postgres_messages(buffer: bytes) -> int:
    """What clients say to PostgreSQL: a letter and a length that counts itself; the first messages have no letter.

    No letter is a zero byte, and no first message is so long that its length begins otherwise. With TLS there is nothing to see.
    """
    start = 0 if buffer[:1] == b"\0" else 1
    return 0 if len(buffer) < start + 4 else start + _LENGTH.unpack_from(buffer, start)[0]


class Splitter:
    """Cuts a stream of bytes into messages; without a framing, each piece is a message as it came."""

    def __init__(self, framing: Framing | None):
        self._framing = framing
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are complete now."""
        if self._framing is None:
            yield data
            return
        self._buffer += data
        while self._buffer and 0 < (length := self._framing(self._buffer)) <= len(self._buffer):
            message, self._buffer = self._buffer[:length], self._buffer[length:]
            yield message

    def rest(self) -> bytes:
        """What the stream ended with, in the middle of a message."""
        rest, self._buffer = self._buffer, b""
        return rest
