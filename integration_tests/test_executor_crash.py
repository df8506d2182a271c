"""kill -9 of an executor, JVM and Python worker together, while it holds a share of an epoch: Spark runs its task again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from integration_tests.crash.chain import residue_of
from integration_tests.crash.orders import ROWS_PER_FILE
from integration_tests.crash.program import QueryDescription
from integration_tests.crash.reader import polling
from integration_tests.crash.victim import TIMEOUT_S, victim
from integration_tests.streams import Place
from twophase.failpoints import Fault, Hit, arm, trace

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# Two tasks an epoch: hit 2 is in epoch 0; and hit 4 in epoch 1, because the attempt that dies at the first point never gets to it.
FAULTS = (Fault("task.written", "pause", 2, timeout_s=300), Fault("task.before_pre_commit", "pause", 4, timeout_s=300))


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def executor_of(pid: int) -> int:
    """The executor's JVM that a Python worker works for."""
    while pid > 1:
        if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            return pid
        pid = parent_of(pid)
    raise AssertionError("no executor among the parents")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.timeout(600)
def test_every_row_is_there_once_when_executors_are_killed_in_write_and_in_pre_commit(
    place: Place, tmp_path: Path
) -> None:
    place.add_orders(6)
    failpoints = tmp_path / "failpoints"
    arm(failpoints, *FAULTS)
    told = QueryDescription(
        input=str(place.input),
        table=str(place.table),
        checkpoint=str(place.checkpoint),
        master="local-cluster[2,1,1024]",
    )
    rows_per_epoch = told.files_per_epoch * ROWS_PER_FILE
    killed: list[Hit] = []
    with (
        polling(place.table, rows_per_epoch, rows_per_epoch) as reader,
        victim(told, tmp_path, failpoints=failpoints) as driver,
    ):
        for fault in FAULTS:
            hit = driver.wait_for_hit(failpoints, fault.point, "pause", timeout_s=TIMEOUT_S)
            os.kill(executor_of(hit.pid), signal.SIGKILL)
            driver.wait_for(lambda pid=hit.pid: not is_alive(pid), "its worker is gone", timeout_s=60)  # type: ignore[misc]
            killed.append(hit)
        result = driver.result(timeout_s=TIMEOUT_S)
        reader.look()

    assert "error" not in result, result["error"]
    for fault, hit in zip(FAULTS, killed, strict=True):
        again = [h for h in trace(failpoints) if (h.point, h.epoch, h.slot) == (fault.point, hit.epoch, hit.slot)]
        assert len(again) == 2, f"the task that died at {fault.point} was not run again"
        assert again[0].pid != again[1].pid
    assert [hit.epoch for hit in killed] == [0, 1]
    assert reader.faults == []
    assert not place.difference()
    assert place.epochs() == [0, 1, 2]
    assert residue_of(place.table) == []
