"""A sink that upserts keeps the contract. It is what sinks with a mistake are made of, in tests/mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mistakes.sqlite_upserts import Upserts
from tests.test_conformance_sqlite import OrdersTable
from twophase.testing.sink_suite import SinkSuite

pytestmark = pytest.mark.kit


class KeysTable(OrdersTable):
    many_failures = 10

    def sink(self) -> Upserts:
        return Upserts(self.path, "orders")


class TestUpserts(SinkSuite):
    @pytest.fixture
    def target(self, tmp_path: Path) -> KeysTable:
        return KeysTable(tmp_path)
