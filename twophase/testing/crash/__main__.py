"""Kill real queries at every step of the protocol: ``python -m twophase.testing.crash module:Class [module:Class …]``."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from twophase.testing.crash.cell import Cell
from twophase.testing.crash.matrix import cells
from twophase.testing.crash.report import Findings, as_json, from_json, line_of, merged, page, versions, write
from twophase.testing.crash.run import run_cells
from twophase.testing.crash.target import CrashTarget, load


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    told = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the query is ended too, asleep or not
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` has it, and an installed command has not
    try:
        targets = [load(path) for path in told.targets]
        if told.cell:
            Cell.parse(told.cell)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        parser.error(str(error))
    findings: list[Findings] = []
    before = _read(told.json)
    chosen = 0
    for target in targets:
        with target.surroundings() as surroundings:
            every = cells(target, sorted(surroundings.servers))
            wanted = _wanted(told, target, every)
            chosen += len(wanted)
            if told.list:
                print("\n".join(map(str, wanted)))
                continue
            same = [each for each in before if told.resume and each.versions == versions()]
            passed = [verdict for each in same for verdict in each.verdicts if verdict.passed]
            known = [verdict.cell for verdict in passed if verdict.cell in wanted]
            found = Findings(
                target.title, [each for each in passed if each.cell in known], versions(), target.not_covered
            )
            findings.append(found)
            for verdict in run_cells(
                target, [each for each in wanted if each not in known], surroundings, keep=told.keep
            ):
                found.verdicts.append(verdict)
                print(
                    f"{time.strftime('%H:%M:%S')} {len(found.verdicts):>4}/{len(wanted)} {line_of(verdict)}", flush=True
                )
                if told.json:
                    write(told.json, as_json(merged(before, findings)))
            found.verdicts.sort(key=lambda verdict: wanted.index(verdict.cell))
    if not chosen:
        print(f"no target has the cell {told.cell or told.only!r}; --list prints them all", file=sys.stderr)
        return 2
    return 0 if told.list else _report(findings, told, whole=not (told.cell or told.only))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m twophase.testing.crash", description=__doc__)
    parser.add_argument("targets", nargs="+", help="a CrashTarget each, as module:Class")
    parser.add_argument("--cell", help="run this one, by its name: files/format/driver/decide.published#2")
    parser.add_argument("--only", help="run the cells whose names contain this")
    parser.add_argument("--list", action="store_true", help="print the names of the cells, and run nothing")
    parser.add_argument("--keep", action="store_true", help="leave what passed on the disk too")
    parser.add_argument("--json", type=Path, help="write the verdicts to this file")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="leave out what has passed with this code, according to the file of --json",
    )
    parser.add_argument(
        "--page",
        type=Path,
        help="write the report to this file, if all cells of the targets were run; what other targets have there stays, by a file "
        "of the same name in JSON beside it",
    )
    return parser


def _read(path: Path | None) -> list[Findings]:
    return from_json(path.read_text(encoding="utf-8")) if path is not None and path.exists() else []


def _wanted(told: argparse.Namespace, target: type[CrashTarget], every: list[Cell]) -> list[Cell]:
    if told.cell:
        # Any step can be tried, be it in the list or not.
        cell = Cell.parse(told.cell)
        return [cell] if cell.target == target.title and (cell in every or not told.list) else []
    return [cell for cell in every if (told.only or "") in str(cell)]


def _report(findings: list[Findings], told: argparse.Namespace, *, whole: bool) -> int:
    failures = [verdict for each in findings for verdict in each.failures]
    ran = sum(len(each.verdicts) for each in findings)
    if told.page and whole:
        record = told.page.with_suffix(".json")
        write(record, as_json(merged(_read(record), findings)))
        write(told.page, page(_read(record)))  # by what the record says, which is rounded
    for verdict in failures:
        print(f"\n{line_of(verdict)}\n        again: --cell '{verdict.cell}'")
    print(f"\n{ran - len(failures)} passed, {len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
