"""The cells of a target: every failpoint × every way to write × every victim, as far as it can be hit there.

The lists below are of the protocol, and hold for every sink. What is a sink's own are its failpoints, and its servers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twophase.testing.crash.cell import Cell, Course, Kill
from twophase.testing.crash.target import CrashTarget

PREPARE = (
    "prepare.before_publish",
    "prepare.published",
    "prepare.fenced",
    "prepare.markers_read",
    "sweep.listed",
    "prepare.swept",
    "prepare.rolled_forward",
    "prepare.planned",
)
DECIDE = ("decide.before_alive", "decide.before_publish", "decide.published")
TASK = ("task.before_begin", "task.begun", "task.written", "task.before_pre_commit", "task.pre_committed")
ABORT = ("task.aborted", "abort.before_publish", "abort.published", "abort.swept")
COMPACTION = ("ledger.before_compaction", "ledger.compacting")
TAKE_OVER = ("take_over.before", "take_over.after")

UNDECIDED = Kill("task.pre_committed", 3)
"""Leaves shares of an epoch that nobody has decided."""
DECIDED = Kill("decide.published", 2)
"""Leaves a decision that no sink knows of."""
VISIBLE = Kill("commit.after_sink", 2)
"""Leaves an epoch that is visible, and that Spark has not logged."""


def cells(target: type[CrashTarget], servers: Sequence[str] = ()) -> list[Cell]:
    return list(_cells(target, servers))


def _cells(target: type[CrashTarget], servers: Sequence[str]) -> Iterator[Cell]:
    first: Course = "sink" if target.format is None else "format"
    for kill in in_an_epoch(target):
        yield Cell(target.title, first, "driver", (kill,))
    for state, points in in_recovery(target).items():
        for point in points:
            yield Cell(target.title, first, "driver", (state, Kill(point, 1)))
    for kill in with_two_sinks(target):
        yield Cell(target.title, "function", "driver", (kill,))
    if target.format is not None:
        for kill in by_the_other_way():
            yield Cell(target.title, "sink", "driver", (kill,))
        yield from _of_the_format(target)
    for point in (*TASK, *target.task_points):
        yield Cell(target.title, first, "executor", (Kill(point, 1),))
    for kill in as_a_zombie(target):
        yield Cell(target.title, first, "zombie", (kill,))
    for server in servers:
        for kill in in_an_epoch(target):
            yield Cell(target.title, first, f"server:{server}", (kill,))


def _of_the_format(target: type[CrashTarget]) -> Iterator[Cell]:
    for point in ABORT:
        yield Cell(target.title, "poison", "driver", (Kill(point, 1),))
    for point in COMPACTION:
        yield Cell(target.title, "long", "driver", (Kill(point, 1),))
    if target.one_owner:
        for point in (TAKE_OVER[0], *target.points, TAKE_OVER[1]):
            yield Cell(target.title, "take-over", "driver", (Kill(point, 1),))


def _commit(target: type[CrashTarget]) -> tuple[str, ...]:
    return ("commit.before_sink", *target.points, "commit.after_sink", "commit.done")


def in_an_epoch(target: type[CrashTarget]) -> list[Kill]:
    """A run's first epoch is the one that the run before was killed in: so hit 1 is in a recovery, and hit 2 after it.
    Points of a task are hit once a task, and there are two."""
    driver = [Kill(point, 2) for point in (*PREPARE, *DECIDE, *_commit(target))]
    return [*driver, *(Kill(point, 3) for point in (*TASK, *target.task_points))]


def by_the_other_way() -> list[Kill]:
    """`exactly_once` differs from a format in who prepares, runs tasks and brings in the votes: it is killed at these seams."""
    driver = ("prepare.planned", "decide.before_alive", "decide.published", "commit.after_sink", "commit.done")
    return [*(Kill(point, 2) for point in driver), Kill("task.written", 3), Kill("task.pre_committed", 3)]


def in_recovery(target: type[CrashTarget]) -> dict[Kill, tuple[str, ...]]:
    """For each state that a driver can leave: where its successor dies. All but the last leave that state as it was."""
    return {
        UNDECIDED: ("prepare.published", "sweep.listed", "sweep.before_abort", "prepare.swept"),
        DECIDED: ("prepare.published", "prepare.swept", "commit.before_sink", *target.points),
        VISIBLE: ("prepare.published", "prepare.rolled_forward", "prepare.planned"),
    }


def with_two_sinks(target: type[CrashTarget]) -> list[Kill]:
    """Each point of a sink is hit twice an epoch, and each point of a task four times."""
    by_sink = [Kill(point, hit) for point in _commit(target)[:-1] for hit in (3, 4)]
    decided = [Kill("decide.before_publish", 2), Kill("decide.published", 2)]
    return [Kill("task.pre_committed", 5), Kill("task.pre_committed", 8), *decided, *by_sink, Kill("commit.done", 2)]


def as_a_zombie(target: type[CrashTarget]) -> list[Kill]:
    """Asleep before and after each thing that a successor may do in its place."""
    points = ("prepare.planned", "decide.before_publish", "decide.published", *target.points[:1], "commit.done")
    return [Kill(point, 2) for point in points]
