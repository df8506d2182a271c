"""Runs cells: those that can share a query in one chain, every other one on its own."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from twophase.testing.crash.cell import Cell, Kill
from twophase.testing.crash.chain import Verdict, run_chain, run_poisoned, run_take_over
from twophase.testing.crash.company import run_executors, run_server, run_zombie
from twophase.testing.crash.matrix import ABORT, COMPACTION
from twophase.testing.crash.program import QueryDescription
from twophase.testing.crash.target import CrashTarget, Surroundings, path_of

LONGEST_CHAIN = 8
"""Kills in a row. A longer chain saves little more, and one that fails says less."""


def run_cells(
    target: type[CrashTarget], cells: Sequence[Cell], surroundings: Surroundings, *, keep: bool = False
) -> Iterator[Verdict]:
    """The verdict of every cell. What a failed cell has left on disk stays there, and its verdict says where."""
    for together in groups(cells):
        todo = list(together)
        while todo:
            folder = Path(tempfile.mkdtemp(prefix="twophase-crash-"))
            told = QueryDescription(path_of(target), str(folder), settings=surroundings.settings)
            try:
                verdicts = _run(told, todo, surroundings)
            except Exception as error:  # noqa: BLE001 - whatever it is, the cell did not pass, and the others are run
                verdicts = [Verdict(todo[0], fired=False, error=f"the harness failed: {error!r}")]
            failed = any(not verdict.passed for verdict in verdicts)
            if failed:
                verdicts[-1] = _with_place(verdicts[-1], folder)
            elif not keep:
                shutil.rmtree(folder, ignore_errors=True)
            yield from verdicts
            done = {verdict.cell for verdict in verdicts}
            todo = [cell for cell in todo if cell not in done]


def groups(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Cells that one query can be the victim of."""
    for (course, victim), alike in groupby(cells, key=lambda cell: (cell.course, cell.victim)):
        members = list(alike)
        if victim == "executor":
            yield members
        elif victim != "driver" or course in ("poison", "take-over"):
            yield from ([cell] for cell in members)
        else:
            yield from _chains(members)


def _chains(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """Cut where a chain is long enough, and where another state begins."""

    def beginning(cell: Cell) -> tuple[Kill, ...]:
        return cell.kills[:-1]

    for _, alike in groupby(cells, key=beginning):
        members = list(alike)
        for first in range(0, len(members), LONGEST_CHAIN):
            yield members[first : first + LONGEST_CHAIN]


def _run(told: QueryDescription, cells: Sequence[Cell], surroundings: Surroundings) -> list[Verdict]:
    first = cells[0]
    if first.course in ("sink", "function"):
        told = replace(told, way=first.course)
    _require_sense(cells)
    kind, _, name = first.victim.partition(":")
    match kind, first.course:
        case "executor", _:
            return run_executors(told, cells)
        case "zombie", _:
            return [run_zombie(told, first)]
        case "server", _:
            if name not in surroundings.servers:
                raise ValueError(f"the target has no server {name!r}, but {', '.join(surroundings.servers) or 'none'}")
            return [run_server(told, first, surroundings.servers[name])]
        case "driver", "poison":
            return [run_poisoned(told, first)]
        case "driver", "take-over":
            return [run_take_over(told, first)]
        case "driver", _:
            return run_chain(told, cells)
    raise AssertionError(f"nobody knows how to kill {first.victim!r}")


def _require_sense(cells: Sequence[Cell]) -> None:
    """Elsewhere than at these points the query would die before the course has shown anything of its own."""
    own = {"poison": ABORT, "long": COMPACTION}
    for cell in cells:
        if cell.course in own and cell.kills[-1].point not in own[cell.course]:
            raise ValueError(f"{cell}: the course {cell.course} is for the points {', '.join(own[cell.course])}")


def _with_place(verdict: Verdict, folder: Path) -> Verdict:
    return replace(verdict, error=f"{verdict.error}\n(all files are in {folder})")
