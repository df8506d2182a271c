"""The program of this folder as a child: started, killed, or run to its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from integration_tests.crash.program import QueryDescription
from twophase.testing.child import Child, running

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 240.0


@contextmanager
def victim(told: QueryDescription, folder: Path, *, failpoints: Path | None = None) -> Iterator[Child]:
    """The query, running; it is gone when this ends."""
    command = [sys.executable, "-m", "integration_tests.crash.program", told.to_argument()]
    output = folder / f"output-{time.monotonic_ns()}.txt"
    with running(command, output=output, cwd=ROOT, failpoints=failpoints) as child:
        yield child


def run_to_the_end(told: QueryDescription, folder: Path, *, failpoints: Path | None = None) -> dict[str, Any]:
    with victim(told, folder, failpoints=failpoints) as child:
        return child.result(timeout_s=TIMEOUT_S)
