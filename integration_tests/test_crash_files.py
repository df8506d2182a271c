"""kill -9 of the driver at every step of an epoch that goes to tables of files; then source and target, row by row.

`make test` runs a representative part; `make crash-matrix` runs all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from integration_tests.crash.chain import Kill, residue_of, run_chain
from integration_tests.crash.orders import compare, write_orders
from integration_tests.crash.program import QueryDescription, Way
from integration_tests.crash.victim import TIMEOUT_S, run_to_the_end, victim
from twophase.failpoints import POINTS, Fault, arm, release

# A run's first epoch is the one that the run before was killed in: so hit 1 kills a recovery, and hit 2 the epoch after it.
# Points of a task are hit once a task, and there are two.
REPRESENTATIVE = (
    Kill("prepare.published"),
    Kill("task.written", 3),
    Kill("sweep.before_abort", 1),
    Kill("decide.before_publish"),
    Kill("files.sealed"),
    Kill("commit.done"),
)
DRIVER = (
    "prepare.before_publish",
    "prepare.published",
    "sweep.listed",
    "prepare.fenced",
    "prepare.markers_read",
    "prepare.swept",
    "prepare.rolled_forward",
    "prepare.planned",
    "decide.before_alive",
    "decide.before_publish",
    "decide.published",
    "commit.before_sink",
    "files.sealed",
    "files.manifest_published",
    "files.renamed",
    "commit.after_sink",
    "commit.done",
)
TASK = ("task.before_begin", "task.begun", "task.written", "task.before_pre_commit", "task.pre_committed")
ELSEWHERE = {
    "take_over.before": "test_a_driver_killed_in_a_take_over",
    "take_over.after": "test_a_driver_killed_in_a_take_over",
    "abort.before_publish": "an abort publishes and sweeps as prepare does: the model, tests/test_coordinator.py",
    "abort.published": "as above",
    "abort.swept": "as above",
    "task.aborted": "a task that failed: integration_tests/test_formats.py",
    "ledger.before_compaction": "after 100 records: tests/test_ledger_on_disk.py",
    "ledger.compacting": "as above",
    "sweep.before_abort": "needs something to sweep: KILLS_IN_RECOVERY",
}
KILLS_IN_AN_EPOCH = (*(Kill(point, 2) for point in DRIVER), *(Kill(point, 3) for point in TASK))
KILLS_IN_RECOVERY = (
    Kill("task.pre_committed", 3),
    *(Kill(point, 1) for point in ("prepare.published", "sweep.before_abort", "prepare.swept")),
    Kill("decide.published", 2),
    *(Kill(point, 1) for point in ("prepare.published", "files.sealed", "files.manifest_published", "prepare.planned")),
    Kill("files.renamed", 2),
    *(Kill(point, 1) for point in ("prepare.rolled_forward", "task.written", "commit.done")),
)
# With two sinks, each point of a sink is hit twice an epoch, and each point of a task four times.
KILLS_WITH_TWO_SINKS = (
    Kill("task.pre_committed", 5),
    Kill("task.pre_committed", 8),
    Kill("decide.before_publish", 2),
    Kill("decide.published", 2),
    *(Kill(point, hit) for point in ("commit.before_sink", "files.sealed", "files.renamed") for hit in (3, 4)),
    Kill("commit.done", 2),
)


@pytest.fixture
def told(tmp_path: Path) -> QueryDescription:
    return QueryDescription(
        input=str(tmp_path / "input"),
        table=str(tmp_path / "table"),
        checkpoint=str(tmp_path / "checkpoint"),
        second=str(tmp_path / "second"),
    )


def test_every_failpoint_has_its_place() -> None:
    """A new one must be killed somewhere, or say why not."""
    known = {*DRIVER, *TASK, *ELSEWHERE}

    assert known == set(POINTS)


@pytest.mark.timeout(900)
def test_every_row_is_there_once_whatever_step_the_driver_is_killed_at(told: QueryDescription, tmp_path: Path) -> None:
    result = run_chain(told, REPRESENTATIVE, tmp_path)

    assert result.polls > 20


@pytest.mark.timeout(900)
def test_both_sinks_have_every_row_once_when_the_driver_dies_between_them(
    told: QueryDescription, tmp_path: Path
) -> None:
    run_chain(replace(told, way="function"), [Kill("commit.after_sink", 3)], tmp_path)


@pytest.mark.timeout(900)
def test_a_driver_that_was_asleep_while_another_took_over_changes_nothing(
    told: QueryDescription, tmp_path: Path
) -> None:
    """A zombie: frozen after its tasks have voted, and thawed when the new driver has done everything."""
    expected = write_orders(Path(told.input), 6)
    failpoints = tmp_path / "failpoints"
    arm(failpoints, Fault("decide.before_publish", "pause", 2, timeout_s=300))
    with victim(told, tmp_path, failpoints=failpoints) as zombie:
        zombie.wait_for_hit(failpoints, "decide.before_publish", "pause", timeout_s=TIMEOUT_S)
        zombie.freeze()
        result = run_to_the_end(told, tmp_path)
        assert "error" not in result, result["error"]
        assert not compare(expected, Path(told.table))
        release(failpoints, "decide.before_publish")
        zombie.thaw()
        said = zombie.result(timeout_s=TIMEOUT_S)
    assert "[FENCED]" in said["error"], said
    assert not compare(expected, Path(told.table))
    assert residue_of(Path(told.table)) == []


@pytest.mark.crash_matrix
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("way", "kills"),
    [
        ("format", KILLS_IN_AN_EPOCH),
        ("format", KILLS_IN_RECOVERY),
        ("sink", KILLS_IN_AN_EPOCH),
        ("function", KILLS_WITH_TWO_SINKS),
    ],
    ids=["format, in an epoch", "format, in recovery", "exactly_once", "exactly_once with two sinks"],
)
def test_all_kills(told: QueryDescription, tmp_path: Path, way: Way, kills: Sequence[Kill]) -> None:
    run_chain(replace(told, way=way), kills, tmp_path)


@pytest.mark.crash_matrix
@pytest.mark.timeout(900)
@pytest.mark.parametrize("point", ["take_over.before", "files.sealed", "files.renamed", "take_over.after"])
def test_a_driver_killed_in_a_take_over_finishes_it(told: QueryDescription, tmp_path: Path, point: str) -> None:
    first = write_orders(Path(told.input), 4)
    assert "error" not in run_to_the_end(told, tmp_path)
    [owner] = {path.parent.name for path in (tmp_path / ".table.twophase").glob("*/*")}
    second = write_orders(tmp_path / "more", 4, first=4)
    heir = replace(
        told,
        input=str(tmp_path / "more"),
        checkpoint=str(tmp_path / "other"),
        options={"takeOver": f"{owner}/sink"},
    )
    failpoints = tmp_path / "failpoints"
    arm(failpoints, Fault(point, "pause", 1, timeout_s=300))
    with victim(heir, tmp_path, failpoints=failpoints) as driver:
        driver.wait_for_hit(failpoints, point, "pause", timeout_s=TIMEOUT_S)

    result = run_to_the_end(heir, tmp_path)

    assert "error" not in result, result["error"]
    assert not compare(first + second, Path(told.table))
    assert residue_of(Path(told.table)) == []
