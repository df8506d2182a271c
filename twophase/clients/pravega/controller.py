"""The controller: streams, their segments, and transactions, by gRPC.

::

    begin ─► OPEN ─── commit ──► COMMITTING ──► COMMITTED         ping: the lease begins again
               │
               └── abort, or the lease is over ──► ABORTING ──► ABORTED

A transaction's id is 32 hexadecimal digits, as in the names of its segments. Some hours after its end (24, unless the controller is
told otherwise) the controller has forgotten it: it is then UNKNOWN, as one that never was.

Every call is bounded in time. Those that can be repeated are, for as long as the patience lasts, while the controller can't be
reached. `begin` is not: what it began when its reply was lost, nobody knows the name of, and it ends with its lease.
"""

from __future__ import annotations

import base64
import binascii
import enum
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twophase.clients.pravega.access import Access
from twophase.clients.pravega.message import Message, double, message, number, numbers_by_number, text
from twophase.clients.pravega.refusals import NoStream, explained, is_passing, rpc_error
from twophase.clients.pravega.stream import KeyRange, Stream
from twophase.errors import TargetUnavailable

_SERVICE = "/io.pravega.controller.stream.api.grpc.v1.ControllerService/"
_ANSWERS_WITHIN_S = 15.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.5
_READ_WRITE = 5
_NO_TIME = -(2**63)
_TOKEN_LIVES_S = 300.0
"""If the token does not say it."""
_SCALES_WITHIN_S = 60.0


class State(enum.Enum):
    """Of a transaction."""

    UNKNOWN = 0
    OPEN = 1
    COMMITTING = 2
    COMMITTED = 3
    ABORTING = 4
    ABORTED = 5


class Ping(enum.Enum):
    """What the controller says to a ping."""

    OK = 0
    LEASE_TOO_LARGE = 1
    MAX_EXECUTION_TIME_EXCEEDED = 2
    SCALE_GRACE_TIME_EXCEEDED = 3
    DISCONNECTED = 4
    COMMITTED = 5
    ABORTED = 6
    UNKNOWN = 7


@dataclass(frozen=True)
class Begun:
    """A transaction, and the segments that it writes beside."""

    transaction: str
    ranges: tuple[KeyRange, ...]
    """In the order of their keys."""


@dataclass(frozen=True)
class Token:
    """What a segment store lets one in by; empty where nothing is asked for."""

    value: str
    renew_at_s: float


class Pauses:
    """Between two looks: short at first, since most of what is waited for takes milliseconds."""

    def __init__(self) -> None:
        self._next_s = _SHORTEST_PAUSE_S

    def take(self) -> None:
        time.sleep(self._next_s)
        self._next_s = min(1.5 * self._next_s, _LONGEST_PAUSE_S)


