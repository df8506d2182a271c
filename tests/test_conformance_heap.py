"""HeapSink keeps the contract, and so does the keyed HeapStateSink."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from tests.mistakes.heap_sinks import RefusesStrangersWhenItPrepares, ShortLived
from tests.state_under_test import HeapStateUnderTest
from twophase.sinks import heap
from twophase.sinks.heap import HeapSink, HeapTarget
from twophase.testing.sink_steps import SinkSteps
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


class ExpiringUnderTest(HeapUnderTest):
    """Shares die after a second, and the sink says so."""

    def sink(self) -> ShortLived:
        return ShortLived(self.name)

    def short_lived(self) -> SinkTarget:
        return self


class TestHeapSink(SinkSuite):
    @pytest.fixture
    def target(self) -> HeapUnderTest:
        return HeapUnderTest(uuid.uuid4().hex)


class TestHeapStateSink(SinkSuite):
    @pytest.fixture
    def target(self) -> HeapStateUnderTest:
        return HeapStateUnderTest(uuid.uuid4().hex)


def test_a_sink_that_prepares_for_its_owner_alone_keeps_the_contract() -> None:
    class OwnersOnly(HeapUnderTest):
        def sink(self) -> RefusesStrangersWhenItPrepares:
            return RefusesStrangersWhenItPrepares(self.name)

    steps = SinkSteps(OwnersOnly(uuid.uuid4().hex))
    SinkSuite().test_whoever_may_not_prepare_is_told_before_a_take_over(steps)


def test_shares_that_expire_when_the_sink_says_keep_the_contract() -> None:
    steps = SinkSteps(ExpiringUnderTest(uuid.uuid4().hex))
    SinkSuite().test_a_share_lives_as_long_as_the_sink_says_and_what_dies_then_is_named(steps)
