"""What is alike and not the same: equal rows, names that begin alike or differ at their end, and two who do one thing at once."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from twophase.errors import Fenced, TwophaseError
from twophase.identity import Attempt, DecisionId, Owner
from twophase.sink import CommitOrder, Outcome, Task
from twophase.testing.sink_capabilities import only_if
from twophase.testing.sink_steps import SinkSteps, epoch_of

_LONG = "a" * 1000


class SinkLikeness:
    """Part of `SinkSuite`."""

    def test_rows_that_are_equal_are_all_kept(self, steps: SinkSteps) -> None:
        """In one share, in two slots, and in two epochs: a row has no identity but what it holds."""
        only_if(steps, upserts=False)
        steps.epoch(0, [7, 7], [7])
        steps.epoch(1, [7])
        assert steps.visible() == [7, 7, 7, 7]

    def test_attempts_that_differ_in_their_nonce_alone_are_two(self, steps: SinkSteps) -> None:
        """After a checkpoint was restored, generations and tasks have the same numbers again."""
        plan = steps.prepare(0)
        before, after = (
            Task(0, Attempt(plan.prepared.generation, 5, nonce)) for nonce in ("0123456789ab", "ba9876543210")
        )
        stale = steps.share(plan, 0, [1], task=before)
        fresh = steps.share(plan, 0, [2], task=after)
        assert steps.sink().mark(stale) != steps.sink().mark(fresh) or stale.handle != fresh.handle
        steps.commit(steps.order(plan, fresh))
        assert steps.visible() == [2]

    def test_attempts_whose_names_begin_alike_are_two(self, steps: SinkSteps) -> None:
        """Tasks 1 and 10 of one generation: what is done to the one is not done to the other."""
        plan = steps.prepare(0)
        generation, nonce = plan.prepared.generation, "0123456789ab"
        one = steps.share(plan, 0, [1], task=Task(0, Attempt(generation, 1, nonce)))
        ten = steps.share(plan, 1, [10], task=Task(1, Attempt(generation, 10, nonce)))
        sink = steps.sink()
        # A sink that stages a generation as a whole says so by its marks, and deletes it as a whole.
        doomed = {share.slot for share in (one, ten) if sink.mark(share) == sink.mark(one)}
        sink.abort(steps.owner, [left for left in steps.leftovers() if left.mark == sink.mark(one)])
        assert set(sink.alive(steps.order(plan, one, ten))) == doomed

    def test_columns_are_told_apart_by_their_names(self, steps: SinkSteps) -> None:
        """After a restart the columns may come in another order: a value stays under its name, or the rows are refused."""
        batch = steps.target.typed_batch(pa.array(["100", "101", "102", "103"]))
        rows = steps.target.batch(range(4)) if batch is None else batch
        kept = 4
        for number, part in enumerate((rows.slice(0, 2), rows.slice(2).select(rows.schema.names[::-1]))):
            try:
                plan = steps.prepare(number, schema=part.schema)
                order = steps.order(plan, steps.write(plan, 0, part))
            except TwophaseError:
                kept = 2 * number
                break
            steps.commit(order)
        assert kept > 0, "the first epoch was refused, whose columns are in the target's own order"
        assert steps.visible() == list(range(kept))
        assert batch is None or steps.target.typed_values() == ["100", "101", "102", "103"][:kept]

    def test_decisions_of_two_ledgers_are_two(self, steps: SinkSteps) -> None:
        """A checkpoint was copied, and both copies have decided the epoch, under one number: only one is in the target."""
        only_if(steps, atomic=True)
        order = steps.epoch(0, [1])
        for ledger in (uuid.uuid4().hex, order.decision.ledger[:-1]):
            with pytest.raises(Fenced):
                steps.commit(replace(order, decision=DecisionId(ledger, order.decision.number)))
        assert steps.commit(order) is Outcome.ALREADY_COMMITTED
        assert steps.visible() == [1]

    @pytest.mark.parametrize(
        "names",
        [(f"{_LONG}1", f"{_LONG}2"), ("Orders", "orders"), ("orders", "orders "), ("caf\u00e9", "cafe\u0301")],
        ids=["their end", "their case", "a space", "their form of Unicode"],
    )
    def test_owners_whose_names_are_nearly_the_same_have_markers_of_their_own(
        self, steps: SinkSteps, names: tuple[str, str]
    ) -> None:
        """Two queries whose names differ in their case, a space or their last letter: neither sees the other's."""
        only_if(steps, several_owners=True)
        for value, name in enumerate(names):
            steps.as_(Owner(name, "sink")).epoch(value, [value])
        for value, name in enumerate(names):
            owner = Owner(name, "sink")
            markers = steps.sink().status(owner, settled=True).markers.values()
            assert [(marker.owner, marker.epoch) for marker in markers] == [(owner, epoch_of(value))]
        assert steps.visible() == [0, 1]

    def test_two_that_commit_one_decision_at_once_show_it_once(self, steps: SinkSteps) -> None:
        """A driver that was taken for dead, and its successor: both are told the truth, and nothing is there twice."""
        expected: list[int] = []
        for number in range(5):
            order = steps.decided(number, [2 * number], [2 * number + 1])
            outcomes = _committed_at_once(steps, order)
            assert len(outcomes) == 2, "a commit failed with an error that is none of ours, or did not end"
            assert any(isinstance(outcome, Outcome) for outcome in outcomes), outcomes
            expected += [2 * number, 2 * number + 1]
            assert steps.visible() == expected
            assert steps.commit(order) is Outcome.ALREADY_COMMITTED


def _committed_at_once(steps: SinkSteps, order: CommitOrder[Any]) -> list[Outcome | TwophaseError]:
    """What two are told that commit the same decision at the same moment."""
    together, told = threading.Barrier(2), list[Outcome | TwophaseError]()

    def commit() -> None:
        together.wait(60)
        try:
            told.append(steps.commit(order))
        except TwophaseError as error:
            told.append(error)

    threads = [threading.Thread(target=commit) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    return told
