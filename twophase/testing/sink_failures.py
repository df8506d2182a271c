"""What a sink promises when a call that it makes to its target fails, whichever it is.

::

    commit ─► call ─► call ─✗ call                  the call was made, and is heard to have failed: its reply may be lost
                            │
                            ├─ raises               the truth is found out later, by a commit of anybody
                            └─ goes on              what it answers must be so

Each call in turn, in a process of its own that is dead afterwards. For targets that outlive their process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from twophase.identity import Generation
from twophase.sink import Outcome
from twophase.testing import sink_calls
from twophase.testing.other_process import answer_of
from twophase.testing.sink_calls import Called, Error, Place
from twophase.testing.sink_capabilities import only_if_target
from twophase.testing.sink_steps import SinkSteps

_MANY_QUESTIONS = 12


class SinkFailures:
    def test_what_can_not_be_asked_is_an_error_and_never_an_answer(self, steps: SinkSteps) -> None:
        """Each call of status, alive and leftovers fails in turn: the verb raises, or answers what it answers without."""
        only_if_target(steps, outlives_process=True)
        steps.epoch(0, [1], [2])
        order = steps.decided(1, [3], [4])
        steps.target.lose(steps.owner, order.shares[1])
        steps.decided(1, [5])
        seen_from = Generation(steps.ledger, steps.generation().number + 1)
        asking: dict[str, Sequence[Any]] = {
            "status": [steps.owner],
            "status, settled": [steps.owner],
            "alive": [order],
            "leftovers": [steps.owner, seen_from],
        }
        for verb, arguments in asking.items():
            errors, sink = steps.target.client_errors, steps.sink()
            right = answer_of(sink_calls.called, sink, verb, arguments)
            if verb == "status, settled" and not sink.capabilities.atomic:
                continue  # shares are in doubt, and it may say so
            places = sink_calls.spread([place for place in right.places if place.time == 1], _MANY_QUESTIONS)
            others = answer_of(sink_calls.called_with_failures, sink, verb, arguments, places, errors)
            assert right.raised is None
            assert right.answer, f"{verb} has something to answer"
            assert [asked.raised for asked in others if asked.raised], f"no call of {verb} could be made to fail"
            wrong = [asked for asked in others if asked.raised is None and asked.answer != right.answer]
            assert [(verb, asked.places[-1], asked.answer) for asked in wrong] == []

    def test_a_call_that_fails_within_a_commit_is_no_verdict(self, steps: SinkSteps) -> None:
        """The commit raises, and may have happened or not; or it says that it has, and it has. It does not say that shares are
        dead, or that another went on. Commit again, and all is visible once, and nothing is left."""
        only_if_target(steps, outlives_process=True)
        expected, raised = list[int](), 0

        for ending in _each_failing(steps, "commit", partial(_decided, steps, expected)):
            rows, seen = [len(expected), len(expected) + 1], steps.visible()
            assert not ending.called.is_verdict, f"{ending}: {ending.called.raised}"
            if ending.called.raised is None:
                assert seen == expected + rows, f"{ending}: it says {ending.called.answer}"
            elif steps.sink().capabilities.atomic:
                assert seen in (expected, expected + rows), f"{ending}: a part of an epoch is visible"
            raised += ending.called.raised is not None
            steps.commit(ending.arguments[0])
            expected += rows
            assert steps.visible() == expected, str(ending)
            steps.sweep()
            assert list(steps.target.residue()) == [], str(ending)
        assert raised, "no call of commit could be made to fail"

    def test_a_commit_is_called_again_after_a_call_has_failed(self, steps: SinkSteps) -> None:
        """By the same object, in the same process: nothing that the failure has left open is carried into it."""
        only_if_target(steps, outlives_process=True)
        expected = list[int]()

        for ending in _each_failing(steps, "commit", partial(_decided, steps, expected), again=True):
            expected += [len(expected), len(expected) + 1]
            if ending.called.raised is not None:
                assert not ending.called.is_verdict, f"{ending}: {ending.called.raised}"
                steps.commit(ending.arguments[0])
            assert steps.visible() == expected, str(ending)
            steps.sweep()
            assert list(steps.target.residue()) == [], str(ending)

    def test_a_call_that_fails_within_a_task_is_no_vote(self, steps: SinkSteps) -> None:
        """The task raises, and what it has staged is a leftover; or it votes, and its share has all of its rows, once."""
        only_if_target(steps, outlives_process=True)
        expected, raised = list[int](), 0

        def begun() -> list[Any]:
            at, plan = len(expected), steps.prepare(len(expected) // 4)
            return [plan, steps.task(plan, 0), steps.target.batch([at, at + 1, at + 2]), steps.target.batch([at + 3])]

        for ending in _each_failing(steps, "vote", begun):
            if ending.called.raised is None:
                plan = ending.arguments[0]
                assert steps.commit(steps.order(plan, ending.called.answer)) is Outcome.COMMITTED, str(ending)
                expected += range(len(expected), len(expected) + 4)
            raised += ending.called.raised is not None
            if steps.target.residue():
                assert steps.leftovers(), f"{ending}: what is still in the target must be listed"
            steps.sweep()
            assert (steps.visible(), list(steps.target.residue())) == (expected, []), str(ending)
        assert raised, "no call of a task could be made to fail"

    def test_a_call_that_fails_within_an_abort_hides_nothing(self, steps: SinkSteps) -> None:
        """What abort has not deleted is still a leftover; and if it does not raise, it has deleted all."""
        only_if_target(steps, outlives_process=True)
        steps.epoch(0, [0])
        raised = 0

        def staged() -> list[Any]:
            steps.decided(1, [1], [2])
            return [steps.owner, steps.leftovers()]

        for ending in _each_failing(steps, "abort", staged):
            left = list(steps.target.residue())
            if ending.called.raised is None:
                assert left == [], f"{ending}: it has not raised"
            elif left:
                assert steps.leftovers(), f"{ending}: what is still in the target must be listed"
            raised += ending.called.raised is not None
            steps.sweep()
            assert (steps.visible(), list(steps.target.residue())) == ([0], []), str(ending)
        assert raised, "no call of abort could be made to fail"


# ---- parts of tests ----


def _decided(steps: SinkSteps, expected: Sequence[int]) -> list[Any]:
    """The order of the next epoch, where each has had two slots of a row."""
    at = len(expected)
    return [steps.decided(at // 2, [at], [at + 1])]


@dataclass(frozen=True)
class _Ending:
    """How a verb ended for which one call has failed."""

    called: Called
    arguments: Sequence[Any]
    place: Place | None
    error: Error | None

    def __str__(self) -> str:
        return f"{self.error} at {self.place}"


def _each_failing(
    steps: SinkSteps, verb: str, arguments: Callable[[], Sequence[Any]], *, again: bool = False
) -> Iterator[_Ending]:
    """Without a failure; then each time with new arguments, a call that fails, and another of the client's errors."""
    given = arguments()
    first = answer_of(sink_calls.called, steps.sink(), verb, given)
    assert first.raised is None, first.raised
    yield _Ending(first, given, None, None)
    # A call was made, and is heard to have failed; or it was never made.
    calls = [sink_calls.called_again] if again else [sink_calls.called, sink_calls.called_in_vain]
    places = sink_calls.spread(first.places, steps.target.many_failures)
    for place, call, error in itertools.product(places, calls, steps.target.client_errors):
        given = arguments()
        yield _Ending(answer_of(call, steps.sink(), verb, given, place, error), given, place, error)
