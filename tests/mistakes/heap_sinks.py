"""Sinks in memory, with a mistake each."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from twophase.errors import Fenced, NotCommitted, SchemaMismatch
from twophase.identity import Attempt, Epoch, Generation, Owner
from twophase.sink import CommitOrder, Description, Leftover, Outcome, Plan, PreparedEpoch, Status, TakeOver, Task
from twophase.sinks import heap
from twophase.sinks.heap import CommittedEpoch, HeapHandle, HeapSink, HeapState, HeapTransaction


def commit_by_setting(state: HeapState, order: CommitOrder[HeapHandle]) -> tuple[HeapState, Outcome]:
    """The marker is set, wherever it was."""
    shares = tuple(s for s in state.staged if s.attempt in {share.attempt for share in order.shares})
    line = (*state.line, CommittedEpoch(order.marker, shares))
    return replace(state, line=line, staged=state.staged - set(shares)), Outcome.COMMITTED


def take_over_by_setting(state: HeapState, order: TakeOver) -> tuple[HeapState, None]:
    return replace(state, line=(*state.line, CommittedEpoch(order.marker))), None


class SetsTheMarker(HeapSink):
    def commit(self, order: CommitOrder[HeapHandle]) -> Outcome:
        return self._target.apply(commit_by_setting, order)


class TakesOverAnyway(HeapSink):
    def take_over(self, order: TakeOver) -> None:
        self._target.apply(take_over_by_setting, order)


class DoesNotFence(HeapSink):
    def fence(self, owner: Owner, generation: Generation) -> None: ...


class FencesDecisionsToo(HeapSink):
    def commit(self, order: CommitOrder[HeapHandle]) -> Outcome:
        newest = max(self._target.apply(heap.look).fences, key=lambda generation: generation.number)
        if any(share.attempt.generation.is_older_than(newest) for share in order.shares):
            raise Fenced("of an older generation")
        return super().commit(order)


class HidesStrangers(HeapSink):
    def status(self, owner: Owner, *, settled: bool) -> Status:
        found = super().status(owner, settled=settled)
        return Status({slot: marker for slot, marker in found.markers.items() if marker.owner == owner})


class NamesNoOwner(HeapSink):
    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> Iterable[Leftover[HeapHandle]]:
        return [replace(left, owner=None) for left in super().leftovers(owner, seen_from=seen_from)]


class KeepsBatches(HeapSink):
    """Until pre-commit, as if they were its own."""

    def begin(self, plan: Plan, task: Task) -> HeapTransaction:
        return _KeepsBatches(self._target, plan, task)


class _KeepsBatches(HeapTransaction):
    def __init__(self, *given: Any):
        super().__init__(*given)
        self.kept: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.kept.append(batch)

    def pre_commit(self) -> HeapHandle:
        for batch in self.kept:
            super().write(batch)
        return super().pre_commit()


class LosesPrecision(HeapSink):
    def begin(self, plan: Plan, task: Task) -> HeapTransaction:
        return _LosesPrecision(self._target, plan, task)


class _LosesPrecision(HeapTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        short = {pa.float64(): pa.float32()}
        fields = [f.with_type(short.get(f.type, f.type)) for f in batch.schema]
        super().write(batch.cast(pa.schema(fields), safe=False))


class EmptiesBeforeItReplaces(HeapSink):
    """When an epoch that replaces all is prepared."""

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        if prepared.overwrite:
            self._target.apply(_emptied)
        return super().prepare(prepared)


def _emptied(state: HeapState) -> tuple[HeapState, None]:
    return replace(state, line=tuple(replace(epoch, shares=()) for epoch in state.line)), None


class KeepsIntegersAsFloats(HeapSink):
    """Which are equal to them, if they are small."""

    def begin(self, plan: Plan, task: Task) -> HeapTransaction:
        return _KeepsIntegersAsFloats(self._target, plan, task)


class _KeepsIntegersAsFloats(HeapTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        fields = [f.with_type(pa.float64()) if pa.types.is_int32(f.type) else f for f in batch.schema]
        super().write(batch.cast(pa.schema(fields)))


class HoldsAFile(HeapSink):
    """Something that no other process can be sent."""

    def __init__(self, target: str):
        super().__init__(target)
        self.opened = open(__file__, encoding="utf-8")  # noqa: SIM115 - held on purpose
        self.opened.close()


class RefusesOnlyWhatItPrepares(HeapSink):
    """Other columns than it has, when it is asked to prepare; whoever asks first is told nothing."""

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        if prepared.schema is not None and prepared.schema.names[:1] != ["value"]:
            raise SchemaMismatch("other columns")
        return super().prepare(prepared)


class PreparesWhenAsked(HeapSink):
    """Whether rows fit is found out by making room for them."""

    def require_fit(self, schema: pa.Schema | None, *, overwrite: bool) -> None:
        generation = Generation("0" * 32, 1)
        prepared = PreparedEpoch(
            Owner("asks", "sink"), generation, Epoch(0, ""), None, schema=schema, overwrite=overwrite
        )
        self.begin(self.prepare(prepared), Task(0, Attempt(generation, 0))).pre_commit()


class UpsertsInName(HeapSink):
    """It says that it replaces rows, and adds them."""

    capabilities = replace(HeapSink.capabilities, upserts=True)


class ShortLived(HeapSink):
    """Its shares die after a second, and it says so: no mistake."""

    capabilities = replace(HeapSink.capabilities, share_lives_ms=1000)
    really_s = 1.0

    def alive(self, order: CommitOrder[HeapHandle]) -> Mapping[int, str]:
        return {**dict.fromkeys(self._expired(order), "it expired"), **super().alive(order)}

    def commit(self, order: CommitOrder[HeapHandle]) -> Outcome:
        if expired := self._expired(order):
            raise NotCommitted("shares expired", dead_slots=expired)
        return super().commit(order)

    def begin(self, plan: Plan, task: Task) -> HeapTransaction:
        _begun[task.attempt] = time.monotonic()
        return super().begin(plan, task)

    def _expired(self, order: CommitOrder[HeapHandle]) -> list[int]:
        if order.marker in self.status(order.owner, settled=True).markers.values():
            return []
        now = time.monotonic()
        return [share.slot for share in order.shares if now - _begun[share.attempt] > self.really_s]


_begun: dict[Attempt, float] = {}


class DiesEarly(ShortLived):
    really_s = 0.5


class DecidesTheDead(ShortLived):
    def alive(self, order: CommitOrder[HeapHandle]) -> Mapping[int, str]:
        return {}


class DescribesAnother(HeapSink):
    def describe(self) -> Description | None:
        return Description("heap", {"target": "another"})


class TearsWhenOneExpires(ShortLived):
    """Of an epoch of which a share has expired, the others are shown."""

    def commit(self, order: CommitOrder[HeapHandle]) -> Outcome:
        expired = self._expired(order)
        if not expired:
            return super().commit(order)
        kept = replace(order, shares=tuple(share for share in order.shares if share.slot not in expired))
        HeapSink.commit(self, kept)
        raise NotCommitted("shares expired", dead_slots=expired)


class NeedsColumns(HeapSink):
    """To say whether rows fit."""

    def require_fit(self, schema: pa.Schema | None, *, overwrite: bool) -> None:
        if schema is None:
            raise SchemaMismatch("which columns?")


class RefusesStrangersWhenItPrepares(HeapSink):
    """It may: whoever prepares has taken the target over. No mistake."""

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        if prepared.origin is not None and prepared.origin.owner != prepared.owner:
            raise Fenced("of another owner")
        return super().prepare(prepared)
