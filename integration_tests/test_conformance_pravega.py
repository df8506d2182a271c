"""PravegaSink keeps the contract, on a real server."""

from __future__ import annotations

import pytest

from integration_tests.pravega_streams import StreamUnderTest
from twophase.testing.servers.server import Server
from twophase.testing.sink_suite import SinkSuite

pytestmark = pytest.mark.servers


class TestPravegaSink(SinkSuite):
    @pytest.fixture
    def target(self, pravega_server: Server[str]) -> StreamUnderTest:
        return StreamUnderTest(pravega_server.endpoint)
