"""The executor's side: a task's share is voted for whole, or gone."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from tests.model import slot_sink
from tests.pipeline import Pipeline, Table, Target, Topic, Transition, batch_of, crash_at
from twophase import failpoints
from twophase.checksum import Checksum
from twophase.errors import Fenced, NotCommitted
from twophase.handle import Handle
from twophase.plan import EpochPlan, SinkPlan
from twophase.sink import Plan, Sink, Task, Transaction
from twophase.sinks import heap
from twophase.sinks.heap import HeapSink, HeapTransaction
from twophase.task import run_task
from twophase.vote import Vote


@pytest.fixture
def pipeline(tmp_path: Path, target: Target) -> Pipeline:
    """A query whose first epoch is prepared."""
    pipeline = Pipeline(tmp_path / "checkpoint", {"s": target.sink()})
    pipeline.log(0)
    pipeline.prepare()
    return pipeline


def run(pipeline: Pipeline, batches: Iterator[pa.RecordBatch], *, slot: int = 0, task_id: int = 7) -> Vote:
    return run_task(
        pipeline.sinks["s"],
        "s",
        pipeline.plan,
        batches,
        number=0,
        slot=slot,
        task_id=task_id,
        now_ms=lambda: pipeline.clock_ms,
    )


def test_a_vote_has_the_attempt_the_rows_and_their_checksum(pipeline: Pipeline, target: Target) -> None:
    vote = run(pipeline, iter([batch_of([1, 2]), batch_of([]), batch_of([3])]), slot=0, task_id=42)
    checksum = Checksum()
    checksum.add(batch_of([3, 2, 1]))
    assert vote.share is not None
    assert (vote.generation, vote.epoch, vote.sink, vote.slot) == (
        pipeline.plan.generation,
        pipeline.plan.epoch,
        "s",
        0,
    )
    assert str(vote.share.attempt) == f"{pipeline.plan.generation}.{pipeline.plan.nonce}_42"
    assert (vote.share.slot, vote.share.rows, vote.share.checksum) == (0, 3, checksum.value)
    assert target.visible() == []
    pipeline.commit([vote])
    assert target.visible() == [(0, [1, 2, 3])]


def test_a_task_without_any_batch_votes_for_an_empty_share(pipeline: Pipeline, target: Target) -> None:
    vote = run(pipeline, iter(()))
    assert vote.share is not None
    assert (vote.share.rows, vote.share.checksum) == (0, Checksum().value)
    assert target.staged() == [(0, 0)]
    pipeline.commit([vote])
    assert target.visible() == [(0, [])]


def failing(*values: int) -> Iterator[pa.RecordBatch]:
    yield batch_of(values)
    raise ConnectionError("the source went away")


def test_an_error_in_the_input_removes_the_share(pipeline: Pipeline, target: Target) -> None:
    with pytest.raises(ConnectionError, match="the source went away"):
        run(pipeline, failing(1, 2))
    assert target.staged() == []
    vote = run(pipeline, iter([batch_of([1, 2])]), task_id=8)
    pipeline.commit([vote])
    assert target.visible() == [(0, [1, 2])]


def test_rows_that_can_not_be_summed_remove_the_share(pipeline: Pipeline, target: Target) -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(TypeError, match="does not know the Arrow type"):
        run(pipeline, iter([pa.record_batch([union], names=["value"])]))
    assert target.staged() == []


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_a_pre_commit_without_an_answer_removes_the_share(pipeline: Pipeline, target: Target, lost: str) -> None:
    transition: Transition = heap.stage if isinstance(target, Table) else slot_sink.vote
    target.lose("reply" if lost == "reply" else "request", transition)
    with pytest.raises(TimeoutError):
        run(pipeline, iter([batch_of([1])]))
    assert target.staged() == []


AFTER_BEGIN = ["task.begun", "task.written", "task.before_pre_commit", "task.pre_committed"]


@pytest.mark.parametrize("point", AFTER_BEGIN)
def test_a_fault_after_begin_removes_the_share(pipeline: Pipeline, target: Target, tmp_path: Path, point: str) -> None:
    with crash_at(tmp_path, point):
        run(pipeline, iter([batch_of([1])]))
    assert target.staged() == []
    assert target.visible() == []


def test_a_fault_before_begin_stages_nothing(pipeline: Pipeline, target: Target, tmp_path: Path) -> None:
    with crash_at(tmp_path, "task.before_begin"):
        run(pipeline, iter([batch_of([1])]))
    assert target.staged() == []


def test_every_failpoint_of_a_task_is_reached_in_order(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "arming"
    failpoints.arm(file)
    monkeypatch.setenv(failpoints.VARIABLE, str(file))
    failpoints.reload()
    try:
        run(pipeline, iter([batch_of([1])]))
        with pytest.raises(ConnectionError):
            run(pipeline, failing(1), slot=1)
    finally:
        monkeypatch.undo()
        failpoints.reload()
    hits = [(hit.point, hit.epoch, hit.slot) for hit in failpoints.trace(file)]
    assert hits == [
        *((point, 0, 0) for point in ("task.before_begin", *AFTER_BEGIN)),
        ("task.before_begin", 0, 1),
        ("task.begun", 0, 1),
        ("task.aborted", 0, 1),
    ]
    assert {point for point, _, _ in hits} == {point for point in failpoints.POINTS if point.startswith("task.")}


def killed() -> Iterator[pa.RecordBatch]:
    yield batch_of([1])
    raise KeyboardInterrupt


def test_what_a_killed_task_leaves_is_swept_by_the_next_prepare(pipeline: Pipeline, target: Target) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(pipeline, killed())
    assert target.visible() == []
    pipeline.restart().finish([1])
    assert target.staged() == []
    assert target.visible() == [(0, [1])]


@dataclass(frozen=True)
class NotJson(Handle):
    number: float


class NotJsonTransaction(Transaction[NotJson]):
    def __init__(self, inner: HeapTransaction):
        self._inner = inner

    def write(self, batch: pa.RecordBatch) -> None:
        self._inner.write(batch)

    def pre_commit(self) -> NotJson:
        self._inner.pre_commit()
        return NotJson(math.nan)

    def abort(self) -> None:
        self._inner.abort()


class NotJsonSink(HeapSink):
    """A sink whose handle can't travel."""

    def begin(self, plan: Plan, task: Task) -> NotJsonTransaction:  # type: ignore[override]
        return NotJsonTransaction(super().begin(plan, task))


