"""What a sink promises to other processes: to those that commit, delete and look, and to the successors of those that were killed.

::

    a process of its own    commit ─•─•─•─•─•─•─► the end        • a stop, after each of its calls
                                    │     │
    here                          look  kill -9                   rows and marker moved together, or neither

For targets that outlive their process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from twophase.identity import Generation, Owner
from twophase.sink import CommitOrder, Outcome
from twophase.testing import sink_calls
from twophase.testing.other_process import OtherProcess, answer_of
from twophase.testing.sink_calls import Called, Place
from twophase.testing.sink_capabilities import batch_of_texts, only_if, only_if_target
from twophase.testing.sink_steps import SinkSteps

R = TypeVar("R")

PATIENCE_S = 5.0
"""How long a commit stands still for a reader. One that waits in turn for the commit (for a lock) sees nothing until it goes on."""
_SUCCEEDS_WITHIN_S = 60.0
OVERTAKES_WITHIN_S = 0.3
"""How long the successor has before it is taken to wait for the one that stands still."""
MANY_OVERTAKEN = 40
MANY_TASKS = 12
"""Of the places where a commit or a task makes a call: so many are chosen, from the first to the last."""


class SinkProcesses:
    # ---- one process after the other ----

    def test_another_process_commits_what_this_one_staged(self, steps: SinkSteps) -> None:
        """Recovery: it has the ledger and the target, and no memory of the tasks. This one is told the truth afterwards."""
        only_if_target(steps, outlives_process=True)
        steps.epoch(0, [1])
        asked = steps.sink()
        before = asked.status(steps.owner, settled=True)
        order = steps.decided(1, [2, 3], [4])
        dead, outcomes = answer_of(sink_calls.commit_twice, steps.sink(), order)
        assert (dead, outcomes) == ({}, [Outcome.COMMITTED, Outcome.ALREADY_COMMITTED])
        assert (steps.visible(), list(steps.target.residue())) == ([1, 2, 3, 4], [])
        for sink in (asked, steps.sink()):
            assert sink.status(steps.owner, settled=True) != before, "another process has moved the marker"
            assert sink.commit(order) is Outcome.ALREADY_COMMITTED
        steps.epoch(2, [5])
        assert steps.visible() == [1, 2, 3, 4, 5]

    def test_another_process_deletes_what_this_one_staged(self, steps: SinkSteps) -> None:
        """The successor of a driver that died: it lists what tasks have staged, voted for or not, and deletes it."""
        only_if_target(steps, outlives_process=True)
        steps.epoch(0, [1])
        order = steps.decided(1, [2], [3])
        plan = steps.prepare(1)
        begun = steps.sink().begin(plan, steps.task(plan, 0))
        begun.write(steps.target.batch([9]))
        seen_from = Generation(steps.ledger, steps.generation().number + 1)
        marks = answer_of(sink_calls.sweep, steps.sink(), steps.owner, seen_from)
        assert marks >= {steps.sink().mark(share) for share in order.shares}
        assert (steps.leftovers(), list(steps.target.residue())) == ([], [])
        assert set(steps.sink().alive(order)) == {0, 1}
        begun.abort()
        assert (steps.visible(), list(steps.target.residue())) == ([1], [])

    def test_a_share_outlives_the_process_that_wrote_it(self, steps: SinkSteps) -> None:
        """A task votes and is killed at once: its share is alive and listed, and can be committed."""
        only_if_target(steps, outlives_process=True)
        plan = steps.prepare(0)
        written = answer_of(sink_calls.vote, steps.sink(), plan, steps.task(plan, 0), steps.target.batch([1, 2]))
        order = steps.order(plan, written, steps.share(plan, 1, [3]))
        assert steps.sink().alive(order) == {}
        assert steps.marks() >= {steps.sink().mark(share) for share in order.shares}
        assert steps.commit(order) is Outcome.COMMITTED
        assert (steps.visible(), list(steps.target.residue())) == ([1, 2, 3], [])

    # ---- within a commit ----

    def test_rows_and_marker_become_visible_in_one_step(self, steps: SinkSteps) -> None:
        """Another process commits, and stops after each of its calls. A reader looks at every stop: it sees all rows or none.
        Then it is killed, at the last stop at which none are seen, and at the first at which all are: so it is with the marker."""
        only_if(steps, atomic=True)
        only_if_target(steps, outlives_process=True)
        steps.epoch(0, [0])
        with _committing(steps, steps.decided(1, [1], [2])) as commit:
            seen = commit.watched()
        assert [rows for rows in seen if rows not in (None, [0], [0, 1, 2])] == [], "part of an epoch was visible"
        assert [0] in seen, "no reader could look before the rows were visible"
        unseen = seen.index([0, 1, 2]) if [0, 1, 2] in seen else len(seen)
        for number, stops in ((2, unseen), (3, unseen + 1)):
            before, rows = steps.visible(), [2 * number - 1, 2 * number]
            order = steps.decided(number, rows[:1], rows[1:])
            with _committing(steps, order) as commit:
                commit.killed_at(stops)
            # Its last request may still be under way: a server does not know yet that whoever sent it is dead.
            is_moved = steps.marker(settled=True) == order.marker
            assert steps.visible() == ([*before, *rows] if is_moved else before), f"the marker has moved: {is_moved}"
            assert steps.commit(order) is (Outcome.ALREADY_COMMITTED if is_moved else Outcome.COMMITTED)
            assert steps.visible() == [*before, *rows]
            steps.sweep()
            assert list(steps.target.residue()) == []

    def test_a_commit_that_stood_still_while_another_came_to_its_end_shows_nothing_twice(
        self, steps: SinkSteps
    ) -> None:
        """Another process commits, and stands still where the sink has made a call, then where it has made another. Each time the
        same decision is committed here, by a successor that takes it for dead, and the next epoch after it; then it goes on. No
        row is shown again, and the marker is where the successor has put it."""
        only_if(steps, atomic=True)
        only_if_target(steps, outlives_process=True)
        expected, order = [0, 1], steps.decided(0, [0], [1])
        for number, place in enumerate(_places(steps, order), start=1):
            order = steps.decided(2 * number - 1, [3 * number], [3 * number + 1])

            def succeeds(order: CommitOrder[Any] = order, number: int = number) -> CommitOrder[Any]:
                steps.commit(order)
                return steps.epoch(2 * number, [3 * number + 2])

            last, stood = _overtaken(steps, order, place, succeeds)
            expected += [3 * number, 3 * number + 1, 3 * number + 2]
            assert steps.visible() == expected, f"overtaken at {place}"
            assert steps.marker() == last.marker, f"overtaken at {place}, it set the marker back"
            assert stood.kind in ("", "Fenced", "OutcomeUnknown"), f"overtaken at {place}: {stood.raised}"

    def test_a_commit_that_stood_still_brings_no_replaced_row_back(self, steps: SinkSteps) -> None:
        """Where the sink upserts: the same, and the successor's next epoch has replaced what the one that stood still writes."""
        only_if(steps, atomic=True, upserts=True)
        only_if_target(steps, outlives_process=True)

        def decided(number: int, *texts: str) -> CommitOrder[Any]:
            batch = batch_of_texts(steps, texts)
            plan = steps.prepare(number, schema=batch.schema)
            return steps.order(plan, steps.write(plan, 0, batch))

        order = decided(0, "a", "b")
        for number, place in enumerate(_places(steps, order), start=1):
            order = decided(2 * number - 1, f"old {number}", f"kept {number}")

            def succeeds(order: CommitOrder[Any] = order, number: int = number) -> CommitOrder[Any]:
                steps.commit(order)
                last = decided(2 * number, f"new {number}")
                steps.commit(last)
                return last

            last, stood = _overtaken(steps, order, place, succeeds)
            assert steps.target.typed_values() == [f"new {number}", f"kept {number}"], f"overtaken at {place}"
            assert steps.marker() == last.marker, f"overtaken at {place}, it set the marker back"
            assert stood.kind in ("", "Fenced", "OutcomeUnknown"), f"overtaken at {place}: {stood.raised}"

    def test_a_commit_that_stood_still_while_another_owner_went_on_takes_nothing_back(self, steps: SinkSteps) -> None:
        """The same, and meanwhile an epoch of another owner comes to its end. Both are visible, and both markers are there."""
        only_if(steps, atomic=True, several_owners=True)
        only_if_target(steps, outlives_process=True)
        other = steps.as_(Owner("another", steps.owner.sink))
        expected, order = [0, 1], steps.decided(0, [0], [1])
        for number, place in enumerate(_places(steps, order), start=1):
            order = steps.decided(number, [3 * number], [3 * number + 1])
            last, stood = _overtaken(steps, order, place, partial(other.epoch, number, [3 * number + 2]))
            assert stood.answer is Outcome.COMMITTED, f"another owner went on at {place}: {stood.raised}"
            expected += [3 * number, 3 * number + 1, 3 * number + 2]
            assert steps.visible() == expected, f"another owner went on at {place}"
            assert (steps.marker(), other.marker()) == (order.marker, last.marker), f"another owner went on at {place}"

    def test_a_commit_that_stood_still_while_one_of_its_shares_was_lost_shows_all_or_nothing(
        self, steps: SinkSteps
    ) -> None:
        """Another process commits, and stands still; the target loses a share; then it goes on. It says that it is committed, and
        all is visible; or that it is not, and nothing is."""
        only_if(steps, atomic=True)
        only_if_target(steps, outlives_process=True)
        expected, order = [0, 1], steps.decided(0, [0], [1])
        epoch = 1
        for place in _places(steps, order):
            rows = [len(expected), len(expected) + 1]
            order = steps.decided(epoch, rows[:1], rows[1:])
            _, stood = _overtaken(steps, order, place, partial(steps.target.lose, steps.owner, order.shares[1]))
            is_moved = steps.marker(settled=True) == order.marker
            if is_moved:
                expected += rows
                epoch += 1
            assert steps.visible() == expected, f"a share was lost at {place}, and the marker has moved: {is_moved}"
            assert (stood.answer is Outcome.COMMITTED) == is_moved, f"a share was lost at {place}: {stood}"
            steps.sweep()
        assert list(steps.target.residue()) == []

    def test_a_task_that_stood_still_while_another_voted_has_its_own_rows(self, steps: SinkSteps) -> None:
        """Another process is a task, and stands still where the sink has made a call; a task here comes to its vote; then it goes
        on. Both are committed, and all rows of both are visible."""
        only_if_target(steps, outlives_process=True)
        plan, batches = steps.prepare(0), [steps.target.batch([0, 1, 2]), steps.target.batch([3])]
        first = answer_of(sink_calls.called, steps.sink(), "vote", [plan, steps.task(plan, 0), *batches])
        assert first.raised is None, first.raised
        steps.commit(steps.order(plan, first.answer))
        expected = [0, 1, 2, 3]
        for number, place in enumerate(sink_calls.spread(first.places, MANY_TASKS), start=1):
            at, plan = len(expected), steps.prepare(number)
            batches = [steps.target.batch([at, at + 1, at + 2]), steps.target.batch([at + 3])]
            tasks = [steps.task(plan, 0), steps.task(plan, 1)]
            with (
                ThreadPoolExecutor(1) as thread,
                OtherProcess(sink_calls.standing_at, steps.sink(), "vote", [plan, tasks[0], *batches], place) as other,
            ):
                stands = other.goes_on()
                voting = thread.submit(steps.write, plan, 1, steps.target.batch([at + 4, at + 5]), task=tasks[1])
                wait([voting], OVERTAKES_WITHIN_S)
                if stands:
                    other.passes()
                shares = other.answer.answer, voting.result(_SUCCEEDS_WITHIN_S)
            assert steps.commit(steps.order(plan, *shares)) is Outcome.COMMITTED, f"another has voted at {place}"
            expected += range(at, at + 6)
            assert steps.visible() == expected, f"another has voted at {place}"


