"""kill -9 of a driver, an executor, the NameNode and the DataNode, and a zombie, at steps of an epoch of a real query on HDFS."""

from __future__ import annotations

import pytest

from integration_tests.hdfs_tables import HdfsTarget
from twophase.testing.crash.cell import Cell
from twophase.testing.crash.run import run_cells

pytestmark = pytest.mark.servers


@pytest.mark.timeout(1200)
def test_every_row_is_there_once_when_the_driver_an_executor_or_a_node_dies() -> None:
    wanted = [
        Cell.parse(f"hdfs/format/{victim}/{point}")
        for victim, point in (
            ("driver", "task.pre_committed#3"),
            ("driver", "files.sealed#2"),
            ("driver", "files.renamed#1"),
            ("executor", "task.before_pre_commit#1"),
            ("server:namenode", "decide.published#2"),
            ("server:datanode", "task.before_pre_commit#3"),
            ("zombie", "files.sealed#2"),
        )
    ]
    with HdfsTarget.surroundings() as surroundings:
        verdicts = list(run_cells(HdfsTarget, wanted, surroundings))

    assert [verdict.error for verdict in verdicts if not verdict.passed] == []
    assert [verdict.cell for verdict in verdicts] == wanted
