"""Invariant 2. Gapless prefix. For each owner and sink the committed epochs are a sequence without gaps, and they
commit in order. A sink that joins a running query begins at the epoch at which it joined. Epochs without rows, epochs
without tasks and tasks without rows are epochs and tasks like any other.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline import Pipeline, Table, Target, Topic, crash_at, decided
from twophase.errors import CheckpointMismatch
from twophase.query import AnySink


def test_invariant_02_empty_epochs_epochs_without_tasks_and_tasks_without_rows_are_ordinary(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.epoch(0)
    assert target.visible() == [(0, [])]
    pipeline.epoch(1, [], [])
    assert target.visible() == [(0, []), (1, [])]
    pipeline.epoch(2, [1], [])
    assert target.visible() == [(0, []), (1, []), (2, [1])]
    pipeline.restart().epoch(3)
    assert target.visible() == [(0, []), (1, []), (2, [1]), (3, [])]
    assert target.staged() == []


def test_invariant_02_an_epoch_without_tasks_is_replayed_as_one(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    with crash_at(tmp_path, "commit.done"):
        pipeline.commit()
    assert target.visible() == [(0, [])]
    pipeline.restart().finish()
    assert target.visible() == [(0, [])]
    assert target.staged() == []


def test_invariant_02_a_sink_that_no_task_wrote_gets_an_empty_share_beside_one_that_was_written(
    both: Pipeline, table: Table, topic: Topic
) -> None:
    both.log(0)
    both.prepare()
    both.commit([both.task("a", 0, [1])])
    assert table.visible() == [(0, [1])]
    assert topic.visible() == [(0, [])]
    assert [task.attempt.task < 0 for task in topic.state.visible] == [True], "Spark never gives a negative id"


def test_invariant_02_a_sink_that_joins_an_old_query_starts_at_the_epoch_it_joined(
    tmp_path: Path, table: Table, topic: Topic
) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": table.sink()})
    pipeline.epoch(0, [1])
    pipeline.epoch(1, [2])
    joined = pipeline.restart(sinks={"a": table.sink(), "b": topic.sink()})
    joined.epoch(2, [3])
    assert table.visible() == [(0, [1]), (1, [2]), (2, [3])]
    assert topic.visible() == [(2, [3])]
    joined.restart().epoch(3, [4])
    assert topic.visible() == [(2, [3]), (3, [4])]


def test_invariant_02_a_sink_may_join_at_an_epoch_that_another_sink_has_already(
    tmp_path: Path, table: Table, topic: Topic
) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": table.sink()})
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    pipeline.commit()
    pipeline.restart(sinks={"a": table.sink(), "b": topic.sink()}).finish([1])
    assert table.visible() == [(0, [1])]
    assert topic.visible() == [(0, [1])]


def test_invariant_02_no_epoch_is_written_after_a_gap(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    pipeline.log(1)
    pipeline.log(2)
    with pytest.raises(CheckpointMismatch, match=r"the target has epoch 0@.*about to write epoch 2"):
        pipeline.prepare()
    assert target.visible() == [(0, [1])]
    assert target.staged() == []


def test_invariant_02_a_sink_added_again_after_a_gap_is_refused(tmp_path: Path, table: Table, topic: Topic) -> None:
    sinks: dict[str, AnySink] = {"a": table.sink(), "b": topic.sink()}
    pipeline = Pipeline(tmp_path / "checkpoint", sinks)
    pipeline.epoch(0, [1])
    pipeline.restart(sinks={"a": table.sink()}).epoch(1, [2])
    again = pipeline.restart(sinks=sinks)
    again.log(2)
    with pytest.raises(CheckpointMismatch, match=r"the target has epoch 0@.*about to write epoch 2"):
        again.prepare()
    assert topic.visible() == [(0, [1])]
    pipeline.restart(sinks={"a": table.sink()}).finish([3])
    assert table.visible() == [(0, [1]), (1, [2]), (2, [3])]
    assert topic.visible() == [(0, [1])]


def test_invariant_02_a_sink_is_removed_only_when_the_decided_epoch_is_finished(
    both: Pipeline, table: Table, topic: Topic, tmp_path: Path
) -> None:
    both.log(0)
    decided(both, tmp_path, [1])
    without = both.restart(sinks={"a": table.sink()})
    with pytest.raises(CheckpointMismatch, match=r"\['b'\].*start the query once with the old sinks"):
        without.prepare()
    assert (table.visible(), topic.visible()) == ([], [])
    both.restart().finish([1])
    assert (table.visible(), topic.visible()) == ([(0, [1])], [(0, [1])])
    without.restart().epoch(1, [2])
    assert (table.visible(), topic.visible()) == ([(0, [1]), (1, [2])], [(0, [1])])
