"""Invariant 7. Mismatch is refused. A checkpoint that does not belong to the target (copied, rewound, restored,
emptied) is noticed, and refused with both sides in the message. An epoch is never skipped on its number alone. Section
16 of docs/protocol.md says where a deleted checkpoint can't be noticed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.model import slot_sink
from tests.pipeline import Pipeline, Table, Target, Topic, decided, refused
from twophase.identity import Epoch
from twophase.sinks import heap


def test_invariant_07_a_deleted_checkpoint_is_refused_where_the_target_has_one_owner(
    tmp_path: Path, table: Table
) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": table.sink()})
    pipeline.epoch(0, [1])
    old = pipeline.name
    shutil.rmtree(pipeline.root)
    fresh = Pipeline(pipeline.root, pipeline.sinks)
    fresh.log(0)
    refused(fresh, table, old, fresh.name, "takeOver")


def test_invariant_07_a_deleted_checkpoint_is_refused_where_the_option_owner_names_the_query(
    tmp_path: Path, target: Target
) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"s": target.sink()}, owner="orders")
    pipeline.epoch(0, [1])
    pipeline.epoch(1, [2])
    shutil.rmtree(pipeline.root)
    fresh = Pipeline(pipeline.root, pipeline.sinks, owner="orders")
    fresh.log(0, "from the beginning")
    refused(fresh, target, "epoch 1@", "epoch 0@")


def test_invariant_07_a_deleted_checkpoint_is_a_new_owner_where_several_write_side_by_side(
    tmp_path: Path, topic: Topic
) -> None:
    """The honest limit: without the option `owner` nobody can tell."""
    pipeline = Pipeline(tmp_path / "checkpoint", {"b": topic.sink()})
    pipeline.epoch(0, [1])
    shutil.rmtree(pipeline.root)
    Pipeline(pipeline.root, pipeline.sinks).epoch(0, [1])
    assert topic.visible(pipeline.name) == [(0, [1])]
    assert len(topic.visible()) == 1
    assert topic.visible() == [(0, [1, 1])]


def test_invariant_07_a_copied_checkpoint_is_refused(pipeline: Pipeline, target: Target, tmp_path: Path) -> None:
    pipeline.epoch(0, [1])
    shutil.copytree(pipeline.root, tmp_path / "copy")
    copy = pipeline.restart(root=tmp_path / "copy")
    copy.log(1)
    refused(copy, target, pipeline.ledger().location, copy.ledger().location, "movedFrom")
    pipeline.epoch(1, [2])
    assert target.visible() == [(0, [1]), (1, [2])]


def test_invariant_07_a_copied_checkpoint_whose_epoch_ran_in_both_places_is_refused(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    """movedFrom says that the query never runs at the old place again; here it did."""
    pipeline.epoch(0, [1])
    shutil.copytree(pipeline.root, tmp_path / "copy")
    pipeline.epoch(1, [2])
    copy = pipeline.restart(root=tmp_path / "copy", moved_from=pipeline.ledger().location)
    copy.log(1, "other offsets")
    refused(copy, target, "epoch 1@")


def test_invariant_07_a_moved_checkpoint_goes_on_where_moved_from_names_the_old_place(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    pipeline.epoch(0, [1], [2])
    pipeline.log(1)
    pipeline.prepare()
    pipeline.run([3], [4])
    old, old_ledger = pipeline.ledger().location, pipeline.tail().prepare.ledger
    shutil.move(pipeline.root, tmp_path / "moved")
    moved = pipeline.restart(root=tmp_path / "moved")
    refused(moved, target, old)
    refused(moved.restart(moved_from=str(tmp_path / "elsewhere")), target, old, "elsewhere")
    accepted = moved.restart(moved_from=old)
    accepted.prepare()
    assert target.staged() == [], "what was staged at the old place is still there"
    assert accepted.tail().prepare.ledger != old_ledger
    assert accepted.tail().prepare.replaces == (old_ledger,)
    accepted.run([3], [4])
    accepted.commit()
    accepted.log_commit()
    moved.restart(moved_from=old).epoch(2, [5])
    moved.restart().epoch(3, [6])
    assert target.visible() == [(0, [1, 2]), (1, [3, 4]), (2, [5]), (3, [6])]


def test_invariant_07_a_moved_checkpoint_finishes_the_epoch_that_was_decided_at_the_old_place(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    pipeline.log(0)
    decided(pipeline, tmp_path, [1], [2])
    shutil.move(pipeline.root, tmp_path / "moved")
    moved = pipeline.restart(root=tmp_path / "moved", moved_from=f"{pipeline.root}/twophase")
    moved.prepare()
    assert target.visible() == [(0, [1, 2])]
    moved.run([1], [2])
    moved.commit()
    moved.log_commit()
    moved.epoch(1, [3])
    assert target.visible() == [(0, [1, 2]), (1, [3])]


def test_invariant_07_a_checkpoint_whose_spark_part_was_rewound_is_refused(pipeline: Pipeline, target: Target) -> None:
    for number in range(3):
        pipeline.epoch(number, [number])
    for gone in ("offsets/2", "commits/2", "commits/1"):
        (pipeline.root / gone).unlink()
    refused(pipeline.restart(), target, "decided epoch 2@", "about to write 1@")


@pytest.mark.parametrize("is_decided_only", [False, True], ids=["visible", "decided only"])
def test_invariant_07_an_epoch_logged_anew_with_other_offsets_is_refused(
    pipeline: Pipeline, target: Target, tmp_path: Path, is_decided_only: bool
) -> None:
    pipeline.epoch(0, [1])
    pipeline.log(1)
    if is_decided_only:
        decided(pipeline, tmp_path, [2])
    else:
        pipeline.finish([2])
        (pipeline.root / "commits" / "1").unlink()
    there = pipeline.plan.epoch
    again = pipeline.restart()
    again.log(1, "other offsets")
    here = Epoch(1, again.coordinator().query.checkpoint.offsets_hash(1) or "")
    refused(again, target, str(there), str(here))


def test_invariant_07_an_epoch_before_that_was_logged_with_other_offsets_is_refused(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.epoch(0, [1])
    there = pipeline.plan.epoch.offsets
    pipeline.log(0, "other offsets")
    pipeline.log(1)
    here = pipeline.coordinator().query.checkpoint.offsets_hash(0)
    refused(pipeline.restart(), target, there, str(here))


def test_invariant_07_an_open_decision_that_spark_logged_otherwise_is_refused_before_it_is_made_visible(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    """Someone ran the batch without the sink, from other offsets, after it was decided here."""
    pipeline.epoch(0, [1])
    pipeline.log(1)
    decided(pipeline, tmp_path, [2])
    pipeline.log(1, "other offsets")
    pipeline.log_commit()
    pipeline.log(2)
    refused(pipeline.restart(), target, str(pipeline.plan.epoch.offsets))


def test_invariant_07_a_checkpoint_restored_from_an_older_copy_is_refused(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    pipeline.epoch(0, [1])
    shutil.copytree(pipeline.root, tmp_path / "backup")
    pipeline.epoch(1, [2])
    pipeline.epoch(2, [3])
    shutil.rmtree(pipeline.root)
    shutil.move(tmp_path / "backup", pipeline.root)
    restored = pipeline.restart()
    restored.log(1)
    refused(restored, target, "epoch 2@", "epoch 1@")


def test_invariant_07_a_checkpoint_restored_one_epoch_too_old_is_refused_if_it_logs_other_offsets(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    pipeline.epoch(0, [1])
    shutil.copytree(pipeline.root, tmp_path / "backup")
    pipeline.epoch(1, [2])
    there = str(pipeline.plan.epoch)
    shutil.rmtree(pipeline.root)
    shutil.move(tmp_path / "backup", pipeline.root)
    restored = pipeline.restart()
    restored.log(1, "other offsets")
    refused(restored, target, there, "epoch 1@")


def test_invariant_07_a_checkpoint_restored_one_epoch_too_old_never_writes_that_epoch_twice(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    pipeline.epoch(0, [1])
    shutil.copytree(pipeline.root, tmp_path / "backup")
    pipeline.epoch(1, [2])
    shutil.rmtree(pipeline.root)
    shutil.move(tmp_path / "backup", pipeline.root)
    restored = pipeline.restart()
    restored.log(1)
    if isinstance(target, Table):
        restored.finish([2])
    else:
        refused(restored, target, "epoch 1@")  # without the decision nobody knows whether all slots are there
    assert target.visible() == [(0, [1]), (1, [2])]
    assert target.staged() == []


def test_invariant_07_a_ledger_alone_that_was_restored_goes_on_under_new_names(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    """Spark's part is up to date, so the markers fit; but generations, and attempts with them, would repeat."""
    pipeline.epoch(0, [1])
    shutil.copytree(pipeline.root / "twophase", tmp_path / "backup")
    pipeline.epoch(1, [2])
    pipeline.epoch(2, [3])
    pipeline.log(3)
    pipeline.prepare()
    pipeline.run([9])
    shutil.rmtree(pipeline.root / "twophase")
    shutil.move(tmp_path / "backup", pipeline.root / "twophase")
    restored = pipeline.restart()
    restored.finish([4])
    assert target.visible() == [(0, [1]), (1, [2]), (2, [3]), (3, [4])]
    assert target.staged() == []


