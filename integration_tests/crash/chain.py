"""A query that is killed again and again, each time at another step, and restarted until it has read everything.

Each run is the recovery of the one before and the victim of the next fault: a chain of n kills costs n + 1 starts of Spark. After
each kill the target must hold whole epochs only; at the end it must hold every row once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from integration_tests.crash.orders import ROWS_PER_FILE, compare, write_orders
from integration_tests.crash.program import QueryDescription
from integration_tests.crash.reader import polling
from integration_tests.crash.victim import TIMEOUT_S, run_to_the_end, victim
from twophase.failpoints import Fault, Hit, arm


@dataclass(frozen=True)
class Kill:
    """Where the driver dies: at this hit of this failpoint, counted from the start of its run."""

    point: str
    hit: int = 2

    def __str__(self) -> str:
        return f"{self.point}#{self.hit}"


@dataclass(frozen=True)
class Target:
    """A table, and which of the source's ids belong into it."""

    table: Path
    takes: Callable[[int], bool] = lambda _: True
    share: float = 1.0
    """The part of an epoch's rows that it takes."""


@dataclass(frozen=True)
class ChainResult:
    fired: tuple[Hit, ...]
    polls: int


def targets_of(told: QueryDescription) -> list[Target]:
    if told.way != "function":
        return [Target(Path(told.table))]
    assert told.second is not None
    return [
        Target(Path(told.table), lambda i: i % 2 == 0, share=0.5),
        Target(Path(told.second), lambda i: i % 2 == 1, share=0.5),
    ]


def run_chain(told: QueryDescription, kills: Sequence[Kill], folder: Path) -> ChainResult:
    """Kill the query at each of these steps, let it come to its end, and compare source and target row by row."""
    # A run finishes an epoch before it dies; two, where the one before was killed when its epoch could be rolled forward already,
    # because that epoch's replay passes by the points of tasks and decisions. A few are left for the last run.
    expected = write_orders(Path(told.input), told.files_per_epoch * (len(kills) + len(kills) // 2 + 3))
    failpoints, targets = folder / "failpoints", targets_of(told)
    ids_per_epoch = told.files_per_epoch * ROWS_PER_FILE
    fired = []
    with ExitStack() as stack:
        readers = [
            stack.enter_context(polling(target.table, ids_per_epoch, int(target.share * ids_per_epoch)))
            for target in targets
        ]
        for kill in kills:
            arm(failpoints, Fault(kill.point, "pause", kill.hit, timeout_s=300))
            with victim(told, folder, failpoints=failpoints) as driver:
                fired.append(driver.wait_for_hit(failpoints, kill.point, "pause", timeout_s=TIMEOUT_S))
            for reader in readers:
                assert not reader.faults, f"after the kill at {kill}: {reader.faults[:3]}"
        arm(failpoints)
        result = run_to_the_end(told, folder, failpoints=failpoints)
        assert "error" not in result, result["error"]
        for reader in readers:
            reader.look()
    for target, reader in zip(targets, readers, strict=True):
        assert not reader.faults, reader.faults[:3]
        difference = compare([i for i in expected if target.takes(i)], target.table)
        assert not difference, difference
        assert residue_of(target.table) == []
    assert [(hit.point, hit.hit) for hit in fired] == [(kill.point, kill.hit) for kill in kills]
    return ChainResult(tuple(fired), min(reader.polls for reader in readers))


def residue_of(table: Path) -> list[str]:
    """What is staged beside a table, below its owners' folders."""
    staging = table.parent / f".{table.name}.twophase"
    return [str(path.relative_to(staging)) for path in staging.glob("*/*/*")]
