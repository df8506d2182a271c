"""HeapSink: the reference implementation of the contract, in the memory of one process.

Mechanism: an immutable `HeapState` and pure transitions on it; the target applies one transition at a time. Pre-commit is a
deep copy of the rows, commit appends the epoch to the one line of epochs by compare-and-set on the newest marker, abort
forgets the copy. Every committed epoch stays queryable.

Guarantee: exactly once, for as long as the process lives. It can't survive the process, and Spark's workers are other
processes: with Spark it serves `foreachBatch` with collected rows (small results, notebooks). It is what the model is checked
with, and what to read before writing a sink.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from twophase.errors import Fenced, NotCommitted
from twophase.handle import Handle
from twophase.identity import Attempt, Epoch, Generation, Owner
from twophase.line_of_epochs import elsewhere, not_taken_over
from twophase.sink import (
    WHOLE,
    Capabilities,
    CommitOrder,
    Leftover,
    Marker,
    Outcome,
    Plan,
    Sink,
    Status,
    TakeOver,
    Task,
    Transaction,
)

R = TypeVar("R")


@dataclass(frozen=True)
class HeapHandle(Handle):
    rows: int
    overwrite: bool


@dataclass(frozen=True)
class StagedShare:
    """A deep copy of one task's rows: durable as far as memory goes, and invisible."""

    owner: Owner
    epoch: Epoch
    slot: int
    attempt: Attempt
    rows: int
    copy: bytes
    """The rows as one Arrow IPC stream: memory of their own, that nobody can write to. Empty if there was no batch at all."""

    def batches(self) -> list[pa.RecordBatch]:
        return list(pa.ipc.open_stream(self.copy)) if self.copy else []


@dataclass(frozen=True)
class CommittedEpoch:
    """One position in the line of epochs; without shares if it was a take-over, or if nothing was written."""

    marker: Marker
    shares: tuple[StagedShare, ...] = ()
    overwrite: bool = False
    replaced: Owner | None = None
    """The owner that a take-over replaced."""


@dataclass(frozen=True)
class HeapState:
    line: tuple[CommittedEpoch, ...] = ()
    staged: frozenset[StagedShare] = frozenset()
    fences: frozenset[Generation] = frozenset()
    """The newest generation of each ledger that was ever here."""

    @property
    def marker(self) -> Marker | None:
        return self.line[-1].marker if self.line else None


# ---- transitions: each is one atomic step ----


def fence(state: HeapState, generation: Generation) -> tuple[HeapState, None]:
    known = next((g for g in state.fences if g.ledger == generation.ledger), None)
    if known is not None and generation.is_older_than(known):
        raise Fenced(f"generation {generation} was overtaken by {known}")
    return replace(state, fences=(state.fences - {known} if known else state.fences) | {generation}), None


def stage(state: HeapState, share: StagedShare) -> tuple[HeapState, None]:
    mine = share.attempt.generation
    if any(mine.is_older_than(generation) for generation in state.fences):
        raise Fenced(f"attempt {share.attempt} is of an older generation", epoch=share.epoch.number, slot=share.slot)
    return replace(state, staged=state.staged | {share}), None


def commit(state: HeapState, order: CommitOrder[HeapHandle]) -> tuple[HeapState, Outcome]:
    marker = state.marker
    if marker == order.marker:
        return state, Outcome.ALREADY_COMMITTED
    if marker != order.origin:
        raise elsewhere("target", marker, order)
    staged = {str(share.attempt): share for share in state.staged if share.owner == order.owner}
    lost = [
        s.slot for s in order.shares if str(s.attempt) not in staged or staged[str(s.attempt)].rows != s.handle.rows
    ]
    if lost:
        raise NotCommitted(f"the staged rows of slots {lost} are gone", dead_slots=lost)
    shares = tuple(staged[str(share.attempt)] for share in order.shares)
    overwrite = any(share.handle.overwrite for share in order.shares)
    line = (*state.line, CommittedEpoch(order.marker, shares, overwrite))
    return replace(state, line=line, staged=state.staged - set(shares)), Outcome.COMMITTED


def take_over(state: HeapState, order: TakeOver) -> tuple[HeapState, None]:
    if state.marker == order.marker:
        return state, None
    if state.marker != order.origin:
        raise not_taken_over("target", state.marker, order)
    return replace(state, line=(*state.line, CommittedEpoch(order.marker, replaced=order.origin.owner))), None


def abort(state: HeapState, marks: frozenset[tuple[Owner | None, str]]) -> tuple[HeapState, None]:
    return replace(state, staged=frozenset(s for s in state.staged if (s.owner, str(s.attempt)) not in marks)), None


def look(state: HeapState) -> tuple[HeapState, HeapState]:
    return state, state


