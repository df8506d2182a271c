"""The suites catch faults: sinks and sources with one mistake each, and the test that must fail because of it.

A mistake that no test catches is a hole in the suite. That the same tests pass without the mistake is what the other
test_conformance files show.
"""

from __future__ import annotations

import inspect
import json
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from examples.sqlite_sink import SqliteHandle, SqliteSink, SqliteTransaction
from tests.model.slot_sink import SlotHandle, SlotSink
from tests.test_conformance_heap import HeapUnderTest
from tests.test_conformance_slots import SlotsUnderTest
from tests.test_conformance_sqlite import OrdersTable
from twophase import failpoints
from twophase.errors import DataLost, Fenced, NotCommitted
from twophase.identity import Attempt, Generation, Owner
from twophase.query import AnySink
from twophase.sink import CommitOrder, Leftover, Outcome, Plan, Share, Status, TakeOver, Task
from twophase.sinks import heap
from twophase.sinks.heap import CommittedEpoch, HeapHandle, HeapSink, HeapState, HeapTransaction
from twophase.source import NO_LIMIT, ReadLimit, Source
from twophase.testing.query_steps import QuerySteps
from twophase.testing.sink_steps import SinkSteps
from twophase.testing.sink_suite import SinkSuite, SinkTarget
from twophase.testing.source_suite import UNITS, SourceOrigin, SourceSuite

# ---- mistakes in a sink in memory ----


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
    def leftovers(self, owner: Owner) -> Iterable[Leftover[HeapHandle]]:
        return [replace(left, owner=None) for left in super().leftovers(owner)]


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


class HoldsAFile(HeapSink):
    """Something that no other process can be sent."""

    def __init__(self, target: str):
        super().__init__(target)
        self.opened = open(__file__, encoding="utf-8")  # noqa: SIM115 - held on purpose
        self.opened.close()


# ---- mistakes in a sink on a database ----


class ShowsAtOnce(SqliteSink):
    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _ShowsAtOnce(self, plan.prepared.owner, task.attempt)

    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        self.delete(database, str(owner), str(share.attempt))


class _ShowsAtOnce(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        with self._sink.transaction() as database:
            rows = [(value,) for value in batch.column(0).to_pylist()]
            database.executemany(f"INSERT INTO {self._sink.table} (value) VALUES (?)", rows)


class CommitsTwice(SqliteSink):
    """Staging is kept, and nobody looks whether the marker is there already."""

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        with self.transaction() as database:
            for share in order.shares:
                self._show(database, order.owner, share)
            moved = (str(order.owner), str(order.epoch), str(order.decision))
            database.execute(f"INSERT OR REPLACE INTO {self.table}_markers VALUES (?, ?, ?)", moved)
        return Outcome.COMMITTED

    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        query = f"INSERT INTO {self.table} (value) SELECT value FROM {self.table}_staged WHERE attempt_ = ?"
        database.execute(query, (str(share.attempt),))


class CommitsInTwoSteps(SqliteSink):
    """Rows, and then the marker: right, unless somebody dies between the two."""

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        with self.transaction() as database:
            if self._marker(database, order.owner) == order.marker:
                return Outcome.ALREADY_COMMITTED
            for share in order.shares:
                query = f"INSERT INTO {self.table} (value) SELECT value FROM {self.table}_staged WHERE attempt_ = ?"
                database.execute(query, (str(share.attempt),))
        failpoints.hit("files.sealed", owner=str(order.owner), epoch=order.epoch.number)
        with self.transaction() as database:
            for share in order.shares:
                self.delete(database, str(order.owner), str(share.attempt))
            moved = (str(order.owner), str(order.epoch), str(order.decision))
            database.execute(f"INSERT OR REPLACE INTO {self.table}_markers VALUES (?, ?, ?)", moved)
        return Outcome.COMMITTED


class AbortsTooMuch(SqliteSink):
    """All that the owner has staged, and not what is named."""

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[SqliteHandle]]) -> None:
        super().abort(owner, list(self.leftovers(owner)) if leftovers else [])


class AbortsOthers(SqliteSink):
    """By attempt, and not by owner and attempt."""

    def delete(self, database: sqlite3.Connection, owner: str, attempt: str) -> None:
        database.execute(f"DELETE FROM {self.table}_staged WHERE attempt_ = ?", (attempt,))
        database.execute(f"DELETE FROM {self.table}_shares WHERE attempt = ?", (attempt,))


class AbortsNothing(SqliteSink):
    def abort(self, owner: Owner, leftovers: Sequence[Leftover[SqliteHandle]]) -> None: ...


class ListsVotedSharesOnly(SqliteSink):
    def leftovers(self, owner: Owner) -> list[Leftover[SqliteHandle]]:
        with self.transaction() as database:
            found = database.execute(f"SELECT attempt FROM {self.table}_shares WHERE owner = ?", (str(owner),))
            return [Leftover(Attempt.parse(a).generation, a, "a share") for (a,) in found]


