"""PravegaSink keeps the contract, on a real server."""

from __future__ import annotations

import itertools

import pytest

from integration_tests.pravega_streams import StreamUnderTest
from twophase.clients.pravega.connections import close_connections
from twophase.testing.servers.server import Server
from twophase.testing.sink_suite import SinkSuite

pytestmark = pytest.mark.servers

_TESTS = itertools.count(1)
_TESTS_A_SERVER = 40


@pytest.mark.thorough  # until it comes to its end: what follows a restart of the emulator fails
class TestPravegaSink(SinkSuite):
    @pytest.fixture
    def target(self, pravega_server: Server[str]) -> StreamUnderTest:
        # The emulator was seen to go down after some 80,000 operations, whatever they were: no other test needs what it holds.
        if next(_TESTS) % _TESTS_A_SERVER == 0 and pravega_server.can_be_killed:
            close_connections()
            pravega_server.kill()
            pravega_server.start()
        return StreamUnderTest(pravega_server.endpoint)