# ---- parts of tests ----


class _Commit:
    """In another process, which stops after each call; a reader in a thread of its own, which may have to wait for it."""

    def __init__(self, steps: SinkSteps, other: OtherProcess, reader: ThreadPoolExecutor):
        self._steps, self._other, self._reader = steps, other, reader
        self._looking: Future[list[int]] | None = None

    def watched(self) -> list[list[int] | None]:
        """Let it come to its end; what a reader saw at each stop, or None if it had to wait."""
        seen = []
        while self._other.goes_on():
            seen.append(self._look())
            self._other.go_on()
        return seen

    def killed_at(self, stops: int) -> None:
        """The first stop is 1; if there are less, it was killed when it was done."""
        for _ in range(stops - 1):
            if not self._other.goes_on():
                return
            self._other.go_on()
        self._other.goes_on()
        self._other.kill()

    def _look(self) -> list[int] | None:
        patience_s = 0.0
        if self._looking is None:
            self._looking, patience_s = self._reader.submit(self._steps.visible), PATIENCE_S
        done, _ = wait([self._looking], patience_s)
        if not done:
            return None
        rows, self._looking = self._looking.result(), None
        return rows


def _places(steps: SinkSteps, order: CommitOrder[Any]) -> Sequence[Place]:
    """Where a commit makes its calls."""
    done = answer_of(sink_calls.called, steps.sink(), "commit", [order])
    assert done.answer is Outcome.COMMITTED, done.raised
    return sink_calls.spread(done.places, MANY_OVERTAKEN)


def _overtaken(steps: SinkSteps, order: CommitOrder[Any], place: Place, succeeds: Callable[[], R]) -> tuple[R, Called]:
    """Let a commit stand still there while something is done, or waits for it; then let it go on. What was done, and its end."""
    with (
        ThreadPoolExecutor(1) as thread,
        OtherProcess(sink_calls.standing_at, steps.sink(), "commit", [order], place) as other,
    ):
        stands = other.goes_on()
        succeeding = thread.submit(succeeds)
        wait([succeeding], OVERTAKES_WITHIN_S)
        if stands:
            other.passes()
        return succeeding.result(_SUCCEEDS_WITHIN_S), other.answer


@contextmanager
def _committing(steps: SinkSteps, order: CommitOrder[Any]) -> Iterator[_Commit]:
    with (
        ThreadPoolExecutor(1) as reader,
        OtherProcess(
            sink_calls.commit_with_stops, steps.sink(), order
        ) as other,  # ends first: a reader may wait for it
    ):
        yield _Commit(steps, other, reader)