def put_back(target: Target, state: heap.HeapState | slot_sink.SlotState) -> None:
    if isinstance(target, Table) and isinstance(state, heap.HeapState):
        target.apply(lambda _: (state, None))
    elif isinstance(target, Topic) and isinstance(state, slot_sink.SlotState):
        target.state = state
    else:
        raise TypeError("the state of another target")


def test_invariant_07_a_target_that_was_emptied_is_refused(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    pipeline.epoch(1, [2])
    put_back(target, heap.HeapState() if isinstance(target, Table) else slot_sink.SlotState())
    pipeline.log(2)
    refused(pipeline.restart(), target, "epoch 1")
    assert target.visible() == []


def test_invariant_07_a_target_that_was_restored_is_refused(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    backup = target.state
    pipeline.epoch(1, [2])
    put_back(target, backup)
    pipeline.log(2)
    refused(pipeline.restart(), target, "epoch 1")
    assert target.visible() == [(0, [1])]


def test_invariant_07_a_ledger_of_another_query_is_refused(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    renamed = pipeline.restart(owner="renamed")
    renamed.log(1)
    refused(renamed, target, pipeline.name, "renamed")


def test_invariant_07_a_checkpoint_restored_to_before_a_revision_is_refused(tmp_path: Path, topic: Topic) -> None:
    root = tmp_path / "checkpoint"
    pipeline = Pipeline(root, {"b": topic.sink()})
    pipeline.epoch(0, [1], [2])
    pipeline.log(1)
    decided(pipeline, tmp_path, [3], [4])
    shutil.copytree(root, tmp_path / "backup")
    topic.expire(1)
    pipeline.restart().finish([3], [4])
    assert topic.visible() == [(0, [1, 2]), (1, [3, 4])]
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "backup", root)
    refused(pipeline.restart(), topic, "epoch 1@", "revision 0")
    assert topic.visible() == [(0, [1, 2]), (1, [3, 4])]
