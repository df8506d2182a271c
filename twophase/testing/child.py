"""A child process and all its descendants, as one thing that can be watched, killed or frozen.

A driver is several processes: Python, the JVM, the planner, the commit worker, the executors' workers. The child leads a session
of its own, which all of them stay in whatever process groups they make, so "kill -9 of the driver" is SIGKILL to every process of
that session, by pid. Linux only: it reads /proc.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from twophase.failpoints import VARIABLE, Hit, trace

_POLL_S = 0.05
_DIES_WITHIN_S = 30.0
_SHOWN = 6000


class Child:
    """One run of a program, in a session of its own; what it prints goes to a file."""

    def __init__(self, command: Sequence[str], *, output: Path, cwd: Path, environment: Mapping[str, str]):
        self._output = output
        with open(output, "wb") as out:
            self._process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def pids(self) -> list[int]:
        """Every process of the session that still runs."""
        return pids_of_session(self._process.pid)

    def kill(self) -> None:
        kill_session(self._process.pid)
        self._process.wait(_DIES_WITHIN_S)

    def freeze(self) -> None:
        """SIGSTOP to all: a zombie that may go on later."""
        for pid in self.pids():
            _signal(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self.pids():
            _signal(pid, signal.SIGCONT)

    def wait_for(self, condition: Callable[[], bool], what: str, *, timeout_s: float) -> None:
        """Wait until it is true; fail if the child ends, or time is up, first."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if not self.is_running and not condition():
                raise AssertionError(f"the program ended before {what}:\n{self.output()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not within {timeout_s} s\n{self.output()}")
            time.sleep(_POLL_S)

    def wait_for_hit(self, failpoints: Path, point: str, action: str, *, timeout_s: float) -> Hit:
        """Wait until a fault has fired there; the trace is the proof."""

        def fired() -> list[Hit]:
            return [hit for hit in trace(failpoints) if hit.point == point and hit.action == action]

        self.wait_for(lambda: bool(fired()), f"{point} was hit", timeout_s=timeout_s)
        return fired()[0]

    def result(self, *, timeout_s: float) -> dict[str, Any]:
        """Wait for the end; the JSON object that the program printed last."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the program did not end within {timeout_s} s:\n{self.output()}") from None
        for line in reversed(self.output().splitlines()):
            start = line.find("{")  # Spark's progress bar may stand before it
            if start < 0:
                continue
            try:
                return dict(json.loads(line[start:]))
            except ValueError:
                continue
        raise AssertionError(f"the program said nothing at its end:\n{self.output()}")

    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")[-_SHOWN:]


@contextmanager
def running(command: Sequence[str], *, output: Path, cwd: Path, failpoints: Path | None = None) -> Iterator[Child]:
    """Run a program as a child, which is gone when this ends."""
    environment = {} if failpoints is None else {VARIABLE: str(failpoints)}
    child = Child(command, output=output, cwd=cwd, environment=environment)
    try:
        yield child
    finally:
        child.kill()


def pids_of_session(session: int) -> list[int]:
    """Every process of a session that still runs."""
    return [pid for pid, process in _running().items() if process.session == session]


def pids_below(ancestor: int) -> list[int]:
    """Every process that still runs and that this one started, or one that it started; whatever session it made."""
    running = _running()
    found = [ancestor]
    for above in found:
        found.extend(pid for pid, process in running.items() if process.parent == above)
    return found[1:]


def is_running(pid: int) -> bool:
    return _process(pid) is not None


def kill_session(session: int) -> None:
    """SIGKILL to every process of the session, until none is left: a dying parent may have started one more."""
    deadline = time.monotonic() + _DIES_WITHIN_S
    while pids := pids_of_session(session):
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} do not die")
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        time.sleep(_POLL_S)


class _Process(NamedTuple):
    parent: int
    session: int


def _running() -> dict[int, _Process]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return {pid: process for pid in pids if (process := _process(pid)) is not None}


def _process(pid: int) -> _Process | None:
    """What the system says of a living process; None for one that is gone, or dead and not yet waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # After the name, which is in parentheses and may hold anything: state, parent, process group, session.
    state, parent, _, session = stat.rpartition(")")[2].split()[:4]
    return None if state in "ZX" else _Process(int(parent), int(session))


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
