"""RocksDBSink keeps the contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.state_under_test import StateUnderTest
from twophase.testing.sink_suite import SinkSuite

pytestmark = pytest.mark.servers


class TestRocksDB(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> StateUnderTest:
        return StateUnderTest(tmp_path)
