"""Kill a pipeline four times, at four different steps, and count its rows; beside the same pipeline without twophase.

    make demo

Both write every epoch to two targets, a table of files and a table of a PostgreSQL server that the demo starts. Exit status 1 if
twophase lost or duplicated a row in either.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
from psycopg.conninfo import conninfo_to_dict

from examples.demo.gate import Gate
from examples.demo.program import Told
from twophase.failpoints import Fault, arm, trace
from twophase.testing.child import Child, running
from twophase.testing.servers import postgres
from twophase.testing.servers.server import ServerUnavailable

ROOT = Path(__file__).resolve().parent.parent.parent
ROWS = 1_000_000
EPOCHS = 20
FILES_PER_EPOCH = 2
TARGETS = ("files", "PostgreSQL")
TIMEOUT_S = 300.0
BAR = 30
TITLES = {"twophase": "twophase.exactly_once", "plain": "plain foreachBatch appends"}
HITS_PER_EPOCH = {"task.written": 2 * len(TARGETS), "commit.after_sink": len(TARGETS)}
"""Two tasks for each target; where it is not here, once."""


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
    Step(7, "all tasks done, nothing decided", "decide.before_publish", "in the files, not in PostgreSQL", "half"),
    Step(11, "visible in the files, not in PostgreSQL", "commit.after_sink", "while its tasks write", "written"),
    Step(15, "visible in both, not logged by Spark", "commit.done", "in both, not logged by Spark", "appended"),
)


@dataclass(frozen=True)
class Count:
    """What a reader finds in one target."""

    found: int
    lost: int
    duplicated: int


@dataclass
class Outcome:
    """What became of one pipeline."""

    told: Told
    kills: int = 0
    replayed: int = 0
    recovery_s: list[float] = field(default_factory=list)
    counts: Mapping[str, Count] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        return all(count.lost == count.duplicated == 0 for count in self.counts.values())


def main() -> int:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        print(
            "The demo runs Spark, which needs Java 17 or newer: install a JRE (on Debian: apt install default-jre-headless)."
        )
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that driver and server are ended too
    folder = Path(tempfile.mkdtemp(prefix="twophase-demo-"))
    print(f"{ROWS:,} orders, {EPOCHS} epochs, each into files and into PostgreSQL.")
    print("4 kills (kill -9 of the whole driver) for each of two pipelines.\n")
    write_orders(folder / "input")
    (folder / "server").mkdir()
    try:
        driver = postgres.jdbc_driver()
        with postgres.on_this_machine(folder / "server") as server:
            outcomes = [run_pipeline(told(way, folder, server.endpoint, driver)) for way in TITLES]
            report(outcomes)
            inspect(outcomes[0])
    except ServerUnavailable as error:
        print(f"The demo needs a PostgreSQL server and the driver by which JDBC comes to it: {error}")
        return 1
    right = outcomes[0].is_right
    print(
        "twophase: every row once." if right else "twophase LOST OR DUPLICATED ROWS: this is a bug, please report it."
    )
    return 0 if right else 1


def told(way: str, folder: Path, dsn: str, driver: Path) -> Told:
    place, parts = folder / way, conninfo_to_dict(dsn)
    place.mkdir()
    return Told(
        way=way,
        input=str(folder / "input"),
        files_per_epoch=FILES_PER_EPOCH,
        place=str(place),
        dsn=dsn,
        url=f"jdbc:postgresql://{parts['host']}:{parts['port']}/{parts['dbname']}?user={parts['user']}",
        table=f"public.orders_{way}",
        driver=str(driver),
    )


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


def run_pipeline(told: Told) -> Outcome:
    outcome, place, way = Outcome(told), Path(told.place), told.way
    for step in (*STEPS, None):
        began = time.monotonic()
        before = committed_epochs(place)
        with running(
            [sys.executable, "-m", "examples.demo.program", told.to_text()],
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
                say(f"{way:<9} killed in epoch {logged_epochs(place) - 1:>2}, {what}")
                outcome.kills += 1
                outcome.replayed += logged_epochs(place) - committed_epochs(place)
            if progress.recovered_s is not None and before:
                outcome.recovery_s.append(progress.recovered_s)
    say(f"{way:<9} all read, after {outcome.kills} kills")
    outcome.counts = dict(zip(TARGETS, (count_files(place / "table"), count_table(told)), strict=True))
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
    hit = HITS_PER_EPOCH.get(step.failpoint, 1) * (step.epoch - first) + 1
    arm(failpoints, Fault(step.failpoint, "pause", hit, timeout_s=TIMEOUT_S))
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


def count_files(table: Path) -> Count:
    """As any reader of parquet files sees them."""
    files = [
        path for path in table.rglob("*.parquet") if not any(part[0] in "._" for part in path.relative_to(table).parts)
    ]
    ids = np.concatenate([pq.read_table(path, columns=["id"])["id"].to_numpy() for path in files])
    return _count(ids)


def count_table(told: Told) -> Count:
    """As any client of the database sees them."""
    with psycopg.connect(told.dsn) as connection:
        ids = connection.execute(f"SELECT id FROM {told.table}".encode()).fetchall()
    return _count(np.fromiter((row[0] for row in ids), np.int64, len(ids)))


def _count(ids: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Count:
    times = np.bincount(ids, minlength=ROWS)
    return Count(len(ids), int((times == 0).sum()), int((times[times > 1] - 1).sum()))


def report(outcomes: list[Outcome]) -> None:
    by_target: list[tuple[str, Callable[[Count], int]]] = [
        ("rows expected", lambda _: ROWS),
        ("rows found", lambda count: count.found),
        ("rows lost", lambda count: count.lost),
        ("rows duplicated", lambda count: count.duplicated),
    ]
    by_pipeline: list[tuple[str, Callable[[Outcome], str]]] = [
        ("times killed (kill -9)", lambda o: str(o.kills)),
        ("epochs replayed", lambda o: str(o.replayed)),
        ("seconds to recover *", lambda o: f"{np.median(o.recovery_s):.1f}" if o.recovery_s else "-"),
    ]
    print(f"\n{'':<24}" + "".join(f"{TITLES[o.told.way]:>30}" for o in outcomes))
    print(f"{'':<24}" + "".join(f"{target:>15}" for _ in outcomes for target in TARGETS))
    for title, number in by_target:
        print(f"{title:<24}" + "".join(f"{number(o.counts[target]):>15,}" for o in outcomes for target in TARGETS))
    for title, value in by_pipeline:
        print(f"{title:<24}" + "".join(f"{value(o):>30}" for o in outcomes))
    print(
        "\n* from the start of the new driver to the first epoch that it commits; most of it is Spark's own start (median)"
    )
    for outcome in outcomes:
        print(f"  the files of {TITLES[outcome.told.way]}: {outcome.told.place}/table")


def inspect(outcome: Outcome) -> None:
    """As long as the server is there: it ends with the demo, and its tables with it."""
    checkpoint = f"{outcome.told.place}/checkpoint"
    print(f"\n$ twophase inspect {checkpoint}", flush=True)
    subprocess.run([sys.executable, "-m", "twophase.connectors.command_line", "inspect", checkpoint], check=True)
    print()


if __name__ == "__main__":
    sys.exit(main())
