"""Tables of files against Spark's own parquet sink, and against the append that people write in `foreachBatch`."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.application import Run, found_rows
from benchmarks.report import median, plot, table, write_json
from benchmarks.session import Measured, Session, session

CONTENDERS = ("parquet", "append", "twophase", "exactly_once")
BESIDE = "parquet"
FILES_PER_EPOCH = 2


@dataclass(frozen=True)
class Size:
    rows: int
    epochs: int

    @property
    def files(self) -> int:
        return self.epochs * FILES_PER_EPOCH


def run(out: Path, *, rows: int, repetitions: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="twophase-bench-"))
    big, small, long = Size(rows, 4), Size(20_000, 20), Size(200_000, 200)
    try:
        for name, size in (("big", big), ("small", small), ("long", long)):
            write_input(folder / name, size)
        with session() as spark:
            throughput = interleaved(spark, folder, "big", big, repetitions)
            fixed = interleaved(spark, folder, "small", small, repetitions)
            endurance = {name: once(spark, folder, "long", long, name) for name in ("parquet", "twophase")}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"\n{rows:,} rows in 4 epochs, {repetitions} runs each, the first dropped; Spark's own parquet sink is 1.00\n"
    )
    print(table(throughput, beside=BESIDE))
    over = fixed_cost(fixed)
    print("\n1,000 rows an epoch: what an epoch costs over Spark's own parquet sink (median, ms)\n")
    for name, cost_ms in over.items():
        print(f"{name:<16}{cost_ms:>12.0f}")
    print(
        "\n200 epochs of 1,000 rows: medians of the first and the last 50 epochs (ms), memory of all Python processes (MB)\n"
    )
    for name, (first, last) in endurance.items():
        epochs = f"{median(first.epoch_ms[10:60]):.0f} → {median(last.epoch_ms[-50:]):.0f} ms"
        print(f"{name:<16}{epochs:>20}{first.python_bytes / 1e6:>10.0f} → {last.python_bytes / 1e6:.0f} MB")
    write_json(out / "files.json", {"throughput": throughput, "fixed": fixed, "endurance": endurance})
    plot(out / "files.png", throughput, f"{rows:,} rows of about 112 bytes into parquet files, 4 epochs, 2 cores")
    print(f"\n{out}/files.json, {out}/files.png")


def write_input(folder: Path, size: Size) -> None:
    """Rows of about 112 bytes, with columns that repeat and columns that don't."""
    folder.mkdir()
    random = np.random.default_rng(7)
    each = size.rows // size.files
    cities = np.array([f"city number {i}" for i in range(500)])
    for number in range(size.files):
        ids = np.arange(number * each, (number + 1) * each)
        data = pa.table(
            {
                "id": ids,
                "customer": np.char.add("customer-", random.integers(0, 100_000, each).astype(str)),
                "city": cities[random.integers(0, len(cities), each)],
                "amount": random.random(each) * 1000,
                "at": pa.array(1_700_000_000_000_000 + ids * 1_000, pa.timestamp("us", tz="UTC")),
                "note": np.char.add(
                    "a note that is different in each row ", random.integers(0, 2**40, each).astype(str)
                ),
            }
        )
        path = folder / f"{number:06}.parquet"
        pq.write_table(data, path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def interleaved(spark: Session, folder: Path, name: str, size: Size, repetitions: int) -> dict[str, list[Measured]]:
    """Every contender in every round, in turning order; the first round warms up and is dropped."""
    results: dict[str, list[Measured]] = {contender: [] for contender in CONTENDERS}
    for number in range(repetitions + 1):
        turned = CONTENDERS[number % len(CONTENDERS) :] + CONTENDERS[: number % len(CONTENDERS)]
        for contender in turned:
            measured = measure(spark, folder, name, size, contender)
            if number:
                results[contender].append(measured)
            print(f"{name} {number}/{repetitions} {contender:<14}{measured.rows_per_s:>12,.0f} rows/s", flush=True)
    return results


def once(spark: Session, folder: Path, name: str, size: Size, contender: str) -> tuple[Measured, Measured]:
    """A long run twice: the first says what memory was before the second."""
    first = measure(spark, folder, name, size, contender)
    print(f"{name} {contender}: once", flush=True)
    return first, measure(spark, folder, name, size, contender)


def measure(spark: Session, folder: Path, name: str, size: Size, contender: str) -> Measured:
    place = folder / f"out-{contender}"
    measured = spark.run(Run(contender, str(folder / name), str(place), FILES_PER_EPOCH))
    found = found_rows(place / "table")
    if (found, len(measured.epoch_ms)) != (size.rows, size.epochs):
        raise SystemExit(f"{contender} wrote {found:,} rows in {len(measured.epoch_ms)} epochs: not what it was given")
    shutil.rmtree(place)
    return measured


def fixed_cost(results: Mapping[str, Sequence[Measured]]) -> dict[str, float]:
    """Over Spark's own sink, an epoch: of runs side by side, the median epoch without the first ones; then the median."""

    def epoch_ms(run: Measured) -> float:
        return median(run.epoch_ms[2:])

    return {
        name: median([epoch_ms(a) - epoch_ms(b) for a, b in zip(runs, results[BESIDE], strict=True)])
        for name, runs in results.items()
    }
