"""Streams of Pravega as readers see them that know nothing of twophase, and as a target of the suites."""

from __future__ import annotations

import copy
import json
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from twophase.clients.pravega.access import Access
from twophase.clients.pravega.connections import close_connections, controller_of
from twophase.clients.pravega.controller import Controller, State
from twophase.clients.pravega.segment_store import SegmentStores
from twophase.clients.pravega.stream import Stream
from twophase.identity import Owner
from twophase.sink import Description, Share
from twophase.sinks.pravega.sink import PravegaSink
from twophase.testing.crash.orders import Order
from twophase.testing.crash.target import CrashTarget, Surroundings
from twophase.testing.servers import pravega
from twophase.testing.sink_target import SinkTarget

POINTS = ("pravega.merged", "pravega.intended", "pravega.asked", "pravega.committed")
PATIENCE_S = 30.0
_JOURNALS = "twophase-markers-"


def controller_at(address: str) -> Controller:
    return controller_of(Access(address), patience_s=PATIENCE_S)


def new_stream(address: str, segments: int = 1, scope: str | None = None) -> Stream:
    stream = Stream(scope or f"scope-{uuid.uuid4().hex[:12]}", f"orders-{uuid.uuid4().hex[:12]}")
    controller = controller_at(address)
    controller.create_scope(stream.scope)
    controller.create_stream(stream, segments)
    return stream


def contents(controller: Controller, stream: Stream) -> dict[int, bytes]:
    """Every byte that can be read now, by segment, from the head on, through all that were sealed."""
    found = dict[int, bytes]()
    todo = list(controller.head(stream))
    with SegmentStores(controller, stream) as stores:
        while todo:
            segment = todo.pop(0)
            if segment in found:
                continue
            name, data = stream.segment(segment), bytearray()
            info = stores.of(segment).info(name, stores.token)
            while info.begin + len(data) < info.length:
                at = info.begin + len(data)
                data += stores.of(segment).read(name, at, min(1 << 20, info.length - at), stores.token)
            found[segment] = bytes(data[: info.length - info.begin])
            if info.is_sealed:
                todo.extend(controller.successors(stream, segment))
    return found


def events_in(data: bytes) -> list[bytes]:
    events, at = [], 0
    while at < len(data):
        assert data[at : at + 4] == bytes(4), f"no event at {at}"
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        events.append(data[at + 8 : end])
        at = end
    return events


def events_of(controller: Controller, stream: Stream) -> list[bytes]:
    return [event for data in contents(controller, stream).values() for event in events_in(data)]


def records(controller: Controller, journal: Stream) -> list[dict[str, Any]]:
    """What a journal holds, as it lies there."""
    return [json.loads(event) for event in events_of(controller, journal)]


def open_transactions(controller: Controller, stream: Stream) -> list[str]:
    """Transactions of the stream that are open, of those that any journal in its scope speaks of.

    The controller lists no open transactions. One that was begun, and whose task died before it could note it, is not found here.
    """
    named = set[str]()
    for journal in controller.streams(stream.scope):
        if journal.name.startswith(_JOURNALS):
            for record in records(controller, journal):
                named |= {each["transaction"] for each in (record, *record.get("open", ())) if each.get("transaction")}
    states = controller.states(stream, sorted(named))
    return [name for name, state in states.items() if state is State.OPEN]


class StreamUnderTest(SinkTarget):
    """A new stream in a new scope."""

    leaves_out_columns = True
    failpoints: Sequence[str] = POINTS
    many_slots = 40  # each is a transaction
    many_rows = 100_000
    many_batches = 200
    many_failures = 8

    def __init__(self, address: str):
        self.address = address
        self.stream = new_stream(address)
        self._lease_ms = 600_000

    @property
    def controller(self) -> Controller:
        return controller_at(self.address)

    def sink(self) -> PravegaSink:
        return PravegaSink(
            self.address, self.stream.scope, self.stream.name, lease_ms=self._lease_ms, request_timeout_ms=20_000
        )

    def rebuilt(self, description: Description) -> PravegaSink:
        return PravegaSink.from_options(description.options)

    def short_lived(self) -> StreamUnderTest:
        same = copy.copy(self)
        same._lease_ms = 10_000
        return same

    def read(self) -> Sequence[dict[str, Any]]:
        return [{"value": int(event)} for event in events_of(self.controller, self.stream)]

    def residue(self) -> Sequence[str]:
        return open_transactions(self.controller, self.stream)

    def batch(self, values: Sequence[int]) -> pa.RecordBatch:
        return pa.record_batch([pa.array([str(value) for value in values], pa.string())], names=["value"])

    def typed_batch(self, column: pa.Array[Any]) -> pa.RecordBatch | None:
        return None  # an event is bytes

    def lose(self, owner: Owner, share: Share[Any]) -> None:
        """Its transaction; and where the driver has merged it into another one, that of its whole generation."""
        if share.handle.transaction is None:
            return
        lost = [share.handle.transaction]
        with SegmentStores(self.controller, self.stream) as stores:
            merged = [
                segment
                for segment, length in share.handle.lengths.items()
                if length
                and stores.of(int(segment)).length(
                    self.stream.transaction_segment(int(segment), share.handle.transaction), stores.token
                )
                is None
            ]
        if merged:
            left = self.sink().leftovers(owner)
            generation = share.attempt.generation
            self.sink().abort(owner, [each for each in left if each.generation == generation])
        elif self.controller.state(self.stream, lost[0]) is State.OPEN:
            self.controller.abort(self.stream, lost)
            self.controller.settled(self.stream, lost, within_s=PATIENCE_S)


class PravegaTarget(CrashTarget):
    """A stream of the crash matrix; orders are JSON."""

    title = "pravega"
    format = "twophase-pravega"
    points: ClassVar[Sequence[str]] = POINTS
    atomic = False  # the controller merges the segments of a transaction one after the other, and a reader sees that
    fences = False  # Pravega knows no generations
    not_covered: ClassVar[Sequence[str]] = (
        "a Pravega that dies: the emulator keeps all in memory, and so does not come back with its data",
    )

    @property
    def address(self) -> str:
        return self.settings["controller"]

    @property
    def stream(self) -> Stream:
        return Stream(f"{self.folder.name}-{self.name}".replace("_", "-"), "orders")

    def options(self) -> Mapping[str, str]:
        return {
            "controller": self.address,
            "scope": self.stream.scope,
            "stream": self.stream.name,
            "createStream": "true",
            "segments": "2",
            "routingKeyColumn": "name",
            "leaseMs": "120000",
        }

    def sink(self) -> PravegaSink:
        return PravegaSink.from_options(self.options())

    def shaped(self, rows: Any) -> Any:
        return rows.selectExpr("to_json(struct(id, name, amount)) AS value", "name")

    def read(self) -> Sequence[Order]:
        controller = controller_at(self.address)
        if not controller.is_there(self.stream):
            return []
        orders = (json.loads(event) for event in events_of(controller, self.stream))
        return [(order["id"], order["name"], order["amount"]) for order in orders]

    def residue(self) -> Sequence[str]:
        controller = controller_at(self.address)
        return open_transactions(controller, self.stream) if controller.is_there(self.stream) else []

    @classmethod
    @contextmanager
    def surroundings(cls) -> Iterator[Surroundings]:
        with (
            tempfile.TemporaryDirectory(prefix="twophase-pravega-") as folder,
            pravega.on_this_machine(Path(folder)) as server,
        ):
            try:
                yield Surroundings({"controller": server.endpoint})
            finally:
                close_connections()
