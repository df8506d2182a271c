"""A state of the exploration, what is explored, and what came of it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from tests.model import invariants
from tests.model.digest import digest
from tests.model.objects import Files, Op
from tests.model.replay import Node
from tests.model.slot_sink import SlotState
from tests.model.spark import (
    Phase,
    Setup,
)
from twophase.sinks.heap import HeapState

RESTARTS_WITHOUT_PROGRESS = 3
NO_COMPACTION = 100

ALL_FAULTS = frozenset(
    {
        "crash", "lost reply", "late request", "duplicate request", "second driver", "task crash", "late twin",
        "share dies", "commit again", "rewound", "restored", "copied", "moved", "emptied", "taken over", "rival",
    }
)  # fmt: skip

RECONFIGURATIONS = frozenset({"rescaled", "sink added", "sink removed"})
"""Not faults, but what people do between two starts of a query; for long histories."""

SURGERY = frozenset({"rewound", "restored", "copied", "moved", "emptied", "taken over", "rival"})

REFUSALS = {
    "rewound": {"CHECKPOINT_MISMATCH"},
    "restored": {"CHECKPOINT_MISMATCH"},
    "copied": {"CHECKPOINT_MISMATCH"},
    "moved": {"CHECKPOINT_MISMATCH"},
    "rescaled": {"REPLAY_DIFFERS"},
    # A new ledger can't sweep what the lost one staged: the target is in doubt until those shares expire.
    "emptied": {"CHECKPOINT_MISMATCH", "OUTCOME_UNKNOWN"},
}
"""Fault → with which errors a query may stop for good because of it. Everything else must be recovered from."""

FIRST = Setup(0)


class Process(NamedTuple):
    setup: Setup
    phase: Phase
    node: Node


class State(NamedTuple):
    files: Files
    atomic: HeapState
    slots: SlotState
    drivers: tuple[Process, ...] = ()
    twins: tuple[Process, ...] = ()
    messages: tuple[Op, ...] = ()
    faults: tuple[str, ...] = ()
    decided: invariants.Decided = frozenset()
    """Everything that was ever decided."""
    newest: invariants.Decided = frozenset()
    """What the newest decision names."""
    next_setup: Setup = FIRST
    fruitless: int = 0
    """How often in a row a driver died without a fault, and without getting an epoch done."""
    why: str = ""
    running: int = 0
    """Which of two living drivers has the floor."""
    switches: int = 0
    widowed: bool = False
    """Whether this driver's fellow has just ended: another may begin before the next operation, even if that only reads."""

    def hash(self, *more: object) -> int:
        """8 bytes for what the future depends on, but for how many faults and switches are left."""
        return int.from_bytes(blake2b(b"".join(self._parts(*more)), digest_size=8).digest(), "little")

    def _parts(self, *more: object) -> Iterator[bytes]:
        """Digests, all of one size: what belongs to which is told by how many there are of each."""
        counts = (len(self.drivers), len(self.twins), len(self.messages))
        yield _digest_of_small(
            (self.fruitless, self.why, self.running, self.widowed, aftermath(self.faults), counts, more)
        )
        yield self.files.digest
        yield from map(digest, (self.atomic, self.slots, self.decided, self.newest, self.next_setup))
        yield from (process.node.digest for process in self.drivers)
        yield from (process.node.digest for process in self.twins)
        yield from sorted(map(digest, self.messages))


_digest_of_small = functools.cache(digest)
"""Of the parts of a state that have few values."""


class Aftermath(NamedTuple):
    """What the faults that struck still mean, other than by what they did to the world."""

    surgery: bool
    reconfigured: bool
    refusals: tuple[str, ...]
    residue: bool


def _refusals(struck: set[str]) -> set[str]:
    return set().union(*(REFUSALS.get(fault, set()) for fault in struck))


@functools.cache
def aftermath(faults: tuple[str, ...]) -> Aftermath:
    struck = set(faults)
    return Aftermath(
        surgery=bool(struck & SURGERY),
        reconfigured=bool(struck & RECONFIGURATIONS),
        refusals=tuple(sorted(_refusals(struck))),
        residue="emptied" in struck,
    )


@dataclass(frozen=True)
class Scenario:
    """What is explored."""

    setup: Setup = FIRST
    max_faults: int = 1
    max_switches: int | None = None
    """How often the floor passes between two living drivers, other than by the end of one; None: they run freely."""
    kinds: frozenset[str] = ALL_FAULTS
    normalise: bool = True
    """Whether states between epochs are renamed; only if drivers are always started alike."""
    reduce: bool = True
    """Whether orders that nobody can tell apart are tried once; otherwise every step is taken at every moment."""
    seconds: float | None = None


@dataclass
class Report:
    ends: int = 0
    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    refused: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    complete: bool = True
    journal_s: float = 0.0
    """Processor time that earlier runs spent on what was taken from a journal."""

    def __str__(self) -> str:
        resumed = f", and {self.journal_s:,.0f} s of processor time from a journal" if self.journal_s else ""
        fired = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.states:,} states, {self.steps:,} steps, {self.seconds:.1f} s{resumed}"
            f"{'' if self.complete else ' (stopped early)'}; ends: {self.ends:,}, of which refused: {self.refused:,}; "
            f"faults fired: {fired}"
        )
