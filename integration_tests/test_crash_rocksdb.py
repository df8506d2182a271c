"""kill -9 at steps of an epoch that goes to a keyed state: the part of the crash matrix that `make test` runs.

`make crash-matrix TARGET=rocksdb` runs all of it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import twophase
from integration_tests.states import StateTarget, rows_of
from twophase.failpoints import POINTS, Fault, arm, of_others
from twophase.testing.crash.cell import Cell, Kill
from twophase.testing.crash.chain import PAUSE_S, finish
from twophase.testing.crash.matrix import cells
from twophase.testing.crash.orders import compare, write_orders
from twophase.testing.crash.program import QueryDescription
from twophase.testing.crash.run import run_cells
from twophase.testing.crash.target import Surroundings, path_of
from twophase.testing.crash.victim import stand_at, victim

pytestmark = pytest.mark.servers


def check(*names: str) -> None:
    wanted = [Cell.parse(name) for name in names]

    verdicts = list(run_cells(StateTarget, wanted, Surroundings()))

    assert [verdict.cell for verdict in verdicts] == wanted
    assert [verdict.error for verdict in verdicts if not verdict.passed] == []


def test_the_matrix_has_a_cell_for_every_failpoint() -> None:
    struck = {cell.kills[-1].point for cell in cells(StateTarget)}

    assert struck == POINTS.keys() - of_others("rocksdb")


@pytest.mark.timeout(900)
def test_every_row_is_there_once_when_the_driver_is_killed_before_the_manifest_and_in_an_upload() -> None:
    check("rocksdb/format/driver/rocksdb.sealed#2", "rocksdb/format/driver/rocksdb.uploading#3")


@pytest.mark.timeout(900)
def test_every_row_is_there_once_when_an_executor_is_killed_in_an_upload() -> None:
    check("rocksdb/format/executor/rocksdb.uploading#1")


@pytest.mark.timeout(900)
def test_every_epoch_is_right_when_each_run_is_killed_and_the_next_has_another_number_of_tasks(tmp_path: Path) -> None:
    """2 tasks, killed when an epoch is decided; 3, killed in an upload; 1, killed before the manifest; then 2."""
    told, failpoints = QueryDescription(path_of(StateTarget), str(tmp_path)), tmp_path / "failpoints"
    expected = write_orders(told.input, 12)
    kills = {"2": Kill("decide.published", 2), "3": Kill("rocksdb.uploading", 14), "1": Kill("rocksdb.sealed", 2)}
    for tasks, kill in kills.items():
        told = replace(told, settings={"tasks": tasks})
        arm(failpoints, Fault(kill.point, "pause", kill.hit, timeout_s=PAUSE_S))
        with victim(told, failpoints=failpoints) as driver:
            stand_at(driver, told, failpoints, kill)
    arm(failpoints)
    finish(replace(told, settings={"tasks": "2"}), expected)

    path = tmp_path / "table"
    with twophase.state.open(str(path)) as state:
        assert state.epoch == 5
    for epoch in range(6):
        assert not compare(expected[: 100 * (epoch + 1)], rows_of(path, epoch))
