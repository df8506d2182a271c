"""KafkaSink keeps the contract, on a real broker."""

from __future__ import annotations

import pytest

from integration_tests.topics import TopicUnderTest
from twophase.testing.servers.server import Server
from twophase.testing.sink_suite import SinkSuite

pytestmark = pytest.mark.servers


class TestKafkaSink(SinkSuite):
    @pytest.fixture
    def target(self, kafka_server: Server[str]) -> TopicUnderTest:
        return TopicUnderTest(kafka_server.endpoint)


@pytest.mark.thorough
class TestKafkaSinkByLibrdkafka(SinkSuite):
    """As where there was no compiler: a setting that only librdkafka has makes it write the records."""

    @pytest.fixture
    def target(self, kafka_server: Server[str]) -> TopicUnderTest:
        target = TopicUnderTest(kafka_server.endpoint)
        target.kafka = {"queue.buffering.max.messages": "50000"}
        return target
