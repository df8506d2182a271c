"""Invariant 9. No residue. After recovery nothing is left that older generations staged and that no open decision
names. Sweeps go by attempt and never by epoch, and touch only generations that are older than the sweeper's own.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.pipeline import Pipeline, Table, Target, Topic, crash_at, decided
from twophase import failpoints
from twophase.errors import Fenced, OutcomeUnknown, TwophaseError
from twophase.failpoints import Fault


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
