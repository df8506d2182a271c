"""Invariant 6. No silent loss. If a decided share can't be committed any more, and the target *proves* that, it is
written again from the source under a revision: Spark has not logged the epoch as committed yet, so the source still
has it. If any other share of that epoch may be visible, in any sink, the new rows must have the row count and checksum
of the old ones. If they have not, the query stops and says what differs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline import Pipeline, Table, Target, Topic, crash_at, decided, refused
from twophase.errors import NotCommitted, ReplayDiffers
from twophase.identity import Owner


def test_invariant_06_a_share_that_died_before_the_decision_means_that_nothing_is_decided(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.epoch(0, [1], [2])
    pipeline.log(1)
    pipeline.prepare()
    pipeline.run([3], [4])
    target.expire(1)
    with pytest.raises(NotCommitted, match="not decided") as caught:
        pipeline.commit()
    assert caught.value.dead_slots == (1,)
    assert pipeline.tail().decide is None
    assert target.visible() == [(0, [1, 2])]
    pipeline.abort()
    assert target.staged() == []
    replay = pipeline.restart()
    assert replay.prepare().sinks["s"].slots is None
    replay.run([5], [6], [7])
    replay.commit()
    assert target.visible() == [(0, [1, 2]), (1, [5, 6, 7])]


def test_invariant_06_a_share_that_died_after_the_decision_is_reported_and_written_again(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    pipeline.log(0)
    decided(pipeline, tmp_path, [1], [2])
    target.expire(1)
    with pytest.raises(NotCommitted, match=r"decided, and then the target lost the shares of s"):
        pipeline.commit()
    pipeline.abort()
    assert target.visible() in ([], [(0, [1])])
    pipeline.restart().finish([1], [2])
    assert target.visible() == [(0, [1, 2])]


def test_invariant_06_a_revision_keeps_live_shares_and_rewrites_only_dead_slots_of_a_target_by_slot(
    tmp_path: Path, topic: Topic
) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"b": topic.sink()})
    pipeline.log(0)
    decided(pipeline, tmp_path, [1], [2], [3])
    topic.expire(1)
    replay = pipeline.restart()
    plan = replay.prepare()
    assert plan.sinks["b"].slots == frozenset({1})
    assert topic.visible() == [(0, [1, 3])]
    replay.run([1], [2], [3])
    assert topic.staged() == [(0, 1)]
    replay.commit()
    assert topic.visible() == [(0, [1, 2, 3])]
    generations = {slot: attempt.generation for _, slot, attempt in topic.attempts()}
    assert generations[0] == generations[2] == pipeline.plan.generation
    assert generations[1] == plan.generation
    decision = replay.tail().decision
    assert decision is not None
    assert decision.revision == 1
    replay.log_commit()
    replay.epoch(1, [4])
    assert topic.visible() == [(0, [1, 2, 3]), (1, [4])]


def test_invariant_06_an_atomic_target_is_rewritten_whole_and_may_be_split_differently(
    both: Pipeline, table: Table, topic: Topic, tmp_path: Path
) -> None:
    both.log(0)
    decided(both, tmp_path, [1, 2], [3])
    table.expire(1)
    replay = both.restart()
    plan = replay.prepare()
    assert plan.sinks["a"].slots is None
    assert plan.sinks["b"].plan is None
    assert (table.visible(), topic.visible()) == ([], [(0, [1, 2, 3])])
    replay.run([3], [2], [1])
    assert topic.staged() == []
    replay.commit()
    assert table.visible() == topic.visible() == [(0, [1, 2, 3])]


@pytest.mark.parametrize("rows", [[2, 9], [2], [], [2, 2], [2, 4]], ids=str)
def test_invariant_06_rows_that_differ_are_refused_while_a_share_of_the_decision_is_visible(
    tmp_path: Path, topic: Topic, rows: list[int]
) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"b": topic.sink()})
    pipeline.log(0)
    decided(pipeline, tmp_path, [1], [2, 3])
    topic.expire(1)
    replay = pipeline.restart()
    replay.prepare()
    replay.run([1], rows)
    with pytest.raises(ReplayDiffers, match=rf"sink 'b', slot 1: .* 2 rows .* its replay gave {len(rows)} "):
        replay.commit()
    assert topic.visible() == [(0, [1])]
    replay.abort()
    assert topic.staged() == []
    assert topic.visible() == [(0, [1])]
    pipeline.restart().finish([1], [3, 2])
    assert topic.visible() == [(0, [1, 2, 3])]


def test_invariant_06_rows_of_a_dead_sink_must_match_while_another_sink_shows_the_epoch(
    both: Pipeline, table: Table, topic: Topic, tmp_path: Path
) -> None:
    both.log(0)
    decided(both, tmp_path, [1], [2])
    table.expire(0)
    replay = both.restart()
    replay.prepare()
    assert (table.visible(), topic.visible()) == ([], [(0, [1, 2])])
    replay.run([1], [7])
    with pytest.raises(ReplayDiffers, match="sink 'a', all slots: the decided epoch has 2 rows"):
        replay.commit()
    assert (table.visible(), topic.visible()) == ([], [(0, [1, 2])])
    both.restart().finish([2], [1])
    assert table.visible() == topic.visible() == [(0, [1, 2])]


@pytest.mark.parametrize("rows", [([1, 2],), ([1], [2], [])], ids=["fewer", "more"])
def test_invariant_06_another_number_of_slots_is_refused_where_slots_matter_and_a_share_is_visible(
    tmp_path: Path, topic: Topic, rows: tuple[list[int], ...]
) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"b": topic.sink()})
    pipeline.log(0)
    decided(pipeline, tmp_path, [1], [2])
    topic.expire(1)
    replay = pipeline.restart()
    replay.prepare()
    replay.run(*rows)
    with pytest.raises(ReplayDiffers, match=r"slots \[0, 1\].*start the query with the partitioning that it had"):
        replay.commit()
    assert topic.visible() == [(0, [1])]
    pipeline.restart().finish([1], [2])
    assert topic.visible() == [(0, [1, 2])]


@pytest.mark.parametrize("rows", [([7], [8]), ([7, 8],), ([7], [8], [9])], ids=["same slots", "fewer", "more"])
def test_invariant_06_a_decision_of_which_everything_is_dead_may_be_written_again_with_any_rows(
    both: Pipeline, table: Table, topic: Topic, tmp_path: Path, rows: tuple[list[int], ...]
) -> None:
    both.epoch(0, [0])
    both.log(1)
    decided(both, tmp_path, [1], [2])
    table.expire(0)
    topic.expire(0)
    topic.expire(1)
    both.restart().finish(*rows)
    wanted = sorted(value for slot in rows for value in slot)
    assert table.visible() == topic.visible() == [(0, [0]), (1, wanted)]


def test_invariant_06_a_revision_whose_shares_die_too_is_revised_again(tmp_path: Path, topic: Topic) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"b": topic.sink()})
    pipeline.log(0)
    decided(pipeline, tmp_path, [1], [2], [3])
    topic.expire(0)
    second = pipeline.restart()
    decided(second, tmp_path, [1], [2], [3])
    assert topic.visible() == [(0, [2, 3])]
    topic.expire(0)
    third = pipeline.restart()
    third.finish([1], [2], [3])
    assert topic.visible() == [(0, [1, 2, 3])]
    decision = third.tail().decision
    assert decision is not None
    assert decision.revision == 2


def test_invariant_06_a_kept_share_that_dies_before_the_revision_is_decided_stops_the_decision(
    both: Pipeline, table: Table, topic: Topic, tmp_path: Path
) -> None:
    both.log(0)
    decided(both, tmp_path, [1], [2])
    topic.expire(0)
    topic.expire(1)
    replay = both.restart()
    replay.prepare()
    assert table.visible() == [(0, [1, 2])]
    replay.run([1], [2])
    topic.expire(0)
    with pytest.raises(NotCommitted, match="not decided"):
        replay.commit()
    assert (table.visible(), topic.visible()) == ([(0, [1, 2])], [])
    both.restart().finish([1], [2])
    assert table.visible() == topic.visible() == [(0, [1, 2])]


@pytest.mark.parametrize("dead", [[0], [1], [0, 1]], ids=str)
@pytest.mark.parametrize("rows", [([1, 2, 3],), ([1], [2, 3]), ([1], [2], [3], [])], ids=["1", "2", "4"])
def test_invariant_06_a_replay_with_other_slots_never_drops_a_share_that_is_visible(
    tmp_path: Path, topic: Topic, dead: list[int], rows: tuple[list[int], ...]
) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"b": topic.sink()})
    pipeline.log(0)
    decided(pipeline, tmp_path, [1], [2], [3])
    for slot in dead:
        topic.expire(slot)
    replay = pipeline.restart()
    replay.prepare()
    before = topic.visible()
    replay.run(*rows)
    with pytest.raises(ReplayDiffers):
        replay.commit()
    assert topic.visible() == before
    pipeline.restart().finish([1], [2], [3])
    assert topic.visible() == [(0, [1, 2, 3])]


def test_invariant_06_a_replay_without_tasks_never_takes_the_place_of_lost_rows(tmp_path: Path, topic: Topic) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"b": topic.sink()})
    pipeline.log(0)
    decided(pipeline, tmp_path, [1], [2])
    topic.expire(0)
    replay = pipeline.restart()
    replay.prepare()
    with pytest.raises(ReplayDiffers):
        replay.commit([])
    pipeline.restart().finish([1], [2])
    assert topic.visible() == [(0, [1, 2])]


@pytest.mark.parametrize("after", ["nothing", "abort", "recover"])
def test_invariant_06_a_first_epoch_whose_error_was_swallowed_is_noticed_whatever_the_sink(
    pipeline: Pipeline, target: Target, after: str
) -> None:
    """Spark took the epoch for written. These sinks describe nothing: the ledger's own record must tell."""
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    if after == "abort":
        pipeline.abort()
    elif after == "recover":
        pipeline.coordinator().recover()
    pipeline.log_commit()
    pipeline.log(1)
    refused(pipeline.restart(), target, "epoch 0 was begun for the sink 's'", "swallowed")
    refused(pipeline.restart(), target, "epoch 0 was begun for the sink 's'", "swallowed")


