"""Invariant 3. A decision stands. A published decision is never undone, not even by the abort that Spark sends after a
failed commit. It can only be revised (invariant 6).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline import Pipeline, Table, Target, Topic, crash_at, decided


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
