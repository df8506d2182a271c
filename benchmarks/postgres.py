"""Tables of PostgreSQL: our three modes beside Spark's JDBC writer, which writes at least once.

One server on this machine, and on the same cores, with fsync. Processor time is that of Spark, of its Python processes and of the
server together: what a client does not do, the server often has to.

How long a commit takes is measured without Spark: epochs of two tasks are staged by the sink, and `commit` is timed alone.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.files import write_input
from benchmarks.postgres_queries import JDBC, MVCC, OURS, REWRITTEN, SINKS, WAL, XA
from benchmarks.postgres_tables import COLUMNS, Mode, Tables, tables_at
from benchmarks.processor_time import spent_s
from benchmarks.report import curves, median, plot, ratios, table, write_json
from benchmarks.rounds import FILES_PER_EPOCH, Size, interleaved
from benchmarks.run import Run
from benchmarks.session import Measured, Session, session
from twophase.sink import Outcome
from twophase.testing.servers import postgres
from twophase.testing.sink_steps import SinkSteps

# As somebody would set it up who loads a lot: fsync as it must be, and no checkpoint in the middle of a run.
SERVER = {"fsync": "on", "shared_buffers": "1GB", "max_wal_size": "16GB", "checkpoint_timeout": "1h"}
BATCH_SIZES = (1_000, 5_000, 20_000)
GOALS: tuple[tuple[str, bool, str, float], ...] = (
    *((mode, False, REWRITTEN, 1.4) for mode in (MVCC, XA)),
    *((mode, False, JDBC, 2.5) for mode in (MVCC, XA)),
    *((mode, True, REWRITTEN, 1.2) for mode in (MVCC, XA)),
    *((WAL, with_key, REWRITTEN, 1.0) for with_key in (False, True)),
)
"""Who, with a primary key or without, beside whom, and how many times its rows a second at least."""
_MODES: Mapping[str, Mode] = {WAL: "wal", MVCC: "mvcc", XA: "xa"}

CommitTimes = dict[str, dict[int, list[float]]]
"""Milliseconds, by mode and rows."""


def run(out: Path, *, rows: int, repetitions: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="twophase-bench-"))
    big, small = Size(rows, 4), Size(20_000, 20)
    driver = postgres.jdbc_driver()
    try:
        for name, size in (("big", big), ("small", small)):
            write_input(folder / name, size)
        (folder / "server").mkdir()
        with (
            postgres.on_this_machine(folder / "server", SERVER) as server,
            tables_at(server.endpoint) as tables,
        ):
            with session([driver]) as spark:
                bench = Bench(folder, tables, spark)
                bench = replace(bench, batch_size=bench.best_batch_size(big))
                plain = bench.rounds("big", big, repetitions)
                keyed = bench.rounds("big", big, repetitions, with_key=True)
                fixed = bench.rounds("small", small, repetitions)
            commits = commit_times(tables, folder / "big", rows, repetitions)
            versions = {
                "Spark": version("pyspark"),
                "PostgreSQL": tables.server_version(),
                "psycopg": version("psycopg"),
                "driver": driver.stem,
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    throughput = {False: plain, True: keyed}
    _print(versions, big, throughput, fixed, commits, repetitions, bench.batch_size)
    content = {"versions": versions, "batch_size": bench.batch_size, "commit_ms": commits}
    write_json(out / "postgres.json", {**content, "without_key": plain, "with_key": keyed, "fixed": fixed})
    what = f"{rows:,} rows of about 112 bytes, 4 epochs, 2 cores"
    plot(out / "postgres.png", {f"without a key: {what}": plain, f"with a key: {what}": keyed})
    curves(out / "postgres-commit.png", commits, "How long a commit takes (2 tasks)", "rows of the epoch", "ms")
    print(f"\n{out}/postgres.json, {out}/postgres.png, {out}/postgres-commit.png")


@dataclass(frozen=True)
class Bench:
    """What all runs share."""

    folder: Path
    tables: Tables
    spark: Session
    batch_size: int = BATCH_SIZES[0]
    """Of rewritten JDBC."""

    def best_batch_size(self, size: Size) -> int:
        """The one with which JDBC's rewritten batches are fastest here; the first run warms up."""
        speeds: dict[int, float] = {}
        for batch_size in (BATCH_SIZES[0], *BATCH_SIZES):
            measured = replace(self, batch_size=batch_size)._measure("big", size, REWRITTEN, with_key=False)
            speeds[batch_size] = measured.rows_per_s
            print(f"batches of {batch_size:,}: {measured.rows_per_s:,.0f} rows/s", flush=True)
        return max(speeds, key=lambda each: speeds[each])

    def rounds(self, name: str, size: Size, repetitions: int, *, with_key: bool = False) -> dict[str, list[Measured]]:
        label = f"{name}{', key' if with_key else ''}"
        return interleaved(
            label, tuple(SINKS), lambda each: self._measure(name, size, each, with_key=with_key), repetitions
        )

    def _measure(self, name: str, size: Size, contender: str, *, with_key: bool) -> Measured:
        with self.tables.new(_MODES.get(contender), with_key=with_key) as made:
            settings = {
                "url": self.tables.url,
                "dsn": self.tables.dsn,
                "table": made.name,
                "batchsize": str(self.batch_size),
            }
            told = Run(
                "postgres", contender, str(self.folder / "run"), str(self.folder / name), FILES_PER_EPOCH, settings
            )
            before = self.tables.server_processor_s()
            measured = self.spark.run(told)
            of_server = spent_s(before, self.tables.server_processor_s())
            found = self.tables.found(made)
        expected = (size.rows, size.rows * (size.rows - 1) // 2)
        if (found, len(measured.epoch_ms)) != (expected, size.epochs):
            raise SystemExit(f"{contender}: {found} in {len(measured.epoch_ms)} epochs is not what it was given")
        return replace(measured, cpu_s=measured.cpu_s + of_server)


def commit_times(tables: Tables, folder: Path, rows: int, repetitions: int) -> CommitTimes:
    """Of epochs of so many rows and of a half, a quarter, a tenth and a twentieth of them."""
    batches = [
        batch
        for file in sorted(folder.glob("*.parquet"))
        for batch in pq.read_table(file).cast(COLUMNS).to_batches(10_000)
    ]
    sizes = [rows // part for part in (20, 10, 4, 2, 1)]
    found: CommitTimes = {mode: {size: [] for size in sizes} for mode in OURS}
    for _ in range(repetitions):
        for size in sizes:
            taken = batches[: -(-size // 10_000)]
            for mode in OURS:
                with tables.new(_MODES[mode]) as made:
                    steps = SinkSteps(made)
                    plan = steps.prepare(0, schema=COLUMNS)
                    order = steps.order(plan, *(steps.write(plan, slot, *taken[slot::2]) for slot in (0, 1)))
                    began = time.perf_counter()
                    outcome = steps.commit(order)
                    taken_ms = (time.perf_counter() - began) * 1000
                    if outcome is not Outcome.COMMITTED or tables.found(made)[0] != sum(map(len, taken)):
                        raise SystemExit(f"{mode}: {outcome}, and {tables.found(made)[0]:,} rows")
                found[mode][size].append(taken_ms)
                print(f"commit {mode:<6}{size:>12,} rows{taken_ms:>10.1f} ms", flush=True)
    return found


def _print(
    versions: Mapping[str, str],
    big: Size,
    throughput: Mapping[bool, Mapping[str, Sequence[Measured]]],
    fixed: Mapping[str, Sequence[Measured]],
    commits: CommitTimes,
    repetitions: int,
    batch_size: int,
) -> None:
    print("\n" + ", ".join(f"{name} {number}" for name, number in versions.items()))
    print(
        f"{big.rows:,} rows of about 112 bytes in {big.epochs} epochs, {repetitions} runs each beyond the first, which is dropped; "
        f"batches of {batch_size:,} where JDBC is rewritten, which is 1.00"
    )
    for with_key, results in throughput.items():
        print(f"\n{'With' if with_key else 'Without'} a primary key{' (mvcc: an index)' if with_key else ''}\n")
        print(table(results, beside=REWRITTEN))
    print("\nGoals, in rows a second\n")
    for who, with_key, beside, wanted in GOALS:
        ratio = median(ratios(throughput[with_key], who, beside=beside, of=lambda each: each.rows_per_s))
        what = f"{who} beside {beside}, {'with' if with_key else 'without'} a key"
        print(f"{what:<48}{ratio:>6.2f}, wanted {wanted:.1f}: {'reached' if ratio >= wanted else 'MISSED'}")
    print("\nAn epoch of 1,000 rows (median, ms)\n")
    for name, runs in fixed.items():
        print(f"{name:<16}{median([median(run.epoch_ms[1:]) for run in runs]):>12.0f}")
    print("\nA commit, by the rows of its epoch (median, ms)\n")
    print(f"{'':<16}" + "".join(f"{size:>12,}" for size in next(iter(commits.values()))))
    for mode, times in commits.items():
        print(f"{mode:<16}" + "".join(f"{median(each):>12.1f}" for each in times.values()))
