"""kill -9 of the driver at every step of an epoch that goes to a table of files; then source and target, row by row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from integration_tests.crash.chain import Kill, run_chain
from integration_tests.crash.program import QueryDescription, Way

# Hit 2 is in the second epoch of a run, after one that recovered; task points are hit once a task, and there are two.
REPRESENTATIVE = (
    Kill("prepare.published"),
    Kill("task.written", 3),
    Kill("task.pre_committed", 4),
    Kill("decide.before_publish"),
    Kill("decide.published"),
    Kill("files.sealed"),
    Kill("files.renamed"),
    Kill("commit.done"),
)


@pytest.fixture
def told(tmp_path: Path) -> QueryDescription:
    return QueryDescription(
        input=str(tmp_path / "input"), table=str(tmp_path / "table"), checkpoint=str(tmp_path / "checkpoint")
    )


@pytest.mark.timeout(600)
def test_every_row_is_there_once_whatever_step_the_driver_is_killed_at(told: QueryDescription, tmp_path: Path) -> None:
    result = run_chain(told, REPRESENTATIVE, tmp_path)

    assert len(result.fired) == len(REPRESENTATIVE)
    assert result.polls > 20


@pytest.mark.parametrize("way", ["sink"])
@pytest.mark.timeout(600)
def test_every_row_is_there_once_through_foreach_batch(told: QueryDescription, tmp_path: Path, way: Way) -> None:
    kills = [Kill("task.pre_committed", 3), Kill("decide.published"), Kill("commit.done")]

    run_chain(replace(told, way=way), kills, tmp_path)