class NamesSharesBySlot(SqliteSink):
    """Two attempts at one slot have one name."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return super().begin(plan, replace(task, attempt=Attempt(task.attempt.generation, task.slot)))

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        shares = [replace(s, attempt=Attempt(s.attempt.generation, s.slot)) for s in order.shares]
        return super().commit(replace(order, shares=tuple(shares)))


class ForgetsTheLost(SqliteSink):
    """What is not there is taken for a share without rows."""

    def _lost(self, database: sqlite3.Connection, order: CommitOrder[SqliteHandle]) -> list[int]:
        return []


class TakesVisibleForLost(SqliteSink):
    def alive(self, order: CommitOrder[SqliteHandle]) -> Mapping[int, str]:
        with self.transaction() as database:
            return dict.fromkeys(self._lost(database, order), "gone")


class SkipsEmptyEpochs(SqliteSink):
    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        if not any(share.handle.rows for share in order.shares):
            self.abort(order.owner, [Leftover(s.attempt.generation, str(s.attempt), "") for s in order.shares])
            return Outcome.COMMITTED
        return super().commit(order)


class ShowsBackwards(SqliteSink):
    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        query = f"INSERT INTO {self.table} (value) SELECT value FROM {self.table}_staged WHERE attempt_ = ? "
        database.execute(query + "ORDER BY rowid DESC", (str(share.attempt),))
        self.delete(database, str(owner), str(share.attempt))


class JoinsNames(SqliteSink):
    """An owner's two names by a slash, as they are."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        transaction = super().begin(plan, task)
        owner = plan.prepared.owner
        transaction._name = (f"{owner.query}/{owner.sink}", str(task.attempt))
        return transaction

    def leftovers(self, owner: Owner) -> list[Leftover[SqliteHandle]]:
        return super().leftovers(_Joined(owner.query, owner.sink))

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[SqliteHandle]]) -> None:
        super().abort(_Joined(owner.query, owner.sink), leftovers)

    def alive(self, order: CommitOrder[SqliteHandle]) -> Mapping[int, str]:
        return super().alive(replace(order, owner=_Joined(order.owner.query, order.owner.sink)))


class _Joined(Owner):
    def __str__(self) -> str:
        return f"{self.query}/{self.sink}"


# ---- mistakes in a sink by slot ----


class NamesNoDeadSlots(SlotSink):
    def commit(self, order: CommitOrder[SlotHandle]) -> Outcome:
        try:
            return super().commit(order)
        except NotCommitted as error:
            raise NotCommitted("something expired") from error


class StopsAtTheFirstDeadSlot(SlotSink):
    def commit(self, order: CommitOrder[SlotHandle]) -> Outcome:
        for share in order.shares:
            super().commit(replace(order, shares=(share,)))
        return Outcome.COMMITTED


# ---- running one test of the suite on one of them ----


class Heap(HeapUnderTest):
    def __init__(self, kind: Callable[[str], AnySink]):
        super().__init__(uuid.uuid4().hex)
        self.kind = kind

    def sink(self) -> Any:
        return self.kind(self.name)


class Orders(OrdersTable):
    failpoints = ("files.sealed",)  # where the sink that commits in two steps can die

    def __init__(self, folder: Path, kind: Callable[[str, str], AnySink]):
        super().__init__(folder)
        self.kind = kind

    def sink(self) -> Any:
        return self.kind(self.path, "orders")


class Slots(SlotsUnderTest):
    def __init__(self, kind: Callable[[Any], AnySink]):
        super().__init__()
        self.kind = kind

    def sink(self) -> Any:
        return self.kind(self.topic)


def mistake(kind: type, test: str, /, **parameters: Any) -> Any:
    """A sink or source, and the test of the suite that must fail because of it."""
    return pytest.param(kind, test, parameters, id=f"{kind.__name__}: {test}")


