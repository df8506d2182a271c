"""FilesSink keeps the contract on a real HDFS, by both clients."""

from __future__ import annotations

import pytest

from integration_tests.hdfs_tables import HdfsUnderTest
from twophase.testing.servers.hdfs import HdfsEndpoint
from twophase.testing.servers.server import Server
from twophase.testing.sink_suite import SinkSuite

pytestmark = pytest.mark.servers


class TestNative(SinkSuite):
    @pytest.fixture
    def target(self, hdfs_server: Server[HdfsEndpoint]) -> HdfsUnderTest:
        return HdfsUnderTest(hdfs_server.endpoint, "native")


@pytest.mark.thorough
class TestWeb(SinkSuite):
    @pytest.fixture
    def target(self, hdfs_server: Server[HdfsEndpoint]) -> HdfsUnderTest:
        return HdfsUnderTest(hdfs_server.endpoint, "web")
