"""kill -9 of a server while a query stands at a step of the protocol: the kit's fourth victim, on a real PostgreSQL."""

from __future__ import annotations

import pytest

from integration_tests.postgres_rows import RowsTarget
from twophase.testing.crash.cell import Cell
from twophase.testing.crash.run import run_cells


@pytest.mark.timeout(900)
def test_every_row_is_there_once_when_the_server_dies_before_a_vote_and_after_a_decision() -> None:
    wanted = [
        Cell.parse(f"postgres-rows/sink/server:postgres/{point}")
        for point in ("task.before_pre_commit#3", "decide.published#2")
    ]
    with RowsTarget.surroundings() as surroundings:
        verdicts = list(run_cells(RowsTarget, wanted, surroundings))

    assert [verdict.error for verdict in verdicts if not verdict.passed] == []
    assert [verdict.cell for verdict in verdicts] == wanted
