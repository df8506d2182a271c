"""How far the model is explored: by `make test` (SMALL, two minutes) and by `make model` (LARGE, hours).

All have 3 epochs, 2 sinks (one atomic across tasks with one owner, one by slot with several) and 2 tasks.
"""

from __future__ import annotations

import dataclasses
import itertools
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

SMALL = (
    Bound("1 fault of every kind", Scenario(max_faults=1)),
    Bound("2 faults, one driver at a time", Scenario(max_faults=2, kinds=ALONE)),
    Bound("2 duplicated requests or crashes", Scenario(max_faults=2, kinds=frozenset({"crash", "duplicate request"}))),
    Bound("1 fault, no second try to publish", Scenario(_setup(publish_tries=1), max_faults=1, kinds=_TIMING)),
    Bound(
        "1 second driver, compaction after 3 records",
        Scenario(_setup(kept_records=3), max_faults=1, kinds=frozenset({"second driver", "crash"})),
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

# A schedule with two faults has at most two kinds of them: all pairs together are "2 faults of every kind", in the memory of one.
PAIRS = tuple(
    Bound(f"2 faults: {' or '.join(pair)}", Scenario(max_faults=2, kinds=frozenset(pair)))
    for pair in itertools.combinations_with_replacement(sorted(ALL_FAULTS), 2)
    if COMPANY.intersection(pair)
)

LARGE = (
    *SMALL,
    Bound("3 faults, one driver at a time", Scenario(max_faults=3, kinds=ALONE)),
    Bound("1 fault, 3 switches", Scenario(max_faults=1, max_switches=3)),
    Bound("2 faults, no second try to publish", Scenario(_setup(publish_tries=1), max_faults=2, kinds=_TIMING)),
    Bound(
        "3 faults, a plan that is not deterministic",
        Scenario(_setup(deterministic=False), max_faults=3, kinds=frozenset({"crash", "share dies", "lost reply"})),
    ),
    Bound(
        "3 faults, one sink by slot, restored",
        Scenario(_setup(sinks=("b",)), max_faults=3, kinds=frozenset({"crash", "share dies", "restored", "rescaled"})),
    ),
    *PAIRS,
)
