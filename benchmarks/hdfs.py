"""Tables on HDFS against Spark's own parquet sink on the same HDFS, checkpoints included.

One NameNode and one DataNode on this machine, and on the same cores, with the defaults of Hadoop's clients. Processor time is that
of Spark and its Python processes, not of HDFS.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.file_queries import table_of
from benchmarks.files import write_input
from benchmarks.report import epoch_difference, median, plot, table, write_json
from benchmarks.rounds import FILES_PER_EPOCH, Size, interleaved
from benchmarks.run import Run
from benchmarks.session import Measured, Session, session
from twophase.spelled_folders import spelled
from twophase.storage import FileStorage
from twophase.storage_of import storage_of
from twophase.testing.servers import hdfs

CONTENDERS = ("parquet", "twophase")
BESIDE = "parquet"
_random = random.Random(7)
RECORD = json.dumps(
    [{"attempt": f"{_random.getrandbits(128):032x}.{slot}", "bytes": 12_345 * slot, "rows": slot} for slot in range(20)]
).encode()
"""As long, and as hard to compress, as a decision of twenty tasks."""
REQUESTS = 20


def run(out: Path, *, rows: int, repetitions: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="twophase-bench-"))
    big, small = Size(rows, 4), Size(20_000, 20)
    try:
        for name, size in (("big", big), ("small", small)):
            write_input(folder / name, size)
        (folder / "hdfs").mkdir()
        with hdfs.on_this_machine(folder / "hdfs") as server, session() as spark:
            bench = Bench(folder, server.endpoint.url, spark)
            throughput = bench.rounds("big", big, repetitions)
            fixed = bench.rounds("small", small, repetitions)
            small_ms = small_writes_ms(storage_of(server.endpoint.url + "/"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"\n{rows:,} rows in 4 epochs, {repetitions} runs each, the first dropped; Spark's own parquet sink is 1.00\n"
    )
    print(table(throughput, beside=BESIDE))
    print("\n1,000 rows an epoch: what an epoch costs over Spark's own parquet sink (median, in nine of ten cases)\n")
    for name in CONTENDERS:
        print(f"{name:<16}{epoch_difference(fixed, name, over=BESIDE)}")
    print(f"\n{len(RECORD):,} bytes published, median ms: " + ", ".join(f"{k} {v:.0f}" for k, v in small_ms.items()))
    write_json(out / "hdfs.json", {"throughput": throughput, "fixed": fixed, "small_writes_ms": small_ms})
    title = f"{rows:,} rows of about 112 bytes into parquet files on HDFS, 4 epochs, 2 cores"
    plot(out / "hdfs.png", {title: throughput})
    print(f"\n{out}/hdfs.json, {out}/hdfs.png")


@dataclass(frozen=True)
class Bench:
    folder: Path
    url: str
    spark: Session

    def rounds(self, name: str, size: Size, repetitions: int) -> dict[str, list[Measured]]:
        return interleaved(name, CONTENDERS, lambda contender: self.measure(name, size, contender), repetitions)

    def measure(self, name: str, size: Size, contender: str) -> Measured:
        place = f"{self.url}/out-{contender}"
        measured = self.spark.run(Run("files", contender, place, str(self.folder / name), FILES_PER_EPOCH))
        storage = storage_of(self.url + "/")
        found = found_rows(storage, table_of(place))
        if (found, len(measured.epoch_ms)) != (size.rows, size.epochs):
            raise SystemExit(
                f"{contender} wrote {found:,} rows in {len(measured.epoch_ms)} epochs: not what it was given"
            )
        storage.delete(place)
        return measured


def found_rows(storage: FileStorage, folder: str) -> int:
    """What is in a contender's table; a fast sink that loses rows is not fast."""
    rows = 0
    for entry in storage.list(folder):
        if entry.name.startswith((".", "_")):
            continue
        if entry.is_folder:
            rows += found_rows(storage, f"{folder}/{entry.name}")
        else:
            with storage.open(f"{folder}/{entry.name}") as file:
                rows += pq.read_metadata(file).num_rows
    return rows


def small_writes_ms(storage: FileStorage) -> dict[str, float]:
    """What a small record costs as a file, and as folders that spell it."""
    folder = "/small-writes"
    storage.make_folder(folder)

    def as_file(number: int) -> None:
        with storage.create(f"{folder}/file-{number}") as file:
            file.write(RECORD)
        storage.rename(f"{folder}/file-{number}", f"{folder}/file-{number}.record")

    def as_folders(number: int) -> None:
        storage.publish_folders(f"{folder}/folders-{number}", list(spelled(RECORD)), through=folder)

    return {
        name: median([_ms(write, n) for n in range(REQUESTS)])
        for name, write in (("file", as_file), ("folders", as_folders))
    }


def _ms(write: Callable[[int], None], number: int) -> float:
    began = time.perf_counter()
    write(number)
    return (time.perf_counter() - began) * 1000
