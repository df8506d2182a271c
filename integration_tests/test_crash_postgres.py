"""kill -9 of a driver, and of the server, at steps of an epoch of a real query that writes to PostgreSQL."""

from __future__ import annotations

import pytest

from integration_tests.postgres_tables import PostgresTarget, PreparedTarget, VersionsTarget
from integration_tests.pravega_streams import PravegaTarget
from integration_tests.tables import FilesTarget
from twophase.failpoints import POINTS, of_others
from twophase.testing.crash.cell import Cell
from twophase.testing.crash.matrix import cells
from twophase.testing.crash.run import run_cells

pytestmark = pytest.mark.servers


def test_the_matrix_has_a_cell_for_every_failpoint_of_a_commit() -> None:
    targets = (FilesTarget, PostgresTarget, PreparedTarget, PravegaTarget)
    struck = {cell.kills[-1].point for target in targets for cell in cells(target)}

    assert struck == POINTS.keys() - of_others("files", "postgres", "pravega")


@pytest.mark.timeout(900)
def test_every_row_is_there_once_when_the_driver_or_the_server_dies() -> None:
    wanted = [
        Cell.parse(f"postgres/format/{victim}/{point}")
        for victim, point in (
            ("driver", "postgres.inserted#2"),
            ("server:postgres", "postgres.inserted#2"),
            ("server:postgres", "task.before_pre_commit#3"),
        )
    ]
    check(PostgresTarget, wanted)


@pytest.mark.timeout(900)
def test_every_version_is_there_once_when_the_driver_dies_before_the_pointer_moves() -> None:
    check(VersionsTarget, [Cell.parse("postgres-mvcc/format/driver/postgres.inserted#2")])


@pytest.mark.timeout(900)
def test_every_row_is_there_once_when_the_driver_dies_between_two_prepared_transactions() -> None:
    check(PreparedTarget, [Cell.parse("postgres-xa/format/driver/postgres.slot_committed#3")])


def check(target: type[PostgresTarget], wanted: list[Cell]) -> None:
    with target.surroundings() as surroundings:
        verdicts = list(run_cells(target, wanted, surroundings))

    assert [verdict.error for verdict in verdicts if not verdict.passed] == []
    assert sorted(map(str, (verdict.cell for verdict in verdicts))) == sorted(map(str, wanted))
