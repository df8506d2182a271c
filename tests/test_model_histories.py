"""Long random histories on the model: more epochs than can be enumerated, with rescaling, sinks that come and go, take-over,
moved checkpoints and compaction after every few records, and any number of faults."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.model.explorer import Explorer
from tests.model.spark import Setup
from tests.model.state import ALL_FAULTS, RECONFIGURATIONS, Scenario, State

ENDLESS = 1_000_000
REFUSED = frozenset({"rewound", "restored", "copied", "emptied"})
"""These end a history in a refusal, and are enumerated elsewhere."""
KINDS = (ALL_FAULTS | RECONFIGURATIONS) - REFUSED


class Histories(RuleBasedStateMachine):
    """Each rule takes moves of the explorer; what it explores by trying all, this tries by chance."""

    explorer: Explorer
    state: State

    @initialize(kept_records=st.sampled_from([3, 4, 100]), slots=st.integers(1, 3))
    def begin(self, kept_records: int, slots: int) -> None:
        setup = Setup(0, epochs=12, slots=slots, kept_records=kept_records)
        self.explorer = Explorer(
            Scenario(setup, max_faults=ENDLESS, max_switches=ENDLESS, kinds=KINDS, normalise=False)
        )
        self.state = self.explorer.first()
        self.trail: list[str] = []

    def _take(self, choice: int, *, faults: bool) -> None:
        moves = [
            (label, to)
            for label, to in self.explorer.moves(self.state)
            if (len(to.faults) > len(self.state.faults)) == faults
        ]
        if moves:
            label, self.state = moves[choice % len(moves)]
            self.trail.append(str(label))

    @rule(steps=st.integers(1, 40))
    def goes_on(self, steps: int) -> None:
        for _ in range(steps):
            self._take(0, faults=False)

    @rule(choice=st.integers(0, 50))
    def somebody_else_goes_on(self, choice: int) -> None:
        self._take(choice, faults=False)

    @rule(choice=st.integers(0, 50))
    def a_fault_strikes(self, choice: int) -> None:
        self._take(choice, faults=True)

    @precondition(lambda self: not self.state.drivers)
    @rule(choice=st.integers(0, 50))
    def something_is_changed_before_the_next_start(self, choice: int) -> None:
        self._take(choice, faults=True)

    @invariant()
    def every_invariant_holds(self) -> None:
        if hasattr(self, "state"):
            self.explorer.check(self.state)

    def teardown(self) -> None:
        """Without further faults the query finishes, or refuses for a reason that it was given."""
        if not hasattr(self, "state"):
            return
        for _ in range(20_000):
            before = self.state
            # What is still alive or on its way comes first: as long as it is, nobody can say that a refusal is for good.
            waiting = not before.drivers and bool(before.messages or before.twins)
            self._take(1 if waiting else 0, faults=False)
            self.explorer.check(self.state)
            if self.state is before:
                return
        raise AssertionError(f"it does not come to an end: {self.trail[-40:]}")


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    # A failing history prints its whole trail; shrinking one takes longer than reading it.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
