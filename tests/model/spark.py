"""What Spark does around the coordinator, as a state machine of phases; each phase is one program of real calls.

::

    Start ─► Log(N) ─► Prepare(N) ─► RunTask … ─► Commit(N) ─► LogCommit(N) ─► Log(N+1)
                                         └─ fails ──┴──► Abort(N) ─► the driver is dead

A driver that dies is started again by nobody but the explorer. Nothing survives from one phase to the next but what Spark
keeps: the number, the plan it pickled for the tasks, and the votes.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pyarrow as pa

from tests.model.digest import digest
from tests.model.objects import ATOMIC, SLOTS, ModelStorage, ModelTarget
from tests.model.replay import Raised, Recorded, Result
from tests.model.slot_sink import SlotHandle, SlotSink
from twophase import handle, ledger
from twophase.checkpoint import Checkpoint
from twophase.coordinator import Coordinator
from twophase.identity import Attempt, Generation, Owner, offsets_hash
from twophase.ledger import Ledger
from twophase.plan import EpochPlan
from twophase.query import Query
from twophase.record import decode
from twophase.sink import CommitOrder, Leftover, Outcome, Sink, Status
from twophase.sinks.heap import HeapHandle, HeapSink
from twophase.task import run_task
from twophase.vote import Vote

TASK_TRIES = 2
TWIN_TASK = 5
SALTS = 4


@dataclass(frozen=True)
class Setup:
    """What a driver is started with."""

    driver: int
    root: str = "/c0"
    query: str = "q"
    moved_from: str | None = None
    salt: int = 0
    """What the source holds: another salt, other rows, and other offsets to log."""
    slots: int = 2
    epochs: int = 3
    sinks: tuple[str, ...] = ("a", "b")
    take_over: tuple[tuple[str, str], ...] = ()
    kept_records: int = 100
    deterministic: bool = True
    publish_tries: int = 2


class Boxed:
    """A value with dicts inside, made hashable by what it looks like."""

    def __init__(self, value: EpochPlan):
        self.value = value

    @cached_property
    def _look(self) -> str:
        return repr(self.value)

    @property
    def digest(self) -> bytes:
        return digest(self.value)

    def __hash__(self) -> int:
        return hash(self._look)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Boxed) and self._look == other._look


# ---- phases ----


@dataclass(frozen=True)
class Start:
    pass


@dataclass(frozen=True)
class Log:
    number: int


@dataclass(frozen=True)
class Prepare:
    number: int


@dataclass(frozen=True)
class RunTask:
    number: int
    plan: Boxed
    sink: str
    slot: int
    attempt: int
    todo: tuple[tuple[str, int], ...]
    votes: tuple[Vote, ...]


@dataclass(frozen=True)
class Commit:
    number: int
    votes: tuple[Vote, ...]
    plan: Boxed
    again: bool = False


@dataclass(frozen=True)
class Abort:
    number: int
    votes: tuple[Vote | None, ...]
    why: str


@dataclass(frozen=True)
class LogCommit:
    number: int
    commit: Commit


@dataclass(frozen=True)
class Recover:
    """Not Spark: the command line's recovery, for the end of a schedule."""


@dataclass(frozen=True)
class Finished:
    pass


@dataclass(frozen=True)
class Dead:
    why: str


Phase = Start | Log | Prepare | RunTask | Commit | Abort | LogCommit | Recover | Finished | Dead


# ---- programs ----


def offsets_of(number: int, salt: int) -> bytes:
    return f"{number}:{salt}".encode()


_SALT_OF = {offsets_hash(offsets_of(n, s)): s for n, s in itertools.product(range(64), range(SALTS))}


def rows_of(number: int, slot: int, offsets: str) -> tuple[int, ...]:
    """The rows that a slot of an epoch has, given what the epoch reads. Every third epoch is empty, which is ordinary."""
    return () if number % 3 == 1 else (_SALT_OF[offsets] * 1000 + number * 10 + slot,)


def _named(order: CommitOrder[Any]) -> frozenset[Attempt]:
    return frozenset(share.attempt for share in order.shares)


class ModelHeapSink(HeapSink):
    """The real sink; each verb says beforehand what its look at the target will use."""

    def __init__(self, target: ModelTarget):
        super().__init__(cast(Any, target))
        self._shown = target

    def status(self, owner: Owner, *, settled: bool) -> Status:
        with self._shown.showing(owner, "line"):
            return super().status(owner, settled=settled)

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> Iterable[Leftover[HeapHandle]]:
        with self._shown.showing(owner, "staged"):
            return super().leftovers(owner, seen_from=seen_from)

    def alive(self, order: CommitOrder[HeapHandle]) -> Mapping[int, str]:
        with self._shown.showing(order.owner, "line", "staged", attempts=_named(order)):
            return super().alive(order)


class ModelSlotSink(SlotSink):
    """The same for the target by slot."""

    def __init__(self, target: ModelTarget):
        super().__init__(target)
        self._shown = target

    def status(self, owner: Owner, *, settled: bool) -> Status:
        with self._shown.showing(owner, "markers", *(("pending",) if settled else ())):
            return super().status(owner, settled=settled)

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> Iterable[Leftover[SlotHandle]]:
        with self._shown.showing(owner, "pending"):
            return super().leftovers(owner, seen_from=seen_from)

    def alive(self, order: CommitOrder[SlotHandle]) -> Mapping[int, str]:
        with self._shown.showing(order.owner, "pending", "voted", "visible", attempts=_named(order)):
            return super().alive(order)

    def commit(self, order: CommitOrder[SlotHandle]) -> Outcome:
        with self._shown.showing(order.owner, "markers"):
            return super().commit(order)


