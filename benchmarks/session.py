"""The application as a child: told what to run, and measured from outside, all its processes together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.processor_time import processor_s, spent_s, stolen_s
from benchmarks.run import Run
from twophase.testing.child import kill_session, pids_of_session

ROOT = Path(__file__).resolve().parent.parent
_CORES = os.cpu_count() or 1
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Measured:
    """What one run took."""

    rows: int
    seconds: float
    cpu_s: float
    epoch_ms: tuple[float, ...]
    python_bytes: int
    """Resident memory of all Python processes after the run."""
    stolen: float
    """The part of the machine that its host gave to others meanwhile: what is measured then is not the program alone."""
    seen: Mapping[str, int] = field(default_factory=dict)
    """What the query itself has counted, if it does."""

    @property
    def rows_per_s(self) -> float:
        return self.rows / (sum(self.epoch_ms) / 1000)

    @property
    def cpu_us_per_row(self) -> float:
        return self.cpu_s * 1e6 / self.rows


class Failed(Exception):
    """A query failed; the application goes on."""


class Session:
    def __init__(self, process: subprocess.Popen[str], errors: IO[str]):
        self._process = process
        self._errors = errors
        self._answer()

    def run(self, told: Run) -> Measured:
        assert self._process.stdin is not None
        before, stolen_before_s, began = processor_s(pids_of_session(self._process.pid)), stolen_s(), time.monotonic()
        self._process.stdin.write(told.to_line() + "\n")
        self._process.stdin.flush()
        said = self._answer()
        if "failed" in said:
            raise Failed(f"{told.contender}: {said['failed']}")
        return Measured(
            rows=said["rows"],
            seconds=said["seconds"],
            cpu_s=spent_s(before, processor_s(pids_of_session(self._process.pid))),
            epoch_ms=tuple(said["epoch_ms"]),
            python_bytes=self._python_bytes(),
            stolen=(stolen_s() - stolen_before_s) / (time.monotonic() - began) / _CORES,
            seen=said["seen"],
        )

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            start = line.find("{")
            if start >= 0:
                return dict(json.loads(line[start:]))
        self._errors.seek(0)
        raise SystemExit(f"the application ended:\n{self._errors.read()[-4000:]}")

    def _python_bytes(self) -> int:
        total = 0
        for pid in pids_of_session(self._process.pid):
            try:
                if "python" in os.readlink(f"/proc/{pid}/exe"):
                    total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
            except (FileNotFoundError, ProcessLookupError):
                continue
        return total


@contextmanager
def session(jars: Sequence[Path] = ()) -> Iterator[Session]:
    """The application, with these jars beside Spark's own."""
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - it lives as long as the session does
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.application", *map(str, jars)],
        cwd=ROOT,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        start_new_session=True,
    )
    try:
        yield Session(process, errors)
    finally:
        kill_session(process.pid)
        process.wait(30)
