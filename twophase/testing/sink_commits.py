"""What a sink promises about commit, abort and leftovers: one verb at a time, repeated, late, and out of order."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from twophase.errors import Fenced, NotCommitted, OutcomeUnknown, TwophaseError
from twophase.identity import Epoch, Generation
from twophase.sink import WHOLE, CommitOrder, Description, Leftover, Marker, Outcome, Share, Status, Transaction
from twophase.testing.sink_capabilities import only_if
from twophase.testing.sink_steps import SinkSteps, epoch_of, travelled

SMALL_HANDLE_BYTES = 4096


class SinkCommits:
    # ---- visibility ----

    def test_nothing_is_visible_before_commit_and_all_of_it_after(self, steps: SinkSteps) -> None:
        """A reader looks after every step of an epoch: begin, each write, pre-commit, alive, commit."""
        steps.epoch(0, [1])
        plan = steps.prepare(1)
        task, first, second = steps.task(plan, 0), steps.target.batch([2, 3]), steps.target.batch([4])
        before = steps.marker()
        transaction = steps.sink().begin(plan, task)
        assert steps.visible() == [1]
        for batch in (first, second):
            transaction.write(batch)
            assert steps.visible() == [1]
        order = steps.order(plan, steps.vote(transaction, task, first, second), steps.share(plan, 1, [5]))
        assert steps.visible() == [1]
        assert steps.sink().alive(order) == {}
        assert (steps.visible(), steps.marker()) == ([1], before)
        assert steps.commit(order) is Outcome.COMMITTED
        assert steps.visible() == [1, 2, 3, 4, 5]

    def test_a_target_that_was_never_written_has_no_rows_no_markers_and_no_residue(self, steps: SinkSteps) -> None:
        """Making a sink, pickling it and asking it opens nothing and creates nothing."""
        sink = pickle.loads(pickle.dumps(steps.sink()))
        assert sink.status(steps.owner, settled=True) == sink.status(steps.owner, settled=False) == Status()
        assert list(sink.leftovers(steps.owner)) == []
        sink.abort(steps.owner, [])
        assert (steps.visible(), list(steps.target.residue())) == ([], [])

    def test_the_marker_is_where_the_decision_puts_it(self, steps: SinkSteps) -> None:
        """One marker for the epoch by the decision, or one for each slot by its attempt; the same, settled or not."""
        for number in range(3):
            order = steps.epoch(number, [10 * number], [10 * number + 1])
            status = steps.sink().status(steps.owner, settled=True)
            if steps.sink().capabilities.atomic:
                assert status.markers == {WHOLE: order.marker}
            else:
                markers = {s.slot: Marker(steps.owner, order.epoch, str(s.attempt), order.base) for s in order.shares}
                assert status.markers == markers
            assert steps.sink().status(steps.owner, settled=False) == status

    def test_what_is_staged_does_not_change_what_is_certainly_visible(self, steps: SinkSteps) -> None:
        """Status with shares in doubt: unsettled it reports the markers as they are; settled it does too, or says unknown."""
        steps.epoch(0, [1], [2])
        before = steps.sink().status(steps.owner, settled=True)
        order = steps.decided(1, [3], [4])
        assert steps.sink().status(steps.owner, settled=False) == before
        try:
            assert steps.sink().status(steps.owner, settled=True) == before
        except OutcomeUnknown:
            assert not steps.sink().capabilities.atomic, "an atomic target knows what its one marker is"
        steps.commit(order)
        assert steps.sink().status(steps.owner, settled=True) != before

    def test_a_sink_that_has_looked_before_sees_what_another_has_moved_since(self, steps: SinkSteps) -> None:
        """Spark's commit worker keeps its objects, and another driver commits meanwhile: no marker may be remembered."""
        steps.epoch(0, [1], [2])
        looked = steps.sink()
        before = looked.status(steps.owner, settled=True)
        order = steps.epoch(1, [3], [4])
        after = looked.status(steps.owner, settled=True)
        assert after == steps.sink().status(steps.owner, settled=True) != before
        assert (looked.alive(order), looked.commit(order)) == ({}, Outcome.ALREADY_COMMITTED)
        assert looked.commit(steps.decided(2, [5])) is Outcome.COMMITTED
        assert steps.visible() == [1, 2, 3, 4, 5]

    def test_what_was_committed_just_now_is_not_forgotten(self, steps: SinkSteps) -> None:
        """Only of an order that is old may a target have forgotten its markers; before its commit, and after it."""
        order = steps.decided(0, [1], [2])
        assert not steps.sink().forgets(order)
        steps.commit(order)
        assert not steps.sink().forgets(order)

    # ---- commit, again and late ----

    def test_commit_again_from_any_process_changes_nothing(self, steps: SinkSteps) -> None:
        """The same order by the same object, by a new one, and by one that was pickled after it was used."""
        order = steps.decided(0, [1, 2], [3])
        sink = steps.sink()
        assert sink.commit(order) is Outcome.COMMITTED
        marker = steps.marker()
        for again in (sink, steps.sink(), pickle.loads(pickle.dumps(sink))):
            assert again.commit(order) is Outcome.ALREADY_COMMITTED
            assert (steps.visible(), steps.marker()) == ([1, 2, 3], marker)
        assert list(steps.target.residue()) == []

    def test_a_commit_that_comes_epochs_too_late_changes_nothing(self, steps: SinkSteps) -> None:
        """A driver slept through two epochs and commits its own again. It must not hear that visible rows are lost."""
        order = steps.epoch(0, [1], [2])
        steps.epoch(1, [3], [4])
        steps.epoch(2, [5])
        self._come_too_late(steps, order, [1, 2, 3, 4, 5])

    def test_epoch_10_comes_after_epoch_9(self, steps: SinkSteps) -> None:
        """Numbers are not compared as text: after epoch 10 an order of epoch 9 comes too late."""
        orders = [steps.epoch(number, [number]) for number in range(12)]
        self._come_too_late(steps, orders[9], list(range(12)))

    def _come_too_late(self, steps: SinkSteps, order: CommitOrder[Any], visible: list[int]) -> None:
        before = steps.sink().status(steps.owner, settled=True)
        for _ in range(2):
            try:
                assert steps.commit(order) is Outcome.ALREADY_COMMITTED
            except Fenced:
                pass
            except NotCommitted as error:
                pytest.fail(f"NotCommitted says that nothing is visible and nothing will be, and all of it is: {error}")
            assert steps.visible() == visible
            assert steps.sink().status(steps.owner, settled=True) == before

    def test_an_old_decision_that_never_landed_can_not_be_committed_after_its_revision(self, steps: SinkSteps) -> None:
        """Two decisions about one epoch from one origin, as a revision makes them: only the first to commit shows."""
        only_if(steps, atomic=True)
        steps.epoch(0, [1])
        old, revised = steps.decided(1, [2]), steps.decided(1, [3])
        assert steps.commit(revised) is Outcome.COMMITTED
        with pytest.raises(Fenced):
            steps.commit(old)
        assert steps.visible() == [1, 3]
        assert steps.marker() == revised.marker

    def test_commit_moves_the_marker_only_from_where_the_order_says(self, steps: SinkSteps) -> None:
        """The target is at epoch 0, and orders say that it is nowhere, at another hash, or was moved by another decision."""
        only_if(steps, atomic=True)
        steps.epoch(0, [1])
        there, order = steps.marker(), steps.decided(1, [2])
        assert there is not None
        for origin in (None, replace(there, epoch=Epoch(0, "0" * 32)), replace(there, by=f"{steps.ledger}.9999")):
            with pytest.raises((Fenced, NotCommitted)):
                steps.commit(replace(order, origin=origin))
            assert (steps.visible(), steps.marker()) == ([1], there)
        assert steps.commit(order) is Outcome.COMMITTED
        assert steps.visible() == [1, 2]

    def test_a_target_without_a_marker_takes_no_order_that_moves_one(self, steps: SinkSteps) -> None:
        """The table was made anew, and the decision is about what was before: its rows alone would be a hole."""
        only_if(steps, atomic=True)
        order = steps.decided(0, [1])
        before = Marker(steps.owner, epoch_of(0), f"{steps.ledger}.9999")
        with pytest.raises((Fenced, NotCommitted)):
            steps.commit(replace(order, epoch=epoch_of(1), origin=before))
        assert (steps.visible(), steps.marker()) == ([], None)
        assert steps.commit(order) is Outcome.COMMITTED
        assert steps.visible() == [1]

    def test_an_order_of_another_epoch_can_not_set_the_marker_back(self, steps: SinkSteps) -> None:
        """A decision about epoch 0 that nobody committed arrives when the target is at epoch 1."""
        only_if(steps, atomic=True)
        never, _, last = steps.decided(0, [9]), steps.epoch(0, [1]), steps.epoch(1, [2])
        with pytest.raises(Fenced):
            steps.commit(never)
        assert (steps.visible(), steps.marker()) == ([1, 2], last.marker)

    def test_a_new_generation_does_not_hinder_the_commit_of_an_older_ones_decision(self, steps: SinkSteps) -> None:
        """Recovery: the decision is of a driver that died, and newer generations have fenced and even prepared."""
        order = steps.decided(0, [1], [2])
        steps.sink().fence(steps.owner, steps.generation())
        steps.prepare(0)
        assert steps.sink().alive(order) == {}
        assert steps.commit(order) is Outcome.COMMITTED
        assert steps.visible() == [1, 2]

    # ---- abort ----

    def test_abort_deletes_these_leftovers_and_nothing_else(self, steps: SinkSteps) -> None:
        """Three generations have staged; the middle one is aborted, twice. The others can still be committed."""
        orders = [steps.decided(0, [value], [value + 1]) for value in (1, 3, 5)]
        marks = [{steps.sink().mark(share) for share in order.shares} for order in orders]
        every = marks[0] | marks[1] | marks[2]
        for _ in range(2):
            steps.sink().abort(steps.owner, self._found(steps, marks[1]))
            assert steps.marks() & every == marks[0] | marks[2]
        assert set(steps.sink().alive(orders[1])) == {0, 1}
        assert steps.sink().alive(orders[0]) == steps.sink().alive(orders[2]) == {}
        with pytest.raises(NotCommitted):
            steps.commit(orders[1])
        assert steps.commit(orders[0]) is Outcome.COMMITTED
        assert steps.visible() == [1, 2]

    def test_aborting_what_is_not_there_is_fine(self, steps: SinkSteps) -> None:
        """Leftovers of a generation that never was, of a target that was never written, and twice the same in one call."""
        ghost = Leftover[Any](Generation(steps.ledger, 77), f"{steps.ledger}.77.1", "nothing", owner=steps.owner)
        steps.sink().abort(steps.owner, [ghost])
        order = steps.decided(0, [1])
        steps.sink().abort(steps.owner, [ghost, ghost])
        assert steps.commit(order) is Outcome.COMMITTED
        steps.decided(1, [2])
        found = steps.leftovers()
        steps.sink().abort(steps.owner, [*found, *found])
        assert (steps.visible(), list(steps.target.residue())) == ([1], [])

    def test_abort_does_not_touch_what_is_visible(self, steps: SinkSteps) -> None:
        """A sweeper listed a share, slept, and aborts it after it was committed: it is missing from staging, which is fine."""
        order = steps.decided(0, [1], [2])
        found = steps.leftovers()
        steps.commit(order)
        steps.sink().abort(steps.owner, found)
        assert steps.visible() == [1, 2]
        assert steps.commit(order) is Outcome.ALREADY_COMMITTED

    def test_a_task_that_drops_its_share_when_it_is_committed_changes_nothing(self, steps: SinkSteps) -> None:
        """It has voted, was taken for dead, and aborts when its rows are visible."""
        plan = steps.prepare(0)
        task, batch = steps.task(plan, 0), steps.target.batch([1, 2])
        transaction = steps.sink().begin(plan, task)
        transaction.write(batch)
        order = steps.order(plan, steps.vote(transaction, task, batch))
        steps.commit(order)
        with suppress(TwophaseError):
            transaction.abort()
        assert steps.visible() == [1, 2]
        assert steps.commit(order) is Outcome.ALREADY_COMMITTED
        steps.epoch(1, [3])
        assert (steps.visible(), list(steps.target.residue())) == ([1, 2, 3], [])

    @pytest.mark.parametrize("when", ["begun", "written", "pre-committed"])
    def test_a_task_drops_its_own_share_and_no_other(self, steps: SinkSteps, when: str) -> None:
        """Transaction.abort, twice, at any point: a twin of the same slot and a share of another slot are not touched."""
        plan = steps.prepare(0)
        twin, other = steps.share(plan, 0, [1]), steps.share(plan, 1, [2])
        task, batch = steps.task(plan, 0), steps.target.batch([99])
        transaction = steps.sink().begin(plan, task)
        if when != "begun":
            transaction.write(batch)
        dropped: Share[Any] | None = None
        if when == "pre-committed":
            dropped = steps.vote(transaction, task, batch)
        transaction.abort()
        transaction.abort()
        order = steps.order(plan, twin, other)
        if dropped is not None:
            assert set(steps.sink().alive(replace(order, shares=(dropped, other)))) == {0}
        assert steps.commit(order) is Outcome.COMMITTED
        assert steps.visible() == [1, 2]
        steps.sweep()
        assert list(steps.target.residue()) == []

    # ---- leftovers ----

    def test_everything_that_is_staged_is_listed_with_its_generation(self, steps: SinkSteps) -> None:
        """Shares of two generations of one ledger, and of others with lower and higher numbers: all are listed; none, once it is
        visible."""
        steps.epoch(0, [1])
        assert steps.leftovers() == []
        staged = [steps.decided(1, [2], [3]), steps.decided(1, [4])]
        for ledger, records in (("other0ledger", 0), ("another0ledger", 1000)):
            staged.append(replace(steps, ledger=ledger, _records=records).decided(1, [5]))
        assert _names(steps, steps.leftovers()) >= _names(steps, *(order.shares for order in staged))
        assert all(left.what for left in steps.leftovers())
        steps.commit(staged[0])
        assert _names(steps, steps.leftovers()) >= _names(steps, *(order.shares for order in staged[1:]))
        assert not steps.marks() & {steps.sink().mark(share) for share in staged[0].shares}
        steps.sweep()
        assert steps.leftovers() == []
        assert list(steps.target.residue()) == []

    @pytest.mark.parametrize("when", ["prepared", "begun", "written", "pre-committed"])
    def test_what_a_dead_task_left_is_listed_and_can_be_deleted(self, steps: SinkSteps, when: str) -> None:
        """The process dies without abort: whatever the target still holds is among the leftovers, of this generation."""
        plan = steps.prepare(0)
        task, batch = steps.task(plan, 0), steps.target.batch([1])
        transaction = steps.sink().begin(plan, task) if when != "prepared" else None
        if transaction is not None and when != "begun":
            transaction.write(batch)
        if transaction is not None and when == "pre-committed":
            steps.vote(transaction, task, batch)
        if steps.target.residue():
            assert {left.generation for left in steps.leftovers()} == {plan.prepared.generation}
        steps.sweep()
        assert list(steps.target.residue()) == []
        assert steps.visible() == []

    def test_a_losing_twin_is_never_visible_and_leaves_nothing(self, steps: SinkSteps) -> None:
        """Two attempts at one slot run at the same time, step by step; the decision names one of them."""
        plan = steps.prepare(0)
        tasks = [steps.task(plan, 0), steps.task(plan, 0)]
        batches = [steps.target.batch([1, 2]), steps.target.batch([8, 9])]
        transactions = [steps.sink().begin(plan, task) for task in tasks]
        for transaction, batch in zip(transactions, batches, strict=True):
            transaction.write(batch)
        loser = steps.vote(transactions[1], tasks[1], batches[1])
        winner = steps.vote(transactions[0], tasks[0], batches[0])
        assert winner.attempt != loser.attempt
        assert steps.commit(steps.order(plan, winner)) is Outcome.COMMITTED
        assert steps.visible() == [1, 2]
        if steps.target.residue():
            assert steps.leftovers(), "what is still in the target must be listed"
        steps.sweep()
        assert (steps.visible(), list(steps.target.residue())) == ([1, 2], [])

    # ---- late attempts ----

    @pytest.mark.parametrize("since", ["swept", "committed", "next epoch"])
    def test_a_task_of_an_old_generation_that_comes_late_changes_nothing(self, steps: SinkSteps, since: str) -> None:
        """A zombie begins, writes and votes when a newer generation has swept, committed, or gone on. Refused, or a leftover."""
        steps.epoch(0, [1])
        old = steps.prepare(1)
        if since == "swept":
            steps.sweep()
            order = steps.decided(1, [2])
        else:
            order = steps.epoch(1, [2])
        if since == "next epoch":
            steps.epoch(2, [3])
        before, status = steps.visible(), steps.sink().status(steps.owner, settled=False)
        with suppress(TwophaseError):
            steps.share(old, 0, [99])
        assert (steps.visible(), steps.sink().status(steps.owner, settled=False)) == (before, status)
        if since == "swept":
            assert steps.commit(order) is Outcome.COMMITTED
        if steps.target.residue():
            assert steps.leftovers(), "what is still in the target must be listed"
        steps.sweep()
        assert 99 not in steps.visible()
        assert list(steps.target.residue()) == []

    @pytest.mark.parametrize("when", ["begun", "written"])
    def test_a_task_that_is_still_running_when_its_epoch_commits_changes_nothing(
        self, steps: SinkSteps, when: str
    ) -> None:
        """A losing attempt goes on after the commit: what it still writes and votes is refused, or a leftover."""
        plan = steps.prepare(0)
        task, batch = steps.task(plan, 0), steps.target.batch([99])
        late = steps.sink().begin(plan, task)
        if when == "written":
            late.write(batch)
        order = steps.order(plan, steps.share(plan, 0, [1]))
        steps.commit(order)

        def goes_on() -> None:
            if when == "begun":
                late.write(batch)
            steps.vote(late, task, batch)

        self._refused_or_staged(late, goes_on)
        assert steps.visible() == [1]
        assert steps.commit(order) is Outcome.ALREADY_COMMITTED
        steps.epoch(1, [2])
        steps.sweep()
        assert (steps.visible(), list(steps.target.residue())) == ([1, 2], [])

    def test_a_task_whose_share_was_swept_while_it_ran_can_not_bring_it_back(self, steps: SinkSteps) -> None:
        """Begun, swept by a newer generation, and then written and voted for: refused, or a leftover that can be swept."""
        plan = steps.prepare(0)
        task, batch = steps.task(plan, 0), steps.target.batch([99])
        late = steps.sink().begin(plan, task)
        steps.sweep()

        def goes_on() -> None:
            late.write(batch)
            steps.vote(late, task, batch)

        self._refused_or_staged(late, goes_on)
        steps.epoch(0, [1])
        steps.sweep()
        assert (steps.visible(), list(steps.target.residue())) == ([1], [])

    # ---- every verb, in every order ----

    def test_verbs_in_any_order_and_twice_do_no_harm(self, steps: SinkSteps) -> None:
        """Around the commit of each of many epochs, every two verbs of the driver are called twice, in both orders."""
        verbs: dict[str, Callable[[CommitOrder[Any]], object]] = {
            "fence": lambda _: steps.sink().fence(steps.owner, steps.generation()),
            "status": lambda _: steps.sink().status(steps.owner, settled=False),
            "leftovers": lambda _: list(steps.sink().leftovers(steps.owner)),
            "alive": lambda order: steps.sink().alive(order),
            "abort nothing": lambda _: steps.sink().abort(steps.owner, []),
            "describe": lambda _: steps.sink().describe(),
            "require_fit": lambda _: steps.sink().require_fit(steps.target.batch([]).schema, overwrite=False),
        }
        for number, (one, other) in enumerate(itertools.product(verbs, repeat=2)):
            order = steps.decided(number, [number])
            around = [verbs[one], verbs[other], verbs[one], verbs[other]]
            for verb in around:
                verb(order)
            assert steps.commit(order) is Outcome.COMMITTED, (one, other)
            for verb in around:
                verb(order)
            assert steps.commit(order) is Outcome.ALREADY_COMMITTED, (one, other)
        assert steps.visible() == list(range(len(verbs) ** 2))
        assert list(steps.target.residue()) == []

    def test_prepare_can_be_called_again_when_the_columns_are_known(self, steps: SinkSteps) -> None:
        """As for foreachBatch: first without a schema, then with one, for the same generation."""
        plan = steps.prepare(0)
        for schema in (None, steps.target.batch([]).schema, steps.target.batch([]).schema):
            plan = travelled(steps.sink().prepare(replace(plan.prepared, schema=schema)))
        order = steps.order(plan, steps.share(plan, 0, [1]))
        assert steps.commit(order) is Outcome.COMMITTED
        assert (steps.visible(), list(steps.target.residue())) == ([1], [])

    # ---- travelling ----

    def test_a_sink_travels_before_and_after_its_use(self, steps: SinkSteps) -> None:
        """Pickled and unpickled, twice, it writes to the same target as before; so does the one that stayed."""
        used = steps.sink()
        used.commit(steps.decided(0, [1]))
        travelled_sink = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(used))))
        plan = steps.prepare(1)
        task, batch = steps.task(plan, 0), steps.target.batch([2])
        transaction = travelled_sink.begin(plan, task)
        transaction.write(batch)
        order = steps.order(plan, steps.vote(transaction, task, batch))
        assert used.commit(order) is Outcome.COMMITTED
        assert travelled_sink.commit(order) is Outcome.ALREADY_COMMITTED
        assert travelled_sink.capabilities == used.capabilities
        assert steps.visible() == [1, 2]

    def test_a_handle_is_small_json_that_says_everything(self, steps: SinkSteps) -> None:
        """A share's handle read back from JSON is equal, and a few hundred bytes of text: it lies in the ledger."""
        plan = steps.prepare(0)
        share = steps.share(plan, 0, [1])
        text = json.dumps(share.handle.to_json())
        assert steps.sink().handle_type.from_json(json.loads(text)) == share.handle
        assert len(text) <= SMALL_HANDLE_BYTES

    def test_a_description_is_text_by_name(self, steps: SinkSteps) -> None:
        """What `describe` gives goes into the ledger, so it is text only; None is an answer too."""
        description = steps.sink().describe()
        if description is not None:
            assert description.format
            assert all(isinstance(text, str) for item in description.options.items() for text in item)

    def test_a_sink_that_is_built_from_its_description_finds_and_commits_the_same(self, steps: SinkSteps) -> None:
        """As `twophase inspect` and `twophase recover` build it, when the query is dead and its program is not there."""
        description = steps.sink().describe()
        if description is None:
            pytest.skip("by claim: describe gives None, so nobody but the query's own program can recover it")
        steps.epoch(0, [1])
        order = steps.decided(1, [2], [3])
        built = steps.target.rebuilt(Description(description.format, dict(description.options)))
        assert (built.describe(), built.target, built.capabilities) == (
            description,
            steps.sink().target,
            steps.sink().capabilities,
        )
        seen_from = steps.generation()
        listed = (
            [left.mark for left in each.leftovers(steps.owner, seen_from=seen_from)] for each in (built, steps.sink())
        )
        assert sorted(next(listed)) == sorted(next(listed)) != []
        assert built.status(steps.owner, settled=False) == steps.sink().status(steps.owner, settled=False)
        assert built.alive(order) == {}
        assert built.commit(order) is Outcome.COMMITTED
        assert steps.commit(order) is Outcome.ALREADY_COMMITTED
        abandoned = steps.decided(2, [4])
        built.abort(steps.owner, steps.leftovers())
        assert set(steps.sink().alive(abandoned)) == {0}
        assert (steps.visible(), list(steps.target.residue())) == ([1, 2, 3], [])

    # ---- parts of tests ----

    def _found(self, steps: SinkSteps, marks: set[str]) -> list[Leftover[Any]]:
        return [left for left in steps.leftovers() if left.mark in marks]

    def _refused_or_staged(self, late: Transaction[Any], goes_on: Callable[[], object]) -> None:
        """A late task may be refused with an error that says so, and then drops its share; or it stages a leftover."""
        try:
            goes_on()
        except TwophaseError:
            late.abort()


def _names(steps: SinkSteps, *staged: Iterable[Share[Any] | Leftover[Any]]) -> set[tuple[Generation | str, str]]:
    """Marks, with their generations; of other ledgers' there may be no more to tell than whose they are (see `Sink.leftovers`)."""
    named = set[tuple[Generation | str, str]]()
    for each in itertools.chain(*staged):
        mark = each.mark if isinstance(each, Leftover) else steps.sink().mark(each)
        generation = each.generation if isinstance(each, Leftover) else each.attempt.generation
        named.add((generation if generation.ledger == steps.ledger else generation.ledger, mark))
    return named
