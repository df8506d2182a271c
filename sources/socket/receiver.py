"""Receiver: the thread that takes lines from a socket into the journal, in the process that plans the query.

It connects, and connects again, for as long as the query runs. A process has one for each journal, whichever source object asks:
Spark has a process of its own for the source of a query, and ends it when the query stops. If that process dies, the next one
begins with a new receiver, and the journal says where.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

from twophase.errors import OptionError, TargetUnavailable, Unreadable
from twophase.log import Log
from twophase.sources.socket import conversation
from twophase.sources.socket.journal import Journal
from twophase.sources.socket.options import SocketSourceOptions
from twophase.sources.socket.writer import JournalWriter

RECEIVE_BYTES = 1 << 20
MOST_FRAME_BYTES = 4 << 20
_POLL_S = 0.1
_CONNECTS_WITHIN_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0
_STOPS_WITHIN_S = 10.0
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))
"""A sender whose machine has died says nothing, and would be listened to for ever."""

log = Log("twophase.sources.socket")


class ConnectionEnded(Exception):
    """The sender has closed the connection, or it broke."""


class Receiver:
    """Receives until it is stopped, or can't go on; then `durable` raises what was wrong."""

    def __init__(self, journal: Journal, options: SocketSourceOptions):
        _require_same_way(journal, options)
        self.options = options
        self.process = os.getpid()
        self._sender = f"{options.host}:{options.port}"
        self._writer = JournalWriter(journal, segment_bytes=options.segment_bytes)
        self._durable = self._writer.lines
        self._error: Exception | None = None
        self._stopping = threading.Event()
        self._room = threading.Event()
        self._pause_s = _FIRST_PAUSE_S
        self._thread = threading.Thread(target=self._run, name=f"twophase-socket {self._sender}", daemon=True)
        self._thread.start()

    @property
    def error(self) -> Exception | None:
        """Why it does not go on."""
        return self._error

    @property
    def durable(self) -> int:
        """How many lines the journal has that nobody can take away any more."""
        return self._durable

    def more_room(self) -> None:
        """Something was deleted from the journal."""
        self._room.set()

    def stop(self) -> None:
        self._stopping.set()
        self._room.set()
        self._thread.join(_STOPS_WITHIN_S)

    # ---- the thread ----

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                connection = self._connected()
                if connection is not None:
                    with closing(connection):
                        self._listen(_Conversation(connection))
        except Exception as error:  # noqa: BLE001 - it is raised where the query asks next
            log.error("receiving ended", sender=self._sender, why=str(error))
            self._error = error
        finally:
            self._writer.close()

    def _connected(self) -> socket.socket | None:
        """A connection; None when stopping."""
        deadline = time.monotonic() + self.options.connect_timeout_ms / 1000
        told = False
        while not self._stopping.is_set():
            try:
                connection = socket.create_connection(
                    (self.options.host, self.options.port), timeout=_CONNECTS_WITHIN_S
                )
            except OSError as error:
                if self.options.connect_timeout_ms and time.monotonic() > deadline:
                    raise TargetUnavailable(
                        f"no connection to the sender at {self._sender} within {self.options.connect_timeout_ms} ms ({error}): "
                        "start it, mend host and port, or set connectTimeoutMs to 0 to wait for ever. What was received is safe"
                    ) from error
                if not told:
                    log.warning("no connection; trying again", sender=self._sender, why=str(error))
                    told = True
                self._pause()
            else:
                log.info("connected", sender=self._sender, lines=self._durable)
                return connection
            self._writer.look()
        return None

    def _pause(self) -> None:
        """Before the next try."""
        self._stopping.wait(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _listen(self, sender: _Conversation) -> None:
        """Take lines until the connection ends."""
        before = self._durable
        try:
            skipped = self._begun(sender) if self.options.acknowledge else 0
            while not self._stopping.is_set():
                # The first time, what came together with the sender's first words.
                for payload, lines in self._whole_lines(sender.received):
                    self._wait_for_room()
                    left_out = min(skipped, lines)
                    skipped -= left_out
                    self._take(*_without(payload, lines, left_out))
                    if self.options.acknowledge:
                        sender.acknowledge(self._following)
                self._wait_for_room()
                if self.options.acknowledge:
                    sender.acknowledge(self._following)
                if not sender.receive():
                    # A sender may be silent: a receiver that was overtaken ends all the same, and its query with it.
                    self._writer.look()
        except ConnectionEnded as ended:
            log.warning("the connection ended", sender=self._sender, why=str(ended))
            if sender.received:
                # Nobody can tell a line without its end from the beginning of one.
                log.warning(
                    "it ended within a line, which is left out", sender=self._sender, bytes=len(sender.received)
                )
        if self._durable > before:
            self._pause_s = _FIRST_PAUSE_S
        else:
            self._pause()

    @property
    def _following(self) -> int:
        """The number of the line that is to come next, in the stream of the sender."""
        return self._writer.state.base + self._durable

    def _begun(self, sender: _Conversation) -> int:
        """Say what the journal has, and hear what the sender has; how many of its lines are in the journal already."""
        state, deadline = self._writer.state, time.monotonic() + self.options.connect_timeout_ms / 1000
        sender.say(conversation.greeting(state.journal, state.stream, self._following))
        while b"\n" not in sender.received and len(sender.received) <= conversation.MOST_HEADER_BYTES:
            if self._stopping.is_set():
                raise ConnectionEnded("stopped")
            if self.options.connect_timeout_ms and time.monotonic() > deadline:
                raise TargetUnavailable(
                    f"the sender at {self._sender} was connected to, and has said nothing for {self.options.connect_timeout_ms} "
                    "ms. Does it speak the protocol that acknowledge=true asks for, and does it serve new connections?"
                )
            sender.receive()
            self._writer.look()
        line, _, rest = bytes(sender.received).partition(b"\n")
        sender.received[:] = rest
        begin = conversation.begin_of(line, self._sender)
        skipped = conversation.require_following(begin, state.stream, self._following, self._sender)
        if state.stream is None:
            # Before its first line is in the journal: a line whose number is not known would be taken again.
            self._writer.bind(begin.stream, begin.first - self._durable)
        return skipped

    def _wait_for_room(self) -> None:
        told = False
        while self._writer.kept_bytes >= self.options.max_journal_bytes and not self._stopping.is_set():
            if not told:
                log.info("the journal is full: waiting until the query has processed some of it", sender=self._sender)
                told = True
            self._room.wait(_POLL_S)
            self._room.clear()
            self._writer.look()

    def _whole_lines(self, received: bytearray) -> Iterator[tuple[bytes, int]]:
        """The whole lines at the beginning of what was received, taken from it, as many at once as a frame may hold; ends with an
        error at one that is too long."""
        most = self.options.max_line_bytes
        end = received.rfind(b"\n") + 1
        too_long = _first_longer(received[:end], most) if end > most else None
        payload = bytes(received[: end if too_long is None else too_long])
        del received[: len(payload)]
        while payload:
            # A frame is never longer than a segment should be: else a journal that is full could not be emptied.
            cut = len(payload)
            if cut > self.options.segment_bytes:
                cut = payload.rfind(b"\n", 0, self.options.segment_bytes) + 1 or payload.index(b"\n") + 1
            yield payload[:cut], payload.count(b"\n", 0, cut)
            payload = payload[cut:]
        if too_long is not None or len(received) > most:
            raise Unreadable(
                f"the sender at {self._sender} has sent a line of more than {most} bytes, which is maxLineBytes: raise it (and "
                "segmentBytes, if need be), or mend the sender"
            )

    def _take(self, payload: bytes, lines: int) -> None:
        if lines and not self._stopping.is_set():
            self._writer.add(payload, lines, time.time_ns() // 1000)
            self._durable = self._writer.lines


class _Conversation:
    """A connection to a sender: what came from it and is not taken yet, and what it was told.

    Its errors are told apart from those of the disk, which are of the same type.
    """

    def __init__(self, connection: socket.socket):
        self.received = bytearray()
        self._connection = connection
        self._told: int | None = None
        self._unsaid = b""
        # Not by a time-out: with one, Python waits even where the system is told not to.
        connection.setblocking(False)
        self._readable = select.poll()
        self._readable.register(connection, select.POLLIN)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def receive(self) -> bool:
        """Wait a moment for bytes, and take all that have come; whether there were any."""
        if not self._readable.poll(1000 * _POLL_S):
            return False
        data = self._received()
        if data == b"":
            raise ConnectionEnded("closed by the sender")
        # What came while the last lines were being synced goes into one frame. An end is heard of again, by the next call.
        begun = len(self.received)
        while data:
            self.received += data
            data = self._received() if len(self.received) < MOST_FRAME_BYTES else None
        return len(self.received) > begun

    def _received(self) -> bytes | None:
        try:
            return self._connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionEnded(str(error)) from error

    def say(self, text: bytes) -> None:
        try:
            sent = self._connection.send(text)
        except OSError as error:
            raise ConnectionEnded(str(error)) from error
        if sent < len(text):
            raise ConnectionEnded("a new connection takes no words")

    def acknowledge(self, following: int) -> None:
        """Tell the sender, unless it knows. A sender that does not listen is not waited for: a later one says more."""
        if self._told == following and not self._unsaid:
            return
        text = self._unsaid or conversation.acknowledgement(following)
        try:
            sent = self._connection.send(text)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionEnded(str(error)) from error
        if not self._unsaid:
            self._told = following
        self._unsaid = text[sent:]


def receiving(journal: Journal, options: SocketSourceOptions) -> Receiver:
    """The receiver of this process for a journal, which begins if it was not there; raises why the last one has ended, once."""
    with _lock:
        running = _running(journal.folder)
        if running is not None and _way_of(running.options) != _way_of(options):
            running.stop()
            running = None
        if running is None:
            running = _receivers[journal.folder] = Receiver(journal, options)
        return running


def running_receiver(folder: str) -> Receiver | None:
    """The receiver of this process for the journal in a folder, if there is one; raises why it has ended, once."""
    with _lock:
        return _running(folder)


def _running(folder: str) -> Receiver | None:
    running = _receivers.get(folder)
    if running is None or running.process != os.getpid():
        return None  # or that of the process that this one was forked from
    if running.error is not None:
        del _receivers[folder]
        raise running.error
    return running


def stop_receiving(folder: str) -> None:
    with _lock:
        running = _receivers.pop(folder, None)
    if running is not None and running.process == os.getpid():
        running.stop()


def _way_of(options: SocketSourceOptions) -> tuple[object, ...]:
    """What a receiver is set to."""
    return (
        options.host,
        options.port,
        options.acknowledge,
        options.segment_bytes,
        options.max_journal_bytes,
        options.max_line_bytes,
        options.connect_timeout_ms,
    )


def _require_same_way(journal: Journal, options: SocketSourceOptions) -> None:
    stream = journal.made().stream
    if stream is not None and not options.acknowledge:
        problem = (
            f"the journal {journal.folder} holds lines of the stream {stream!r}, whose sender is told what is safe: acknowledge "
            "must stay true, or lines would be doubled"
        )
        raise OptionError(f"1 problem with the options: {problem}", problems=[problem])


def _without(payload: bytes, lines: int, left_out: int) -> tuple[bytes, int]:
    """Lines without the first ones of them."""
    if left_out == lines:
        return b"", 0
    begin = 0
    for _ in range(left_out):
        begin = payload.index(b"\n", begin) + 1
    return payload[begin:], lines - left_out


def _first_longer(payload: bytearray, most: int) -> int | None:
    """Where the first line begins that is longer than it may be."""
    begin = 0
    while (end := payload.find(b"\n", begin)) >= 0:
        if end - begin > most:
            return begin
        begin = end + 1
    return None


_receivers: dict[str, Receiver] = {}
_lock = threading.Lock()
