"""A state of the exploration, what is explored, and what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.model import invariants
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

    def key(self) -> tuple[Any, ...]:
        """Everything is interned, so identity is equality."""
        return (
            id(self.files), id(self.atomic), id(self.slots), tuple(id(p.node) for p in self.drivers),
            tuple(id(p.node) for p in self.twins), tuple(id(m) for m in self.messages), self.faults, id(self.decided),
            id(self.newest), id(self.next_setup), self.fruitless, self.why, self.running, self.switches,
        )  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """What is explored."""

    setup: Setup = FIRST
    max_faults: int = 1
    max_switches: int = 2
    """How often the floor passes between two living drivers, other than by the end of one."""
    kinds: frozenset[str] = ALL_FAULTS
    normalise: bool = True
    """Whether states between epochs are renamed; only if drivers are always started alike."""
    seconds: float | None = None


@dataclass
class Report:
    schedules: int = 0
    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    refused: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    complete: bool = True

    def __str__(self) -> str:
        fired = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.schedules:,} schedules, {self.states:,} states, {self.steps:,} steps, {self.seconds:.1f} s"
            f"{'' if self.complete else ' (stopped early)'}; ends refused: {self.refused:,}; faults fired: {fired}"
        )
