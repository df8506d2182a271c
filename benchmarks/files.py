"""Tables of files against Spark's own parquet sink, and against the append that people write in `foreachBatch`."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.file_queries import SINKS, table_of
from benchmarks.report import epoch_difference, median, plot, table, write_json
from benchmarks.rounds import FILES_PER_EPOCH, Size, interleaved
from benchmarks.run import Run
from benchmarks.session import Measured, Session, session

BESIDE = "parquet"


def run(out: Path, *, rows: int, repetitions: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="twophase-bench-"))
    big, small, long = Size(rows, 4), Size(20_000, 20), Size(200_000, 200)
    try:
        for name, size in (("big", big), ("small", small), ("long", long)):
            write_input(folder / name, size)
        with session() as spark:

            def rounds(name: str, size: Size) -> dict[str, list[Measured]]:
                return interleaved(
                    name, tuple(SINKS), lambda each: measure(spark, folder, name, size, each), repetitions
                )

            throughput, fixed = rounds("big", big), rounds("small", small)
            endurance = {name: once(spark, folder, "long", long, name) for name in ("parquet", "twophase")}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"\n{rows:,} rows in 4 epochs, {repetitions} runs each, the first dropped; Spark's own parquet sink is 1.00\n"
    )
    print(table(throughput, beside=BESIDE))
    print("\n1,000 rows an epoch: what an epoch costs over Spark's own parquet sink (median, in nine of ten cases)\n")
    for name in SINKS:
        print(f"{name:<16}{epoch_difference(fixed, name, over=BESIDE)}")
    print(
        "\n200 epochs of 1,000 rows: medians of the first and the last 50 epochs (ms), memory of all Python processes (MB)\n"
    )
    for name, (first, last) in endurance.items():
        epochs = f"{median(first.epoch_ms[10:60]):.0f} → {median(last.epoch_ms[-50:]):.0f} ms"
        print(f"{name:<16}{epochs:>20}{first.python_bytes / 1e6:>10.0f} → {last.python_bytes / 1e6:.0f} MB")
    write_json(out / "files.json", {"throughput": throughput, "fixed": fixed, "endurance": endurance})
    title = f"{rows:,} rows of about 112 bytes into parquet files, 4 epochs, 2 cores"
    plot(out / "files.png", {title: throughput})
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


def once(spark: Session, folder: Path, name: str, size: Size, contender: str) -> tuple[Measured, Measured]:
    """A long run twice: the first says what memory was before the second."""
    first = measure(spark, folder, name, size, contender)
    print(f"{name} {contender}: once", flush=True)
    return first, measure(spark, folder, name, size, contender)


def measure(spark: Session, folder: Path, name: str, size: Size, contender: str) -> Measured:
    place = folder / f"out-{contender}"
    measured = spark.run(Run("files", contender, str(place), str(folder / name), FILES_PER_EPOCH))
    found = found_rows(Path(table_of(str(place))))
    if (found, len(measured.epoch_ms)) != (size.rows, size.epochs):
        raise SystemExit(f"{contender} wrote {found:,} rows in {len(measured.epoch_ms)} epochs: not what it was given")
    shutil.rmtree(place)
    return measured


def found_rows(table: Path) -> int:
    """What is in a contender's table; a fast sink that loses rows is not fast."""
    files = [path for path in table.rglob("*.parquet") if not path.name.startswith((".", "_"))]
    return sum(pq.read_metadata(path).num_rows for path in files)
