"""A part of a server that is a process of this machine.

It leads a session of its own, and prints into one file over all its runs. A small guard process holds on to this one: when
the test run dies without a chance to clean up, the guard kills what it started.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from twophase.testing.child import is_running, pids_below

_SHOWN = 6000
_STOPS_WITHIN_S = 30.0
_POLL_S = 0.02
# The pipe's other end is held by us alone: `read` returns when we are gone, however that came about.
_GUARD = 'read -r line; kill -9 "$1"'


@dataclass(frozen=True)
class Command:
    """What runs, where, and how it is asked to end."""

    arguments: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM


def _nothing() -> None:
    pass


class ProcessPart:
    """One process, with the processes that it starts."""

    def __init__(self, name: str, command: Command, *, log: Path, remove: Callable[[], None] = _nothing):
        self.name = name
        self._command = command
        self._log = log
        self._remove = remove
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process.pid

    def start(self) -> None:
        self._dismiss_guard()
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command.arguments,
                cwd=self._command.folder,
                env={**os.environ, **self._command.environment},
                user=self._command.user,
                # Root's groups would come along otherwise.
                extra_groups=None if self._command.user is None else [],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        arguments = ["/bin/sh", "-c", _GUARD, "guard", str(self._process.pid)]
        self._guard = subprocess.Popen(arguments, stdin=subprocess.PIPE, start_new_session=True)

    def kill(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            # Stopped first, it starts no further process while its children are looked for. They are killed too: those of
            # a database server live on for a moment, and hold what the next server needs.
            os.kill(self._process.pid, signal.SIGSTOP)
            pids = [self._process.pid, *pids_below(self._process.pid)]
            for pid in pids:
                _kill(pid)
            self._dismiss_guard()
            self._process.wait(_STOPS_WITHIN_S)
            _wait_until_gone(pids)
        self._dismiss_guard()

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(self._command.stop_signal)
        try:
            self._process.wait(_STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimeoutError(
                f"{self.name} did not stop within {_STOPS_WITHIN_S:.0f} s, and was killed\n{self.log()}"
            ) from None
        self._dismiss_guard()

    def log(self) -> str:
        if not self._log.exists():
            return "(it printed nothing)"
        return self._log.read_text(encoding="utf-8", errors="replace")[-_SHOWN:]

    def remove(self) -> None:
        self._remove()

    def _dismiss_guard(self) -> None:
        """End the guard by SIGKILL, so that it can't do what it is there for."""
        if self._guard is None:
            return
        self._guard.kill()
        self._guard.wait()
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard = None


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + _STOPS_WITHIN_S
    while left := [pid for pid in pids if is_running(pid)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {left} do not die")
        time.sleep(_POLL_S)
