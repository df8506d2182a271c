"""Every invariant of the protocol, by its number, on real checkpoints: what is in the target after each step."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.model import slot_sink
from tests.pipeline import Lost, Pipeline, Table, Target, Topic, Transition, crash_at
from twophase import failpoints
from twophase.errors import (
    CheckpointMismatch,
    Fenced,
    NotCommitted,
    OptionError,
    OutcomeUnknown,
    ProtocolViolation,
    ReplayDiffers,
    TwophaseError,
)
from twophase.failpoints import Fault
from twophase.identity import Epoch, Owner
from twophase.local_storage import LocalStorage
from twophase.query import AnySink
from twophase.sink import WHOLE, Outcome
from twophase.sinks import heap
from twophase.sinks.heap import HeapHandle


@pytest.fixture
def both(tmp_path: Path, table: Table, topic: Topic) -> Pipeline:
    """A query with a sink of each kind."""
    return Pipeline(tmp_path / "checkpoint", {"a": table.sink(), "b": topic.sink()})


def decided(pipeline: Pipeline, tmp_path: Path, *rows: list[int]) -> None:
    """Run the newest logged epoch up to its decision, and crash: no sink knows it."""
    pipeline.prepare()
    pipeline.run(*rows)
    with crash_at(tmp_path, "decide.published"):
        pipeline.commit()


# ---- 1: nothing before the decision, everything once after recovery ----


def test_invariant_01_nothing_is_visible_before_the_decision_and_all_of_it_after_the_commit(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.log(0)
    assert target.visible() == []
    pipeline.prepare()
    assert target.visible() == []
    pipeline.run([1, 2], [3])
    assert target.visible() == []
    assert target.staged() == [(0, 0), (0, 1)]
    pipeline.commit()
    assert target.visible() == [(0, [1, 2, 3])]
    assert target.staged() == []
    pipeline.log_commit()
    assert target.visible() == [(0, [1, 2, 3])]


CRASHES = [
    (point, hit)
    for point in failpoints.POINTS
    if point.partition(".")[0] in {"prepare", "task", "sweep", "decide", "commit"} and point != "task.aborted"
    for hit in ((1, 2) if point.startswith(("task.", "commit.before", "commit.after")) else (1,))
]


@pytest.mark.parametrize("aborts", [False, True], ids=["dies", "aborts"])
@pytest.mark.parametrize(("point", "hit"), CRASHES)
def test_invariant_01_after_a_crash_at_any_step_the_epoch_is_there_whole_and_once(
    both: Pipeline, table: Table, topic: Topic, tmp_path: Path, point: str, hit: int, aborts: bool
) -> None:
    both.epoch(0, [1, 2], [3])
    both.log(1)
    both.prepare()
    both.run([4], [5])
    victim = both.restart()
    with crash_at(tmp_path, point, hit):
        victim.finish([4], [5])
    is_decided = (decision := victim.tail().decision) is not None and decision.epoch.number == 1
    seen = [(0, [1, 2, 3]), (1, [4, 5])] if is_decided else [(0, [1, 2, 3])]
    assert table.visible() in ([(0, [1, 2, 3])], seen)
    assert topic.visible() in ([(0, [1, 2, 3])], seen)

    if aborts:
        victim.abort([*victim.votes, None])
        assert table.visible() in ([(0, [1, 2, 3])], seen)
    both.restart().finish([4], [5])

    for target in (table, topic):
        assert target.visible() == [(0, [1, 2, 3]), (1, [4, 5])]
        assert target.staged() == []
    both.restart().epoch(2, [6])
    assert table.visible() == topic.visible() == [(0, [1, 2, 3]), (1, [4, 5]), (2, [6])]


# ---- 2: a gapless prefix, in order; empty epochs are ordinary ----


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


# ---- 3: a decision is never undone ----


@pytest.mark.parametrize("point", ["decide.published", "commit.before_sink", "commit.after_sink", "commit.done"])
def test_invariant_03_a_decision_is_never_undone_by_abort_after_a_failed_commit(
    both: Pipeline, table: Table, topic: Topic, tmp_path: Path, point: str
) -> None:
    both.log(0)
    both.prepare()
    both.run([1], [2])
    with crash_at(tmp_path, point):
        both.commit()
    seen = (table.visible(), table.staged(), topic.visible(), topic.staged())
    both.abort()
    assert (table.visible(), table.staged(), topic.visible(), topic.staged()) == seen
    both.restart().abort(both.votes, number=0)
    assert (table.visible(), table.staged(), topic.visible(), topic.staged()) == seen
    both.restart().prepare()
    assert table.visible() == topic.visible() == [(0, [1, 2])]


def test_invariant_03_abort_after_a_successful_commit_changes_nothing(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1], [2])
    pipeline.abort()
    assert target.visible() == [(0, [1, 2])]
    pipeline.epoch(1, [3])
    assert target.visible() == [(0, [1, 2]), (1, [3])]


def test_invariant_03_a_decided_epoch_survives_abort_of_the_generation_that_replays_it(
    both: Pipeline, table: Table, topic: Topic, tmp_path: Path
) -> None:
    both.log(0)
    decided(both, tmp_path, [1], [2])
    topic.expire(1)
    replay = both.restart()
    replay.prepare()
    assert topic.visible() == [(0, [1])]
    replay.run([1], [2])
    replay.abort()
    assert topic.visible() == [(0, [1])]
    assert topic.staged() == []
    both.restart().finish([1], [2])
    assert table.visible() == topic.visible() == [(0, [1, 2])]


# ---- 4: commit is idempotent, and markers move by compare-and-set ----


def test_invariant_04_commit_again_from_any_process_changes_nothing(pipeline: Pipeline, target: Target) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1], [2])
    for _ in range(3):
        pipeline.commit()
        assert target.visible() == [(0, [1, 2])]
    other = pipeline.restart()
    other.coordinator().commit(0, pipeline.votes)
    assert target.visible() == [(0, [1, 2])]
    assert target.staged() == []


def test_invariant_04_commit_again_of_an_epoch_without_tasks_changes_nothing(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.commit()
    assert target.visible() == [(0, [])]
    pipeline.commit()
    assert target.visible() == [(0, [])]
    assert target.staged() == []


def test_invariant_04_replaying_a_committed_epoch_changes_nothing_whatever_its_rows_are(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.epoch(0, [1], [2])
    (pipeline.root / "commits" / "0").unlink()
    replay = pipeline.restart()
    plan = replay.prepare()
    assert [sink.plan for sink in plan.sinks.values()] == [None]
    replay.run([7], [8], [9])
    assert target.staged() == []
    replay.commit()
    replay.log_commit()
    assert target.visible() == [(0, [1, 2])]
    replay.epoch(1, [3])
    assert target.visible() == [(0, [1, 2]), (1, [3])]


def test_invariant_04_an_order_from_the_past_can_not_set_the_marker_back(tmp_path: Path, table: Table) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": table.sink()})
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    pipeline.commit()
    decision = pipeline.tail().decision
    assert decision is not None
    order = decision.sinks["a"].order(Owner(pipeline.name, "a"), decision.epoch, HeapHandle)
    assert table.sink().commit(order) is Outcome.ALREADY_COMMITTED
    pipeline.log_commit()
    pipeline.epoch(1, [2])
    with pytest.raises(Fenced):
        table.sink().commit(order)
    assert table.visible() == [(0, [1]), (1, [2])]
    assert table.sink().status(order.owner, settled=True).markers[WHOLE].epoch.number == 1


# ---- 5: a lost reply is looked up ----


def _label(value: str | Transition) -> str:
    return value if isinstance(value, str) else f"{value.__module__.rpartition('.')[2]}.{value.__name__}"


LOSSES: list[tuple[str, Transition]] = [
    ("prepare", heap.fence),
    ("prepare", heap.abort),
    ("prepare", heap.look),
    ("run", heap.stage),
    ("commit", heap.look),
    ("commit", heap.commit),
    ("prepare", slot_sink.end),
    ("prepare", slot_sink.look),
    ("run", slot_sink.begin),
    ("run", slot_sink.vote),
    ("commit", slot_sink.look),
    ("commit", slot_sink.end),
]


def run_losing(victim: Pipeline, target: Target, lost: Lost, step: str, transition: Transition) -> None:
    """Run epoch 1, and lose that request, or its reply, in that step."""
    for name in ("prepare", "run", "commit"):
        if name == step:
            target.lose(lost, transition)
        if name == "run":
            victim.run([3], [4])
        else:
            getattr(victim, name)()


@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize(("step", "transition"), LOSSES, ids=_label)
def test_invariant_05_whatever_request_or_reply_of_a_target_is_lost_the_epoch_is_there_once(
    both: Pipeline, table: Table, topic: Topic, step: str, transition: Transition, lost: Lost
) -> None:
    both.epoch(0, [1], [2])
    both.log(1)
    both.prepare()
    both.run([3], [4])
    target: Target = table if transition.__module__ == heap.__name__ else topic
    victim = both.restart()
    with pytest.raises(TimeoutError):
        run_losing(victim, target, lost, step, transition)
    assert target.lost == {}
    victim.abort()
    assert {number for number, _ in (*table.visible(), *topic.visible())} <= {0, 1}
    both.restart().finish([3], [4])
    assert table.visible() == topic.visible() == [(0, [1, 2]), (1, [3, 4])]
    assert (table.staged(), topic.staged()) == ([], [])


class LossyStorage(LocalStorage):
    """Loses the replies to the next publications; with `late`, the requests too, until `land`."""

    def __init__(self, *, lost: int, late: bool = False):
        super().__init__()
        self.lost = lost
        self.late = late
        self.on_their_way: list[tuple[str, bytes]] = []

    def publish(self, path: str, data: bytes) -> None:
        if self.lost == 0:
            super().publish(path, data)
            return
        self.lost -= 1
        if self.late:
            self.on_their_way.append((path, data))
        else:
            super().publish(path, data)
        raise TimeoutError("the reply was lost")

    def land(self) -> None:
        for path, data in self.on_their_way:
            with suppress(FileExistsError):
                super().publish(path, data)


def test_invariant_05_a_ledger_record_whose_reply_was_lost_is_found_to_be_mine(
    pipeline: Pipeline, target: Target
) -> None:
    driver = pipeline.restart(storage=LossyStorage(lost=1))
    driver.log(0)
    driver.prepare()
    driver.run([1])
    decider = pipeline.restart(storage=LossyStorage(lost=1))
    decider.coordinator().commit(0, driver.votes)
    assert target.visible() == [(0, [1])]
    assert decider.tail().number == 2


def test_invariant_05_a_decision_that_lands_after_its_time_out_is_carried_out(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    storage = LossyStorage(lost=5, late=True)
    with pytest.raises(OutcomeUnknown):
        pipeline.restart(storage=storage).coordinator().commit(0, pipeline.votes)
    assert target.visible() == []
    assert target.staged() == [(0, 0)], "what may be decided was deleted"
    storage.land()
    assert target.visible() == []
    pipeline.restart().prepare()
    assert target.visible() == [(0, [1])]


def test_invariant_05_a_decision_that_lands_after_the_abort_counts_for_nothing(
    pipeline: Pipeline, target: Target
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    storage = LossyStorage(lost=5, late=True)
    with pytest.raises(OutcomeUnknown):
        pipeline.restart(storage=storage).coordinator().commit(0, pipeline.votes)
    pipeline.abort()
    storage.land()
    assert pipeline.tail().decision is None
    pipeline.restart().finish([2])
    assert target.visible() == [(0, [2])]
    assert target.staged() == []


# ---- 6: no silent loss ----


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


# ---- 7: a checkpoint that does not belong to the target ----


def refused(pipeline: Pipeline, target: Target, *sides: str) -> None:
    """Prepare raises CheckpointMismatch, its message has all of `sides`, and the target is as before."""
    before = target.visible(), target.staged()
    with pytest.raises(CheckpointMismatch) as caught:
        pipeline.prepare()
    assert [side for side in sides if side not in str(caught.value)] == []
    assert (target.visible(), target.staged()) == before


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


# ---- 8: zombies ----


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


# ---- 9: no residue ----


def test_invariant_09_after_recovery_nothing_of_older_generations_is_left(
    both: Pipeline, table: Table, topic: Topic
) -> None:
    both.epoch(0, [1])
    both.log(1)
    for _ in range(3):
        dying = both.restart()
        with suppress(OutcomeUnknown):
            dying.prepare()
        dying.run([2], [3])
        dying.task("b", 0, [2])
    assert table.staged() == [(1, 0), (1, 1)]
    assert topic.staged() == [(1, 0), (1, 0), (1, 1)]
    both.coordinator().recover()
    assert (table.staged(), topic.staged()) == ([], [])
    assert table.visible() == topic.visible() == [(0, [1])]


def test_invariant_09_what_an_open_decision_names_is_not_swept(
    pipeline: Pipeline, target: Target, tmp_path: Path
) -> None:
    pipeline.log(0)
    decided(pipeline, tmp_path, [1], [2])
    pipeline.task("s", 0, [1])
    with crash_at(tmp_path, "prepare.swept"):
        pipeline.restart().prepare()
    assert target.staged() == [(0, 0), (0, 1)]
    pipeline.restart().prepare()
    assert target.visible() == [(0, [1, 2])]
    assert target.staged() == []


def test_invariant_09_what_a_revised_decision_named_is_swept_once_the_revision_is_visible(
    tmp_path: Path, table: Table
) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": table.sink()})
    pipeline.log(0)
    decided(pipeline, tmp_path, [1], [2])
    table.expire(1)
    pipeline.restart().finish([1], [2])
    assert table.visible() == [(0, [1, 2])]
    pipeline.restart().coordinator().recover()
    assert table.staged() == []
    assert table.visible() == [(0, [1, 2])]


def test_invariant_09_abort_removes_what_its_generation_staged(pipeline: Pipeline, target: Target) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1], [2])
    pipeline.abort([pipeline.votes[0], None])
    assert target.staged() == []
    with pytest.raises(Fenced):
        pipeline.commit()
    assert target.visible() == []


def test_invariant_09_other_owners_of_a_target_are_not_swept(tmp_path: Path, topic: Topic) -> None:
    one = Pipeline(tmp_path / "one", {"b": topic.sink()})
    two = Pipeline(tmp_path / "two", {"b": topic.sink()})
    for pipeline in (one, two):
        pipeline.log(0)
        pipeline.prepare()
        pipeline.run([1])
    two.restart().prepare()
    assert [t.owner.query for t in topic.state.pending] == [one.name]
    one.commit()
    assert topic.visible(one.name) == [(0, [1])]


@pytest.fixture
def arming_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "failpoints"
    monkeypatch.setenv(failpoints.VARIABLE, str(path))
    failpoints.reload()
    yield path
    monkeypatch.undo()
    failpoints.reload()


@pytest.mark.parametrize("point", ["prepare.published", "sweep.listed", "prepare.markers_read"])
def test_invariant_09_a_sweeper_that_is_overtaken_deletes_nothing_of_the_newer_generation(
    pipeline: Pipeline, target: Target, arming_file: Path, point: str
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1], [2])
    slow, errors = pipeline.restart(), []

    def prepare() -> None:
        try:
            slow.prepare()
        except TwophaseError as error:
            errors.append(error)

    failpoints.arm(arming_file, Fault(point, "pause", timeout_s=30))
    thread = threading.Thread(target=prepare)
    thread.start()
    while not any(hit.action for hit in failpoints.trace(arming_file)):
        assert thread.is_alive()
    successor = pipeline.restart()
    successor.prepare()
    successor.run([1], [2])
    failpoints.release(arming_file, point)
    thread.join()

    assert [type(error) for error in errors] == [Fenced]
    assert target.staged() == [(0, 0), (0, 1)]
    successor.commit()
    assert target.visible() == [(0, [1, 2])]


# ---- 10: one line, one owner ----


def taking_over(pipeline: Pipeline, replaced: Pipeline, sink: str = "a") -> Pipeline:
    return pipeline.restart(take_over={sink: Owner(replaced.name, sink)})


@pytest.fixture
def first(tmp_path: Path, table: Table) -> Pipeline:
    return Pipeline(tmp_path / "first", {"a": table.sink()}, owner="first")


@pytest.fixture
def second(tmp_path: Path, table: Table) -> Pipeline:
    return Pipeline(tmp_path / "second", {"a": table.sink()}, owner="second")


def test_invariant_10_a_second_owner_is_refused_and_told_whom_it_would_replace(
    first: Pipeline, second: Pipeline, table: Table
) -> None:
    first.epoch(0, [1])
    first.log(1)
    first.prepare()
    first.run([2])
    second.log(0)
    refused(second, table, "first/a", "second/a", "takeOver")
    refused(second.restart(take_over={"a": Owner("third", "a")}), table, "first/a", "third/a")
    assert second.ledger().read() is None
    first.commit()
    assert table.visible() == [(0, [1]), (1, [2])]


def test_invariant_10_take_over_publishes_an_empty_epoch_and_counts_on_from_it(
    first: Pipeline, second: Pipeline, table: Table
) -> None:
    first.epoch(0, [1])
    first.epoch(1, [2])
    second.log(0)
    heir = taking_over(second, first)
    heir.prepare()
    assert table.line() == [("first", 0, 0), ("first", 1, 1), ("second", -1, 2)]
    assert table.visible() == [(0, [1]), (1, [2]), (-1, [])]
    heir.run([7])
    heir.commit()
    heir.log_commit()
    assert table.line()[3:] == [("second", 0, 3)]
    second.restart().epoch(1, [8])
    assert table.line()[3:] == [("second", 0, 3), ("second", 1, 4)]
    assert table.visible() == [(0, [1]), (1, [2]), (-1, []), (0, [7]), (1, [8])]


def test_invariant_10_a_query_that_has_run_before_takes_over_at_its_own_epoch(
    tmp_path: Path, first: Pipeline, table: Table, topic: Topic
) -> None:
    first.epoch(0, [1])
    old = Pipeline(tmp_path / "second", {"b": topic.sink()}, owner="second")
    for number in range(5):
        old.epoch(number, [number])
    heir = taking_over(old.restart(sinks={"a": table.sink(), "b": topic.sink()}), first)
    heir.epoch(5, [7])
    heir.restart().epoch(6, [8])
    assert table.line() == [("first", 0, 0), ("second", 4, 1), ("second", 5, 2), ("second", 6, 3)]
    assert table.visible("second") == [(4, []), (5, [7]), (6, [8])]


def test_invariant_10_the_replaced_owner_is_refused_and_can_change_nothing(
    first: Pipeline, second: Pipeline, table: Table
) -> None:
    first.epoch(0, [1])
    first.log(1)
    first.prepare()
    first.run([2])
    second.log(0)
    heir = taking_over(second, first)
    heir.prepare()
    assert table.staged() == [], "what the replaced owner staged is still there"
    before = table.line()
    with pytest.raises(CheckpointMismatch, match="second/a"):
        first.commit()
    assert first.tail().decision is not None
    assert first.tail().decide is None
    refused(first.restart(), table, "first/a", "second/a")
    first.task("a", 0, [9])
    assert table.line() == before
    heir.run([7])
    heir.commit()
    heir.log_commit()
    assert table.visible("second") == [(-1, []), (0, [7])]
    heir.restart().epoch(1, [8])
    assert table.staged() == [], "what a late task of the replaced owner staged is still there"
    first.abort()
    assert table.visible("first") == [(0, [1])]
    assert table.visible("second") == [(-1, []), (0, [7]), (1, [8])]


def test_invariant_10_take_over_works_once_and_the_option_may_stay(
    first: Pipeline, second: Pipeline, table: Table
) -> None:
    first.epoch(0, [1])
    heir = taking_over(second, first)
    heir.epoch(0, [7])
    heir.restart().epoch(1, [8])
    assert table.line() == [("first", 0, 0), ("second", -1, 1), ("second", 0, 2), ("second", 1, 3)]
    third = Pipeline(second.root.parent / "third", second.sinks, owner="third")
    taking_over(third, second).epoch(0, [9])
    before = table.line()
    heir = heir.restart()
    heir.log(2)
    refused(heir, table, "third/a", "second/a", "first/a")
    assert table.line() == before


@pytest.mark.parametrize("point", ["take_over.before", "take_over.after", "prepare.rolled_forward"])
def test_invariant_10_a_take_over_that_crashes_is_finished_once(
    first: Pipeline, second: Pipeline, table: Table, tmp_path: Path, point: str
) -> None:
    first.epoch(0, [1])
    second.log(0)
    with crash_at(tmp_path, point):
        taking_over(second, first).prepare()
    taking_over(second, first).finish([7])
    assert table.line() == [("first", 0, 0), ("second", -1, 1), ("second", 0, 2)]


@pytest.mark.parametrize("lost", ["request", "reply"])
def test_invariant_10_a_take_over_whose_message_is_lost_is_looked_up(
    first: Pipeline, second: Pipeline, table: Table, lost: Lost
) -> None:
    first.epoch(0, [1])
    second.log(0)
    table.lose(lost, heap.take_over)
    with pytest.raises(TimeoutError):
        taking_over(second, first).prepare()
    taking_over(second, first).finish([7])
    assert table.line() == [("first", 0, 0), ("second", -1, 1), ("second", 0, 2)]


def test_invariant_10_an_epoch_that_is_committed_during_the_take_over_fences_it(
    first: Pipeline, second: Pipeline, table: Table, arming_file: Path
) -> None:
    first.epoch(0, [1])
    first.log(1)
    first.prepare()
    first.run([2])
    second.log(0)
    heir, errors = taking_over(second, first), []

    def prepare() -> None:
        try:
            heir.prepare()
        except TwophaseError as error:
            errors.append(error)

    failpoints.arm(arming_file, Fault("prepare.before_publish", "pause", timeout_s=30))
    thread = threading.Thread(target=prepare)
    thread.start()
    while not any(hit.action for hit in failpoints.trace(arming_file)):
        assert thread.is_alive()
    first.commit()
    failpoints.release(arming_file, "prepare.before_publish")
    thread.join()

    assert [type(error) for error in errors] == [Fenced]
    assert table.line() == [("first", 0, 0), ("first", 1, 1)]
    taking_over(second, first).finish([7])
    assert table.visible() == [(0, [1]), (1, [2]), (-1, []), (0, [7])]


def test_invariant_10_the_replaced_owner_can_take_its_target_back(
    first: Pipeline, second: Pipeline, table: Table
) -> None:
    first.epoch(0, [1])
    first.epoch(1, [2])
    taking_over(second, first).epoch(0, [7])
    taking_over(first, second).epoch(2, [3])
    assert table.line() == [
        ("first", 0, 0),
        ("first", 1, 1),
        ("second", -1, 2),
        ("second", 0, 3),
        ("first", 1, 4),
        ("first", 2, 5),
    ]
    assert table.visible("first") == [(0, [1]), (1, [2]), (1, []), (2, [3])]
    first.restart().epoch(3, [4])
    assert table.visible("first") == [(0, [1]), (1, [2]), (1, []), (2, [3]), (3, [4])]


@pytest.mark.parametrize("point", [None, "take_over.after", "prepare.planned", "decide.before_publish"])
def test_invariant_10_taking_back_rewrites_a_decided_epoch_that_never_became_visible(
    first: Pipeline, second: Pipeline, table: Table, tmp_path: Path, point: str | None
) -> None:
    first.epoch(0, [1])
    first.log(1)
    decided(first, tmp_path, [2])
    taking_over(second, first).epoch(0, [7])
    assert table.staged() == []
    back = taking_over(first, second)
    if point is not None:
        with crash_at(tmp_path, point):
            back.finish([2])
    back.restart().finish([2])
    assert table.visible("first") == [(0, [1]), (0, []), (1, [2])]
    first.restart().epoch(2, [3])
    assert table.visible("first") == [(0, [1]), (0, []), (1, [2]), (2, [3])]


@pytest.mark.parametrize("point", [None, "take_over.before", "take_over.after", "prepare.planned"])
def test_invariant_10_taking_back_never_writes_an_epoch_again_that_was_visible_before_the_take_over(
    first: Pipeline, second: Pipeline, table: Table, topic: Topic, tmp_path: Path, point: str | None
) -> None:
    """Epoch 1 is in the target; the driver died before Spark logged its commit."""
    first = first.restart(sinks={**first.sinks, "b": topic.sink()})
    first.epoch(0, [1])
    first.log(1)
    first.prepare()
    first.run([2])
    with crash_at(tmp_path, "commit.after_sink"):
        first.commit()
    assert table.visible() == [(0, [1]), (1, [2])]
    assert topic.visible() == [(0, [1])]
    taking_over(second, first).epoch(0, [7])
    back = taking_over(first, second)
    if point is not None:
        with crash_at(tmp_path, point):
            back.finish([2])
    back.restart().finish([2])
    first.restart().epoch(2, [3])
    assert [(number, values) for number, values in table.visible("first") if values] == [(0, [1]), (1, [2]), (2, [3])]
    assert topic.visible() == [(0, [1]), (1, [2]), (2, [3])]
    assert [position for _, _, position in table.line()] == list(range(len(table.line())))
    assert (table.staged(), topic.staged()) == ([], [])


def test_invariant_10_taking_back_after_a_gap_is_refused(
    first: Pipeline, second: Pipeline, table: Table, topic: Topic
) -> None:
    """As without the take-over: the epochs that the sink missed would be lost in silence."""
    first.epoch(0, [1])
    taking_over(second, first).epoch(0, [7])
    elsewhere = first.restart(sinks={"b": topic.sink()})
    elsewhere.epoch(1, [2])
    elsewhere.epoch(2, [3])
    back = taking_over(first, second)
    back.log(3)
    before = table.line()
    refused(back.restart(sinks={**first.sinks, "b": topic.sink()}), table, "epoch 0@", "3")
    assert table.line() == before


def test_invariant_10_taking_back_with_a_checkpoint_that_logged_other_offsets_is_refused(
    first: Pipeline, second: Pipeline, table: Table
) -> None:
    first.epoch(0, [1])
    there = first.plan.epoch.offsets
    taking_over(second, first).epoch(0, [7])
    back = taking_over(first, second)
    back.log(0, "other offsets")
    back.log(1)
    refused(back, table, there)


def test_invariant_10_recovery_of_a_dead_query_that_takes_over_leaves_it_able_to_start(
    first: Pipeline, second: Pipeline, table: Table
) -> None:
    first.epoch(0, [1])
    first.epoch(1, [2])
    taking_over(second, first).epoch(0, [7])
    taking_over(first, second).coordinator().recover()
    taking_over(first, second).epoch(2, [3])
    assert [values for _, values in table.visible("first") if values] == [[1], [2], [3]]


def test_invariant_10_taking_over_a_query_that_was_moved_leaves_nothing_of_it_behind(
    first: Pipeline, second: Pipeline, table: Table, tmp_path: Path
) -> None:
    first.epoch(0, [1])
    shutil.move(first.root, tmp_path / "moved")
    moved = first.restart(root=tmp_path / "moved", moved_from=first.ledger().location)
    moved.log(1)
    moved.prepare()
    moved.run([2])
    assert table.staged() == [(1, 0)]
    taking_over(second, first).epoch(0, [7])
    assert table.visible() == [(0, [1]), (-1, []), (0, [7])]
    assert table.staged() == []


def test_invariant_10_several_owners_write_side_by_side_where_the_target_lets_them(
    tmp_path: Path, topic: Topic
) -> None:
    one = Pipeline(tmp_path / "one", {"b": topic.sink()}, owner="one")
    two = Pipeline(tmp_path / "two", {"b": topic.sink()}, owner="two")
    one.log(0)
    two.log(0)
    one.prepare()
    two.prepare()
    one.run([1], [2])
    two.run([11], [12])
    one.commit()
    assert (topic.visible("one"), topic.visible("two")) == ([(0, [1, 2])], [])
    two.abort()
    two.restart().finish([11], [12])
    one.log_commit()
    one.epoch(1, [3])
    assert topic.visible("one") == [(0, [1, 2]), (1, [3])]
    assert topic.visible("two") == [(0, [11, 12])]
    assert topic.staged() == []


def test_invariant_10_two_sinks_of_one_query_write_to_one_target_side_by_side(tmp_path: Path, topic: Topic) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"b": topic.sink(), "c": topic.sink()})
    pipeline.epoch(0, [1], [2])
    assert sorted((t.owner.sink, t.slot, t.values) for t in topic.state.visible) == [
        ("b", 0, (1,)),
        ("b", 1, (2,)),
        ("c", 0, (1,)),
        ("c", 1, (2,)),
    ]
    pipeline.epoch(1)
    assert sorted(t.owner.sink for t in topic.state.visible if t.epoch.number == 1) == ["b", "c"]


# ---- 11: modes that void the guarantee ----


def test_invariant_11_prepare_refuses_an_epoch_that_is_not_logged(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    with pytest.raises(ProtocolViolation, match=r"not logged.*continuous trigger"):
        pipeline.coordinator().prepare(1)
    assert target.visible() == [(0, [1])]


def test_invariant_11_prepare_refuses_an_epoch_that_is_logged_as_committed(pipeline: Pipeline, target: Target) -> None:
    pipeline.epoch(0, [1])
    with pytest.raises(ProtocolViolation, match=r"logged as committed.*continuous trigger"):
        pipeline.restart().prepare()
    assert target.visible() == [(0, [1])]


@pytest.mark.parametrize("votes", [[None], [None, None]], ids=["one", "two"])
def test_invariant_11_a_missing_message_in_commit_is_a_protocol_violation(
    pipeline: Pipeline, target: Target, votes: list[None]
) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1])
    for messages in (votes, [*pipeline.votes, None], [None, *pipeline.votes]):
        with pytest.raises(ProtocolViolation, match="continuous trigger"):
            pipeline.commit(messages)
        assert target.visible() == []
        assert target.staged() == [(0, 0)]
    assert pipeline.tail().decision is None
    pipeline.commit()
    assert target.visible() == [(0, [1])]


def test_invariant_11_missing_messages_in_abort_are_ordinary(pipeline: Pipeline, target: Target) -> None:
    pipeline.log(0)
    pipeline.prepare()
    pipeline.run([1], [2])
    pipeline.abort([])
    pipeline.abort([None, None])
    assert target.staged() == [(0, 0), (0, 1)], "whose generation asks could not be known"
    pipeline.abort([None, pipeline.votes[1]])
    assert target.staged() == []
    assert target.visible() == []


# ---- several sinks, one decision ----


def test_several_sinks_have_one_decision_and_each_is_rolled_forward_until_all_have_the_epoch(
    both: Pipeline, table: Table, topic: Topic, tmp_path: Path
) -> None:
    both.log(0)
    both.prepare()
    both.run([1], [2])
    with crash_at(tmp_path, "commit.after_sink"):
        both.commit()
    decision = both.tail().decision
    assert decision is not None
    assert set(decision.sinks) == {"a", "b"}
    assert (table.visible(), topic.visible()) == ([(0, [1, 2])], [])
    replay = both.restart()
    replay.prepare()
    assert (table.visible(), topic.visible()) == ([(0, [1, 2])], [(0, [1, 2])])
    replay.run([1], [2])
    replay.commit()
    replay.log_commit()
    assert table.visible() == topic.visible() == [(0, [1, 2])]


# ---- what an attacker found ----


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


def test_invariant_10_two_sinks_of_a_query_on_one_line_are_refused_at_once(tmp_path: Path, table: Table) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": table.sink(), "a2": table.sink()})
    pipeline.log(0)
    with pytest.raises(OptionError, match="same target"):
        pipeline.prepare()
    assert (table.visible(), table.staged()) == ([], [])
