"""What a sink promises about shares that died: they are named, they stay dead, and nobody takes another for them."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from twophase.errors import Fenced, NotCommitted
from twophase.sink import CommitOrder, Outcome
from twophase.testing.sink_capabilities import only_if
from twophase.testing.sink_steps import SinkSteps

LONG_DEAD = 3
"""Times the life of a share. What ends shares may look for them only now and then."""


class SinkDeadShares:
    def test_a_lost_share_is_named_before_the_decision_and_after_it(self, steps: SinkSteps) -> None:
        """The target loses a share: alive and commit name its slot, from any process, any number of times."""
        steps.epoch(0, [1])
        order = steps.decided(1, [2], [3], [4])
        lost = _lost(steps, order, 1)
        before = steps.marker()
        for _ in range(2):
            assert lost <= set(steps.sink().alive(order)) <= {0, 1, 2}
            assert (steps.visible(), steps.marker()) == ([1], before)
        for _ in range(2):
            with pytest.raises(NotCommitted) as caught:
                steps.commit(order)
            if steps.sink().capabilities.atomic:
                assert lost <= set(caught.value.dead_slots) <= {0, 1, 2}
                assert (steps.visible(), steps.marker()) == ([1], before), "all shares of an epoch, or none"
            else:
                assert set(caught.value.dead_slots) == lost
                kept = {share.slot for share in order.shares} - lost
                assert steps.visible() == sorted([1, *(slot + 2 for slot in kept)]), "what is not dead is committed"

    def test_shares_may_be_named_in_any_order(self, steps: SinkSteps) -> None:
        """A slot is what a share says, and not its place: to be alive, to be dead, and to be shown."""
        steps.epoch(0, [0])
        plan = steps.prepare(1)
        shares = [steps.share(plan, slot, [slot + 1]) for slot in range(4)]
        order = steps.order(plan, shares[2], shares[0], shares[3], shares[1])
        assert steps.sink().alive(order) == {}
        steps.target.lose(steps.owner, shares[3])
        assert 3 in steps.sink().alive(order)
        with pytest.raises(NotCommitted) as caught:
            steps.commit(order)
        assert 3 in caught.value.dead_slots
        steps.sweep()
        if steps.sink().capabilities.atomic:
            plan = steps.prepare(1)
            shares = [steps.share(plan, slot, [slot + 1]) for slot in range(3)]
            steps.commit(steps.order(plan, shares[1], shares[2], shares[0]))
        assert (steps.visible(), list(steps.target.residue())) == ([0, 1, 2, 3], [])

    def test_a_share_that_is_lost_after_it_was_asked_about_is_dead_to_the_same_object_too(
        self, steps: SinkSteps
    ) -> None:
        """As the coordinator has it: one sink object is asked whether shares are alive, and commits. In between one is lost."""
        order = steps.decided(0, [1], [2])
        sink = steps.sink()
        assert sink.alive(order) == {}
        steps.target.lose(steps.owner, order.shares[1])
        with pytest.raises(NotCommitted) as caught:
            sink.commit(order)
        assert 1 in caught.value.dead_slots
        assert steps.visible() == ([] if sink.capabilities.atomic else [1])

    def test_a_share_that_has_lost_one_of_its_rows_is_dead(self, steps: SinkSteps) -> None:
        """Of the rows of a share all but one are there. Alive need not count rows; commit names the slot."""
        order = steps.decided(0, [1], [2, 3, 4, 5])
        if not steps.target.lose_a_row(steps.owner, order.shares[1]):
            pytest.skip("by claim: this target can't lose a part of a share")
        assert set(steps.sink().alive(order)) <= {1}
        with pytest.raises(NotCommitted) as caught:
            steps.commit(order)
        assert 1 in caught.value.dead_slots
        assert steps.visible() == ([] if steps.sink().capabilities.atomic else [1])

    def test_what_was_proven_dead_stays_dead(self, steps: SinkSteps) -> None:
        """A revision is built on the proof: the dead decision can't be committed before it, nor after it."""
        steps.epoch(0, [1])
        dead = steps.decided(1, [2], [3])
        for slot in (0, 1):
            _lost(steps, dead, slot)
        with pytest.raises(NotCommitted) as caught:
            steps.commit(dead)
        assert set(caught.value.dead_slots) == {0, 1}
        revised = steps.decided(1, [4], [5])
        with pytest.raises((NotCommitted, Fenced)):
            steps.commit(dead)
        assert steps.visible() == [1]
        assert steps.commit(revised) is Outcome.COMMITTED
        with pytest.raises((NotCommitted, Fenced)):
            steps.commit(dead)
        assert steps.visible() == [1, 4, 5]

    def test_a_revision_of_some_slots_keeps_the_visible_shares_of_others(self, steps: SinkSteps) -> None:
        """By slot: one slot died, the others are visible; the revision names them again, of an older generation."""
        only_if(steps, atomic=False)
        order = steps.decided(0, [1], [2], [3])
        lost = _lost(steps, order, 1)
        with pytest.raises(NotCommitted):
            steps.commit(order)
        plan = steps.prepare(0)
        shares = [steps.share(plan, s.slot, [s.slot + 1]) if s.slot in lost else s for s in order.shares]
        revised = steps.order(plan, *shares)
        assert steps.sink().alive(revised) == {}, "a share that is visible counts as alive"
        steps.commit(revised)
        assert steps.commit(revised) is Outcome.ALREADY_COMMITTED
        assert steps.visible() == [1, 2, 3]

    def test_a_visible_share_counts_as_alive(self, steps: SinkSteps) -> None:
        """Alive is asked about an order that another process has committed in the meantime."""
        order = steps.epoch(0, [1], [2])
        assert steps.sink().alive(order) == {}

    def test_a_share_that_its_task_dropped_after_the_vote_is_dead(self, steps: SinkSteps) -> None:
        """A task votes and then fails; its vote is used all the same. The slot is dead, and an atomic sink shows nothing."""
        plan = steps.prepare(0)
        task, batch = steps.task(plan, 1), steps.target.batch([2])
        transaction = steps.sink().begin(plan, task)
        transaction.write(batch)
        dropped = steps.vote(transaction, task, batch)
        transaction.abort()
        order = steps.order(plan, steps.share(plan, 0, [1]), dropped)
        assert set(steps.sink().alive(order)) == {1}
        with pytest.raises(NotCommitted) as caught:
            steps.commit(order)
        assert 1 in caught.value.dead_slots
        assert steps.visible() == ([] if steps.sink().capabilities.atomic else [1])

    def test_a_share_lives_as_long_as_the_sink_says_and_what_dies_then_is_named(self, steps: SinkSteps) -> None:
        """Committed shortly before its time is over, it is visible; after it, it is visible or named, and written again."""
        target = steps.target.short_lived()
        if target is None:
            pytest.skip("by capability: this is for sinks whose share_lives_ms can be ten seconds or less")
        short = replace(steps, target=target)
        lives_s = (short.sink().capabilities.share_lives_ms or 0) / 1000
        assert 0 < lives_s <= 10, "SinkTarget.short_lived: shares that live for ten seconds or less"

        begun = time.monotonic()
        in_time = short.decided(0, [1], [2])
        assert time.monotonic() < begun + 0.6 * lives_s, "the machine is too slow for shares that live so short"
        time.sleep(begun + 0.7 * lives_s - time.monotonic())
        assert short.sink().alive(in_time) == {}
        assert short.commit(in_time) is Outcome.COMMITTED

        begun = time.monotonic()
        plan = short.prepare(1)
        older = short.share(plan, 0, [3])
        time.sleep(0.6 * lives_s)
        younger = short.share(plan, 1, [4])
        time.sleep(max(0.0, begun + 1.2 * lives_s - time.monotonic()))
        self._dies_or_lives(short, short.order(plan, older, younger), [1, 2])

        late = short.decided(2, [5], [6])
        time.sleep(LONG_DEAD * lives_s)
        self._dies_or_lives(short, late, [1, 2, 3, 4])
        assert list(target.residue()) == []

    def _dies_or_lives(self, steps: SinkSteps, order: CommitOrder[Any], before: list[int]) -> None:
        """What is dead was named before, what is not is visible, and then all is written again. Each slot has the next number."""
        rows = {share.slot: len(before) + 1 + share.slot for share in order.shares}
        named, dead = set(steps.sink().alive(order)), set[int]()
        try:
            steps.commit(order)
        except NotCommitted as error:
            dead = set(error.dead_slots)
            assert dead, "it says that it is not committed, and not what is dead"
        assert dead <= named, "alive is asked before the decision: what is dead then must not be decided"
        whole = steps.sink().capabilities.atomic
        shown = [row for slot, row in rows.items() if not (whole and dead) and slot not in dead]
        assert steps.visible() == sorted([*before, *shown])
        if dead:
            plan = steps.prepare(order.epoch.number)
            again = dead if not whole else set(rows)
            revised = [steps.share(plan, s.slot, [rows[s.slot]]) if s.slot in again else s for s in order.shares]
            assert steps.commit(steps.order(plan, *revised)) is Outcome.COMMITTED
        steps.sweep()
        assert steps.visible() == sorted([*before, *rows.values()])


# ---- parts of tests ----


def _lost(steps: SinkSteps, order: CommitOrder[Any], slot: int) -> set[int]:
    """The slots whose shares are gone when the target has lost that one."""
    if slot not in steps.sink().alive(order):
        steps.target.lose(steps.owner, order.shares[slot])
    lost = set(steps.sink().alive(order))
    assert slot in lost, "SinkTarget.lose must destroy the share, and alive must see that it is gone"
    return lost