SINKS_CAUGHT_BY = [
    mistake(SetsTheMarker, "commit_again_from_any_process_changes_nothing"),
    mistake(SetsTheMarker, "commit_moves_the_marker_only_from_where_the_order_says"),
    mistake(SetsTheMarker, "an_order_of_another_epoch_can_not_set_the_marker_back"),
    mistake(TakesOverAnyway, "a_take_over_is_refused_if_the_line_has_moved_on"),
    mistake(DoesNotFence, "a_fence_keeps_older_generations_from_staging"),
    mistake(DoesNotFence, "a_generation_that_was_overtaken_is_told_so"),
    mistake(FencesDecisionsToo, "a_new_generation_does_not_hinder_the_commit_of_an_older_ones_decision"),
    mistake(HidesStrangers, "a_stranger_sees_whose_line_it_is_and_can_not_write_to_it"),
    mistake(NamesNoOwner, "leftovers_in_a_line_are_of_all_owners_and_say_whose_they_are"),
    mistake(KeepsBatches, "memory_that_is_used_again_spoils_nothing"),
    mistake(LosesPrecision, "values_of_any_type_come_back_as_they_were_or_are_refused", kind="double"),
    mistake(HoldsAFile, "a_sink_travels_before_and_after_its_use"),
    mistake(ShowsAtOnce, "nothing_is_visible_before_commit_and_all_of_it_after"),
    mistake(ShowsAtOnce, "each_epoch_is_visible_once_after_its_commit_and_not_before"),
    mistake(CommitsTwice, "commit_again_from_any_process_changes_nothing"),
    mistake(CommitsInTwoSteps, "a_driver_that_dies_within_the_sinks_own_commit_loses_and_repeats_nothing"),
    mistake(AbortsTooMuch, "abort_deletes_these_leftovers_and_nothing_else"),
    mistake(AbortsOthers, "an_owner_sees_and_deletes_only_what_it_staged_itself"),
    mistake(AbortsNothing, "a_failed_epoch_leaves_nothing_and_can_be_run_again"),
    mistake(ListsVotedSharesOnly, "what_a_dead_task_left_is_listed_and_can_be_deleted", when="written"),
    mistake(ListsVotedSharesOnly, "what_a_killed_task_left_is_gone_after_recovery", when="written"),
    mistake(NamesSharesBySlot, "a_losing_twin_is_never_visible_and_leaves_nothing"),
    mistake(ForgetsTheLost, "a_lost_share_is_named_before_the_decision_and_after_it"),
    mistake(ForgetsTheLost, "a_share_that_is_lost_before_the_decision_is_not_decided"),
    mistake(TakesVisibleForLost, "a_visible_share_counts_as_alive"),
    mistake(SkipsEmptyEpochs, "shares_and_epochs_without_rows_are_ordinary"),
    mistake(SkipsEmptyEpochs, "epochs_and_tasks_without_rows_and_epochs_without_tasks_are_ordinary"),
    mistake(ShowsBackwards, "rows_of_a_slot_keep_their_order"),
    mistake(JoinsNames, "names_that_only_look_alike_are_different_owners"),
    mistake(NamesNoDeadSlots, "a_lost_share_is_named_before_the_decision_and_after_it"),
    mistake(StopsAtTheFirstDeadSlot, "a_lost_share_is_named_before_the_decision_and_after_it"),
]


def target_of(kind: type[AnySink], folder: Path) -> SinkTarget:
    if issubclass(kind, HeapSink):
        return Heap(kind)
    return Slots(kind) if issubclass(kind, SlotSink) else Orders(folder, kind)


def failure_of(test: Callable[..., object], arguments: Mapping[str, Any]) -> BaseException | None:
    """Why a test fails with these fixtures and parameters; None if it passes. A skip is neither."""
    wanted = inspect.signature(test)
    call = wanted.bind(**{name: value for name, value in arguments.items() if name in wanted.parameters})
    try:
        test(*call.args, **call.kwargs)
    except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 - whatever makes a test fail
        return failure
    return None


@pytest.mark.parametrize(("kind", "test", "parameters"), SINKS_CAUGHT_BY)
def test_a_sink_with_a_mistake_fails_the_test_for_it(
    tmp_path: Path, kind: type[AnySink], test: str, parameters: dict[str, Any]
) -> None:
    target = target_of(kind, tmp_path)
    fixtures = {"steps": SinkSteps(target), "query": QuerySteps(tmp_path / "checkpoint", target), "tmp_path": tmp_path}
    failure = failure_of(getattr(SinkSuite(), f"test_{test}"), fixtures | parameters)
    assert failure is not None


# ---- sources ----


