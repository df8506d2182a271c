"""A connection to a segment store: segments by their names, in its own wire protocol.

A frame is a type and a length (four bytes each, the highest first) and its content. Requests are answered in their order, on one
connection; a reply of another type than was asked for is a refusal. Every wait is bounded. A connection that was lost, or on which
an answer did not come in time, is of no use any more: whoever used it fails, and begins anew.

Segments are known by their names. Reading beyond the length of a segment that is not sealed would wait for more to come, so nobody
reads without having asked for the length.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from twophase.clients.pravega.controller import Controller
from twophase.clients.pravega.refusals import Refusal, SegmentRefused, no_connection
from twophase.clients.pravega.stream import Stream
from twophase.errors import TargetUnavailable

HELLO = -127
SETUP_APPEND, APPEND_SETUP = 1, 2
APPEND_BLOCK, APPEND_BLOCK_END = 3, 4
CONDITIONAL_APPEND = 5
DATA_APPENDED = 7
READ_SEGMENT, SEGMENT_READ = 9, 10
GET_SEGMENT_INFO, SEGMENT_INFO = 11, 12
TRUNCATE_SEGMENT, SEGMENT_TRUNCATED = 38, 39
MERGE_SEGMENTS, SEGMENTS_MERGED = 58, 59
KEEP_ALIVE = 100

_NEWEST, _OLDEST = 16, 5
"""Versions of the protocol: those that this client speaks."""
_FRAME = struct.Struct(">ii")
_LARGEST_FRAME = 64 << 20
_BUFFER = 1 << 20
_NAMES_FIRST = frozenset(refusal.value for refusal in Refusal) - {8, 55, 60, 61}
"""Refusals that say after the request's number which segment they are about."""


@dataclass(frozen=True)
class SegmentInfo:
    is_sealed: bool
    begin: int
    """What is before was truncated."""
    length: int


