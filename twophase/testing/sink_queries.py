"""What a sink promises within a query: crashes at every step, recovery, revisions, replays, zombies and other owners."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from twophase.errors import CheckpointMismatch, NotCommitted, TwophaseError
from twophase.identity import Owner
from twophase.testing.query_steps import SINK, QuerySteps, dies_at
from twophase.testing.sink_capabilities import only_if
from twophase.testing.sink_steps import SinkSteps

DRIVER_POINTS = (
    "prepare.before_publish",
    "prepare.published",
    "sweep.listed",
    "prepare.fenced",
    "prepare.markers_read",
    "prepare.swept",
    "prepare.rolled_forward",
    "prepare.planned",
    "decide.before_alive",
    "decide.before_publish",
    "decide.published",
    "commit.before_sink",
    "commit.after_sink",
    "commit.done",
)
"""Where the driver of any epoch comes by."""
RECOVERY_POINTS = ("prepare.published", "sweep.listed", "prepare.swept", "commit.before_sink", "commit.after_sink")
"""Where a driver comes by that finds a decision which is not visible."""
SWEEP_POINTS = ("prepare.published", "sweep.listed", "sweep.before_abort", "prepare.swept")
"""Where a driver comes by that finds something staged and not decided."""
TASK_POINTS = ("task.before_begin", "task.begun", "task.written", "task.before_pre_commit", "task.pre_committed")
SEEDS = range(8)
STRANGER = 99_999


class SinkQueries:
    # ---- the ordinary way ----

    def test_each_epoch_is_visible_once_after_its_commit_and_not_before(self, query: QuerySteps) -> None:
        """Four epochs with different numbers of slots; a reader looks between the steps."""
        query.epoch(0, [1, 2], [3])
        query.epoch(1, [4])
        query.epoch(2, [5], [6], [7, 8])
        query.epoch(3, [9], [10])
        assert query.findings() == []
        assert query.residue() == []

    def test_epochs_and_tasks_without_rows_and_epochs_without_tasks_are_ordinary(self, query: QuerySteps) -> None:
        """No tasks at all, tasks without rows, first, last and in between."""
        query.epoch(0)
        query.epoch(1, [], [])
        query.epoch(2, [1], [])
        query.epoch(3)
        query.epoch(4, [2])
        assert query.findings() == []
        assert query.residue() == []

    # ---- crashes ----

    @pytest.mark.parametrize("point", DRIVER_POINTS)
    def test_a_driver_that_dies_anywhere_loses_and_repeats_nothing(
        self, query: QuerySteps, tmp_path: Path, point: str
    ) -> None:
        """Killed in epoch 1 at one step of the protocol; the next driver replays it and goes on."""
        query.epoch(0, [0])
        query.log(1)
        with dies_at(tmp_path, point):
            query.finish([1, 2], [3])
        self._finishes(query, [1, 2], [3])

    def test_a_driver_that_dies_within_the_sinks_own_commit_loses_and_repeats_nothing(
        self, query: QuerySteps, tmp_path: Path
    ) -> None:
        """The same at every failpoint that the target names, an epoch for each."""
        query.epoch(0, [0])
        for number, point in enumerate(query.target.failpoints, start=1):
            query.log(number)
            with dies_at(tmp_path, point):
                query.finish([10 * number], [10 * number + 1])
            query = query.restart()
            query.finish([10 * number], [10 * number + 1])
        assert query.findings() == []
        assert query.residue() == []

    @pytest.mark.parametrize("point", RECOVERY_POINTS)
    def test_a_driver_that_dies_in_recovery_is_recovered_from(
        self, query: QuerySteps, tmp_path: Path, point: str
    ) -> None:
        """Epoch 1 is decided and not visible, and a losing attempt is staged; the driver that recovers dies too."""
        query.epoch(0, [0])
        query.log(1)
        query.decided(tmp_path, [1, 2], [3])
        query.killed_task(1, [99], "pre-committed")
        query.look()
        with dies_at(tmp_path, point):
            query.restart().finish([1, 2], [3])
        self._finishes(query, [1, 2], [3])

    @pytest.mark.parametrize("point", SWEEP_POINTS)
    def test_a_driver_that_dies_while_it_sweeps_is_recovered_from(
        self, query: QuerySteps, tmp_path: Path, point: str
    ) -> None:
        """Tasks of epoch 1 have voted, nothing is decided, and the driver that sweeps what they staged dies too."""
        query.epoch(0, [0])
        query.log(1)
        query.prepare()
        query.run([1, 2], [3])
        with dies_at(tmp_path, point):
            query.restart().finish([1, 2], [3])
        self._finishes(query, [1, 2], [3])

    @pytest.mark.parametrize("point", TASK_POINTS)
    def test_a_task_that_fails_anywhere_is_run_again(self, query: QuerySteps, tmp_path: Path, point: str) -> None:
        """The second of two tasks fails at one of its steps and drops its share; Spark runs it again in the same epoch."""
        query.log(0)
        query.prepare()
        with dies_at(tmp_path, point, hit=2):
            query.run([1], [2])
        first, second = query.task(0, query.target.batch([1])), query.task(1, query.target.batch([2]))
        query.commit([first, second])
        query.log_commit()
        query.restart().epoch(1, [3])
        assert query.findings() == []
        assert query.residue() == []

    @pytest.mark.parametrize("when", ["begun", "written", "pre-committed"])
    def test_what_a_killed_task_left_is_gone_after_recovery(self, query: QuerySteps, when: str) -> None:
        """An executor is killed with a task at work; the driver dies too. The next one sweeps what both left."""
        query.log(0)
        query.prepare()
        query.task(0, query.target.batch([1]))
        query.killed_task(1, [2], when)
        query = query.restart()
        query.finish([1], [2])
        assert query.findings() == []
        assert query.residue() == []

    @pytest.mark.parametrize("when", ["begun", "written", "pre-committed"])
    def test_what_a_losing_attempt_left_is_gone_after_the_next_epoch(self, query: QuerySteps, when: str) -> None:
        """Speculative execution: a second attempt at a slot is killed, and the epoch commits without it."""
        query.log(0)
        query.prepare()
        query.killed_task(0, [99], when)
        query.run([1], [2])
        query.commit()
        query.log_commit()
        query.restart().epoch(1, [3])
        assert query.findings() == []
        assert query.residue() == []

    @pytest.mark.parametrize("seed", SEEDS)
    def test_a_run_with_crashes_anywhere_is_right_at_every_moment(
        self, query: QuerySteps, tmp_path: Path, seed: int
    ) -> None:
        """Six epochs; up to three drivers in a row die at random steps, killed tasks and zombies between them."""
        chance = random.Random(seed)
        values = iter(range(STRANGER))
        points = [*DRIVER_POINTS, "sweep.before_abort", *TASK_POINTS, *query.target.failpoints]
        for number in range(6):
            rows = [[next(values) for _ in range(chance.randrange(3))] for _ in range(chance.randrange(1, 4))]
            query.log(number)
            for _ in range(chance.randrange(4)):
                zombie = query
                with dies_at(tmp_path, chance.choice(points), chance.randrange(1, 3), must_fire=False):
                    self._until_committed(query, rows, chance)
                query = query.restart()
                query.look()
                if chance.random() < 0.3:
                    self._haunt(zombie)
                    query.look()
            query.finish(*rows)
        query.restart().epoch(6, [next(values)])
        assert query.findings() == []
        assert query.residue() == []

    def test_recover_finishes_what_a_dead_query_decided(self, query: QuerySteps, tmp_path: Path) -> None:
        """`twophase recover` on a query that is not running: the decided epoch becomes visible, the rest is swept."""
        query.epoch(0, [1])
        query.log(1)
        query.decided(tmp_path, [2], [3])
        query.killed_task(0, [99], "pre-committed")
        query.restart().recover()
        query.observed.committed = 1
        assert query.findings() == []
        query.restart().finish([2], [3])
        query.restart().epoch(2, [4])
        assert query.findings() == []
        assert query.residue() == []

    def test_a_failed_epoch_leaves_nothing_and_can_be_run_again(self, query: QuerySteps) -> None:
        """Spark aborts, twice; then the epoch is run again."""
        query.epoch(0, [1])
        query.log(1)
        query.prepare()
        query.run([2], [3])
        query.abort()
        query.abort()
        assert query.residue() == []
        query = query.restart()
        query.finish([2], [3])
        assert query.findings() == []
        assert query.residue() == []

    def test_an_abort_after_the_commit_changes_nothing(self, query: QuerySteps) -> None:
        """Spark aborts an epoch whose commit it believes to have failed."""
        query.log(0)
        query.prepare()
        query.run([1], [2])
        query.commit()
        query.abort()
        query.commit()
        assert query.findings() == []
        assert query.residue() == []

    # ---- replays ----

    def test_an_epoch_that_spark_did_not_log_as_committed_is_replayed_without_effect(self, query: QuerySteps) -> None:
        """commits/N is missing: the replay, also one with another number of tasks, writes nothing."""
        query.epoch(0, [1, 2], [3])
        query.epoch(1, [4, 5], [6])
        for _ in range(2):
            query.forget_commit()
            query = query.restart()
            query.finish([4, 5], [6])
        if query.target.sink().capabilities.atomic:
            query.forget_commit()
            query = query.restart()
            query.prepare()
            query.commit([query.task(0, query.target.batch([4, 5, 6]))])
            query.log_commit()
        query.restart().epoch(2, [7])
        assert query.findings() == []
        assert query.residue() == []

    @pytest.mark.parametrize("slot", [0, 1, 2])
    def test_a_share_that_is_lost_after_the_decision_is_written_again(
        self, query: QuerySteps, tmp_path: Path, slot: int
    ) -> None:
        """Decided, and then the target loses a share: the commit says so, and the replay revises the decision."""
        query.epoch(0, [1])
        query.log(1)
        query.decided(tmp_path, [2], [3, 4], [5])
        query.lose(slot)
        with pytest.raises(NotCommitted):
            query.commit()
        query.look()
        query = query.restart()
        query.finish([2], [3, 4], [5])
        query.restart().epoch(2, [6])
        assert query.findings() == []
        assert query.residue() == []

    def test_a_share_that_is_lost_before_the_decision_is_not_decided(self, query: QuerySteps) -> None:
        """The target loses a share between its vote and the decision: nothing is decided, and the epoch is run again."""
        query.log(0)
        query.prepare()
        query.run([1], [2])
        sink = query.target.sink()
        sink.abort(query.owner, list(sink.leftovers(query.owner)))
        with pytest.raises(NotCommitted):
            query.commit()
        tail = query.tail()
        assert tail is not None
        assert tail.decision is None
        query = query.restart()
        query.finish([1], [2])
        assert query.findings() == []
        assert query.residue() == []

    # ---- zombies ----

    def test_a_driver_that_was_overtaken_changes_nothing(self, query: QuerySteps) -> None:
        """Two drivers of one query: the first wakes up when the second is done, and runs its tasks, commit and abort."""
        query.epoch(0, [1])
        query.log(1)
        query.prepare()
        query.run([2], [3])
        second = query.restart()
        second.finish([2], [3])
        self._haunt(query)
        assert sorted(query.target.values()) == [1, 2, 3]
        second.restart().epoch(2, [4])
        self._haunt(query)
        assert sorted(query.target.values()) == [1, 2, 3, 4]
        third = second.restart()
        third.epoch(3, [5])
        assert third.findings() == []
        assert third.residue() == []

    def test_a_driver_that_decided_and_was_overtaken_can_still_be_slow(self, query: QuerySteps, tmp_path: Path) -> None:
        """A driver stops after its decision, another carries it out, and the first goes on with its commit."""
        query.log(0)
        query.decided(tmp_path, [1], [2])
        second = query.restart()
        second.finish([1], [2])
        with suppress(TwophaseError):
            query.commit()
        second.restart().epoch(1, [3])
        with suppress(TwophaseError):
            query.commit()
        assert second.findings() == []
        assert second.residue() == []

    # ---- other queries ----

    def test_two_queries_write_side_by_side(self, query: QuerySteps, tmp_path: Path) -> None:
        """Where several owners may: both crash, recover and go on; neither sweeps or counts what is the other's."""
        only_if(SinkSteps(query.target), several_owners=True)
        other = QuerySteps(tmp_path / "other", query.target, "another query")
        query.epoch(0, [1])
        other.log(0)
        other.prepare()
        other.run([101], [102])
        query.log(1)
        query.decided(tmp_path, [2], [3])
        query = query.restart()
        query.finish([2], [3])
        other.commit()
        other.log_commit()
        query.restart().epoch(2, [4])
        other.restart().epoch(1, [103])
        assert sorted(query.target.values()) == [1, 2, 3, 4, 101, 102, 103]
        assert query.residue() == []

    def test_another_query_is_refused_until_it_names_whom_it_replaces(self, query: QuerySteps, tmp_path: Path) -> None:
        """Where one owner has the line: a second query is refused, takes over by name, and the first is refused then."""
        only_if(SinkSteps(query.target), several_owners=False)
        query.epoch(0, [1])
        query.log(1)
        query.prepare()
        query.run([2])
        other = QuerySteps(tmp_path / "other", query.target, "another query")
        other.log(0)
        with pytest.raises(CheckpointMismatch):
            other.prepare()
        assert query.target.values() == [1]
        other = other.restart(take_over={SINK: str(Owner("query", SINK))})
        other.finish([101], [102])
        with pytest.raises(TwophaseError):
            query.commit()
        with pytest.raises(CheckpointMismatch):
            query.restart().prepare()
        other.restart().epoch(1, [103])
        assert sorted(query.target.values()) == [1, 101, 102, 103]
        assert query.residue() == []

    def test_a_target_is_taken_back_without_a_gap(self, query: QuerySteps, tmp_path: Path) -> None:
        """Where one owner has the line: the first query decided an epoch, lost the line, and takes it back."""
        only_if(SinkSteps(query.target), several_owners=False)
        query.epoch(0, [1])
        query.log(1)
        query.decided(tmp_path, [2], [3])
        other = QuerySteps(tmp_path / "other", query.target, "another query", {SINK: str(query.owner)})
        other.epoch(0, [101])
        query = query.restart(take_over={SINK: str(other.owner)})
        query.finish([2], [3])
        query.restart().epoch(2, [4])
        assert sorted(query.target.values()) == [1, 2, 3, 4, 101]
        assert query.residue() == []

    @pytest.mark.parametrize("point", ["take_over.before", "take_over.after", "prepare.planned", "decide.published"])
    def test_a_take_back_that_crashes_is_finished(self, query: QuerySteps, tmp_path: Path, point: str) -> None:
        """The same, and the driver that takes the line back dies: what it had decided before is void, and written again."""
        only_if(SinkSteps(query.target), several_owners=False)
        query.epoch(0, [1])
        query.log(1)
        query.decided(tmp_path, [2], [3])
        other = QuerySteps(tmp_path / "other", query.target, "another query", {SINK: str(query.owner)})
        other.epoch(0, [101])
        query = query.restart(take_over={SINK: str(other.owner)})
        with dies_at(tmp_path, point):
            query.finish([2], [3])
        query = query.restart()
        query.finish([2], [3])
        assert sorted(query.target.values()) == [1, 2, 3, 101]
        query.restart().epoch(2, [4])
        assert sorted(query.target.values()) == [1, 2, 3, 4, 101]
        assert query.residue() == []

    # ---- parts of tests ----

    def _finishes(self, query: QuerySteps, *slots: list[int]) -> None:
        """The next driver replays epoch 1 and goes on with epoch 2; then all reads were right, and nothing is left."""
        query.look()
        query = query.restart()
        query.finish(*slots)
        query.restart().epoch(2, [1000], [1001])
        assert query.findings() == []
        assert query.residue() == []

    def _until_committed(self, query: QuerySteps, rows: list[list[int]], chance: random.Random) -> None:
        """The steps of an epoch; some have a task that is killed. Spark has no time to log the commit."""
        plan = query.prepare().sinks[SINK].plan
        if plan is not None and chance.random() < 0.5:
            query.killed_task(0, [STRANGER], chance.choice(["begun", "written", "pre-committed"]))
        query.run(*rows)
        query.look()
        query.commit()
        query.look()

    def _haunt(self, zombie: QuerySteps) -> None:
        """Everything that the driver and the tasks of an old run may still do; what they may not is refused."""
        if not zombie.votes:
            return
        with suppress(TwophaseError):
            zombie.task(0, zombie.target.batch([STRANGER]))
        for step in (zombie.commit, zombie.abort):
            with suppress(TwophaseError):
                step()