@dataclass
class Numbers(Source[tuple[int, int]]):
    """Units of numbers in their order; an offset is how many units came before."""

    units: list[list[int]] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)

    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.int64())])

    def earliest(self) -> str:
        return json.dumps({"unit": 0})

    def newest(self) -> str:
        return json.dumps({"unit": len(self.units)})

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        first, end = self._at(start), self._at(until or self.newest())
        if limit.bytes is not None:
            end = min(end, first + 1)
        last = first + 1
        while limit.rows is not None and last < end and sum(map(len, self.units[first : last + 1])) <= limit.rows:
            last += 1
        return json.dumps({"unit": max(first, end if limit.rows is None else min(last, end))})

    def plan(self, start: str, end: str) -> Sequence[tuple[int, int]]:
        return [(at, at + 1) for at in range(self._at(start), self._at(end))]

    def read(self, split: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        for at in range(*split):
            if at in self.gone:
                raise DataLost(f"unit {at} is gone")
            yield self.batch(self.units[at])

    def acknowledge(self, end: str) -> None: ...

    def batch(self, values: list[int]) -> pa.RecordBatch:
        return pa.record_batch([pa.array(values, pa.int64())], schema=self.schema())

    def _at(self, offset: str) -> int:
        return int(json.loads(offset)["unit"])


class ReadsToTheEnd(Numbers):
    """Whatever has arrived when it reads, and not when the range was made."""

    def read(self, split: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        end = len(self.units) if split[1] == self.end else split[1]
        yield from super().read((split[0], end))

    def plan(self, start: str, end: str) -> Sequence[tuple[int, int]]:
        self.end = self._at(end)
        return super().plan(start, end)


class JumpsOverGaps(Numbers):
    def read(self, split: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        if split[0] not in self.gone:
            yield from super().read(split)


class StandsStill(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return start if limit.rows == 0 else super().latest(start, limit, until=until)


class IgnoresLimits(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return super().latest(start, until=until)


class GoesBack(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return until or super().latest(start, limit)


class IgnoresUntil(Numbers):
    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        return super().latest(start, limit)


class ForgetsAll(Numbers):
    def acknowledge(self, end: str) -> None:
        self.gone |= set(range(len(self.units)))


class ReadsOnce(Numbers):
    def read(self, split: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        yield from super().read(split)
        self.units[split[0]] = []


class NumbersForOffsets(Numbers):
    def earliest(self) -> str:
        return "0"

    def _at(self, offset: str) -> int:
        return 0 if offset == "0" else super()._at(offset)


class SchemaOfItsOwn(Numbers):
    def batch(self, values: list[int]) -> pa.RecordBatch:
        return pa.record_batch([pa.array(values, pa.int32())], names=["value"])


class NumbersOrigin(SourceOrigin):
    outlives_process = False

    def __init__(self, numbers: Numbers):
        self.numbers = numbers

    def source(self) -> Numbers:
        return self.numbers

    def add(self, values: Sequence[int]) -> None:
        self.numbers.units.append(list(values))

    def lose(self) -> str:
        self.numbers.gone.add(0)
        return "unit 0"


class TestNumbers(SourceSuite):
    """Without a mistake."""

    @pytest.fixture
    def origin(self) -> NumbersOrigin:
        return NumbersOrigin(Numbers())


SOURCES_CAUGHT_BY = [
    mistake(ReadsToTheEnd, "the_same_range_gives_the_same_rows_while_data_arrive"),
    mistake(ReadsOnce, "the_same_range_read_twice_gives_the_same_rows"),
    mistake(ReadsOnce, "a_read_that_was_given_up_can_be_begun_again"),
    mistake(JumpsOverGaps, "what_vanished_is_named_and_never_jumped_over"),
    mistake(StandsStill, "ranges_follow_each_other_without_gap_or_overlap", limit=ReadLimit(rows=0)),
    mistake(IgnoresLimits, "a_limit_of_rows_is_kept"),
    mistake(IgnoresLimits, "a_limit_of_bytes_is_kept"),
    mistake(GoesBack, "an_offset_never_goes_back"),
    mistake(IgnoresUntil, "a_bounded_run_takes_what_was_there_when_it_began"),
    mistake(ForgetsAll, "acknowledging_again_or_late_changes_nothing"),
    mistake(NumbersForOffsets, "offsets_are_json_objects_as_text"),
    mistake(SchemaOfItsOwn, "every_batch_has_the_schema_of_the_source"),
]


@pytest.mark.parametrize(("kind", "test", "parameters"), SOURCES_CAUGHT_BY)
def test_a_source_with_a_mistake_fails_the_test_for_it(
    kind: type[Numbers], test: str, parameters: dict[str, Any]
) -> None:
    origin = NumbersOrigin(kind())
    for values in UNITS:
        origin.add(values)
    failure = failure_of(getattr(SourceSuite(), f"test_{test}"), {"full": origin, "origin": origin} | parameters)
    assert failure is not None


# ---- the suites themselves ----


def test_every_test_of_the_suites_says_its_scenario() -> None:
    tests = [test for suite in (SinkSuite, SourceSuite) for name, test in inspect.getmembers(suite) if "test_" in name]
    assert len(tests) > 60
    assert [test.__name__ for test in tests if not (test.__doc__ or "").strip()] == []


def test_a_test_is_skipped_only_by_a_capability_or_a_claim() -> None:
    folder = Path(__file__).resolve().parent.parent / "twophase" / "testing"
    reasons = [
        reason
        for file in folder.glob("*.py")
        for reason in re.findall(r"(?:skip|skipif|importorskip|xfail)\(f?\W?(.{14})", file.read_text("utf-8"))
    ]
    assert len(reasons) >= 5
    assert [reason for reason in reasons if not reason.startswith(("by capability:", "by claim: "))] == []