class SegmentStore:
    """One connection."""

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None, *, timeout_s: float):
        self.address = address
        self._requests = 0
        with no_connection(self._doing("connecting")):
            self._socket: socket.socket = socket.create_connection(address, timeout_s)
            try:
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if context is not None:
                    self._socket = context.wrap_socket(self._socket, server_hostname=address[0])
                self._replies = self._socket.makefile("rb", _BUFFER)
                self.send(HELLO, struct.pack(">ii", _NEWEST, _OLDEST))
                newest, oldest = struct.unpack_from(">ii", self.receive(HELLO))
            except BaseException:
                self._socket.close()
                raise
        if oldest > _NEWEST or newest < _OLDEST:
            self.close()
            raise TargetUnavailable(
                f"the segment store {address} speaks versions {oldest} to {newest} of its protocol, and this client "
                f"{_OLDEST} to {_NEWEST}"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if hasattr(self, "_replies"):
                self._replies.close()
        self._socket.close()

    # ---- segments ----

    def info(self, segment: str, token: str) -> SegmentInfo:
        reply = self._ask(GET_SEGMENT_INFO, SEGMENT_INFO, utf(segment) + utf(token), about=segment)
        _, is_sealed, _, _, length, begin = struct.unpack_from(">???qqq", reply, _after_utf(reply, 8))
        return SegmentInfo(is_sealed, begin, length)

    def length(self, segment: str, token: str) -> int | None:
        """None if there is no such segment."""
        try:
            return self.info(segment, token).length
        except SegmentRefused as error:
            if error.refusal is Refusal.NO_SEGMENT:
                return None
            raise

    def read(self, segment: str, begin: int, most: int, token: str) -> bytes:
        """Some bytes from there on, at least one; the segment is known to have them."""
        asked = utf(segment) + struct.pack(">qi", begin, most) + utf(token)
        self.send(READ_SEGMENT, asked + self._request())
        reply = self.receive(SEGMENT_READ, about=segment)
        at = _after_utf(reply, 0)
        found, _, _, length = struct.unpack_from(">q??i", reply, at)
        content = reply[at + 14 : at + 14 + length]
        if found != begin or not content:
            raise TargetUnavailable(f"{segment} gave {length} bytes at {found}, and was asked for some at {begin}")
        return content

    def merge(self, target: str, source: str, token: str) -> None:
        """Move the whole of `source` to the end of `target`; it is gone then."""
        asked = utf(target) + utf(source) + utf(token) + struct.pack(">i", 0)
        self._ask(MERGE_SEGMENTS, SEGMENTS_MERGED, asked, about=f"{source}, merged into {target}")

    def truncate(self, segment: str, begin: int, token: str) -> None:
        """Forget what is before."""
        asked = utf(segment) + struct.pack(">q", begin) + utf(token)
        self._ask(TRUNCATE_SEGMENT, SEGMENT_TRUNCATED, asked, about=segment)

    def append(self, segment: str, event: bytes, token: str) -> None:
        """Append one event, wherever the end is."""
        writer = uuid.uuid4().bytes
        self.set_up(segment, writer, token)
        self.send_block(writer, memoryview(_FRAME.pack(0, len(event)) + event), 1, 0)
        self.receive(DATA_APPENDED, about=segment)

    def append_at(self, segment: str, expected: int, event: bytes, token: str) -> bool:
        """Append one event, if the segment is exactly as long as expected; whether it was."""
        writer = uuid.uuid4().bytes
        self.set_up(segment, writer, token)
        framed = _FRAME.pack(0, len(event)) + event
        self.send(CONDITIONAL_APPEND, writer + struct.pack(">qq", 0, expected) + framed + self._request())
        try:
            self.receive(DATA_APPENDED, about=segment)
        except SegmentRefused as error:
            if error.refusal is Refusal.CONDITION_FAILED:
                return False
            raise
        return True

    def set_up(self, segment: str, writer: bytes, token: str) -> int:
        """Announce a writer; the number of its last event in the segment, which is below 0 if there is none."""
        reply = self._ask(SETUP_APPEND, APPEND_SETUP, writer + utf(segment) + utf(token), about=segment)
        return int(struct.unpack(">q", reply[-8:])[0])

    def send_block(self, writer: bytes, data: memoryview, events: int, last: int) -> None:
        """Whole events of a writer that was announced, the last of which has this number. The answer comes later."""
        end = writer + struct.pack(">iiiq", len(data), 0, events, last) + self._request()
        self.send_all(
            [
                _FRAME.pack(APPEND_BLOCK, len(writer) + len(data)) + writer,
                data,
                _FRAME.pack(APPEND_BLOCK_END, len(end)) + end,
            ]
        )

    # ---- frames ----

    def send(self, kind: int, content: bytes) -> None:
        self.send_all([_FRAME.pack(kind, len(content)) + content])

    def send_all(self, parts: list[bytes | memoryview]) -> None:
        with no_connection(self._doing("sending")):
            for part in parts:
                self._socket.sendall(part)

    def receive(self, kind: int, *, about: str = "") -> bytes:
        with no_connection(self._doing(f"waiting for an answer{about and ' about '}{about}")):
            while True:
                found, length = _FRAME.unpack(self._exactly(_FRAME.size))
                if not 0 <= length <= _LARGEST_FRAME:
                    raise ConnectionError(f"a frame of {length} bytes: this is no segment store")
                content = self._exactly(length)
                if found == kind:
                    return content
                if found != KEEP_ALIVE:
                    break
        raise _refused(found, content, about)

    def _exactly(self, length: int) -> bytes:
        content = self._replies.read(length) if length else b""
        if len(content) < length:
            raise ConnectionError("the segment store closed the connection")
        return content

    def _ask(self, request: int, reply: int, content: bytes, *, about: str) -> bytes:
        self.send(request, self._request() + content)
        return self.receive(reply, about=about)

    def _request(self) -> bytes:
        self._requests += 1
        return struct.pack(">q", self._requests)

    def _doing(self, what: str) -> str:
        host, port = self.address
        return f"{what} ({host}:{port})"


class SegmentStores:
    """Connections to the stores that have segments of one stream, one for each store, for as long as a question takes."""

    def __init__(self, controller: Controller, stream: Stream):
        self._controller, self._stream = controller, stream
        self._stores: dict[tuple[str, int], SegmentStore] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for store in self._stores.values():
            store.close()

    @property
    def token(self) -> str:
        return self._controller.token(self._stream).value

    def of(self, segment: int) -> SegmentStore:
        address = self._controller.node(self._stream, segment)
        if address not in self._stores:
            self._stores[address] = _connected(self._controller, address)
        return self._stores[address]


def connected(controller: Controller, stream: Stream, segment: int) -> SegmentStore:
    """A connection to the store that has this segment."""
    return _connected(controller, controller.node(stream, segment))


def _connected(controller: Controller, address: tuple[str, int]) -> SegmentStore:
    return SegmentStore(address, controller.ssl_context, timeout_s=controller.patience_s)


def utf(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def _after_utf(content: bytes, at: int) -> int:
    return at + 2 + int(struct.unpack_from(">H", content, at)[0])


def _refused(kind: int, content: bytes, about: str) -> SegmentRefused:
    try:
        refusal = Refusal(kind)
    except ValueError:
        refusal = Refusal.OTHER
    said = "" if kind in _NAMES_FIRST else content[16:].decode(errors="replace").strip()[:300]
    named = refusal.name if refusal is not Refusal.OTHER else f"a reply of type {kind}"
    return SegmentRefused(f"{about}: the segment store says {named} {said}".rstrip(), refusal=refusal)
