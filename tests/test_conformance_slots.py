"""SlotSink, the model's target by slot, keeps the contract: the shape of Kafka and of prepared transactions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from tests.model.slot_sink import SlotSink
from tests.pipeline import Topic
from twophase.identity import Owner
from twophase.sink import Share
from twophase.testing.sink_suite import SinkSuite, SinkTarget

pytestmark = pytest.mark.kit


class NamedTopic(Topic):
    """A topic that is its name when it is pickled, as a server's is."""

    known: ClassVar[dict[str, NamedTopic]] = {}

    def __init__(self, name: str):
        super().__init__()
        self.name = name

    @classmethod
    def named(cls, name: str) -> NamedTopic:
        return cls.known.setdefault(name, cls(name))

    def __reduce__(self) -> tuple[Any, ...]:
        return NamedTopic.named, (self.name,)


class SlotsUnderTest(SinkTarget):
    outlives_process = False

    def __init__(self) -> None:
        self.topic = NamedTopic.named(uuid.uuid4().hex)

    def sink(self) -> SlotSink:
        return SlotSink(self.topic)

    def read(self) -> Sequence[dict[str, Any]]:
        return [{"value": value} for share in self.topic.state.visible for value in share.values]

    def residue(self) -> list[str]:
        return sorted(f"{share.owner} {share.attempt}" for share in self.topic.state.pending)

    def typed_batch(self, column: pa.Array[Any]) -> pa.RecordBatch | None:
        return None  # a model's rows are numbers

    def lose(self, owner: Owner, share: Share[Any]) -> None:
        self.topic.expire(share.slot)


class TestSlotSink(SinkSuite):
    @pytest.fixture
    def target(self) -> SlotsUnderTest:
        return SlotsUnderTest()
