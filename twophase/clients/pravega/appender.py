"""Appends events to one segment, block by block, and knows which of them are on disk.

A block is a run of whole events. Some are on their way at any time; `flush` returns when the segment store has acknowledged all,
and that is its promise that they outlive it. A connection that is lost is not made again: nobody could tell which blocks arrived,
so whoever writes gives its segment up.
"""

from __future__ import annotations

import struct
import time
import uuid
from collections import deque

from twophase.clients.pravega.controller import Controller, Token
from twophase.clients.pravega.events import Block
from twophase.clients.pravega.segment_store import DATA_APPENDED, connected
from twophase.clients.pravega.stream import Stream
from twophase.errors import TargetUnavailable

_ON_THEIR_WAY = 8


class Appender:
    def __init__(self, controller: Controller, stream: Stream, segment: int, name: str):
        """`name` is the segment's, or that of a transaction's segment beside it."""
        self._controller, self._stream, self._name = controller, stream, name
        self._writer = uuid.uuid4().bytes
        self._store = connected(controller, stream, segment)
        self._waiting: deque[int] = deque()
        self._last = -1
        self.length = 0
        """Of all that was handed over."""
        self._token = Token("", 0.0)
        try:
            self._set_up()
        except BaseException:
            self._store.close()
            raise

    def append(self, block: Block) -> None:
        if time.monotonic() > self._token.renew_at_s:
            # A segment store lets nobody in by a token that is over, in the middle of an append either.
            self.flush()
            self._set_up()
        self._last += block.events
        self._store.send_block(self._writer, block.data, block.events, self._last)
        self.length += len(block.data)
        self._waiting.append(self._last)
        while len(self._waiting) >= _ON_THEIR_WAY:
            self._await_one()

    def flush(self) -> None:
        while self._waiting:
            self._await_one()

    def close(self) -> None:
        self._store.close()

    def _await_one(self) -> None:
        """One acknowledgement is for all events up to the one that it names."""
        (done,) = struct.unpack_from(">q", self._store.receive(DATA_APPENDED, about=self._name), len(self._writer))
        while self._waiting and self._waiting[0] <= done:
            self._waiting.popleft()

    def _set_up(self) -> None:
        self._token = self._controller.token(self._stream)
        last = max(self._store.set_up(self._name, self._writer, self._token.value), -1)
        if last != self._last:
            raise TargetUnavailable(
                f"{self._name} has {last + 1} events of this writer, which has written {self._last + 1}"
            )