# ---- the target and the sink ----


class HeapTarget:
    """A named state of this process. Pickled, it is its name."""

    _known: ClassVar[dict[str, HeapTarget]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str):
        self.name = name
        self._state = HeapState()
        self._lock = threading.Lock()

    @classmethod
    def named(cls, name: str) -> HeapTarget:
        with cls._guard:
            return cls._known.setdefault(name, cls(name))

    def apply(self, transition: Callable[..., tuple[HeapState, R]], *arguments: Any) -> R:
        with self._lock:
            self._state, result = transition(self._state, *arguments)
        return result

    def __reduce__(self) -> tuple[Any, ...]:
        if HeapTarget._known.get(self.name) is not self:
            raise TypeError(f"the target {self.name!r} has no name in this process: HeapTarget.named gives it one")
        return HeapTarget.named, (self.name,)


class HeapTransaction(Transaction[HeapHandle]):
    def __init__(self, target: HeapTarget, plan: Plan, task: Task):
        self._target = target
        self._plan = plan
        self._task = task
        self._rows = 0
        self._copy = pa.BufferOutputStream()
        self._stream: pa.RecordBatchStreamWriter | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Copies at once: what Spark handed us may be overwritten by its next batch."""
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._copy, batch.schema)
        self._stream.write_batch(batch)
        self._rows += batch.num_rows

    def pre_commit(self) -> HeapHandle:
        if self._stream is not None:
            self._stream.close()
        prepared, task = self._plan.prepared, self._task
        copy = self._copy.getvalue().to_pybytes()
        share = StagedShare(prepared.owner, prepared.epoch, task.slot, task.attempt, self._rows, copy)
        self._target.apply(stage, share)
        return HeapHandle(self._rows, prepared.overwrite)

    def abort(self) -> None:
        self._target.apply(abort, frozenset({(self._plan.prepared.owner, str(self._task.attempt))}))


class HeapSink(Sink[HeapHandle]):
    """A table in memory: one line of epochs, one owner at a time.

    Parameters
    ----------
    target:
        The target, or its name.
    """

    capabilities = Capabilities(atomic=True, several_owners=False, ordered=True, overwrites=True)
    handle_type = HeapHandle

    def __init__(self, target: HeapTarget | str):
        self._target = HeapTarget.named(target) if isinstance(target, str) else target

    @property
    def target(self) -> HeapTarget:
        return self._target

    def fence(self, owner: Owner, generation: Generation) -> None:
        self._target.apply(fence, generation)

    def begin(self, plan: Plan, task: Task) -> HeapTransaction:
        return HeapTransaction(self._target, plan, task)

    def alive(self, order: CommitOrder[HeapHandle]) -> Mapping[int, str]:
        state = self._target.apply(look)
        visible = (share for committed in state.line for share in committed.shares)
        there = {share.attempt for share in (*state.staged, *visible) if share.owner == order.owner}
        return {share.slot: "its staged rows are gone" for share in order.shares if share.attempt not in there}

    def commit(self, order: CommitOrder[HeapHandle]) -> Outcome:
        return self._target.apply(commit, order)

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[HeapHandle]]) -> None:
        self._target.apply(abort, frozenset((leftover.owner or owner, leftover.mark) for leftover in leftovers))

    def status(self, owner: Owner, *, settled: bool) -> Status:
        line = self._target.apply(look).line
        if not line or line[-1].marker.owner == owner:
            return Status({WHOLE: line[-1].marker} if line else {})
        before = (committed.marker for committed in reversed(line) if committed.marker.owner == owner)
        return Status({WHOLE: line[-1].marker}, own=next(before, None))

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> Iterable[Leftover[HeapHandle]]:
        staged = sorted(self._target.apply(look).staged, key=lambda share: str(share.attempt))
        return [
            Leftover(
                generation=share.attempt.generation,
                mark=str(share.attempt),
                what=f"{share.rows} rows of epoch {share.epoch.number}",
                owner=share.owner,
            )
            for share in staged
        ]

    def take_over(self, order: TakeOver) -> None:
        self._target.apply(take_over, order)

    # ---- reading ----

    def epochs(self) -> list[Epoch]:
        """The epochs in the line, oldest first."""
        return [committed.marker.epoch for committed in self._target.apply(look).line]

    def batches(self, position: int | None = None) -> list[pa.RecordBatch]:
        """What a reader sees: all rows, or the rows as they were at a position of the line (0 is the first)."""
        line = self._target.apply(look).line
        kept: list[pa.RecordBatch] = []
        for committed in line if position is None else line[: position + 1]:
            if committed.overwrite:
                kept.clear()
            kept.extend(batch for share in committed.shares for batch in share.batches())
        return kept
