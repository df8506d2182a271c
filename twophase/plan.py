"""The plan of an epoch: what prepare tells the tasks, for every sink. Travels to executors by pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twophase.identity import Epoch, Generation
from twophase.sink import Plan


@dataclass(frozen=True)
class SinkPlan:
    """What tasks do for one sink. Tasks that don't write drain their input, because Spark wants it read."""

    plan: Plan | None
    """None: the epoch is in this sink already."""
    slots: frozenset[int] | None = None
    """None: every slot is written. Otherwise only these: the others are decided, and kept by the revision."""

    def writes(self, slot: int) -> bool:
        return self.plan is not None and (self.slots is None or slot in self.slots)


@dataclass(frozen=True)
class EpochPlan:
    generation: Generation
    epoch: Epoch
    sinks: Mapping[str, SinkPlan]
    nonce: str = ""
    """Of every attempt that runs by this plan."""
