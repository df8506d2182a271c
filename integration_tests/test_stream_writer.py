"""The writer as Spark may call it: twice, out of order, with messages missing. Without a session: only the calls."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from integration_tests.tables import residue_of
from twophase.connectors.files import FilesFormat
from twophase.connectors.query_options import SINK, now_ms
from twophase.connectors.stream_writer import StreamWriter, VoteMessage
from twophase.errors import Fenced, ProtocolViolation
from twophase.task import run_task

SCHEMA = StructType([StructField("id", LongType())])


@dataclass
class Driver:
    """The two processes of a driver, as far as a sink sees them."""

    root: Path

    def __post_init__(self) -> None:
        (self.root / "checkpoint" / "offsets").mkdir(parents=True)
        (self.root / "checkpoint" / "commits").mkdir()
        (self.root / "checkpoint" / "metadata").write_text(json.dumps({"id": "11111111-2222"}))
        self.format = FilesFormat(
            {"path": str(self.root / "table"), "checkpointlocation": str(self.root / "checkpoint")}
        )

    def log_offsets(self, number: int) -> None:
        (self.root / "checkpoint" / "offsets" / str(number)).write_text(f"offsets of {number}")

    def plan(self) -> StreamWriter:
        return self.format.streamWriter(SCHEMA, overwrite=False)

    def committer(self) -> StreamWriter:
        return pickle.loads(pickle.dumps(self.format)).streamWriter(SCHEMA, overwrite=False)  # type: ignore[no-any-return]

    def run(self, writer: StreamWriter, number: int, tasks: int = 2) -> list[VoteMessage]:
        """What the tasks would do; a TaskContext exists only inside of Spark."""
        assert writer._plan is not None
        return [
            VoteMessage(
                run_task(
                    writer._target.sink,
                    SINK,
                    writer._plan,
                    [pa.record_batch({"id": [number * 10 + slot]})],
                    number=number,
                    slot=slot,
                    task_id=slot,
                    now_ms=now_ms,
                ).to_text()
            )
            for slot in range(tasks)
        ]

    def ids(self) -> list[int]:
        return sorted(i for file in (self.root / "table").glob("epoch=*/*.parquet") for i in _ids(file))


def _ids(file: Path) -> list[int]:
    return [int(i) for i in pq.read_table(file)["id"].to_numpy()]


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_only_the_planner_prepares(driver: Driver) -> None:
    driver.log_offsets(0)
    ledger = driver.root / "checkpoint" / "twophase"

    driver.committer()
    assert not ledger.exists()

    driver.plan()
    assert len(list(ledger.glob("*.record"))) == 1


def test_committing_twice_changes_nothing(driver: Driver) -> None:
    driver.log_offsets(0)
    votes = driver.run(driver.plan(), 0)

    for _ in range(3):
        driver.committer().commit([*votes], 0)

    assert driver.ids() == [0, 1]


def test_abort_after_commit_undoes_nothing(driver: Driver) -> None:
    driver.log_offsets(0)
    votes = driver.run(driver.plan(), 0)
    driver.committer().commit([*votes], 0)

    driver.committer().abort([*votes], 0)

    assert driver.ids() == [0, 1]


def test_abort_removes_what_was_staged(driver: Driver) -> None:
    driver.log_offsets(0)
    votes = driver.run(driver.plan(), 0)
    assert residue_of(driver.root / "table") != []

    driver.committer().abort([votes[0], None], 0)

    assert residue_of(driver.root / "table") == []
    assert driver.ids() == []


def test_an_abort_without_any_vote_does_nothing(driver: Driver) -> None:
    driver.log_offsets(0)
    driver.run(driver.plan(), 0)
    before = residue_of(driver.root / "table")

    driver.committer().abort([None, None], 0)

    assert residue_of(driver.root / "table") == before


def test_a_commit_with_a_vote_missing_is_refused(driver: Driver) -> None:
    """The continuous trigger does that."""
    driver.log_offsets(0)
    votes = driver.run(driver.plan(), 0)

    with pytest.raises(ProtocolViolation, match="continuous trigger"):
        driver.committer().commit([votes[0], None], 0)

    assert driver.ids() == []


def test_votes_of_an_overtaken_driver_decide_nothing(driver: Driver) -> None:
    driver.log_offsets(0)
    late = driver.run(driver.plan(), 0)
    votes = driver.run(driver.plan(), 0)

    with pytest.raises(Fenced):
        driver.committer().commit([*late], 0)
    driver.committer().commit([*votes], 0)

    assert driver.ids() == [0, 1]


def test_a_plan_for_another_epoch_than_sparks_stages_nothing(driver: Driver) -> None:
    driver.log_offsets(0)
    writer = driver.plan()

    with pytest.raises(Fenced, match="planned for 0"):
        driver.run(writer, 1)

    assert driver.ids() == []


def test_an_epoch_that_spark_has_not_logged_is_refused(driver: Driver) -> None:
    with pytest.raises(ProtocolViolation, match="continuous trigger"):
        driver.plan()


def test_an_epoch_that_spark_has_logged_as_committed_is_refused(driver: Driver) -> None:
    driver.log_offsets(0)
    (driver.root / "checkpoint" / "commits" / "0").write_text("v1")

    with pytest.raises(ProtocolViolation, match="continuous trigger"):
        driver.plan()
