"""Invariant 4. Once. Commit can be repeated any number of times by any process; after the first success it changes
nothing. A marker moves by compare-and-set from the place that the decision names, and is never simply set.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline import Pipeline, Table, Target
from twophase.errors import Fenced
from twophase.identity import Owner
from twophase.sink import WHOLE, Outcome
from twophase.sinks.heap import HeapHandle


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