class Controller:
    def __init__(self, access: Access, *, patience_s: float):
        self.access, self.patience_s = access, patience_s
        self.ssl_context = access.ssl_context()
        self._channel = access.channel()
        self._tokens: dict[Stream, Token] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        self._channel.close()

    # ---- streams ----

    def create_scope(self, scope: str) -> None:
        """Nothing, if it is there."""
        self._require(self._ask("createScope", text(1, scope)), (0, 2), f"creating the scope {scope}")

    def create_stream(self, stream: Stream, segments: int) -> None:
        """With a fixed number of segments; nothing, if it is there."""
        config = message(1, _info(stream)) + message(2, number(4, segments))
        self._require(self._ask("createStream", config), (0, 2), f"creating the stream {stream}")

    def is_there(self, stream: Stream) -> bool:
        return bool(self._ask("checkStreamExists", _info(stream)).number(1))

    def streams(self, scope: str) -> list[Stream]:
        """All of a scope."""
        found, token = list[Stream](), ""
        while True:
            page = self._ask("listStreamsInScope", message(1, text(1, scope)) + message(2, text(1, token)))
            self._require_status(page.number(3), (0,), f"listing the streams of {scope}")
            names = [Stream(each.text(1), each.text(2)) for each in page.messages(1)]
            if not names:
                return found
            found += names
            token = page.message(2).text(1)

    def seal_stream(self, stream: Stream) -> None:
        self._require(self._ask("sealStream", _info(stream)), (0,), f"sealing the stream {stream}")

    def delete_stream(self, stream: Stream) -> None:
        self._require(self._ask("deleteStream", _info(stream)), (0, 2), f"deleting the stream {stream}")

    def truncate_stream(self, stream: Stream, cut: Mapping[int, int]) -> None:
        asked = message(1, _info(stream)) + numbers_by_number(2, cut)
        self._require(self._ask("truncateStream", asked), (0,), f"truncating the stream {stream}")

    def current(self, stream: Stream) -> tuple[KeyRange, ...]:
        """The segments that are written to now, in the order of their keys."""
        ranges = _ranges(self._ask("getCurrentSegments", _info(stream)), 1)
        if not ranges and not self.is_there(stream):
            raise NoStream(f"there is no stream {stream}")
        return ranges

    def head(self, stream: Stream) -> dict[int, int]:
        """The oldest segments that are there, and where each begins."""
        found = self._ask("getSegments", message(1, _info(stream)))
        return {each.message(1).number(2): each.number(2) for each in found.messages(1)}

    def successors(self, stream: Stream, segment: int) -> dict[int, frozenset[int]]:
        """The segments that took this one's place when it was sealed, and all whose place each of them took."""
        found = self._ask("getSegmentsImmediatelyFollowing", message(1, _info(stream)) + number(2, segment))
        return {each.message(1).message(1).number(2): frozenset(each.numbers(2)) for each in found.messages(1)}

    def scale(self, stream: Stream, sealed: Sequence[int], ranges: Sequence[tuple[float, float]]) -> None:
        """Put segments with these ranges of keys in the place of others; returns when that is done."""
        asked = message(1, _info(stream))
        asked += b"".join(number(2, segment) for segment in sealed)
        asked += b"".join(message(3, double(1, low) + double(2, high)) for low, high in ranges)
        begun = self._ask("scale", asked + number(4, time.time_ns() // 1_000_000))
        self._require(begun, (0,), f"scaling the stream {stream}")
        deadline, pauses = time.monotonic() + _SCALES_WITHIN_S, Pauses()
        while self._ask("checkScale", message(1, _info(stream)) + number(2, begun.number(3))).number(1) != 1:
            if time.monotonic() > deadline:
                raise TargetUnavailable(f"the stream {stream} is not scaled after {_SCALES_WITHIN_S:.0f} s")
            pauses.take()

    # ---- segment stores ----

    def node(self, stream: Stream, segment: int) -> tuple[str, int]:
        """Where the segment store is that has this segment, and its transactions'."""
        found = self._ask("getURI", message(1, _info(stream)) + number(2, segment))
        return found.text(1), found.number(2)

    def token(self, stream: Stream) -> Token:
        """Lets one into the segments of a stream. It is asked for again when half of its life is over."""
        if not self.access.is_authenticated:
            return Token("", float("inf"))
        with self._lock:
            known = self._tokens.get(stream)
        if known is None or time.monotonic() > known.renew_at_s:
            found = self._ask("getDelegationToken", _info(stream) + number(3, _READ_WRITE)).text(1)
            known = Token(found, time.monotonic() + _lives_s(found) / 2)
            with self._lock:
                self._tokens[stream] = known
        return known

    # ---- transactions ----

    def begin(self, stream: Stream, lease_ms: int) -> Begun:
        """Begin a transaction."""
        found = self._ask("createTransaction", message(1, _info(stream)) + number(2, lease_ms), repeat=False)
        high, low = found.message(1).number(1), found.message(1).number(2)
        return Begun(f"{high & 2**64 - 1:016x}{low & 2**64 - 1:016x}", _ranges(found, 2))

    def ping(self, stream: Stream, transaction: str, lease_ms: int) -> Ping:
        asked = _transaction(stream, transaction) + number(3, lease_ms)
        return Ping(self._ask("pingTransaction", asked).number(1))

    def commit(self, stream: Stream, transaction: str) -> bool:
        """Whether the transaction is COMMITTING, or COMMITTED, from here on: it can't be anything else any more. Otherwise its
        state tells."""
        return self.commit_all(stream, [transaction]) == [True]

    def commit_all(self, stream: Stream, transactions: Sequence[str]) -> list[bool]:
        asked = [_transaction(stream, each) + number(4, _NO_TIME) for each in transactions]
        return [reply.number(1) == 0 for reply in self._ask_all("commitTransaction", asked)]

    def abort(self, stream: Stream, transactions: Sequence[str]) -> None:
        """Ask for it, all at once; what became of each its state tells."""
        self._ask_all("abortTransaction", [_transaction(stream, each) for each in transactions])

    def states(self, stream: Stream, transactions: Sequence[str]) -> dict[str, State]:
        found = self._ask_all("checkTransactionState", [_transaction(stream, each) for each in transactions])
        return {each: State(reply.number(1)) for each, reply in zip(transactions, found, strict=True)}

    def state(self, stream: Stream, transaction: str) -> State:
        return self.states(stream, [transaction])[transaction]

    def settled(self, stream: Stream, transactions: Sequence[str], *, within_s: float) -> dict[str, State]:
        """Their states, as soon as none is on its way to its end any more, or after that time."""
        deadline, pauses = time.monotonic() + within_s, Pauses()
        while True:
            found = self.states(stream, transactions)
            moving = [each for each, state in found.items() if state in (State.COMMITTING, State.ABORTING)]
            if not moving or time.monotonic() > deadline:
                return found
            pauses.take()

    # ---- inside ----

    def _ask(self, name: str, request: bytes, *, repeat: bool = True) -> Message:
        return self._ask_all(name, [request], repeat=repeat)[0]

    def _ask_all(self, name: str, requests: Sequence[bytes], *, repeat: bool = True) -> list[Message]:
        """The replies to the requests, which are on their way at the same time."""
        call = self._channel.unary_unary(_SERVICE + name)
        deadline, pauses = time.monotonic() + self.patience_s, Pauses()
        replies: dict[int, Message] = {}
        while True:
            failure = None
            waiting = {
                at: call.future(request, timeout=_ANSWERS_WITHIN_S, metadata=self.access.metadata())
                for at, request in enumerate(requests)
                if at not in replies
            }
            for at, reply in waiting.items():
                try:
                    replies[at] = Message(reply.result())
                except rpc_error() as error:
                    failure = error
            if failure is None:
                return [replies[at] for at in range(len(requests))]
            if not (repeat and is_passing(failure) and time.monotonic() < deadline):
                raise explained(failure, f"asking the controller {self.access.controller} ({name})") from failure
            pauses.take()

    def _require(self, reply: Message, fine: tuple[int, ...], doing: str) -> None:
        self._require_status(reply.number(1), fine, doing)

    def _require_status(self, status: int, fine: tuple[int, ...], doing: str) -> None:
        if status not in fine:
            raise TargetUnavailable(f"{doing}: the controller refused (status {status})")


def _info(stream: Stream) -> bytes:
    return text(1, stream.scope) + text(2, stream.name)


def _transaction(stream: Stream, transaction: str) -> bytes:
    high, low = int(transaction[:16], 16), int(transaction[16:], 16)
    return message(1, _info(stream)) + message(2, number(1, high) + number(2, low))


def _ranges(found: Message, field: int) -> tuple[KeyRange, ...]:
    ranges = [KeyRange(each.message(1).number(2), each.double(2), each.double(3)) for each in found.messages(field)]
    return tuple(sorted(ranges, key=lambda each: each.high))


def _lives_s(token: str) -> float:
    """How long from now, by what the token itself says."""
    parts = token.split(".")
    try:
        told = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return max(0.0, float(told["exp"]) - time.time())
    except (IndexError, KeyError, TypeError, ValueError, binascii.Error):
        return _TOKEN_LIVES_S
