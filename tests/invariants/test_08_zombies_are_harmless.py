"""Invariant 8. Zombies are harmless. An overtaken driver, a losing or a late task attempt can make nothing visible but
what was decided.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pipeline import Pipeline, Table, Target, decided
from twophase.errors import Fenced, ProtocolViolation
from twophase.identity import Owner
from twophase.sink import Outcome
from twophase.sinks import heap


def test_invariant_08_the_commit_of_a_driver_that_was_overtaken_decides_nothing(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.epoch(0, [1])
    pipeline.log(1)
    pipeline.prepare()
    pipeline.run([2])
    successor = pipeline.restart()
    successor.prepare()
    assert target.staged() == []
    with pytest.raises(Fenced):
        pipeline.commit()
    assert target.visible() == [(0, [1])]
    successor.run([2])
    with pytest.raises(Fenced):
        pipeline.commit()
    assert target.staged() == [(1, 0)]
    successor.commit()
    with pytest.raises(Fenced):
        pipeline.commit()
    assert target.visible() == [(0, [1]), (1, [2])]


def test_invariant_08_the_commit_of_a_driver_that_was_overtaken_stages_nothing(
    pipeline: Pipeline, target: Target
) -> None:
    """An epoch without tasks: commit writes the share of the driver."""
    pipeline.log(0)
    pipeline.prepare()
    successor = pipeline.restart()
    successor.prepare()
    with pytest.raises(Fenced):
        pipeline.commit()
    assert target.staged() == []
    successor.commit()
    assert target.visible() == [(0, [])]


def test_invariant_08_a_driver_that_decided_and_wakes_up_epochs_later_changes_nothing(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    pipeline.log(0)
    decided(pipeline, tmp_path, [1])
    order = None
    decision = pipeline.tail().decision
    assert decision is not None
    sink = pipeline.sinks["s"]
    order = decision.sinks["s"].order(Owner(pipeline.name, "s"), decision.epoch, sink.handle_type)
    successor = pipeline.restart()
    successor.finish([1])
    successor.epoch(1, [2])
    with suppress(Fenced):  # or it says that the epoch is there already
        assert sink.commit(order) is Outcome.ALREADY_COMMITTED
    assert target.visible() == [(0, [1]), (1, [2])]
    with pytest.raises(Fenced):
        pipeline.commit()
    pipeline.abort()
    assert target.visible() == [(0, [1]), (1, [2])]


def test_invariant_08_the_abort_of_a_driver_that_was_overtaken_deletes_nothing(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    successor = pipeline.restart()
    successor.prepare()
    successor.run([1])
    pipeline.abort()
    assert target.staged() == [(0, 0)]
    assert successor.tail().generation == successor.plan.generation, "the successor was fenced by a zombie"
    successor.commit()
    assert target.visible() == [(0, [1])]
    pipeline.abort()
    assert target.visible() == [(0, [1])]


def test_invariant_08_the_prepare_of_a_zombie_changes_nothing_visible(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    pipeline.log(1)
    successor = pipeline.restart()
    successor.prepare()
    successor.run([2])
    pipeline.prepare()
    assert target.visible() == [(0, [1])]
    with pytest.raises(Fenced):
        successor.commit()
    assert target.visible() == [(0, [1])]
    successor.abort()
    pipeline.restart().finish([2])
    assert target.visible() == [(0, [1]), (1, [2])]
    assert target.staged() == []


def test_invariant_08_the_prepare_of_a_zombie_for_an_epoch_that_is_over_is_refused(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.epoch(0, [1])
    pipeline.restart().epoch(1, [2])
    with pytest.raises(ProtocolViolation, match="logged as committed"):
        pipeline.coordinator().prepare(0)
    assert target.visible() == [(0, [1]), (1, [2])]


def test_invariant_08_a_late_task_of_an_old_generation_changes_nothing_visible(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    successor = pipeline.restart()
    successor.prepare()
    successor.run([1])
    with suppress(Fenced):  # by slot, the target can't keep it out: it is a leftover
        pipeline.task("s", 0, [9])
    assert target.visible() == []
    successor.commit()
    successor.log_commit()
    assert target.visible() == [(0, [1])]
    successor.epoch(1, [2])
    assert target.visible() == [(0, [1]), (1, [2])]
    assert target.staged() == []


def test_invariant_08_a_losing_attempt_of_the_same_generation_is_never_visible(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.task("s", 0, [9])
    pipeline.run([1])
    assert target.staged() == [(0, 0), (0, 0)]
    pipeline.commit()
    pipeline.task("s", 0, [9])
    pipeline.log_commit()
    assert target.visible() == [(0, [1])]
    pipeline.epoch(1, [2])
    assert target.visible() == [(0, [1]), (1, [2])]
    assert target.staged() == []


def test_invariant_08_votes_for_another_epoch_than_spark_runs_decide_nothing(
    pipeline: Pipeline, target: Target
) -> None:
    """Another driver logged epoch 1 between this driver's log and its prepare: seen."""
    pipeline.epoch(0, [1])
    pipeline.log(1)
    pipeline.prepare()
    pipeline.run([2])
    for verb in (pipeline.commit, pipeline.abort):
        with pytest.raises(Fenced, match="Spark is at epoch 2, and the votes were given for 1"):
            verb(number=2)
        assert target.visible() == [(0, [1])]
        assert target.staged() == [(1, 0)]
    pipeline.commit()
    assert target.visible() == [(0, [1]), (1, [2])]


@pytest.mark.parametrize("late_comes", ["before the task", "after the task"])
def test_invariant_08_a_share_on_its_way_since_before_a_restore_is_not_taken_for_one_of_after(
    tmp_path: Path, table: Table, late_comes: str
) -> None:
    """The restored ledger gives the same number to the next generation, and Spark the same ones to its tasks."""
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": table.sink()})
    pipeline.epoch(0, [1])
    shutil.copytree(pipeline.root, tmp_path / "backup")
    pipeline.log(1)
    before = pipeline.prepare()
    pipeline.run([2])
    (late,) = table.state.staged
    table.expire(0)  # it has not arrived yet
    shutil.rmtree(pipeline.root)
    shutil.move(tmp_path / "backup", pipeline.root)
    restored = Pipeline(tmp_path / "checkpoint", {"a": table.sink()})
    restored.log(1, "other offsets")
    assert restored.prepare().generation == before.generation

    if late_comes == "before the task":
        table.apply(heap.stage, late)
    restored.votes = [restored.task("a", 0, [1002], task_id=late.attempt.task)]
    (new,) = (share for share in table.state.staged if share != late)
    assert new.attempt.task == late.attempt.task
    table.apply(heap.stage, late)
    restored.commit()

    assert table.visible() == [(0, [1]), (1, [1002])]
    assert new.attempt != late.attempt
    restored.log_commit()
    restored.epoch(2, [3])
    assert table.staged() == []