def test_invariant_06_a_swallowed_first_epoch_is_still_noticed_after_a_recovery_without_that_sink(
    both: Pipeline, table: Table, topic: Topic
) -> None:
    both.restart(sinks={"b": topic.sink()}).epoch(0, [1])
    both.log(1)
    both.prepare()
    both.run([2])
    both.log_commit()
    both.log(2)
    both.restart(sinks={"b": topic.sink()}).coordinator().recover()
    assert both.tail().prepare.epoch.number == 2
    refused(both.restart(sinks={"a": table.sink()}), table, "epoch 1 was begun for the sink 'a'", "swallowed")


def test_invariant_06_a_swallowed_first_epoch_is_noticed_under_another_sinks_name_too(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    pipeline.log_commit()
    pipeline.log(1)
    renamed = pipeline.restart(sinks={"other": target.sink()})
    refused(renamed, target, "epoch 0 was begun for the sink 's'", "swallowed")


def test_invariant_06_a_take_over_that_failed_and_was_swallowed_is_noticed(tmp_path: Path, table: Table) -> None:
    """The target has a marker, but it is the old owner's."""
    Pipeline(tmp_path / "first", {"a": table.sink()}, owner="first").epoch(0, [1])
    second = Pipeline(tmp_path / "second", {"a": table.sink()}, owner="second", take_over={"a": Owner("first", "a")})
    second.log(0)
    with crash_at(tmp_path, "take_over.before"):
        second.prepare()
    second.number = 0
    second.log_commit()
    second.log(1)
    refused(second.restart(), table, "epoch 0 was begun for the sink 'a'", "swallowed")
    assert table.visible() == [(0, [1])]


def test_invariant_06_a_sink_that_recovery_was_told_of_and_that_was_never_begun_joins_at_the_next_epoch(
    both: Pipeline, table: Table, topic: Topic
) -> None:
    alone = both.restart(sinks={"b": topic.sink()})
    alone.epoch(0, [1])
    both.coordinator().recover()
    both.epoch(1, [2])
    assert table.visible() == [(1, [2])]
    assert topic.visible() == [(0, [1]), (1, [2])]


def test_invariant_06_a_sink_that_was_removed_before_its_first_epoch_was_decided_may_join_later(
    both: Pipeline, table: Table, topic: Topic
) -> None:
    both.log(0)
    both.prepare()
    both.run([1])
    alone = both.restart(sinks={"b": topic.sink()})
    alone.finish([1])
    both.restart().epoch(1, [2])
    assert table.visible() == [(1, [2])]
    assert topic.visible() == [(0, [1]), (1, [2])]
