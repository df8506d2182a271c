"""HeapSink keeps the contract."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from twophase.sinks import heap
from twophase.sinks.heap import HeapSink, HeapTarget
from twophase.testing.sink_suite import SinkSuite, SinkTarget


class HeapUnderTest(SinkTarget):
    fences = True
    outlives_process = False

    def __init__(self, name: str):
        self.name = name

    def sink(self) -> HeapSink:
        return HeapSink(self.name)

    def read(self) -> Sequence[dict[str, Any]]:
        return [row for batch in self.sink().batches() for row in batch.to_pylist()]

    def residue(self) -> list[str]:
        return sorted(f"{share.owner} {share.attempt}" for share in HeapTarget.named(self.name).apply(heap.look).staged)


class TestHeapSink(SinkSuite):
    @pytest.fixture
    def target(self) -> HeapUnderTest:
        return HeapUnderTest(uuid.uuid4().hex)
