"""kill -9 of the sender, of the query, and of both, at many moments: every line is there once, and in its order."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from twophase.testing.servers.ports import free_ports

ROOT = Path(__file__).resolve().parent.parent
KILLS = 8
LINES_PER_KILL = 700
WITHIN_S = 200.0


class Program:
    """A program that is started again whenever it was killed."""

    def __init__(self, module: str, errors: Path, *arguments: object):
        self._command = [sys.executable, "-m", module, *map(str, arguments)]
        self._errors = errors
        self._process = self._started()
        self.kills = 0

    def _started(self) -> subprocess.Popen[bytes]:
        with open(self._errors, "wb") as errors:
            return subprocess.Popen(self._command, cwd=ROOT, stderr=errors)

    def kill(self) -> None:
        """kill -9, unless it has ended."""
        if self._process.poll() is None:
            self._process.kill()
            self.kills += 1
            self._process.wait(30)
        else:
            self.check()

    def restart(self) -> None:
        self._process = self._started()

    def check(self) -> None:
        if self._process.poll() not in (None, 0):
            raise AssertionError(self._errors.read_text("utf-8"))

    def end(self, within_s: float) -> None:
        assert self._process.wait(within_s) == 0, self._errors.read_text("utf-8")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(30)


@contextmanager
def programs(folder: Path, port: int, count: int) -> Iterator[tuple[Program, Program]]:
    sender = Program("tests.counting_sender", folder / "sender.txt", folder / "spool.db", port, count)
    query = Program("tests.small_query", folder / "query.txt", folder / "target.db", folder / "journal", port, count)
    try:
        yield sender, query
    finally:
        sender.stop()
        query.stop()


def lines_in(path: Path) -> list[int]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=30)) as database:
        try:
            return [int(line) for (line,) in database.execute("SELECT line FROM lines ORDER BY rowid")]
        except sqlite3.OperationalError:  # not made yet
            return []


@pytest.mark.timeout(300)
@pytest.mark.parametrize("victims", ["sender", "query", "both"])
def test_every_line_is_there_once_whatever_is_killed(tmp_path: Path, victims: str) -> None:
    chosen = random.Random(victims)
    count, [port] = KILLS * LINES_PER_KILL, free_ports(1)
    deadline = time.monotonic() + WITHIN_S
    with programs(tmp_path, port, count) as (sender, query):
        killed = [each for each, name in ((sender, "sender"), (query, "query")) if victims in (name, "both")]
        for _ in range(KILLS):
            # Somewhere after the next lines have come: so each kill strikes something that works.
            target = len(lines_in(tmp_path / "target.db")) + 1
            while len(lines_in(tmp_path / "target.db")) < min(target, count) and time.monotonic() < deadline:
                sender.check()
                query.check()
                time.sleep(0.01)
            time.sleep(chosen.uniform(0, 0.2))
            for each in chosen.sample(killed, len(killed)):
                each.kill()
                time.sleep(chosen.choice([0, 0, 0.02]))
            for each in chosen.sample(killed, len(killed)):
                each.restart()
                time.sleep(chosen.choice([0, 0, 0.2]))
        query.end(deadline - time.monotonic())
        sender.end(30)
        assert all(each.kills >= KILLS / 2 for each in killed), "most of them were alive when they were struck"
    assert lines_in(tmp_path / "target.db") == list(range(count))
