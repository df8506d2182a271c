"""Drivers that die: a query is killed again and again, each time at another step, and restarted until it has read everything.

Each run is the recovery of the one before and the victim of the next fault: a chain of n kills costs n + 1 starts of Spark. While
the driver stands still at a failpoint, and after it is dead, every row that is visible is held against the checkers; so is
everything that a polling reader sees in between. At the end the target must hold every row once, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from twophase.failpoints import Fault, Hit, arm, trace
from twophase.testing.crash.cell import Cell, Kill
from twophase.testing.crash.orders import compare, write_orders
from twophase.testing.crash.program import QueryDescription
from twophase.testing.crash.reader import PollingReader, checkpoint_at, polling, written_by_epoch
from twophase.testing.crash.victim import run_to_the_end, stand_at, victim

PAUSE_S = 300.0
EPOCHS_BEFORE_COMPACTION = 52
_EPOCHS_TO_SPARE = 4


@dataclass(frozen=True)
class Verdict:
    """What became of one cell."""

    cell: Cell
    fired: bool
    recovery_s: float | None = None
    """From the start of the driver after the kill to its first commit, Spark's own start included. None if it was killed before."""
    error: str | None = None

    @property
    def passed(self) -> bool:
        return self.fired and self.error is None


def takes(name: str, way: str) -> Callable[[int], bool]:
    """Which of the source's ids belong into the target of this name."""
    if way != "function":
        return lambda _: True
    return (lambda i: i % 2 == 0) if name == "table" else (lambda i: i % 2 == 1)


@contextmanager
def readers_of(told: QueryDescription, files: int) -> Iterator[list[PollingReader]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                polling(
                    target,
                    written_by_epoch(files, told.files_per_epoch, takes(target.name, told.way)),
                    told.checkpoint,
                )
            )
            for target in told.targets
        ]


def look(readers: Sequence[PollingReader], when: str) -> None:
    for reader in readers:
        reader.look()
        assert not reader.faults, f"{when}: {reader.faults[:3]}"


def finish(told: QueryDescription, expected: Sequence[int], *, failpoints: Path | None = None) -> None:
    """Let the query come to its end, and compare source and target row by row."""
    result = run_to_the_end(told, failpoints=failpoints)
    assert "error" not in result, result["error"]
    check_rows(told, expected)


def check_rows(told: QueryDescription, expected: Sequence[int], *, residue: bool = True) -> None:
    """Source and target row by row; with `residue`, nothing else may be left in the target either."""
    for target in told.targets:
        wanted = takes(target.name, told.way)
        difference = compare([number for number in expected if wanted(number)], target.read())
        assert not difference, f"{target.name}: {difference}"
        left = list(target.residue()) if residue else []
        assert left == [], f"{target.name}: left behind: {left}"


def run_chain(told: QueryDescription, cells: Sequence[Cell]) -> list[Verdict]:
    """Kill the query at every step that these cells name; stops at the first that fails, whose verdict is the last."""
    links = links_of(cells)
    epochs = len(links) + len(links) // 2 + _EPOCHS_TO_SPARE
    if cells[0].course == "long":
        told, epochs = replace(told, files_per_epoch=1), epochs + EPOCHS_BEFORE_COMPACTION
    files = told.files_per_epoch * epochs
    expected = write_orders(told.input, files)
    failpoints, verdicts = Path(told.folder) / "failpoints", list[Verdict]()
    fired = False
    cell = cells[0]
    try:
        with readers_of(told, files) as readers:
            for cell, kill in links:
                fired = False
                began = time.time()
                arm(failpoints, Fault(kill.point, "pause", kill.hit, timeout_s=PAUSE_S))
                with victim(told, failpoints=failpoints) as driver:
                    stand_at(driver, told, failpoints, kill)
                    fired = True
                    _recovered(verdicts, failpoints, began)
                    look(readers, f"at {kill}")
                look(readers, f"after the kill at {kill}")
                if kill is cell.kills[-1]:
                    verdicts.append(Verdict(cell, fired))
            began = time.time()
            arm(failpoints)
            finish(told, expected, failpoints=failpoints)
            _recovered(verdicts, failpoints, began)
            look(readers, "at the end")
    except AssertionError as error:
        return failed(verdicts, cells, cell, fired, str(error))
    return verdicts


def failed(verdicts: Sequence[Verdict], cells: Sequence[Cell], cell: Cell, fired: bool, error: str) -> list[Verdict]:
    """The verdicts when something was wrong at this cell. At the end of all it may be any one's doing: then none has passed."""
    if len(verdicts) == len(cells):
        alone = "" if len(cells) == 1 else " (found at the end of a chain: run each of its cells alone)"
        return [replace(verdict, error=f"{error}{alone}") for verdict in verdicts]
    return [*(verdict for verdict in verdicts if verdict.cell != cell), Verdict(cell, fired, error=error)]


def links_of(cells: Sequence[Cell]) -> list[tuple[Cell, Kill]]:
    """The kills of these cells in a row. Those that begin alike share their beginning: it is not undone in between."""
    links: list[tuple[Cell, Kill]] = []
    before: tuple[Kill, ...] = ()
    for cell in cells:
        *beginning, last = cell.kills
        if tuple(beginning) != before:
            links += [(cell, kill) for kill in beginning]
        links.append((cell, last))
        before = tuple(beginning)
    return links


def _recovered(verdicts: list[Verdict], failpoints: Path, began: float) -> None:
    """Fill in how long it took from the last kill to the first commit after it, if there was one."""
    commits = [hit.time for hit in trace(failpoints) if hit.point == "commit.done"]
    if verdicts and commits and verdicts[-1].recovery_s is None:
        verdicts[-1] = replace(verdicts[-1], recovery_s=commits[0] - began)


def run_poisoned(told: QueryDescription, cell: Cell) -> Verdict:
    """A task fails, Spark aborts the epoch, and the driver dies meanwhile; then the row can be read again."""
    poison = Path(told.folder) / "poison"
    poison.touch()
    told = replace(told, poison=str(poison))
    expected = write_orders(told.input, 3 * told.files_per_epoch)
    return _killed_once(told, cell, expected, poison.unlink)


def run_take_over(told: QueryDescription, cell: Cell) -> Verdict:
    """Another query takes the target over, and dies meanwhile."""
    first = write_orders(told.input, 2 * told.files_per_epoch)
    finish(told, first)
    owner = checkpoint_at(told.checkpoint).query_id() + "/sink"
    heir = replace(told, input_name="more", checkpoint_name="other", options={"takeOver": owner})
    second = write_orders(heir.input, 2 * told.files_per_epoch, first=2 * told.files_per_epoch)
    return _killed_once(heir, cell, first + second, lambda: None)


def _killed_once(told: QueryDescription, cell: Cell, expected: Sequence[int], between: Callable[[], None]) -> Verdict:
    failpoints, [kill] = Path(told.folder) / "failpoints", cell.kills
    fired: list[Hit] = []
    try:
        arm(failpoints, Fault(kill.point, "pause", kill.hit, timeout_s=PAUSE_S))
        with victim(told, failpoints=failpoints) as driver:
            fired.append(stand_at(driver, told, failpoints, kill))
        between()
        began = time.time()
        arm(failpoints)
        finish(told, expected, failpoints=failpoints)
    except AssertionError as error:
        return Verdict(cell, bool(fired), error=str(error))
    verdicts = [Verdict(cell, True)]
    _recovered(verdicts, failpoints, began)
    return verdicts[0]
