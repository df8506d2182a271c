"""Invariant 1. Decided before visible. No row of epoch N is visible before N is decided. After recovery every row of
it is visible, once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline import Pipeline, Table, Target, Topic, crash_at
from twophase import failpoints


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
