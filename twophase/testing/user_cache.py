"""What tests keep from run to run, in the user's cache folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache() -> Path:
    """The folder of twophase in the user's cache; the Makefile uses the same."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "twophase"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time, and all of them for as long as they live: the system lets go of a dead one's lock."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
