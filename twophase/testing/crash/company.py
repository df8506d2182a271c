"""Those that die or sleep while the driver lives on: executors, servers, and drivers that wake up when another has taken over."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from twophase.failpoints import Fault, arm, release
from twophase.testing.crash.cell import Cell
from twophase.testing.crash.chain import PAUSE_S, Verdict, check_rows, failed, finish, look, readers_of
from twophase.testing.crash.orders import write_orders
from twophase.testing.crash.program import QueryDescription
from twophase.testing.crash.target import Killable
from twophase.testing.crash.victim import TIMEOUT_S, stand_at, victim

EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
_REFUSED = re.compile(
    r"\[(FENCED|ALREADY_DECIDED|NOT_COMMITTED|OUTCOME_UNKNOWN|CHECKPOINT_MISMATCH|PROTOCOL_VIOLATION)\]|CONCURRENT_STREAM_LOG_UPDATE"
)
"""What a driver is told that was overtaken: by us, or by Spark, whose logs another has written. Any other error is none of that."""


def run_executors(told: QueryDescription, cells: Sequence[Cell]) -> list[Verdict]:
    """kill -9 of an executor, JVM and Python worker together, while it holds a share: at each step in turn, in one query."""
    told = replace(told, master=LOCAL_CLUSTER)
    files = told.files_per_epoch * (2 * len(cells) + 2)
    expected, failpoints = write_orders(told.input, files), Path(told.folder) / "failpoints"
    verdicts: list[Verdict] = []
    fired, cell = False, cells[0]
    arm(failpoints, _pause(cells[0]))
    try:
        with readers_of(told, files) as readers, victim(told, failpoints=failpoints) as driver:
            for place, cell in enumerate(cells):
                fired = False
                hit = stand_at(driver, told, failpoints, cell.kills[-1])
                fired = True
                # Armed before the kill: the task that is run again may be the next victim.
                arm(failpoints, *(_pause(each) for each in cells[place + 1 : place + 2]))
                os.kill(executor_of(hit.pid), signal.SIGKILL)
                driver.wait_for(lambda pid=hit.pid: not is_alive(pid), "its worker is gone", timeout_s=60)  # type: ignore[misc]
                look(readers, f"after the kill at {cell.kills[-1]}")
                verdicts.append(Verdict(cell, fired))
            result = driver.result(timeout_s=TIMEOUT_S)
            assert "error" not in result, result["error"]
            look(readers, "at the end")
            check_rows(told, expected)
    except AssertionError as error:
        return failed(verdicts, cells, cell, fired, str(error))
    return verdicts


def run_zombie(told: QueryDescription, cell: Cell) -> Verdict:
    """A driver sleeps at a step while another does everything, and then goes on: it must change nothing, and be told so.

    Where a target can't refuse what comes too late, the zombie may stage something when nobody sweeps. The next epoch does.
    """
    files = 3 * told.files_per_epoch
    expected, failpoints = write_orders(told.input, files), Path(told.folder) / "failpoints"
    fired, point = False, cell.kills[-1].point
    arm(failpoints, _pause(cell))
    try:
        with readers_of(told, files) as readers, victim(told, failpoints=failpoints) as zombie:
            stand_at(zombie, told, failpoints, cell.kills[-1])
            fired = True
            zombie.freeze()
            finish(told, expected)
            release(failpoints, point)
            zombie.thaw()
            said = zombie.result(timeout_s=TIMEOUT_S)
            assert _REFUSED.search(str(said.get("error"))), f"the driver that slept was not refused: {said}"
            look(readers, "after the zombie has ended")
        fences = all(target.fences for target in told.targets)
        check_rows(told, expected, residue=fences)
        if not fences:
            finish(told, expected + write_orders(told.input, told.files_per_epoch, first=files))
    except AssertionError as error:
        return Verdict(cell, fired, error=str(error))
    return Verdict(cell, fired)


def run_server(told: QueryDescription, cell: Cell, server: Killable) -> Verdict:
    """A server dies while the driver or a task stands at a step, and comes back. The query goes on, or fails and is restarted."""
    files = 4 * told.files_per_epoch
    expected, failpoints = write_orders(told.input, files), Path(told.folder) / "failpoints"
    fired, point = False, cell.kills[-1].point
    arm(failpoints, _pause(cell))
    try:
        with victim(told, failpoints=failpoints) as driver:
            stand_at(driver, told, failpoints, cell.kills[-1])
            fired = True
            server.kill()
            assert server.ended(), "the server runs, and was to be dead"
            release(failpoints, point)
            server.restart()
            driver.result(timeout_s=TIMEOUT_S)
        finish(told, expected)
    except AssertionError as error:
        return Verdict(cell, fired, error=str(error))
    return Verdict(cell, fired)


def _pause(cell: Cell) -> Fault:
    return Fault(cell.kills[-1].point, "pause", cell.kills[-1].hit, timeout_s=PAUSE_S)


def executor_of(pid: int) -> int:
    """The executor's JVM that a Python worker works for."""
    while pid > 1:
        if EXECUTOR in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
            return pid
        pid = _parent_of(pid)
    raise AssertionError("no executor among the parents")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def _parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
