"""What the suite has another process do with a sink. No test is in here, so that the process begins quickly."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyarrow as pa

from twophase.errors import Fenced, NotCommitted
from twophase.identity import Generation, Owner
from twophase.query import AnySink
from twophase.sink import CommitOrder, Outcome, Plan, Share, Task
from twophase.testing.call_stops import Stop, stopping, stopping_in
from twophase.testing.other_process import stop
from twophase.testing.sink_steps import voted

Error = Callable[[str], Exception]
MANY_TIMES = 2
"""A call that is made again and again at one place is told apart so many times."""


class Place(NamedTuple):
    """A call that the sink's own code makes: where, and for the how manieth time there."""

    stop: Stop
    time: int


def spread(places: Sequence[Place], many: int) -> Sequence[Place]:
    """So many of them at the most: the first, the last, and others in between."""
    if len(places) <= many:
        return places
    return [places[round(at * (len(places) - 1) / (many - 1))] for at in range(many)]


class _Passed:
    def __init__(self) -> None:
        self._times: dict[Stop, int] = {}

    def place(self, stop: Stop) -> Place:
        self._times[stop] = self._times.get(stop, 0) + 1
        return Place(stop, self._times[stop])


def _packages(sink: AnySink) -> set[str]:
    return {kind.__module__.partition(".")[0] for kind in type(sink).__mro__}


# ---- calls that come to their end ----


def commit_twice(sink: AnySink, order: CommitOrder[Any]) -> tuple[Mapping[int, str], list[Outcome]]:
    """What is dead before it, and both outcomes."""
    return dict(sink.alive(order)), [sink.commit(order), sink.commit(order)]


def commit_with_stops(sink: AnySink, order: CommitOrder[Any]) -> Outcome:
    """Commit, and stop after each call, whoever makes it."""
    with stopping(lambda _: stop()):
        return sink.commit(order)


def standing_at(sink: AnySink, verb: str, arguments: Sequence[Any], place: Place) -> Called:
    """Call a verb, and stop at one place."""
    passed = _Passed()
    return _called(sink, verb, arguments, lambda at: stop() if passed.place(at) == place else None)


def sweep(sink: AnySink, owner: Owner, seen_from: Generation) -> set[str]:
    """Delete all that the owner has staged; the marks of it."""
    staged = [left for left in sink.leftovers(owner, seen_from=seen_from) if left.owner in (None, owner)]
    sink.abort(owner, staged)
    return {left.mark for left in staged}


def vote(sink: AnySink, plan: Plan, task: Task, *batches: pa.RecordBatch) -> Share[Any]:
    transaction = sink.begin(plan, task)
    for batch in batches:
        transaction.write(batch)
    return voted(sink, transaction, task, *batches)


# ---- calls that fail ----


@dataclass(frozen=True)
class Called:
    """What a verb answered, or that it raised; and the calls that it made on its way."""

    answer: Any
    raised: str | None = None
    kind: str = ""
    """Of what was raised: the name of its class."""
    places: Sequence[Place] = ()

    @property
    def is_verdict(self) -> bool:
        """It raised what says that nothing is visible and nothing will be, or that somebody else has gone on."""
        return self.kind in (NotCommitted.__name__, Fenced.__name__)


def called(
    sink: AnySink, verb: str, arguments: Sequence[Any], failing: Place | None = None, error: Error | None = None
) -> Called:
    """Call a verb. One of its calls may fail: it was made, and is heard to have gone wrong, as when its reply is lost."""
    places: list[Place] = []
    passed = _Passed()

    def stopped(at: Stop) -> None:
        place = passed.place(at)
        if place.time <= MANY_TIMES:
            places.append(place)
        if error is not None and place == failing:
            raise error(f"a call has failed: {at}")

    return replace(_called(sink, verb, arguments, stopped), places=places)


def called_in_vain(sink: AnySink, verb: str, arguments: Sequence[Any], failing: Place, error: Error) -> Called:
    """The same; but the call that fails was never made, as when a disk is full."""
    passed = _Passed()

    def starting(at: Stop) -> None:
        if passed.place(at) == failing:
            raise error(f"a call was not made: {at}")

    return _called(sink, verb, arguments, lambda _: None, starting)


def called_again(
    sink: AnySink, verb: str, arguments: Sequence[Any], failing: Place | None = None, error: Error | None = None
) -> Called:
    """The same; and where it has raised, the same object is called again, without a failure."""
    first = called(sink, verb, arguments, failing, error)
    if first.raised is None:
        return first
    return replace(_called(sink, verb, arguments, lambda _: None), places=first.places)


def _called(
    sink: AnySink,
    verb: str,
    arguments: Sequence[Any],
    stopped: Callable[[Stop], None],
    starting: Callable[[Stop], None] | None = None,
) -> Called:
    try:
        with stopping_in(_packages(sink), stopped, starting):
            return Called(_VERBS[verb](sink, *arguments))
    except Exception as raised:  # noqa: BLE001 - whatever a sink raises is not an answer
        return Called(None, repr(raised), type(raised).__name__)


def called_with_failures(
    sink: AnySink, verb: str, arguments: Sequence[Any], places: Sequence[Place], errors: Sequence[Error]
) -> list[Called]:
    """Again and again, each time with one call that fails. For verbs that change nothing."""
    return [_in_a_fork(sink, verb, arguments, place, error) for error in errors for place in places]


def _in_a_fork(sink: AnySink, verb: str, arguments: Sequence[Any], failing: Place, error: Error) -> Called:
    """In a process of its own each time: a client may keep connections, which a failure has left in the middle of something."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "wb") as answers:
            answers.write(pickle.dumps(called(sink, verb, arguments, failing, error)))
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        said = answers.read()
    os.waitpid(child, 0)
    answered = pickle.loads(said)
    assert isinstance(answered, Called)
    return answered


def _marks(leftovers: Iterable[Any]) -> frozenset[str]:
    return frozenset(left.mark for left in leftovers)


_VERBS: Mapping[str, Callable[..., Any]] = {
    "status": lambda sink, owner: frozenset(sink.status(owner, settled=False).markers.items()),
    "status, settled": lambda sink, owner: frozenset(sink.status(owner, settled=True).markers.items()),
    "alive": lambda sink, order: frozenset(sink.alive(order)),
    "leftovers": lambda sink, owner, seen_from: _marks(sink.leftovers(owner, seen_from=seen_from)),
    "commit": lambda sink, order: sink.commit(order),
    "abort": lambda sink, owner, leftovers: sink.abort(owner, leftovers),
    "vote": vote,
}
"""The verbs of a driver, and all that a task does up to its vote."""
