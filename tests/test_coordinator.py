"""The coordinator's verbs: what each does, refuses, and leaves alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline import Pipeline, Table, Target, Topic, crash_at
from twophase.errors import (
    AlreadyDecided,
    CheckpointMismatch,
    Fenced,
    NotCommitted,
    OptionError,
    ProtocolViolation,
    ReplayDiffers,
    TwophaseError,
)
from twophase.identity import Attempt, Epoch, Generation, Owner
from twophase.sink import Plan, PreparedEpoch
from twophase.sinks.heap import HeapSink
from twophase.vote import Vote


@pytest.fixture
def voted(pipeline: Pipeline) -> Pipeline:
    """A query whose first epoch has two votes."""
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1], [2])
    return pipeline


def first_vote(pipeline: Pipeline) -> Vote:
    vote = pipeline.votes[0]
    assert vote is not None
    return vote


# ---- prepare ----


def test_prepare_tells_the_tasks_generation_epoch_and_where_the_marker_is(tmp_path: Path, table: Table) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": table.sink()})
    pipeline.log(0)
    plan = pipeline.prepare()
    assert plan.generation == pipeline.tail().generation
    assert plan.epoch == Epoch(0, pipeline.coordinator().query.checkpoint.offsets_hash(0) or "")
    first = plan.sinks["a"].plan
    assert first is not None
    assert first.prepared.origin is None
    pipeline.run([1])
    pipeline.commit()
    pipeline.log_commit()
    pipeline.log(1)
    second = pipeline.prepare().sinks["a"].plan
    assert second is not None
    assert second.prepared.origin == table.state.marker
    assert table.visible() == [(0, [1])]


def test_every_prepare_of_an_epoch_takes_a_new_generation(pipeline: Pipeline) -> None:
    pipeline.log(0)
    generations = [pipeline.restart().prepare().generation for _ in range(3)]
    assert len({generation.ledger for generation in generations}) == 1
    assert [generation.number for generation in generations] == [1, 2, 3]


class Observer(HeapSink):
    """Keeps what it was told to prepare."""

    told: PreparedEpoch | None = None

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        self.told = prepared
        return super().prepare(prepared)


def test_prepare_hands_schema_and_output_mode_to_the_sink(tmp_path: Path, table: Table) -> None:
    sink = Observer(table)
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": sink})
    pipeline.log(0)
    schema = pa.schema([("value", pa.int64())])
    pipeline.coordinator().prepare(0, schemas={"a": schema}, overwrite=True)
    assert sink.told is not None
    assert (sink.told.schema, sink.told.overwrite) == (schema, True)


def test_complete_mode_replaces_all_before_it_in_one_step(tmp_path: Path, table: Table) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": table.sink()})
    for number, rows in enumerate(([1, 2], [3], [])):
        pipeline.log(number)
        pipeline.prepare(overwrite=True)
        pipeline.run(rows)
        before = [value for batch in table.sink().batches() for value in batch.column(0).to_pylist()]
        assert before == ([], [1, 2], [3])[number]
        pipeline.commit()
        pipeline.log_commit()
    assert sum(batch.num_rows for batch in table.sink().batches()) == 0
    assert table.visible() == [(0, [1, 2]), (1, [3]), (2, [])]


def test_an_epoch_before_whose_offsets_spark_has_cleaned_up_is_known_by_its_decision(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.epoch(0, [1])
    pipeline.epoch(1, [2])
    (pipeline.root / "offsets" / "0").unlink()
    (pipeline.root / "offsets" / "1").unlink()
    pipeline.restart().epoch(2, [3])
    assert target.visible() == [(0, [1]), (1, [2]), (2, [3])]


def test_an_epoch_before_that_neither_spark_nor_the_ledger_knows_is_refused(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    (pipeline.root / "offsets" / "0").unlink()
    for record in (pipeline.root / "twophase").iterdir():
        record.unlink()
    restarted = pipeline.restart()
    restarted.log(1)
    with pytest.raises(CheckpointMismatch, match=r"the target has epoch 0@.*offsets/0 is gone"):
        restarted.prepare()
    assert target.visible() == [(0, [1])]
    assert target.staged() == []


def test_a_take_over_that_could_not_be_recognised_afterwards_is_refused(tmp_path: Path, table: Table) -> None:
    Pipeline(tmp_path / "first", {"a": table.sink()}, owner="first").epoch(0, [1])
    heir = Pipeline(tmp_path / "second", {"a": table.sink()}, "second", take_over={"a": Owner("first", "a")})
    heir.log(5)
    with pytest.raises(CheckpointMismatch, match="offsets/4 is gone"):
        heir.prepare()
    assert table.line() == [("first", 0, 0)]


@pytest.mark.parametrize(
    "slots",
    [
        ([[1], [2], [3]], [[4, 5]], [[6], [7], [8], [9]]),
        ([[1]], [[2], [3]], [], [[4]], [[5], [6], [7]]),
    ],
    ids=["3-1-4", "1-2-0-1-3"],
)
def test_the_number_of_slots_may_change_from_epoch_to_epoch(
    pipeline: Pipeline, target: Target, slots: tuple[list[list[int]], ...]
) -> None:
    wanted = []
    for number, rows in enumerate(slots):
        pipeline = pipeline.restart()
        pipeline.epoch(number, *rows)
        wanted.append((number, sorted(value for slot in rows for value in slot)))
        assert target.visible() == wanted
    assert target.staged() == []


def test_two_thousand_slots_are_one_epoch(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, *([slot] for slot in range(2_000)))
    assert target.visible() == [(0, list(range(2_000)))]
    pipeline.restart().epoch(1, [1])
    assert target.visible() == [(0, list(range(2_000))), (1, [1])]


def test_history_is_bounded_and_forgets_nothing_that_is_needed(pipeline: Pipeline, target: Target) -> None:
    pipeline = pipeline.restart(kept_records=3)
    for number in range(8):
        pipeline = pipeline.restart()
        pipeline.log(number)
        pipeline.prepare()
        pipeline.run([number])
        pipeline.restart().finish([number])
        assert len(list((pipeline.root / "twophase").iterdir())) <= 4
    assert target.visible() == [(number, [number]) for number in range(8)]


# ---- tasks ----


def test_a_task_of_another_batch_is_fenced_before_it_begins(pipeline: Pipeline, target: Target) -> None:
    pipeline.log(0)
    pipeline.prepare()
    with pytest.raises(Fenced, match="belongs to epoch 1, and was planned for 0") as caught:
        pipeline.task("s", 3, [1], number=1)
    assert (caught.value.epoch, caught.value.slot) == (1, 3)
    assert target.staged() == []
    assert target.visible() == []


class ShortLived(HeapSink):
    capabilities = dataclasses.replace(HeapSink.capabilities, share_lives_ms=60_000)


def test_a_task_that_begins_after_the_deadline_of_its_epoch_stages_nothing(tmp_path: Path, table: Table) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": ShortLived(table)})
    pipeline.log(0)
    pipeline.prepare()
    pipeline.clock_ms += 60_000
    in_time = pipeline.task("a", 0, [1])
    assert table.staged() == [(0, 0)]
    pipeline.clock_ms += 1
    with pytest.raises(NotCommitted, match="deadline") as caught:
        pipeline.task("a", 1, [2])
    assert (caught.value.epoch, caught.value.slot) == (0, 1)
    assert table.staged() == [(0, 0)]
    pipeline.commit([in_time])
    assert table.visible() == [(0, [1])]


def test_a_share_that_lives_for_ever_has_no_deadline(pipeline: Pipeline, target: Target) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.clock_ms += 10**12
    pipeline.run([1])
    pipeline.commit()
    assert target.visible() == [(0, [1])]


# ---- commit ----


def test_the_first_decision_of_a_generation_stands_when_it_commits_again_with_other_votes(
    voted: Pipeline, target: Target
) -> None:
    twin = voted.task("s", 1, [2])
    voted.commit()
    assert target.visible() == [(0, [1, 2])]
    with pytest.raises(AlreadyDecided) as caught:
        voted.commit([first_vote(voted), twin])
    assert (caught.value.epoch, caught.value.slot) == (0, 1)
    assert target.visible() == [(0, [1, 2])]
    voted.log_commit()
    voted.epoch(1, [3])
    assert target.visible() == [(0, [1, 2]), (1, [3])]
    assert target.staged() == []


def undecided(pipeline: Pipeline, target: Target, error: type[TwophaseError], match: str, *votes: Vote) -> None:
    """These votes are refused: nothing is decided, visible or deleted, and the true votes can still be committed."""
    staged = target.staged()
    with pytest.raises(error, match=match):
        pipeline.commit(votes)
    assert pipeline.tail().decision is None
    assert target.visible() == []
    assert target.staged() == staged
    pipeline.commit()
    assert target.visible() == [(0, [1, 2])]


def test_a_missing_slot_is_a_protocol_violation(voted: Pipeline, target: Target) -> None:
    second = voted.votes[1]
    assert second is not None
    undecided(voted, target, ProtocolViolation, r"slots \[1\]: expected each of 0 to 0 once", second)


def test_two_votes_for_a_slot_are_a_protocol_violation(voted: Pipeline, target: Target) -> None:
    vote, twin = first_vote(voted), voted.task("s", 0, [1])
    undecided(voted, target, ProtocolViolation, r"slots \[0, 0\]", vote, twin)


def test_the_same_vote_twice_is_a_protocol_violation(voted: Pipeline, target: Target) -> None:
    vote = first_vote(voted)
    undecided(voted, target, ProtocolViolation, r"slots \[0, 0\]", vote, vote)


def test_votes_for_an_unknown_sink_are_a_protocol_violation(voted: Pipeline, target: Target) -> None:
    vote = first_vote(voted)
    stranger = dataclasses.replace(vote, sink="stranger")
    undecided(voted, target, ProtocolViolation, r"not configured: \['stranger'\]", vote, stranger)


def test_votes_of_several_generations_are_a_protocol_violation(pipeline: Pipeline, target: Target) -> None:
    pipeline.log(0)
    pipeline.prepare()
    old = pipeline.task("s", 0, [1])
    pipeline.prepare()
    pipeline.run([1], [2])
    second = pipeline.votes[1]
    assert second is not None
    undecided(pipeline, target, ProtocolViolation, "several generations", old, second)


def test_a_share_of_another_generation_than_its_vote_is_a_protocol_violation(voted: Pipeline, target: Target) -> None:
    vote = first_vote(voted)
    assert vote.share is not None
    older = Attempt(Generation(vote.generation.ledger, vote.generation.number - 1), 0)
    forged = dataclasses.replace(vote, share=dataclasses.replace(vote.share, attempt=older))
    undecided(voted, target, ProtocolViolation, "several generations", forged)


def test_a_share_of_another_slot_than_its_vote_is_a_protocol_violation(voted: Pipeline, target: Target) -> None:
    vote, other = first_vote(voted), voted.votes[1]
    assert other is not None
    undecided(voted, target, ProtocolViolation, "slot", dataclasses.replace(vote, share=other.share), other)


def test_a_vote_for_another_offsets_hash_is_a_protocol_violation(voted: Pipeline, target: Target) -> None:
    vote = dataclasses.replace(first_vote(voted), epoch=Epoch(0, "another"))
    undecided(voted, target, ProtocolViolation, "was prepared for 0@", vote)


def test_a_vote_of_a_generation_that_never_was_is_fenced(voted: Pipeline, target: Target) -> None:
    vote = first_vote(voted)
    assert vote.share is not None
    newer = Generation(vote.generation.ledger, vote.generation.number + 1)
    share = dataclasses.replace(vote.share, attempt=Attempt(newer, 0))
    undecided(voted, target, Fenced, "overtaken", dataclasses.replace(vote, generation=newer, share=share))


def test_commit_without_votes_and_without_the_plan_is_a_protocol_violation(voted: Pipeline, target: Target) -> None:
    with pytest.raises(ProtocolViolation, match="no votes"):
        voted.coordinator().commit(0, [])
    assert target.visible() == []
    voted.commit()
    assert target.visible() == [(0, [1, 2])]


def test_commit_of_another_batch_without_votes_is_fenced(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    pipeline.log(1)
    pipeline.prepare()
    with pytest.raises(Fenced):
        pipeline.commit([], number=2)
    assert target.visible() == [(0, [1])]
    assert target.staged() == []
    pipeline.commit()
    with pytest.raises(Fenced):
        pipeline.commit([], number=2)
    assert target.visible() == [(0, [1]), (1, [])]


def test_a_slot_that_drained_although_it_was_told_to_write_is_refused(voted: Pipeline, target: Target) -> None:
    vote, other = first_vote(voted), voted.votes[1]
    assert other is not None
    with pytest.raises(TwophaseError):
        voted.commit([vote, dataclasses.replace(other, share=None)])
    with pytest.raises(Fenced):
        voted.commit([dataclasses.replace(vote, share=None), dataclasses.replace(other, share=None)])
    assert target.visible() == []
    voted.commit()
    assert target.visible() == [(0, [1, 2])]


def test_a_ledger_that_is_gone_fences_commit_and_abort_does_nothing(voted: Pipeline, target: Target) -> None:
    for record in (voted.root / "twophase").iterdir():
        record.unlink()
    with pytest.raises(Fenced, match="a ledger that is gone"):
        voted.commit()
    voted.abort()
    assert target.visible() == []
    assert target.staged() == [(0, 0), (0, 1)]


# ---- abort ----


def test_abort_makes_the_epoch_undecidable_and_it_is_replayed_whole(voted: Pipeline, target: Target) -> None:
    voted.abort()
    assert target.staged() == []
    assert not voted.tail().prepare.tasks
    with pytest.raises(Fenced):
        voted.commit()
    voted.abort()
    assert target.visible() == []
    voted.restart().finish([3])
    assert target.visible() == [(0, [3])]


@pytest.mark.parametrize("point", ["abort.before_publish", "abort.published", "abort.swept"])
def test_abort_that_crashes_leaves_nothing_that_the_next_prepare_does_not_sweep(
    voted: Pipeline, target: Target, tmp_path: Path, point: str
) -> None:
    with crash_at(tmp_path, point):
        voted.abort()
    assert target.visible() == []
    voted.restart().prepare()
    assert target.staged() == []
    voted.restart().finish([3])
    assert target.visible() == [(0, [3])]


def test_abort_with_votes_of_several_generations_deletes_nothing(pipeline: Pipeline, target: Target) -> None:
    pipeline.log(0)
    pipeline.prepare()
    old = pipeline.task("s", 0, [1])
    pipeline.prepare()
    pipeline.run([1], [2])
    with pytest.raises(ProtocolViolation, match="several generations"):
        pipeline.abort([old, *pipeline.votes])
    assert target.staged() == [(0, 0), (0, 1)]
    pipeline.commit()
    assert target.visible() == [(0, [1, 2])]


# ---- recover ----


def test_recover_of_a_query_that_never_ran_does_nothing(pipeline: Pipeline, target: Target) -> None:
    assert pipeline.coordinator().recover() is None
    assert not (pipeline.root / "twophase").exists()
    assert target.visible() == []


def test_recover_rolls_a_dead_query_forward_and_sweeps(voted: Pipeline, target: Target, tmp_path: Path) -> None:
    voted.task("s", 0, [9])
    with crash_at(tmp_path, "decide.published"):
        voted.commit()
    assert target.visible() == []
    for _ in range(2):
        assert voted.restart().coordinator().recover() is not None
        assert target.visible() == [(0, [1, 2])]
        assert target.staged() == []
    voted.restart().finish([1], [2])
    assert target.visible() == [(0, [1, 2])]


def test_recover_of_an_undecided_epoch_sweeps_it_and_the_query_replays_it(voted: Pipeline, target: Target) -> None:
    voted.restart().coordinator().recover()
    assert target.staged() == []
    assert target.visible() == []
    with pytest.raises(Fenced):
        voted.commit()
    voted.restart().finish([1], [2])
    assert target.visible() == [(0, [1, 2])]


def test_recover_of_a_query_at_rest_changes_nothing(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    pipeline.restart().coordinator().recover()
    assert target.visible() == [(0, [1])]
    pipeline.restart().epoch(1, [2])
    assert target.visible() == [(0, [1]), (1, [2])]


def test_recover_leaves_what_is_dead_to_the_query(voted: Pipeline, target: Target, tmp_path: Path) -> None:
    with crash_at(tmp_path, "decide.published"):
        voted.commit()
    target.expire(1)
    voted.restart().coordinator().recover()
    assert target.visible() in ([], [(0, [1])])
    voted.restart().finish([1], [2])
    assert target.visible() == [(0, [1, 2])]


# ---- names and errors ----

NAMES = ["../../etc", "a/b", "", "名前", "x.y", "%2F", "a\nb", "'; --", "\ud800", "x" * 300, "名" * 70]


@pytest.mark.parametrize("name", NAMES, ids=[ascii(name)[:12] for name in NAMES])
def test_any_name_of_a_query_and_a_sink_works_for_ever_or_is_refused_at_the_start(
    tmp_path: Path, target: Target, name: str
) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {name: target.sink()}, owner=name or "q")
    pipeline.log(0)
    try:
        pipeline.prepare()
    except OptionError:
        assert target.visible() == []
        return
    pipeline.run([0])
    pipeline.commit()
    pipeline.log_commit()
    for number in (1, 2, 3):
        pipeline = pipeline.restart()
        pipeline.epoch(number, [number])
    assert target.visible() == [(number, [number]) for number in range(4)]


def test_an_error_says_whose_epoch_it_is_about(tmp_path: Path, topic: Topic) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"b": topic.sink()}, owner="orders")
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1], [2])
    vote = first_vote(pipeline)
    raised = []
    for votes in ([None], [vote, vote], [dataclasses.replace(vote, sink="stranger")]):
        with pytest.raises(ProtocolViolation) as violation:
            pipeline.commit(votes)
        raised.append(violation.value)
    with crash_at(tmp_path, "decide.published"):
        pipeline.commit()
    topic.expire(1)
    replay = pipeline.restart()
    replay.prepare()
    replay.run([1], [3])
    with pytest.raises(ReplayDiffers) as differs:
        replay.commit()
    with pytest.raises(Fenced) as fenced:
        pipeline.commit()
    assert [
        (type(error).__name__, error.message[:40])
        for error in (*raised, differs.value, fenced.value)
        if error.epoch != 0 or (error.owner or "").partition("/")[0] != "orders"
    ] == []
