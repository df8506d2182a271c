"""The program of this folder as a child: started, killed, or run to its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twophase.errors import CheckpointMismatch
from twophase.failpoints import Hit
from twophase.testing.child import Child, running
from twophase.testing.class_archive import class_archive
from twophase.testing.crash.cell import Kill
from twophase.testing.crash.program import QueryDescription
from twophase.testing.crash.reader import checkpoint_at

TIMEOUT_S = 240.0


def command_of(told: QueryDescription) -> list[str]:
    return [sys.executable, "-m", "twophase.testing.crash.program", told.to_argument()]


@contextmanager
def victim(told: QueryDescription, *, failpoints: Path | None = None) -> Iterator[Child]:
    """The query, running; it is gone when this ends. It runs in this process's folder, so that it finds the target's module."""
    class_archive()  # before the query, and not by it: what it takes is not part of a recovery
    output = Path(told.folder) / f"output-{time.monotonic_ns()}.txt"
    with running(command_of(told), output=output, cwd=Path.cwd(), failpoints=failpoints) as child:
        yield child


def run_to_the_end(told: QueryDescription, *, failpoints: Path | None = None) -> dict[str, Any]:
    with victim(told, failpoints=failpoints) as child:
        return child.result(timeout_s=TIMEOUT_S)


def stand_at(driver: Child, told: QueryDescription, failpoints: Path, kill: Kill) -> Hit:
    """Wait until the query pauses at this step."""
    hit = driver.wait_for_hit(failpoints, kill.point, "pause", timeout_s=TIMEOUT_S)
    require_own(hit, told, kill)
    return hit


def require_own(hit: Hit, told: QueryDescription, kill: Kill) -> None:
    """A fault that has struck another query than this one proves nothing."""
    assert hit.hit == kill.hit, f"{kill} fired when it was hit for the {hit.hit}. time"
    try:
        query = checkpoint_at(told.checkpoint).query_id()
    except CheckpointMismatch:
        raise AssertionError(f"{kill} fired before the query had a checkpoint: in another one") from None
    assert hit.owner is None or hit.owner.split("/")[0] == query, f"{kill} fired in {hit.owner}, and not in {query}"
