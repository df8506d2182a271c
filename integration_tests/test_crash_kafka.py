"""kill -9 of a driver, and of the broker, at steps of an epoch of a real query that writes to Kafka."""

from __future__ import annotations

import pytest

from integration_tests.topics import KafkaTarget
from twophase.testing.crash.cell import Cell
from twophase.testing.crash.run import run_cells

pytestmark = pytest.mark.servers


@pytest.mark.timeout(900)
def test_every_record_is_there_once_when_the_driver_or_the_broker_dies() -> None:
    wanted = [
        Cell.parse(f"kafka/format/{victim}/{point}")
        for victim, point in (
            ("driver", "task.pre_committed#3"),
            ("driver", "decide.published#2"),
            ("server:broker", "decide.published#2"),
        )
    ]
    with KafkaTarget.surroundings() as surroundings:
        verdicts = list(run_cells(KafkaTarget, wanted, surroundings))

    assert [verdict.error for verdict in verdicts if not verdict.passed] == []
    assert [verdict.cell for verdict in verdicts] == wanted
