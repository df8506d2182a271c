"""What the matrix found: lines for whoever watches, JSON for programs, and the page docs/reliability.md."""

from __future__ import annotations

import hashlib
import importlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from twophase.testing.crash.cell import Cell
from twophase.testing.crash.chain import Verdict

_BESIDE = ("connectors", "sinks", "sources")
"""Packages of twophase whose folders are not below its own, where it is not installed from a wheel."""
_HEAD = (
    "# Reliability\n\n"
    "What `make crash-matrix` found, written by it: real Spark queries, killed with `kill -9` at every step of the protocol, "
    "restarted, and compared with their source row by row. A cell counts as passed only if its fault fired (the trace of the "
    "failpoints says so), if every look at the target in between held (no row missing that was committed, none twice, none early, "
    "no part of an epoch where the sink is atomic; take-overs, aborts and servers are compared at their end only), "
    "and if at the end every row is there once and nothing is left in staging.\n\n"
    "[docs/testing.md](testing.md#the-crash-matrix) says how it works. One cell, by its name: "
    "`make crash-matrix ARGS=\"--cell '…'\"`.\n"
)
_VICTIMS = {
    "driver": "the driver: Python, JVM and all workers, killed",
    "executor": "an executor of `local-cluster`, killed; Spark runs its task again",
    "zombie": "the driver, frozen (SIGSTOP) while another does everything, then thawed",
    "server": "a server, killed and started again while the driver waits",
}
_COURSES = {
    "format": "`writeStream.format`",
    "sink": "`exactly_once(sink)`",
    "function": "`exactly_once` with two sinks",
    "take-over": "a query that takes the target over",
    "poison": "a task fails, and Spark aborts the epoch",
    "long": "a ledger that is compacted",
}
_NOT_COVERED = (
    "Power cuts: here the machine stays up, and its page cache with it. What fsync must do is tested on its own "
    "([docs/proof.md](proof.md#on-disk)).",
    "Several machines: driver, executors and servers are processes of one.",
    "Two kills at two steps in every combination: recovery is killed once in each of the three states that a driver can leave. "
    "More is for the model ([docs/proof.md](proof.md)).",
)


@dataclass(frozen=True)
class Findings:
    """What became of the cells of one target."""

    title: str
    verdicts: list[Verdict]
    versions: Mapping[str, str] = field(default_factory=dict)
    """What they were run with."""
    not_covered: Sequence[str] = ()

    @property
    def failures(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.passed]


def line_of(verdict: Verdict) -> str:
    """For whoever watches."""
    took = "" if verdict.recovery_s is None else f"  (recovered after {verdict.recovery_s:.0f} s)"
    if verdict.passed:
        return f"passed  {verdict.cell}{took}"
    what = "FAILED " if verdict.fired else "MISSED "
    return f"{what} {verdict.cell}\n        {verdict.error}"


def as_json(findings: Sequence[Findings]) -> str:
    content = [
        {
            "target": each.title,
            "versions": dict(each.versions),
            "not_covered": list(each.not_covered),
            "cells": [_row_of(verdict) for verdict in each.verdicts],
        }
        for each in findings
    ]
    return json.dumps(content, indent=1) + "\n"


def _row_of(verdict: Verdict) -> dict[str, object]:
    return {
        "cell": str(verdict.cell),
        "fired": verdict.fired,
        "recovery_s": None if verdict.recovery_s is None else round(verdict.recovery_s, 1),
        "error": verdict.error,
    }


def from_json(text: str) -> list[Findings]:
    """What earlier runs found."""
    return [
        Findings(
            each["target"],
            [Verdict(Cell.parse(row["cell"]), row["fired"], row["recovery_s"], row["error"]) for row in each["cells"]],
            each["versions"],
            tuple(each["not_covered"]),
        )
        for each in json.loads(text)
    ]


def merged(before: Sequence[Findings], now: Sequence[Findings]) -> list[Findings]:
    """A target that was run again has only what was found now; the others keep what they had."""
    newest = {each.title: each for each in (*before, *now)}
    return list(newest.values())


def page(findings: Sequence[Findings]) -> str:
    """docs/reliability.md; only of targets whose cells were all run."""
    return "\n".join([_HEAD, *_sections(findings)])


def _sections(findings: Sequence[Findings]) -> Iterator[str]:
    verdicts = [verdict for each in findings for verdict in each.verdicts]
    failed = sum(len(each.failures) for each in findings)
    recoveries = [(v.recovery_s, str(v.cell)) for v in verdicts if v.recovery_s is not None]
    fired = sum(verdict.fired for verdict in verdicts)
    yield f"**{len(verdicts)} cells, {fired} faults fired, {failed} failures.**"
    if recoveries:
        slowest, cell = max(recoveries)
        yield (
            f"Slowest recovery: {slowest:.0f} s, after `{cell}`, from the start of the new driver to its first commit. "
            "Nearly all of it is the start of Spark, on 2 cores that did other things too: an upper bound."
        )
    yield ""
    for each in findings:
        yield f"- {each.title}: run with {', '.join(f'{name} {version}' for name, version in each.versions.items())}."
    yield ""
    yield "| target | query | victim | cells | fired | failed |\n|---|---|---|---|---|---|"
    for each in findings:
        for (course, victim), alike in _by_kind(each.verdicts):
            rows = list(alike)
            broken = sum(not verdict.passed for verdict in rows)
            yield (
                f"| {each.title} | {_COURSES[course]} | {_VICTIMS[victim.partition(':')[0]]} | {len(rows)} "
                f"| {sum(verdict.fired for verdict in rows)} | {broken} |"
            )
    yield "\n## Not covered\n"
    for sentence in (*_NOT_COVERED, *(s for each in findings for s in each.not_covered)):
        yield f"- {sentence}"
    yield "\n## Every cell\n"
    yield "| cell | fired | passed | recovered after |\n|---|---|---|---|"
    for verdict in verdicts:
        took = "" if verdict.recovery_s is None else f"{verdict.recovery_s:.0f} s"
        yield f"| `{verdict.cell}` | {_yes(verdict.fired)} | {_yes(verdict.passed)} | {took} |"
    yield ""


def _by_kind(verdicts: Sequence[Verdict]) -> Iterator[tuple[tuple[str, str], Iterator[Verdict]]]:
    return groupby(verdicts, key=lambda verdict: (verdict.cell.course, verdict.cell.victim))


def _yes(fact: bool) -> str:
    return "yes" if fact else "**no**"


def cells_on(text: str) -> list[Cell]:
    """The cells that a page lists."""
    rows = (line.split("`") for line in text.splitlines() if line.startswith("| `"))
    return [Cell.parse(row[1]) for row in rows]


def versions() -> dict[str, str]:
    import pyspark

    return {
        "Python": platform.python_version(),
        "PySpark": pyspark.__version__,
        "Linux": platform.release(),
        "code": _code(),
    }


def _code() -> str:
    """Of twophase: what was found by other code is not found by this."""
    digest = hashlib.sha256()
    packages = [importlib.import_module(name) for name in ("twophase", *(f"twophase.{name}" for name in _BESIDE))]
    files = {file for package in packages for folder in package.__path__ for file in Path(folder).rglob("*.py")}
    for file in sorted(files):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
