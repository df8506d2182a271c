"""kill -9 of the driver, of the process that receives, of the sender, and of both: through Spark, into a table of files."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from examples.socket_sender import Spool
from twophase.testing.child import Child, pids_below
from twophase.testing.servers.ports import free_ports

pytestmark = pytest.mark.servers

ROOT = Path(__file__).resolve().parent.parent
STARTS_WITHIN_S = 240.0


def numbers_in(table: Path) -> list[int]:
    """What a reader sees now, epoch by epoch, in the order of the slots."""
    epochs = sorted(table.glob("epoch=*"), key=lambda path: int(path.name.partition("=")[2]))
    files = [file for epoch in epochs for file in sorted(epoch.glob("part-*.parquet"))]
    return [int(number) for file in files for number in pq.read_table(file, columns=["number"])["number"].to_numpy()]


def rows_in(table: Path) -> int:
    """How many there are, by the footers alone: it is asked all the time."""
    return sum(int(pq.read_metadata(file).num_rows) for file in table.glob("epoch=*/part-*.parquet"))


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


@pytest.mark.timeout(1200)
def test_every_line_is_there_once_whatever_is_killed(tmp_path: Path) -> None:
    chosen = random.Random(8)
    [port] = free_ports(1)
    table = tmp_path / "table"
    with ExitStack() as stack:
        sender = stack.enter_context(until_killed(_sender(tmp_path, port)))
        driver = None
        for round_, victims in enumerate((["driver"], ["sender", "driver"], ["receiver"], ["sender"])):
            seen = rows_in(table)
            driver = run("integration_tests.socket_program", tmp_path / f"driver-{round_}.txt", tmp_path, port)
            stack.enter_context(until_killed(driver))
            _wait_for_rows(driver, table, seen + 1)
            time.sleep(chosen.uniform(0.2, 2.0))
            assert driver.is_running, driver.output()
            if "sender" in victims:
                sender.kill()
                sender = stack.enter_context(until_killed(_sender(tmp_path, port)))
            if "receiver" in victims:
                os.kill(receiver_of(driver), signal.SIGKILL)
                _wait_for_end(driver)
            if "driver" in victims:
                driver.kill()
        assert driver is not None
        (tmp_path / "enough").touch()
        driver.wait_for(lambda: not sender.is_running, "every line is acknowledged", timeout_s=STARTS_WITHIN_S)
        with closing(Spool(str(tmp_path / "spool.db"))) as spool:
            count = spool.following
        _wait_for_rows(driver, table, count)
        time.sleep(2)  # for what comes too much
    assert count > 1000
    assert numbers_in(table) == list(range(count))
    assert sum(file.stat().st_size for file in (tmp_path / "journal").glob("*.lines")) < 500_000


def _wait_for_rows(driver: Child, table: Path, count: int) -> None:
    driver.wait_for(lambda: rows_in(table) >= count, f"{count} rows", timeout_s=STARTS_WITHIN_S)


def _wait_for_end(driver: Child) -> None:
    """Of a query that has lost its receiver."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while driver.is_running:
        assert time.monotonic() < deadline, "the query goes on without its receiver"
        time.sleep(0.1)


def _sender(folder: Path, port: int) -> Child:
    return run("tests.counting_sender", folder / "sender.txt", folder / "spool.db", port, folder / "enough")
