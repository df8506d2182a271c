"""A query that is killed again and again, each time at another step, and restarted until it has read everything.

Each run is the recovery of the one before and the victim of the next fault: a chain of n kills costs n + 1 starts of Spark. After
each kill the target must hold whole epochs only; at the end it must hold every row once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration_tests.crash.orders import ROWS_PER_FILE, compare, write_orders
from integration_tests.crash.program import QueryDescription
from integration_tests.crash.reader import polling
from integration_tests.crash.victim import TIMEOUT_S, run_to_the_end, victim
from twophase.failpoints import Fault, Hit, arm, trace


@dataclass(frozen=True)
class Kill:
    """Where the driver dies: at this hit of this failpoint, counted from the start of its run."""

    point: str
    hit: int = 2

    @property
    def epochs(self) -> int:
        """How many epochs the run may finish before it dies, at most."""
        return self.hit

    def __str__(self) -> str:
        return f"{self.point}#{self.hit}"


@dataclass(frozen=True)
class ChainResult:
    fired: tuple[Hit, ...]
    polls: int
    epochs: int


def run_chain(told: QueryDescription, kills: Sequence[Kill], folder: Path) -> ChainResult:
    """Kill the query at each of these steps, let it come to its end, and compare source and target row by row."""
    files = told.files_per_epoch * (sum(kill.epochs for kill in kills) + 2)
    expected = write_orders(Path(told.input), files)
    failpoints = folder / "failpoints"
    fired = []
    table = Path(told.table)
    with polling(table, told.files_per_epoch * ROWS_PER_FILE) as reader:
        for kill in kills:
            arm(failpoints, Fault(kill.point, "pause", kill.hit, timeout_s=300))
            with victim(told, folder, failpoints=failpoints) as driver:
                fired.append(driver.wait_for_hit(failpoints, kill.point, "pause", timeout_s=TIMEOUT_S))
            assert not reader.faults, f"after the kill at {kill}: {reader.faults[:3]}"
        arm(failpoints)
        result = run_to_the_end(told, folder, failpoints=failpoints)
        assert "error" not in result, result["error"]
        reader.look()
    assert not reader.faults, reader.faults[:3]
    difference = compare(expected, table)
    assert not difference, difference
    assert not residue_of(table), residue_of(table)
    assert [hit.point for hit in fired] == [kill.point for kill in kills]
    assert trace(failpoints), "the last run did not see the failpoints: were any of the others armed?"
    return ChainResult(tuple(fired), reader.polls, len(list(table.glob("epoch=*"))))


def residue_of(table: Path) -> list[str]:
    """What is staged beside a table, below its owners' folders."""
    staging = table.parent / f".{table.name}.twophase"
    return [str(path.relative_to(staging)) for path in staging.glob("*/*/*")]
