"""PravegaSource keeps the contract, on a real server: with events that are appended one by one, and with those of transactions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from integration_tests.pravega_streams import PATIENCE_S, controller_at, new_stream
from twophase.clients.pravega.appender import Appender
from twophase.clients.pravega.controller import Controller, State
from twophase.clients.pravega.events import blocks_of
from twophase.clients.pravega.segment_store import connected
from twophase.sources import PravegaSource
from twophase.testing.servers.server import Server
from twophase.testing.source_suite import SourceOrigin, SourceSuite

pytestmark = pytest.mark.servers


class PlainStream(SourceOrigin):
    """A unit is an event for each of its numbers."""

    limits = frozenset({"rows"})  # of bytes an event is the least, and not a unit
    ordered = True
    loses_any_unit = False
    many_units = 200  # what is listed at once is a segment, however many events it has

    def __init__(self, address: str):
        self.address, self.stream = address, new_stream(address)
        self.begins = [0]

    @property
    def controller(self) -> Controller:
        return controller_at(self.address)

    def source(self, **options: Any) -> PravegaSource:
        return PravegaSource(
            self.address,
            self.stream.scope,
            self.stream.name,
            starting_cut="earliest",
            request_timeout_ms=20_000,
            **options,
        )

    def add(self, values: Sequence[int]) -> None:
        self._write(self.stream.segment(0), values)
        with connected(self.controller, self.stream, 0) as store:
            self.begins.append(store.info(self.stream.segment(0), "").length)

    def _write(self, segment: str, values: Sequence[int]) -> None:
        appender = Appender(self.controller, self.stream, 0, segment)
        for block in blocks_of(pa.array([str(value) for value in values], pa.string())):
            appender.append(block)
        appender.flush()
        appender.close()

    def lose(self, unit: int) -> str:
        assert unit == 0, "a stream loses its oldest events"
        self.controller.truncate_stream(self.stream, {0: self.begins[1]})
        return f"segment 0.#epoch.0 of the stream {self.stream}"

    def value(self, row: Mapping[str, Any]) -> int:
        return int(row["value"])


class StreamOfTransactions(PlainStream):
    """A unit is a transaction; before it, one was aborted."""

    def add(self, values: Sequence[int]) -> None:
        for kept, numbers in ((False, [999, 998]), (True, values)):
            begun = self.controller.begin(self.stream, 30_000)
            self._write(self.stream.transaction_segment(0, begun.transaction), numbers)
            if kept:
                self.controller.commit(self.stream, begun.transaction)
            else:
                self.controller.abort(self.stream, [begun.transaction])
            states = self.controller.settled(self.stream, [begun.transaction], within_s=PATIENCE_S)
            assert states == {begun.transaction: State.COMMITTED if kept else State.ABORTED}
        with connected(self.controller, self.stream, 0) as store:
            self.begins.append(store.info(self.stream.segment(0), "").length)


class TestPlainStream(SourceSuite):
    @pytest.fixture
    def origin(self, pravega_server: Server[str]) -> PlainStream:
        return PlainStream(pravega_server.endpoint)


class TestStreamOfTransactions(SourceSuite):
    @pytest.fixture
    def origin(self, pravega_server: Server[str]) -> StreamOfTransactions:
        return StreamOfTransactions(pravega_server.endpoint)
