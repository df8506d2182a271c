"""kill -9 of a driver, of an executor, and a driver that comes back from the dead, in a real query that writes to Pravega.

The server is not killed: the emulator keeps everything in memory.
"""

from __future__ import annotations

import pytest

from integration_tests.pravega_streams import PravegaTarget
from twophase.testing.crash.cell import Cell
from twophase.testing.crash.run import run_cells

pytestmark = pytest.mark.servers


@pytest.mark.thorough  # a look at the stream while the controller merges its segments sees part of an epoch
@pytest.mark.timeout(900)
def test_every_event_is_there_once_when_the_driver_or_an_executor_dies() -> None:
    wanted = [
        Cell.parse(f"pravega/format/{victim}/{point}")
        for victim, point in (
            ("driver", "pravega.merged#2"),
            ("driver", "pravega.asked#2"),
            ("executor", "task.pre_committed#1"),
            ("zombie", "decide.published#2"),
        )
    ]
    with PravegaTarget.surroundings() as surroundings:
        verdicts = list(run_cells(PravegaTarget, wanted, surroundings))

    assert [verdict.error for verdict in verdicts if not verdict.passed] == []
    assert sorted(map(str, (verdict.cell for verdict in verdicts))) == sorted(map(str, wanted))
