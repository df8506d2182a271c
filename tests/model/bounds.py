"""How far the model is explored: by `make test` (SMALL, a minute) and by `make model` (LARGE, hours).

All have 3 epochs, 2 sinks (one atomic across tasks with one owner, one by slot with several) and 2 tasks.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from tests.model.spark import Setup
from tests.model.state import ALL_FAULTS, Scenario

COMPANY = frozenset({"second driver", "rival", "late twin", "late request", "duplicate request"})
"""Faults after which something else is alive, or on its way: many more orders."""
ALONE = ALL_FAULTS - COMPANY


@dataclass(frozen=True)
class Bound:
    name: str
    scenario: Scenario

    def limited(self, seconds: float | None) -> Scenario:
        return self.scenario if seconds is None else dataclasses.replace(self.scenario, seconds=seconds)


def _setup(**changed: object) -> Setup:
    return dataclasses.replace(Setup(0), **changed)  # type: ignore[arg-type]


_TIMING = frozenset({"crash", "lost reply", "late request"})
_LATE = frozenset({"crash", "late request", "duplicate request"})

SMALL = (
    Bound("1 fault of every kind", Scenario(max_faults=1, max_switches=2)),
    Bound("1 rival, any number of switches", Scenario(max_faults=1, kinds=frozenset({"rival"}))),
    Bound("2 faults, one driver at a time", Scenario(max_faults=2, kinds=ALONE)),
    Bound("2 faults: crashes, late or duplicated requests", Scenario(max_faults=2, kinds=_LATE)),
    Bound("1 fault, no second try to publish", Scenario(_setup(publish_tries=1), max_faults=1, kinds=_TIMING)),
    Bound(
        "1 second driver, compaction after 3 records",
        Scenario(_setup(kept_records=3), max_faults=1, max_switches=2, kinds=frozenset({"second driver", "crash"})),
    ),
    Bound(
        "2 faults, one sink by slot, started again with another number of tasks",
        Scenario(_setup(sinks=("b",)), max_faults=2, kinds=frozenset({"crash", "share dies", "rescaled"})),
    ),
    Bound(
        "2 faults, a plan that is not deterministic",
        Scenario(_setup(deterministic=False), max_faults=2, kinds=frozenset({"crash", "share dies"})),
    ),
)

LARGE = (
    *SMALL,
    Bound("1 fault of every kind, any number of switches", Scenario(max_faults=1)),
    Bound("3 faults, one driver at a time", Scenario(max_faults=3, kinds=ALONE)),
    Bound("2 faults, no second try to publish", Scenario(_setup(publish_tries=1), max_faults=2, kinds=_TIMING)),
    Bound(
        "3 faults, a plan that is not deterministic",
        Scenario(_setup(deterministic=False), max_faults=3, kinds=frozenset({"crash", "share dies", "lost reply"})),
    ),
    Bound(
        "3 faults, one sink by slot, restored",
        Scenario(_setup(sinks=("b",)), max_faults=3, kinds=frozenset({"crash", "share dies", "restored", "rescaled"})),
    ),
    Bound("2 faults of every kind, 2 switches", Scenario(max_faults=2, max_switches=2)),
    Bound("3 faults, one driver of a query at a time", Scenario(max_faults=3, kinds=ALL_FAULTS - {"second driver"})),
    Bound("3 faults of every kind, 1 switch", Scenario(max_faults=3, max_switches=1)),
)
