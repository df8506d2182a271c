"""The protocol against its model, as far as two minutes reach; `make model` goes further. See docs/proof.md."""

from __future__ import annotations

import pytest

from tests.model.bounds import SMALL, Bound
from tests.model.explorer import Explorer
from tests.model.invariants import Violation
from tests.model.mistakes import MISTAKES, Mistake
from tests.model.spark import Setup
from tests.model.state import Scenario

SURGERY_NEEDS = {"rewound", "restored", "copied", "moved", "emptied", "taken over"}
"""These are done to a checkpoint whose driver is dead, so they need a fault before them."""


@pytest.mark.parametrize("bound", SMALL, ids=lambda bound: bound.name)
def test_every_schedule_keeps_every_invariant(bound: Bound, capsys: pytest.CaptureFixture[str]) -> None:
    report = Explorer(bound.scenario).run()
    with capsys.disabled():
        print(f"\n{bound.name}: {report}")  # noqa: T201 - the figures of this run
    assert report.complete
    assert report.ends > 1
    possible = bound.scenario.kinds - (SURGERY_NEEDS if bound.scenario.max_faults == 1 else set())
    assert set(report.faults) == possible, "a fault that never struck was not explored"


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)
def test_a_seeded_mistake_is_caught(mistake: Mistake) -> None:
    with mistake.applied(), pytest.raises(Violation) as caught:
        Explorer(mistake.scenario).run()
    assert caught.value.invariant == mistake.caught_by
    assert "schedule:" in caught.value.__notes__[0]


def test_what_makes_a_mistake_visible_is_the_mistake() -> None:
    """Without it, the same scenarios are clean."""
    for scenario in {mistake.scenario for mistake in MISTAKES if mistake.scenario.max_faults < 2}:
        assert Explorer(scenario).run().complete


def test_a_share_that_is_begun_again_after_its_death_does_not_stop_the_query_for_good() -> None:
    """A request that came twice brings it back, not voted for: the decision names it, so no sweep before the roll-forward may."""
    faults = frozenset({"duplicate request", "share dies"})
    report = Explorer(Scenario(Setup(0, sinks=("b",), epochs=1), max_faults=2, kinds=faults)).run()

    assert report.complete


def test_a_share_that_is_begun_and_voted_for_again_after_its_death_stays_dead() -> None:
    """Both requests came twice. What a revision has replaced may not be committed beside it."""
    faults = frozenset({"duplicate request", "share dies"})
    report = Explorer(Scenario(Setup(0, sinks=("b",), epochs=1, slots=1), max_faults=3, kinds=faults)).run()

    assert report.complete


def test_a_late_commit_of_a_revision_that_the_restored_ledger_does_not_know_is_noticed() -> None:
    """It lands after the markers were read, and before its share would be swept."""
    faults = frozenset({"late request", "share dies", "restored"})
    report = Explorer(Scenario(Setup(0, sinks=("b",), epochs=1, slots=1), max_faults=3, kinds=faults)).run()

    assert report.complete