def test_a_handle_that_can_not_travel_removes_the_share(tmp_path: Path, table: Table) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"s": NotJsonSink(table)})
    pipeline.log(0)
    pipeline.prepare()
    with pytest.raises(ValueError, match="JSON"):
        run(pipeline, iter([batch_of([1])]))
    assert table.staged() == []


def test_a_task_that_was_planned_for_another_epoch_reads_nothing_and_stages_nothing(
    pipeline: Pipeline, target: Target
) -> None:
    batches = iter([batch_of([1])])
    with pytest.raises(Fenced):
        run_task(pipeline.sinks["s"], "s", pipeline.plan, batches, number=1, slot=0, task_id=0, now_ms=lambda: 0)
    assert target.staged() == []
    assert next(batches).num_rows == 1


def test_a_task_drains_its_input_where_the_epoch_is_in_the_target_already(pipeline: Pipeline, target: Target) -> None:
    plan = EpochPlan(pipeline.plan.generation, pipeline.plan.epoch, {"s": SinkPlan(None)})
    batches = iter([batch_of([1]), batch_of([2])])
    vote = run_task(pipeline.sinks["s"], "s", plan, batches, number=0, slot=3, task_id=0, now_ms=lambda: 0)
    assert vote == Vote(plan.generation, plan.epoch, "s", 3, None)
    assert next(batches, None) is None
    assert target.staged() == []


def test_a_task_writes_only_if_its_slot_is_one_of_those_to_be_written_again(pipeline: Pipeline, target: Target) -> None:
    whole = pipeline.plan
    plan = EpochPlan(whole.generation, whole.epoch, {"s": SinkPlan(whole.sinks["s"].plan, frozenset({1}))})
    sink: Sink[Handle] = pipeline.sinks["s"]
    votes = [
        run_task(sink, "s", plan, [batch_of([slot])], number=0, slot=slot, task_id=slot, now_ms=lambda: 0)
        for slot in range(3)
    ]
    assert [vote.share is not None for vote in votes] == [False, True, False]
    assert target.staged() == [(0, 1)]


def test_two_attempts_at_one_slot_stage_side_by_side(pipeline: Pipeline, target: Target) -> None:
    winner = run(pipeline, iter([batch_of([1])]), task_id=1)
    run(pipeline, iter([batch_of([1])]), task_id=2)
    with pytest.raises(ConnectionError):
        run(pipeline, failing(1), task_id=3)
    assert target.staged() == [(0, 0), (0, 0)]
    pipeline.commit([winner])
    assert target.visible() == [(0, [1])]


def test_a_share_that_died_before_it_was_voted_for_is_not_voted_for(tmp_path: Path, topic: Topic) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"s": topic.sink()})
    pipeline.log(0)
    pipeline.prepare()

    def expiring() -> Iterator[pa.RecordBatch]:
        yield batch_of([1])
        topic.expire(0)

    with pytest.raises(NotCommitted):
        run(pipeline, expiring())
    assert topic.staged() == []


def test_the_plan_travels_by_pickle(pipeline: Pipeline) -> None:
    assert pickle.loads(pickle.dumps(pipeline.plan)) == pipeline.plan
