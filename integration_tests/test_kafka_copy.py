"""A short one of the copies that kafka_copy.py makes: each kind of victim at least once."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration_tests.kafka_copy import run

pytestmark = pytest.mark.servers


@pytest.mark.timeout(900)
def test_a_topic_is_copied_once_and_in_order_whoever_is_killed(tmp_path: Path) -> None:
    assert run(tmp_path, records=20_000, kills=3, seed=1) == ["driver", "executor", "broker"]
