"""kill -9 of the driver, of the process that receives, of the sender, and of both: through Spark, into a table of files."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from twophase.testing.child import Child, pids_below
from twophase.testing.servers.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
COUNT = 60_000
STARTS_WITHIN_S = 120.0


def numbers_in(table: Path) -> list[int]:
    """What a reader sees now, epoch by epoch, in the order of the slots."""
    epochs = sorted(table.glob("epoch=*"), key=lambda path: int(path.name.partition("=")[2]))
    return [
        number
        for epoch in epochs
        for file in sorted(epoch.glob("part-*.parquet"))
        for number in pq.read_table(file, columns=["number"])["number"].to_pylist()
    ]


def run(module: str, output: Path, *arguments: object) -> Child:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return Child(command, output=output, cwd=ROOT, environment={"PYSPARK_PYTHON": sys.executable})


@contextmanager
def until_killed(child: Child) -> Iterator[Child]:
    try:
        yield child
    finally:
        child.kill()


def receiver_of(driver: Child) -> int:
    """The process of Spark that receives."""
    for pid in driver.pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if b"python_streaming_source_runner" in command and not pids_below(pid):
            return pid
    raise AssertionError("no process of the driver receives")


@pytest.mark.timeout(900)
def test_every_line_is_there_once_whatever_is_killed(tmp_path: Path) -> None:
    chosen = random.Random(8)
    [port] = free_ports(1)
    table = tmp_path / "table"
    victims = [("driver",), ("driver", "sender"), ("receiver",), ("sender",), ("sender", "driver")]
    struck = 0
    with ExitStack() as stack:
        sender = stack.enter_context(until_killed(_sender(tmp_path, port)))
        for round_, dying in enumerate(victims):
            driver = run("integration_tests.socket_program", tmp_path / f"driver-{round_}.txt", tmp_path, port)
            with until_killed(driver):
                seen = len(numbers_in(table))
                driver.wait_for(lambda s=seen: len(numbers_in(table)) > s, "more rows", timeout_s=STARTS_WITHIN_S)  # type: ignore[misc]
                time.sleep(chosen.uniform(0.2, 2.0))
                for name in dying:
                    if name == "driver":
                        assert driver.is_running, driver.output()
                        driver.kill()
                    elif name == "receiver":
                        os.kill(receiver_of(driver), signal.SIGKILL)
                    else:
                        sender.kill()
                        sender = stack.enter_context(until_killed(_sender(tmp_path, port)))
                    struck += 1
                if dying == ("receiver",):
                    driver.wait_for(lambda d=driver: not d.is_running, "the query failed", timeout_s=60)  # type: ignore[misc]
                if dying == ("sender",):
                    here = len(numbers_in(table))
                    driver.wait_for(lambda h=here: len(numbers_in(table)) > h, "it goes on", timeout_s=60)  # type: ignore[misc]
        with until_killed(run("integration_tests.socket_program", tmp_path / "driver.txt", tmp_path, port)) as driver:
            driver.wait_for(lambda: len(numbers_in(table)) >= COUNT, "all rows", timeout_s=STARTS_WITHIN_S)
            time.sleep(2)  # for what comes too much
    assert struck == 7
    assert numbers_in(table) == list(range(COUNT))
    assert sum(file.stat().st_size for file in (tmp_path / "journal").glob("*.lines")) < 500_000


def _sender(folder: Path, port: int) -> Child:
    return run("tests.counting_sender", folder / "sender.txt", folder / "spool.db", port, COUNT)
