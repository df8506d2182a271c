"""What the suite has another process do with a sink. No test is in here, so that the process begins quickly."""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twophase.errors import Fenced
from twophase.identity import Generation, Owner
from twophase.query import AnySink
from twophase.sink import CommitOrder, Outcome, Plan, Share, Task
from twophase.testing.call_stops import Stop, stopping, stopping_in
from twophase.testing.other_process import stop
from twophase.testing.sink_steps import voted

Error = Callable[[str], Exception]


def commit_twice(sink: AnySink, order: CommitOrder[Any]) -> tuple[Mapping[int, str], list[Outcome]]:
    """What is dead before it, and both outcomes."""
    return dict(sink.alive(order)), [sink.commit(order), sink.commit(order)]


def commit_with_stops(sink: AnySink, order: CommitOrder[Any]) -> Outcome | str:
    """Commit, and stop after each call. It may be told that it comes too late, if somebody has overtaken it."""
    with stopping(lambda _: stop()):
        try:
            return sink.commit(order)
        except Fenced as error:
            return str(error)


def sweep(sink: AnySink, owner: Owner, seen_from: Generation) -> set[str]:
    """Delete all that the owner has staged; the marks of it."""
    staged = [left for left in sink.leftovers(owner, seen_from=seen_from) if left.owner in (None, owner)]
    sink.abort(owner, staged)
    return {left.mark for left in staged}


def vote(sink: AnySink, plan: Plan, task: Task, batch: pa.RecordBatch) -> Share[Any]:
    transaction = sink.begin(plan, task)
    transaction.write(batch)
    return voted(sink, transaction, task, batch)


# ---- calls that fail ----


@dataclass(frozen=True)
class Asked:
    """What a verb answered, or that it raised; and where it stopped on its way."""

    answer: frozenset[Any]
    raised: str | None
    stops: Sequence[Stop]
    imported: Sequence[str]
    """The modules that were imported only now."""


def asked_with_failures(
    sink: AnySink, verb: str, arguments: Sequence[Any], errors: Sequence[Error], many: int
) -> list[Asked]:
    """Ask without a failure; then again and again, with one call that fails: each place in turn, or `many` of them."""
    first = _in_a_fork(sink, verb, arguments, None, None)
    for name in first.imported:  # once for all forks, as far as it has a file
        with suppress(ImportError):
            importlib.import_module(name)
    places = sorted({stop: at for at, stop in reversed(list(enumerate(first.stops)))}.values())
    chosen = places[:: -(-len(places) // many)] if places else []
    return [first, *(_in_a_fork(sink, verb, arguments, at, error) for error in errors for at in chosen)]


def _in_a_fork(sink: AnySink, verb: str, arguments: Sequence[Any], failing: int | None, error: Error | None) -> Asked:
    """In a process of its own each time: a client may keep connections, which a failure has left in the middle of something."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writing, "wb") as answers:
            answers.write(pickle.dumps(_asked(sink, verb, arguments, failing, error)))
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(writing)
    with os.fdopen(reading, "rb") as answers:
        said = answers.read()
    os.waitpid(child, 0)
    asked = pickle.loads(said)
    assert isinstance(asked, Asked)
    return asked


def _asked(sink: AnySink, verb: str, arguments: Sequence[Any], failing: int | None, error: Error | None) -> Asked:
    stops: list[Stop] = []
    known = set(sys.modules)

    def stopped(at: Stop) -> None:
        stops.append(at)
        if error is not None and len(stops) - 1 == failing:
            raise error(f"a call has failed: {at}")

    try:
        with stopping_in({kind.__module__.partition(".")[0] for kind in type(sink).__mro__}, stopped):
            answer = _ANSWERS[verb](sink, *arguments)
    except Exception as raised:  # noqa: BLE001 - whatever a sink raises is not an answer
        return Asked(frozenset(), repr(raised), stops, [])
    return Asked(answer, None, stops, sorted(set(sys.modules) - known))


def _marks(leftovers: Iterable[Any]) -> frozenset[str]:
    return frozenset(left.mark for left in leftovers)


_ANSWERS: Mapping[str, Callable[..., frozenset[Any]]] = {
    "status": lambda sink, owner: frozenset(sink.status(owner, settled=False).markers.items()),
    "alive": lambda sink, order: frozenset(sink.alive(order)),
    "leftovers": lambda sink, owner, seen_from: _marks(sink.leftovers(owner, seen_from=seen_from)),
}
