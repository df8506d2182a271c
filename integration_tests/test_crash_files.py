"""kill -9 at steps of an epoch that goes to tables of files: the part of the crash matrix that `make test` runs.

`make crash-matrix TARGET=files` runs all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.parquet as pq
import pytest

from integration_tests.tables import FilesTarget
from twophase.failpoints import POINTS, of_others
from twophase.testing.crash.cell import Cell
from twophase.testing.crash.matrix import cells
from twophase.testing.crash.orders import Order
from twophase.testing.crash.run import run_cells
from twophase.testing.crash.target import Surroundings

REPRESENTATIVE = (
    "files/format/driver/prepare.published#2",
    "files/format/driver/task.written#3",
    "files/format/driver/sweep.before_abort#1",
    "files/format/driver/decide.before_publish#2",
    "files/format/driver/files.sealed#2",
    "files/format/driver/commit.done#2",
)


def check(*names: str) -> None:
    wanted = [Cell.parse(name) for name in names]

    verdicts = list(run_cells(FilesTarget, wanted, Surroundings()))

    assert [verdict.cell for verdict in verdicts] == wanted
    assert [verdict.error for verdict in verdicts if not verdict.passed] == []


def test_the_matrix_has_a_cell_for_every_failpoint() -> None:
    struck = {cell.kills[-1].point for cell in cells(FilesTarget)}

    assert struck == POINTS.keys() - of_others("files")


@pytest.mark.timeout(900)
def test_every_row_is_there_once_whatever_step_the_driver_is_killed_at() -> None:
    check(*REPRESENTATIVE)


@pytest.mark.timeout(900)
def test_both_sinks_have_every_row_once_when_the_driver_dies_between_them() -> None:
    check("files/function/driver/commit.after_sink#3")


@pytest.mark.timeout(900)
def test_a_driver_that_was_asleep_while_another_took_over_changes_nothing() -> None:
    check("files/format/zombie/decide.before_publish#2")


@pytest.mark.timeout(900)
def test_every_row_is_there_once_when_executors_are_killed_in_write_and_in_pre_commit() -> None:
    check("files/format/executor/task.written#1", "files/format/executor/task.before_pre_commit#1")


class SeesStaging(FilesTarget):
    """What a target looks like whose shares are visible before they are decided."""

    def read(self) -> Sequence[Order]:
        staged = [file for file in self.folder.glob(".table.twophase/**/*.parquet") if not file.name.startswith(".")]
        tables = (pq.read_table(file, columns=["id", "name", "amount"]) for file in staged)
        early = [row for table in tables for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
        return [*super().read(), *early]


@pytest.mark.timeout(900)
def test_a_kill_brings_to_light_what_is_visible_too_early() -> None:
    """The harness itself: it must be able to fail."""
    [verdict] = run_cells(SeesStaging, [Cell.parse("files/format/driver/task.pre_committed#3")], Surroundings())

    assert verdict.fired
    assert not verdict.passed
    assert "was not decided, and rows" in str(verdict.error)


@pytest.mark.timeout(900)
def test_a_fault_that_never_fires_is_a_failure() -> None:
    [verdict] = run_cells(FilesTarget, [Cell.parse("files/format/driver/take_over.before#1")], Surroundings())

    assert not verdict.fired
    assert "the program ended before take_over.before was hit" in str(verdict.error)
