"""What finished chunks of a search have found, on disk: a search that takes hours survives a stop.

A journal is a folder, and a chunk one file in it, which is there whole or not at all. It names the roots that it has followed to
the end, by their hashes: these mean the same in every process. A search lies in a folder of its own, named by what it searches
and by the sources that it searches with: a changed protocol or model never goes on with an old search.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.model.digest import digest
from tests.model.seen import Array, Met
from tests.model.state import Scenario

ROOT = Path(__file__).parents[2]
SOURCES = ("twophase/**/*.py", "sinks/heap.py", "tests/model/*.py")


@dataclass(frozen=True)
class Chunk:
    """Some roots, followed to the end: what was met on the way."""

    roots: Array
    """Their hashes."""
    met: Met
    ends: Array
    """Hashes of states in which a schedule ended; of `refused`, those at which the query was refused."""
    refused: Array
    steps: int
    seconds: float
    """Of processor time."""
    faults: Counter[str]

    def save(self, path: Path) -> None:
        counts = json.dumps({"steps": self.steps, "seconds": self.seconds, "faults": self.faults})
        draft = path.with_suffix(f".{os.getpid()}")
        with draft.open("wb") as file:
            np.savez(
                file, roots=self.roots, hashes=self.met.hashes, bits=self.met.bits, ends=self.ends,
                refused=self.refused, counts=np.frombuffer(counts.encode(), np.uint8),
            )  # fmt: skip
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)

    @classmethod
    def load(cls, path: Path) -> Chunk:
        with np.load(path) as kept:
            counts: dict[str, Any] = json.loads(kept["counts"].tobytes())
            met = Met(kept["hashes"], kept["bits"])
            roots, ends, refused = kept["roots"], kept["ends"], kept["refused"]
        return cls(roots, met, ends, refused, counts["steps"], counts["seconds"], Counter(counts["faults"]))


@dataclass(frozen=True)
class Journal:
    folder: Path

    @classmethod
    def of(cls, scenario: Scenario, within: Path) -> Journal:
        folder = within / f"{_sources()}-{digest(_timeless(scenario)).hex()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.npz"

    def chunks(self) -> Iterator[Chunk]:
        return (Chunk.load(path) for path in sorted(self.folder.glob("*.npz")))


def _timeless(scenario: Scenario) -> tuple[Any, ...]:
    return (
        scenario.setup,
        scenario.max_faults,
        scenario.max_switches,
        scenario.kinds,
        scenario.normalise,
        scenario.reduce,
    )


def _sources() -> str:
    found = hashlib.blake2b(sys.version.encode(), digest_size=8)
    for path in sorted(path for pattern in SOURCES for path in ROOT.glob(pattern)):
        found.update(f"{path.relative_to(ROOT)}\0".encode())
        found.update(hashlib.blake2b(path.read_bytes()).digest())
    return found.hexdigest()
