"""A proxy between a client and a server that loses replies, delays, and cuts, when a test says so.

    with TcpProxy(server_port, framing=kafka_frames, reply_framing=kafka_frames) as proxy:
        lost = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=kafka_request(26))      # EndTxn
        ...                                                                         # a client of 127.0.0.1:proxy.port
        proxy.wait_until_fired(lost)                                                # the proof: no fault, no pass

The reply that is lost is the case that commit protocols are about: the server has done what it was asked, and the client
can't know. Such a fault has fired when the server's reply has come, so what was asked is done by then; it is swallowed, and the
connection is cut (a reset, as when a machine dies) or hangs (nothing passes any more, as when a network does).

A request is what `framing` says; without one, a piece as it comes from the network, which for small messages is mostly one.
Several requests can be under way on one connection. With `reply_framing`, and a protocol that gives one reply a request in their
order, the replies to earlier ones still pass; without it, everything the server says from then on is swallowed.

A client that is told by the server where to connect, as Kafka's are, must be told the proxy's port: see
`twophase.testing.servers.kafka`.

What it can't do: know of connections that the system refuses while `refuse` is on; look into TLS. A server that is down looks like
one that accepts and resets.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self, TypeVar

from twophase.testing.framing import Framing, Splitter
from twophase.testing.servers.ports import LOOPBACK, free_ports

Result = TypeVar("Result")

_CHUNK = 1 << 16
_OBEYS_WITHIN_S = 30.0
_QUIET_TURNS = 5
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Direction(Enum):
    REQUESTS = "requests"
    REPLIES = "replies"


class Fault(Enum):
    """What can happen to a request, or to everything at once."""

    DROP_REPLY_AND_CUT = "delivered, its reply swallowed, then the connection reset"
    DROP_REPLY_AND_HANG = "delivered, its reply swallowed, then nothing passes any more"
    CUT_BEFORE = "never delivered, the connection reset"
    CUT_AFTER = "delivered, the connection reset without waiting for the reply"
    HOLD = "kept until release"
    DELAY = "kept for a time"
    CUT = "the connection reset"


_DROPS = (Fault.DROP_REPLY_AND_CUT, Fault.DROP_REPLY_AND_HANG)
_ARMABLE = (*_DROPS, Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.HOLD)


@dataclass(frozen=True, eq=False)
class Armed:
    """A fault that waits for its request; each call of `arm` makes another."""

    fault: Fault
    matching: Callable[[bytes], bool]
    occurrence: int | None
    """The how manyeth match it strikes, over all connections; None is every one."""


@dataclass(frozen=True)
class Fired:
    """A fault that has happened."""

    fault: Fault
    connection: int
    """Counted from 1, in the order in which clients connected."""
    message: bytes
    """The request that was struck, or the reply, for faults that strike replies alone."""
    reply: bytes = b""
    """What was swallowed; the first of it."""
    armed: Armed | None = None
    """None for what was switched on for all."""


def any_request(_: bytes) -> bool:
    return True


class TcpProxy:
    """Listens on a port of the loopback address, and passes everything on to another, until it is told otherwise."""

    def __init__(
        self,
        server_port: int,
        *,
        server_host: str = LOOPBACK,
        framing: Framing | None = None,
        reply_framing: Framing | None = None,
    ):
        self._server = (server_host, server_port)
        self._framing = framing
        self._reply_framing = reply_framing
        self._flowing = {direction: asyncio.Event() for direction in Direction}
        self._delays_ms = dict.fromkeys(Direction, 0.0)
        self._armed: dict[Armed, int] = {}
        """How often each has matched."""
        self._links: set[_Link] = set()
        self._connections = 0
        self._fired: list[Fired] = []
        self._happened = threading.Condition()
        self._broken: list[Exception] = []
        self._listening: asyncio.Server | None = None
        # Not any port: one that the system gives to clients could be taken while nobody listens, by the very client that tries.
        (self.port,) = free_ports(1)
        listener = socket.create_server((LOOPBACK, self.port))
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._unhandled)
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"tcp-proxy-{self.port}", daemon=True)
        self._thread.start()
        self._run(self._listen(listener))
        self.release()

    @property
    def fired(self) -> tuple[Fired, ...]:
        """Every fault so far, in order."""
        with self._happened:
            return tuple(self._fired)

    @property
    def connections(self) -> int:
        """How many are open now."""
        return sum(not link.is_cut for link in tuple(self._links))

    def arm(
        self, fault: Fault, *, matching: Callable[[bytes], bool] = any_request, occurrence: int | None = 1
    ) -> Armed:
        """Strike the request that is the `occurrence`-th to match from now on; with None, every one."""
        if fault not in _ARMABLE:
            raise ValueError(f"{fault} can't wait for a request; {', '.join(each.name for each in _ARMABLE)} can")
        if occurrence is not None and occurrence < 1:
            raise ValueError(f"the first occurrence is 1, not {occurrence}")
        armed = Armed(fault, matching, occurrence)
        self._do(lambda: self._armed.setdefault(armed, 0))
        return armed

    def hold(self, direction: Direction) -> None:
        """Keep everything that goes this way, until `release`."""
        self._do(self._flowing[direction].clear)

    def release(self) -> None:
        """Let everything go that is held, requests that an armed fault holds included."""

        def let_go() -> None:
            for flowing in self._flowing.values():
                flowing.set()
            for link in self._links:
                link.released.set()

        self._do(let_go)

    def delay(self, direction: Direction, delay_ms: float) -> None:
        """Keep each message that goes this way for so long, one after the other; 0 ends it."""
        self._do(lambda: self._delays_ms.update({direction: delay_ms}))

    def drop_replies(self, *, hang: bool = False) -> Armed:
        """Every request, from now on, is delivered, and its reply lost."""
        return self.arm(Fault.DROP_REPLY_AND_HANG if hang else Fault.DROP_REPLY_AND_CUT, occurrence=None)

    def cut(self) -> int:
        """Reset every connection now; how many they were."""

        def cut_all() -> int:
            links = [link for link in self._links if not link.is_cut]
            for link in links:
                self._record(Fired(Fault.CUT, link.number, b""))
                link.cut()
            return len(links)

        return self._do(cut_all)

    def refuse(self) -> None:
        """Nobody listens: the system refuses new connections. Those that are open stay."""

        def stop_listening() -> None:
            if self._listening is not None:
                self._listening.close()
            self._listening = None

        self._do(stop_listening)

    def accept(self) -> None:
        """Listen again, on the same port."""
        if self._listening is None:
            listener = socket.create_server((LOOPBACK, self.port))
            self._run(self._listen(listener))

    def pass_all(self) -> None:
        """End what was switched on: disarm, release, no delays, listen. What hangs or is cut stays so."""
        self._do(self._armed.clear)
        for direction in Direction:
            self.delay(direction, 0.0)
        self.release()
        self.accept()

    def wait_until_fired(self, armed: Armed, *, timeout_s: float = _OBEYS_WITHIN_S) -> Fired:
        """The first time that this fault fired; fails if it does not in time."""

        def found() -> Fired | None:
            return next((each for each in self._fired if each.armed is armed), None)

        with self._happened:
            fired = self._happened.wait_for(found, timeout_s)
        if fired is None:
            raise AssertionError(f"{armed.fault.name} did not fire within {timeout_s} s")
        return fired

    def close(self) -> None:
        """Reset what is open, and end; raises what went wrong in the proxy itself, if something did."""
        if self._loop.is_closed():
            return
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_OBEYS_WITHIN_S)
        self._loop.close()
        if self._broken:
            raise ExceptionGroup("the proxy itself failed", self._broken)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, function: Callable[[], Result]) -> Result:
        """Call a function in the proxy's thread."""

        async def call() -> Result:
            return function()

        return self._run(call())

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_OBEYS_WITHIN_S)

    # From here on everything runs in the proxy's thread: nothing needs a lock but what tests look at.

    async def _listen(self, listener: socket.socket) -> None:
        self._listening = await asyncio.start_server(self._connected, sock=listener)

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._broken.append(error if isinstance(error, Exception) else RuntimeError(str(context)))

    async def _end(self) -> None:
        if self._listening is not None:
            self._listening.close()
        quiet = 0
        while quiet < _QUIET_TURNS:
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for link in self._links:
                link.cut()
            if others:
                await asyncio.wait(others, timeout=0.1)
            # A client that was accepted in the last moment has a task one turn later; a socket is closed one turn after its task.
            await asyncio.sleep(0)
            quiet = 0 if others else quiet + 1

    async def _connected(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection, from its beginning to its end."""
        self._connections += 1
        link = _Link(self._connections, from_client, to_client, asyncio.current_task())
        self._links.add(link)
        try:
            await self._carry(link)
        except asyncio.CancelledError:
            if not link.is_cut:
                raise
        finally:
            await link.close()
            self._links.discard(link)

    async def _carry(self, link: _Link) -> None:
        try:
            await link.connect(*self._server)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry_requests(link))
                both.create_task(self._carry_replies(link))
        except* OSError:
            # One side has reset, or is not there; the other learns it in the same way.
            link.reset()
        except* Exception as failed:  # noqa: BLE001 - a framing or a predicate of the test's; close() raises it
            self._broken.extend(failed.exceptions)
            link.reset()

    async def _carry_requests(self, link: _Link) -> None:
        splitter = Splitter(self._framing)
        while data := await link.from_client.read(_CHUNK):
            for request in splitter.feed(data):
                await self._request(link, request)
        await link.deliver(splitter.rest())
        link.end_requests()

    async def _request(self, link: _Link, request: bytes) -> None:
        await self._gate(link, Direction.REQUESTS, request)
        if link.is_cut or link.is_silent:
            return
        armed = self._striking(request)
        if armed is None:
            await link.deliver(request)
        elif armed.fault is Fault.CUT_BEFORE:
            self._record(Fired(armed.fault, link.number, request, armed=armed))
            link.cut()
        elif armed.fault is Fault.CUT_AFTER:
            await link.deliver(request)
            self._record(Fired(armed.fault, link.number, request, armed=armed))
            link.cut()
        elif armed.fault is Fault.HOLD:
            link.released.clear()
            self._record(Fired(armed.fault, link.number, request, armed=armed))
            await link.released.wait()
            await link.deliver(request)
        else:
            # Before it is delivered: the reply may be faster than the next line.
            link.drop(armed, request, first=link.requests if self._reply_framing else link.replies)
            await link.deliver(request)

    async def _carry_replies(self, link: _Link) -> None:
        splitter = Splitter(self._reply_framing)
        while data := await link.from_server.read(_CHUNK):
            for reply in splitter.feed(data):
                await self._reply(link, reply)
        if rest := splitter.rest():
            await self._reply(link, rest)
        link.end_replies()

    async def _reply(self, link: _Link, reply: bytes) -> None:
        await self._gate(link, Direction.REPLIES, reply)
        dropped = link.dropped_with(reply)
        if dropped is None:
            await link.answer(reply)
            return
        self._record(dropped)
        if dropped.fault is Fault.DROP_REPLY_AND_CUT:
            link.cut()
        else:
            link.is_silent = True

    async def _gate(self, link: _Link, direction: Direction, message: bytes) -> None:
        if not self._flowing[direction].is_set():
            self._record(Fired(Fault.HOLD, link.number, message))
            await self._flowing[direction].wait()
        if delay_ms := self._delays_ms[direction]:
            self._record(Fired(Fault.DELAY, link.number, message))
            await asyncio.sleep(delay_ms / 1000)

    def _striking(self, request: bytes) -> Armed | None:
        """The armed fault whose turn this request is; a fault that strikes once is armed no more."""
        striking = None
        for armed in [armed for armed in self._armed if armed.matching(request)]:
            self._armed[armed] += 1
            if striking is None and armed.occurrence in (None, self._armed[armed]):
                striking = armed
        if striking is not None and striking.occurrence is not None:
            del self._armed[striking]
        return striking

    def _record(self, fired: Fired) -> None:
        with self._happened:
            self._fired.append(fired)
            self._happened.notify_all()


class _Link:
    """One client's connection, and the one to the server that belongs to it."""

    def __init__(
        self,
        number: int,
        from_client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        task: asyncio.Task[Any] | None,
    ):
        self.number = number
        self.from_client = from_client
        self.released = asyncio.Event()
        self.requests = 0
        """How many were delivered."""
        self.replies = 0
        """How many came."""
        self.is_cut = False
        self.is_silent = False
        """Nothing passes any more."""
        self._dropping: tuple[Armed, bytes, int] | None = None
        self._to_client = to_client
        self._writers = [to_client]
        self._task = task

    async def connect(self, host: str, port: int) -> None:
        self.from_server, self._to_server = await asyncio.open_connection(host, port)
        self._writers.append(self._to_server)
        for writer in self._writers:
            # A drain that returns then means that the system has taken all.
            writer.transport.set_write_buffer_limits(high=0)

    async def deliver(self, request: bytes) -> None:
        self.requests += 1
        await self._send(self._to_server, request)

    async def answer(self, reply: bytes) -> None:
        await self._send(self._to_client, reply)

    async def _send(self, writer: asyncio.StreamWriter, message: bytes) -> None:
        if message and not self.is_silent:
            writer.write(message)
            await writer.drain()

    def end_requests(self) -> None:
        """The client says no more; it may still listen."""
        if not self.is_silent:
            self._to_server.write_eof()

    def end_replies(self) -> None:
        if not self.is_silent:
            self._to_client.write_eof()

    def drop(self, armed: Armed, request: bytes, *, first: int) -> None:
        """Swallow every reply from this one on; what is under way already stays so."""
        if self._dropping is None:
            self._dropping = (armed, request, first)

    def dropped_with(self, reply: bytes) -> Fired | None:
        """The fault that has fired with this reply; None if it may pass."""
        self.replies += 1
        if self._dropping is None or self.is_silent or self.replies <= self._dropping[2]:
            return None
        armed, request, _ = self._dropping
        return Fired(armed.fault, self.number, request, reply=reply, armed=armed)

    def cut(self) -> None:
        """Reset both sides, and end what waits for something on this connection."""
        if not self.is_cut:
            self.is_cut = True
            self.reset()
            if self._task is not None:
                self._task.cancel()

    def reset(self) -> None:
        for writer in self._writers:
            connection = writer.get_extra_info("socket")
            if connection.fileno() >= 0:  # the side that has reset is closed
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
                writer.transport.abort()

    async def close(self) -> None:
        self._task = None  # nothing waits any more that a cut would have to end
        for writer in self._writers:
            writer.close()
            with suppress(OSError):  # a side that has reset is closed, too
                await writer.wait_closed()
