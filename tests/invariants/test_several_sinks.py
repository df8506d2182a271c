"""Several sinks of a query have one decision: after recovery an epoch is in all of them or in none."""

from __future__ import annotations

from pathlib import Path

from tests.pipeline import Pipeline, Table, Topic, crash_at


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