def sinks_of(world: Recorded, setup: Setup) -> Mapping[str, Sink[Any]]:
    made: dict[str, Sink[Any]] = {}
    for name in setup.sinks:
        if name.startswith("a"):
            made[name] = ModelHeapSink(ModelTarget(world, ATOMIC))
        else:
            made[name] = ModelSlotSink(ModelTarget(world, SLOTS))
    return made


def coordinator_of(world: Recorded, setup: Setup, phase: str) -> Coordinator:
    storage = ModelStorage(world)
    count = itertools.count()
    log = Ledger(
        storage,
        f"{setup.root}/twophase",
        new_id=lambda: f"d{setup.driver}x{phase}x{next(count)}",
        now_ms=lambda: 0,
        kept_records=setup.kept_records,
        publish_tries=setup.publish_tries,
    )
    query = Query(
        name=setup.query,
        checkpoint=Checkpoint(storage, setup.root),
        ledger=log,
        sinks=sinks_of(world, setup),
        now_ms=lambda: 0,
        take_over=dict(setup.take_over),
        moved_from=setup.moved_from,
    )
    return Coordinator(query)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Pure functions of the real code that a search calls again and again with the same arguments, computed once; and its log,
    which would say the same things millions of times, silent."""
    with ExitStack() as stack:
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        stack.enter_context(patch.object(ledger, "decode", functools.cache(decode)))
        hints = SimpleNamespace(get_type_hints=functools.cache(typing.get_type_hints))
        stack.enter_context(patch.object(handle, "typing", hints))
        yield


def program(setup: Setup, phase: Phase, world: Recorded) -> Any:
    storage = ModelStorage(world)
    checkpoint = Checkpoint(storage, setup.root)
    match phase:
        case Start():
            newest = checkpoint.newest()
            return newest, newest is not None and checkpoint.is_committed(newest)
        case Log(number):
            storage.publish(f"{setup.root}/offsets/{number}", offsets_of(number, setup.salt))
        case Prepare(number):
            guess = checkpoint.newest()
            assert guess is not None
            return Boxed(coordinator_of(world, setup, f"p{number}").prepare(guess))
        case RunTask():
            return _run_task(setup, phase, world)
        case Commit(number, votes, plan):
            coordinator_of(world, setup, f"c{number}").commit(number, votes, plan=plan.value)
        case Abort(number, votes, _):
            coordinator_of(world, setup, f"x{number}").abort(number, votes)
        case LogCommit(number):
            storage.publish(f"{setup.root}/commits/{number}", b"{}")
        case Recover():
            coordinator_of(world, setup, "r").recover()
        case _:
            raise AssertionError(phase)
    return None


def _run_task(setup: Setup, phase: RunTask, world: Recorded) -> Vote:
    plan, slot = phase.plan.value, phase.slot
    # A plan for another epoch than Spark's must stop the task before it writes these.
    rows = rows_of(phase.number, slot, plan.epoch.offsets) if phase.number == plan.epoch.number else (-1,)
    if not setup.deterministic:
        rows = tuple(value + 100_000 * setup.driver for value in rows)
    batch = pa.record_batch([pa.array(rows, pa.int64())], names=["value"])
    return run_task(
        sinks_of(world, setup)[phase.sink],
        phase.sink,
        plan,
        [batch],
        number=phase.number,
        slot=slot,
        task_id=slot * 10 + phase.attempt,
        now_ms=lambda: 0,
    )


def following(setup: Setup, phase: Phase, result: Result) -> Phase:
    """What Spark does when a phase has ended."""
    if isinstance(result, Raised):
        return _after_error(phase, result.error)
    match phase:
        case Start():
            newest, committed = result.value
            if newest is None:
                return Log(0)
            if not committed:
                return Prepare(newest)
            return Log(newest + 1) if newest + 1 < setup.epochs else Finished()
        case Log(number):
            return Prepare(number)
        case Prepare(number):
            todo = tuple((sink, slot) for sink in setup.sinks for slot in range(setup.slots))
            return _next_task(number, result.value, todo, ())
        case RunTask():
            return _next_task(phase.number, phase.plan, phase.todo, (*phase.votes, result.value))
        case Commit(number):
            return LogCommit(number, phase)
        case Abort():
            return Dead(phase.why)
        case LogCommit(number):
            return Log(number + 1) if number + 1 < setup.epochs else Finished()
        case _:
            return Finished()


def _next_task(number: int, plan: Boxed, todo: tuple[tuple[str, int], ...], votes: tuple[Vote, ...]) -> Phase:
    if not todo:
        return Commit(number, votes, plan)
    (sink, slot), *rest = todo
    return RunTask(number, plan, sink, slot, 0, tuple(rest), votes)


def _after_error(phase: Phase, error: Exception) -> Phase:
    why = getattr(error, "condition", type(error).__name__)
    match phase:
        case RunTask():
            if isinstance(error, TimeoutError) and phase.attempt + 1 < TASK_TRIES:
                return retried(phase)
            return Abort(phase.number, (*phase.votes, None), why)
        case Commit(number, votes):
            return Abort(number, votes, why)
        case _:
            return Dead(why)


def retried(phase: RunTask) -> RunTask:
    return RunTask(phase.number, phase.plan, phase.sink, phase.slot, phase.attempt + 1, phase.todo, phase.votes)


def twin_of(phase: RunTask) -> RunTask:
    """Another attempt at the same task, whose vote nobody waits for."""
    return RunTask(phase.number, phase.plan, phase.sink, phase.slot, TWIN_TASK, (), ())
