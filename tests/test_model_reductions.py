"""The model's reductions leave nothing out: on small bounds, all schedules end in the same worlds as with every step taken at
every moment, and mistakes are caught either way. See docs/proof.md."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from tests.model.explorer import Explorer
from tests.model.invariants import Violation
from tests.model.mistakes import MISTAKES, Mistake
from tests.model.objects import Files
from tests.model.slot_sink import SlotState
from tests.model.spark import Setup
from tests.model.state import Scenario
from twophase.sinks.heap import HeapState

pytestmark = pytest.mark.kit

ONE_EPOCH, TWO_EPOCHS = Setup(0, epochs=1, slots=1), Setup(0, epochs=2, slots=1)
SURGERY = frozenset({"rewound", "restored", "emptied", "moved", "copied", "taken over"})
SMALL = (
    (TWO_EPOCHS, 2, frozenset({"lost reply", "duplicate request", "task crash"})),
    (ONE_EPOCH, 2, frozenset({"crash", "late twin"}) | SURGERY),
    (ONE_EPOCH, 2, frozenset({"late request", "share dies", "commit again"})),
    (ONE_EPOCH, 2, frozenset({"rival", "lost reply"})),
    (ONE_EPOCH, 2, frozenset({"second driver", "crash"})),
    (dataclasses.replace(ONE_EPOCH, kept_records=3), 1, frozenset({"second driver"})),
)


@pytest.mark.parametrize(("setup", "faults", "kinds"), SMALL, ids=lambda value: _name(value))
def test_reduced_and_whole_search_end_in_the_same_worlds(setup: Setup, faults: int, kinds: frozenset[str]) -> None:
    """Without renaming between epochs, because worlds are compared down to their names."""
    scenario = Scenario(setup, max_faults=faults, kinds=kinds, normalise=False)
    reduced, whole = Explorer(scenario), Explorer(dataclasses.replace(scenario, reduce=False))
    reduced.run()
    whole.run()
    assert _worlds(reduced) == _worlds(whole)
    assert reduced.report.states < whole.report.states


@pytest.mark.parametrize("kinds", [frozenset({"crash", "share dies"}), frozenset({"late request", "lost reply"})])
def test_renaming_between_epochs_loses_no_end(kinds: frozenset[str]) -> None:
    scenario = Scenario(TWO_EPOCHS, max_faults=2, kinds=kinds)
    renamed, named = Explorer(scenario), Explorer(dataclasses.replace(scenario, normalise=False))
    renamed.run()
    named.run()
    assert {_seen(*world) for world in renamed.outcomes} == {_seen(*world) for world in named.outcomes}


QUICK = [m for m in MISTAKES if m.max_faults == 1 and m.setup == Setup(0)]


@pytest.mark.parametrize("mistake", QUICK, ids=lambda mistake: mistake.name)
def test_a_mistake_is_caught_without_reductions_too(mistake: Mistake) -> None:
    small = dataclasses.replace(mistake.scenario, setup=ONE_EPOCH, max_switches=None)
    verdicts = []
    for reduce in (True, False):
        with mistake.applied():
            try:
                Explorer(dataclasses.replace(small, reduce=reduce)).run()
                verdicts.append("clean")
            except Violation:
                verdicts.append("caught")
    assert verdicts[0] == verdicts[1]


def _name(value: object) -> str:
    match value:
        case frozenset():
            return ",".join(sorted(value))
        case Setup():
            return f"{value.epochs} epochs of {value.slots} tasks"
    return str(value)


# ---- worlds that differ by names only ----


def _worlds(explorer: Explorer) -> set[str]:
    return {_told(*world) for world in explorer.outcomes}


def _told(why: str, *world: Any) -> str:
    """A world as text, in which drivers are numbered in the order in which the ledger names them: two that start together are
    the same to everybody."""
    parts = [why]
    for part in world:
        match part:
            case Files():
                parts.extend(f"{path}: {_body(data)}" for path, data in sorted(part.by_path.items()))
            case HeapState():
                parts.append(_line(part.line))
                parts.append(str(sorted((share.slot, str(share.attempt)) for share in part.staged)))
            case SlotState():
                parts.append(str(part.visible))
                parts.append(str(sorted((share.slot, str(share.attempt)) for share in part.pending)))
            case _:  # of a refused end: what readers see of one target
                parts.append(_line(part) if part and hasattr(part[0], "shares") else str(part))
    numbers: dict[str, int] = {}
    return re.sub(r"\bd(\d+)x", lambda found: f"d{numbers.setdefault(found[1], len(numbers))}x", "\n".join(parts))


def _line(line: Any) -> str:
    return str([(epoch.marker, [(share.slot, share.attempt, share.copy) for share in epoch.shares]) for epoch in line])


def _body(data: bytes) -> str:
    """A ledger record without its header: the checksum depends on names."""
    return data.decode().partition("\n")[2] if data.startswith(b"twophase-ledger") else data.decode()


def _seen(why: str, *world: Any) -> tuple[str, frozenset[tuple[Any, ...]]]:
    """What readers see at an end, without names."""
    rows: set[tuple[Any, ...]] = set()
    for part in world:
        if isinstance(part, HeapState):
            rows |= {(c.marker.epoch, s.slot, s.copy) for c in part.line for s in c.shares}
        elif isinstance(part, SlotState):
            rows |= {(t.epoch, t.slot, t.values) for t in part.visible}
    return why, frozenset(rows)
