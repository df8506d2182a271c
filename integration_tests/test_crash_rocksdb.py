"""kill -9 at steps of an epoch that goes to a keyed state: the part of the crash matrix that `make test` runs.

`make crash-matrix TARGET=rocksdb` runs all of it.
"""

from __future__ import annotations

import pytest

from integration_tests.states import StateTarget
from twophase.failpoints import POINTS
from twophase.testing.crash.cell import Cell
from twophase.testing.crash.matrix import cells
from twophase.testing.crash.run import run_cells
from twophase.testing.crash.target import Surroundings


def check(*names: str) -> None:
    wanted = [Cell.parse(name) for name in names]

    verdicts = list(run_cells(StateTarget, wanted, Surroundings()))

    assert [verdict.cell for verdict in verdicts] == wanted
    assert [verdict.error for verdict in verdicts if not verdict.passed] == []


def test_the_matrix_has_a_cell_for_every_failpoint() -> None:
    struck = {cell.kills[-1].point for cell in cells(StateTarget)}

    assert struck == {point for point in POINTS if not point.startswith(("postgres.", "files."))}


@pytest.mark.timeout(900)
def test_every_row_is_there_once_when_the_driver_is_killed_before_the_manifest_and_in_an_upload() -> None:
    check("rocksdb/format/driver/rocksdb.sealed#2", "rocksdb/format/driver/rocksdb.uploading#3")


@pytest.mark.timeout(900)
def test_every_row_is_there_once_when_an_executor_is_killed_in_an_upload() -> None:
    check("rocksdb/format/executor/rocksdb.uploading#1")
