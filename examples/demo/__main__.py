"""Kill a pipeline four times, at four different steps, and count its rows; beside the same pipeline without twophase.

    make demo

Exit status 1 if twophase lost or duplicated a row.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from examples.demo.gate import Gate
from twophase.failpoints import Fault, arm, trace
from twophase.testing.child import Child, running

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = 1_000_000
EPOCHS = 20
FILES_PER_EPOCH = 2
TIMEOUT_S = 300.0
BAR = 30


@dataclass(frozen=True)
class Step:
    """Where a pipeline is killed: a failpoint of twophase, and the nearest thing that the plain pipeline has."""

    epoch: int
    what: str
    failpoint: str
    plain: str
    plain_step: str


STEPS = (
    Step(3, "while its tasks write", "task.written", "while its tasks write", "written"),
    Step(7, "all tasks done, nothing decided", "decide.before_publish", "rows appended, not logged", "appended"),
    Step(11, "decided, nothing visible yet", "decide.published", "while its tasks write", "written"),
    Step(15, "visible, not logged by Spark", "commit.done", "rows appended, not logged", "appended"),
)


@dataclass
class Outcome:
    """What became of one pipeline."""

    name: str
    table: Path
    kills: int = 0
    replayed: int = 0
    recovery_s: list[float] = field(default_factory=list)
    found: int = 0
    lost: int = 0
    duplicated: int = 0

    @property
    def is_right(self) -> bool:
        return self.lost == self.duplicated == 0


def main() -> int:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        print(
            "The demo runs Spark, which needs Java 17 or newer: install a JRE (on Debian: apt install default-jre-headless)."
        )
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the driver is ended too
    folder = Path(tempfile.mkdtemp(prefix="twophase-demo-"))
    print(f"{ROWS:,} orders, {EPOCHS} epochs, 4 kills (kill -9 of the whole driver) for each of two pipelines.\n")
    write_orders(folder / "input")
    outcomes = [run_pipeline("twophase", folder), run_pipeline("plain", folder)]
    report(outcomes)
    return 0 if outcomes[0].is_right else 1


def write_orders(folder: Path) -> None:
    """Each file whole at once, and one second younger than the one before: Spark reads them in that order."""
    folder.mkdir()
    files, now = EPOCHS * FILES_PER_EPOCH, int(time.time())
    size = ROWS // files
    for number in range(files):
        ids = np.arange(number * size, (number + 1) * size)
        customers = pa.array(np.char.add("customer ", (ids % 977).astype(str)))
        table = pa.table({"id": ids, "customer": customers, "amount": (ids % 10_000) / 100})
        pq.write_table(table, folder / f"{number:04}.parquet")
        os.utime(folder / f"{number:04}.parquet", (now - files + number, now - files + number))


def run_pipeline(way: str, folder: Path) -> Outcome:
    place = folder / way
    place.mkdir()
    outcome = Outcome(way, place / "table")
    for step in (*STEPS, None):
        began = time.monotonic()
        before = committed_epochs(place)
        with running(
            [sys.executable, "-m", "examples.demo.program", way, str(folder), str(FILES_PER_EPOCH)],
            output=place / f"output-{outcome.kills}.txt",
            cwd=ROOT,
            failpoints=place / "failpoints",
        ) as driver:
            progress = Progress(way, place, outcome.kills, began, before)
            if step is None:
                progress.watch(driver, lambda driver=driver: not driver.is_running)  # type: ignore[misc]
            else:
                progress.watch(driver, armed(way, place, step))
                what = step.what if way == "twophase" else step.plain
                say(f"{way:<9} killed in epoch {step.epoch:>2}, {what}")
                outcome.kills += 1
                outcome.replayed += logged_epochs(place) - committed_epochs(place)
            if progress.recovered_s is not None and before:
                outcome.recovery_s.append(progress.recovered_s)
    say(f"{way:<9} all read, after {outcome.kills} kills")
    outcome.found, outcome.lost, outcome.duplicated = count(outcome.table)
    return outcome


def say(line: str) -> None:
    """In the place of the progress display, if there is one."""
    print(f"\r{line}".ljust(79) if sys.stdout.isatty() else line, flush=True)


def armed(way: str, place: Path, step: Step) -> Callable[[], bool]:
    """Set the trap for this step; what is returned says whether the driver is in it."""
    if way == "plain":
        gate = Gate.of(str(place))
        gate.close(step.plain_step, step.epoch)
        return lambda: gate.is_reached and _opened(gate)
    failpoints = place / "failpoints"
    # A failpoint counts its hits from the start of a run; the run begins with the first epoch that is not committed.
    first = committed_epochs(place)
    per_epoch = 2 if step.failpoint.startswith("task.") else 1
    arm(failpoints, Fault(step.failpoint, "pause", per_epoch * (step.epoch - first) + 1, timeout_s=TIMEOUT_S))
    return lambda: any(hit.action == "pause" for hit in trace(failpoints))


def _opened(gate: Gate) -> bool:
    gate.open()
    return True


class Progress:
    """A line that says how far a pipeline is, from what Spark has logged."""

    def __init__(self, way: str, place: Path, kills: int, began: float, before: int):
        self._way, self._place, self._kills, self._began, self._before = way, place, kills, began, before
        self.recovered_s: float | None = None

    def watch(self, driver: Child, is_over: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not is_over():
            if not driver.is_running and committed_epochs(self._place) < EPOCHS:
                raise SystemExit(f"\nthe pipeline ended by itself:\n{driver.output()}")
            if time.monotonic() > deadline:
                raise SystemExit(f"\nthe pipeline hangs:\n{driver.output()}")
            self._show()
            time.sleep(0.1)

    def _show(self) -> None:
        done = committed_epochs(self._place)
        if self.recovered_s is None and done > self._before:
            self.recovered_s = time.monotonic() - self._began
        if not sys.stdout.isatty():
            return  # a file needs no bar: each kill has its line
        bar = "#" * (BAR * done // EPOCHS)
        state = f"epoch {done:>2}/{EPOCHS}" if done > self._before else "starting Spark"
        print(f"\r{self._way:<9} [{bar:<{BAR}}] {state:<14} killed {self._kills} of {len(STEPS)}", end="", flush=True)


def committed_epochs(place: Path) -> int:
    """How many epochs Spark has logged as committed."""
    return _numbered(place / "checkpoint" / "commits")


def logged_epochs(place: Path) -> int:
    """How many epochs Spark has begun: those that are not committed when it dies are run again."""
    return _numbered(place / "checkpoint" / "offsets")


def _numbered(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=-1) + 1


def count(table: Path) -> tuple[int, int, int]:
    """Rows found, lost and duplicated, as any reader of parquet files sees them."""
    files = [
        path for path in table.rglob("*.parquet") if not any(part[0] in "._" for part in path.relative_to(table).parts)
    ]
    ids = np.concatenate([pq.read_table(path, columns=["id"])["id"].to_numpy() for path in files])
    times = np.bincount(ids, minlength=ROWS)
    return len(ids), int((times == 0).sum()), int((times[times > 1] - 1).sum())


def report(outcomes: list[Outcome]) -> None:
    titles = {"twophase": 'format("twophase-files")', "plain": "plain foreachBatch append"}
    lines: list[tuple[str, Callable[[Outcome], str]]] = [
        ("rows expected", lambda _: f"{ROWS:,}"),
        ("rows found", lambda o: f"{o.found:,}"),
        ("rows lost", lambda o: f"{o.lost:,}"),
        ("rows duplicated", lambda o: f"{o.duplicated:,}"),
        ("times killed (kill -9)", lambda o: str(o.kills)),
        ("epochs replayed", lambda o: str(o.replayed)),
        ("seconds to recover *", lambda o: f"{np.median(o.recovery_s):.1f}" if o.recovery_s else "-"),
    ]
    print(f"\n{'':<24}" + "".join(f"{titles[o.name]:>28}" for o in outcomes))
    for title, value in lines:
        print(f"{title:<24}" + "".join(f"{value(o):>28}" for o in outcomes))
    print(
        "\n* from the start of the new driver to the first epoch that it commits; most of it is Spark's own start (median)"
    )
    for outcome in outcomes:
        print(f"  {titles[outcome.name]}: {outcome.table}")
    print(f"\nLook at it:  twophase inspect {outcomes[0].table.parent / 'checkpoint'}")
    right = outcomes[0].is_right
    print(
        "twophase: every row once." if right else "twophase LOST OR DUPLICATED ROWS: this is a bug, please report it."
    )


if __name__ == "__main__":
    sys.exit(main())
