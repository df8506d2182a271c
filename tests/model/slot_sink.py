"""A target that commits slot by slot, with a marker each, and takes several owners: the shape of Kafka and of prepared
transactions. A share begins before it is voted for, can expire at any time, and can't be fenced in the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from twophase.errors import NotCommitted, OutcomeUnknown, SchemaMismatch
from twophase.handle import Handle
from twophase.identity import Attempt, Epoch, Generation, Owner
from twophase.sink import (
    Capabilities,
    CommitOrder,
    Leftover,
    Marker,
    Outcome,
    Plan,
    Sink,
    Status,
    Task,
    Transaction,
)
from twophase.slot_markers import hidden

R = TypeVar("R")


@dataclass(frozen=True)
class SlotHandle(Handle):
    rows: int


@dataclass(frozen=True)
class SlotTransaction:
    owner: Owner
    epoch: Epoch
    slot: int
    attempt: Attempt
    values: tuple[int, ...] = ()
    voted: bool = False
    stray: bool = False
    """Begun by a request that came late: another session than the one in which the rows were written and voted for. If the first
    is dead, the vote is refused, however often it comes. What is proven dead stays dead, as docs/protocol.md demands."""


@dataclass(frozen=True)
class SlotState:
    pending: frozenset[SlotTransaction] = frozenset()
    visible: tuple[SlotTransaction, ...] = ()
    markers: frozenset[tuple[int, Marker]] = frozenset()

    def marker(self, owner: Owner, slot: int) -> Marker | None:
        return next((m for s, m in self.markers if s == slot and m.owner == owner), None)


# ---- transitions ----


def begin(state: SlotState, transaction: SlotTransaction) -> tuple[SlotState, None]:
    if any((t.owner, t.attempt) == (transaction.owner, transaction.attempt) for t in (*state.pending, *state.visible)):
        return state, None  # the same request again
    return replace(state, pending=state.pending | {transaction}), None


def vote(state: SlotState, begun: SlotTransaction, values: tuple[int, ...]) -> tuple[SlotState, bool]:
    if begun not in state.pending:
        return state, False
    return replace(state, pending=state.pending - {begun} | {replace(begun, values=values, voted=True)}), True


def end(state: SlotState, owner: Owner, attempt: Attempt, committing: bool) -> tuple[SlotState, bool]:
    """Finish a transaction; False if it is not there (committed before, aborted or expired: the marker tells)."""
    named = (t for t in state.pending if t.owner == owner and t.attempt == attempt)
    found = next((t for t in named if t.voted or not committing), None)
    if found is None:
        return state, False
    pending = state.pending - {found}
    if not committing:
        return replace(state, pending=pending), True
    old = state.marker(found.owner, found.slot)
    marker = Marker(found.owner, found.epoch, str(attempt))
    markers = frozenset(m for m in state.markers if m != (found.slot, old)) | {(found.slot, marker)}
    return SlotState(pending, (*state.visible, found), markers), True


def look(state: SlotState) -> tuple[SlotState, SlotState]:
    return state, state


def come_late(transition: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a request that comes after its caller has given up waiting, or a second time."""
    return (replace(arguments[0], stray=True),) if transition is begin else arguments


class Target(Protocol):
    def apply(self, transition: Callable[..., tuple[Any, R]], *arguments: Any) -> R: ...


# ---- the sink ----


class _Share(Transaction[SlotHandle]):
    def __init__(self, target: Target, begun: SlotTransaction):
        self._target, self._begun = target, begun
        self._values: tuple[int, ...] = ()

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_columns != 1 or batch.column(0).null_count:
            raise SchemaMismatch("a row of this target is a number")
        self._values += tuple(int(value) for value in batch.column(0).to_pylist() if value is not None)

    def pre_commit(self) -> SlotHandle:
        if not self._target.apply(vote, self._begun, self._values):
            raise NotCommitted("the share expired before it was voted for")
        return SlotHandle(len(self._values))

    def abort(self) -> None:
        self._target.apply(end, self._begun.owner, self._begun.attempt, False)


class SlotSink(Sink[SlotHandle]):
    capabilities = Capabilities(atomic=False, several_owners=True)
    handle_type = SlotHandle

    def __init__(self, target: Target):
        self._target = target

    def fence(self, owner: Owner, generation: Generation) -> None:
        """The target knows no generations: older ones are kept out by what they can't do, see `commit` and `sweep`."""

    def begin(self, plan: Plan, task: Task) -> _Share:
        begun = SlotTransaction(plan.prepared.owner, plan.prepared.epoch, task.slot, task.attempt)
        self._target.apply(begin, begun)
        return _Share(self._target, begun)

    def alive(self, order: CommitOrder[SlotHandle]) -> Mapping[int, str]:
        state = self._target.apply(look)
        pending = {t.attempt for t in state.pending if t.voted and t.owner == order.owner}
        visible = {t.attempt for t in state.visible if t.owner == order.owner}
        return {s.slot: "it expired" for s in order.shares if s.attempt not in pending | visible}

    def commit(self, order: CommitOrder[SlotHandle]) -> Outcome:
        finished = [self._target.apply(end, order.owner, share.attempt, True) for share in order.shares]
        if all(finished):
            return Outcome.COMMITTED
        state = self._target.apply(look)
        refused = [share for share, done in zip(order.shares, finished, strict=True) if not done]
        markers = {slot: marker for slot, marker in state.markers if marker.owner == order.owner}
        dead = [share.slot for share in hidden(order, markers) if share in refused]
        if dead:
            raise NotCommitted("expired", dead_slots=dead)
        return Outcome.ALREADY_COMMITTED

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[SlotHandle]]) -> None:
        for leftover in leftovers:
            self._target.apply(end, owner, Attempt.parse(leftover.mark), False)

    def status(self, owner: Owner, *, settled: bool) -> Status:
        state = self._target.apply(look)
        if settled and any(t.owner == owner for t in state.pending):
            raise OutcomeUnknown("a marker is in doubt")
        return Status(
            {slot: marker for slot, marker in sorted(state.markers, key=lambda m: m[0]) if marker.owner == owner}
        )

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> Iterable[Leftover[SlotHandle]]:
        pending = sorted(
            (t for t in self._target.apply(look).pending if t.owner == owner), key=lambda t: str(t.attempt)
        )
        return [Leftover(t.attempt.generation, str(t.attempt), f"epoch {t.epoch.number}") for t in pending]
