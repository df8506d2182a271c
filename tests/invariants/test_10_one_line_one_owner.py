"""Invariant 10. One line, one owner. A target that is one line of epochs has one owner at a time. Another owner is
refused unless it names the owner that it replaces; it then begins with an empty epoch of its own in the line,
published as exclusively as any other.
"""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from tests.pipeline import Lost, Pipeline, Table, Topic, crash_at, decided, refused
from twophase import failpoints
from twophase.errors import CheckpointMismatch, Fenced, OptionError, SchemaMismatch, TwophaseError
from twophase.failpoints import Fault
from twophase.identity import Owner
from twophase.sinks import heap
from twophase.sinks.heap import HeapSink


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


def test_invariant_10_a_take_over_by_rows_that_do_not_fit_is_refused_before_anything_is_published(
    first: Pipeline, second: Pipeline, table: Table
) -> None:
    class Picky(HeapSink):
        def require_fit(self, schema: pa.Schema | None, *, overwrite: bool) -> None:
            raise SchemaMismatch("the rows do not fit")

    first.epoch(0, [1])
    second.log(0)
    picky = taking_over(second, first).restart(sinks={"a": Picky(table)})
    with pytest.raises(SchemaMismatch, match="do not fit"):
        picky.prepare()
    assert second.ledger().read() is None
    assert table.line() == [("first", 0, 0)]
    assert picky.coordinator().recover() is not None, "recovery takes nothing over, and writes no rows"
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


def test_invariant_10_two_sinks_of_a_query_on_one_line_are_refused_at_once(tmp_path: Path, table: Table) -> None:
    pipeline = Pipeline(tmp_path / "checkpoint", {"a": table.sink(), "a2": table.sink()})
    pipeline.log(0)
    with pytest.raises(OptionError, match="same target"):
        pipeline.prepare()
    assert (table.visible(), table.staged()) == ([], [])
