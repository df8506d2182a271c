"""Keyed states: beside Spark's own state store; and alone, as a state grows while as much changes in each epoch."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import twophase
from benchmarks.report import median, plot, table, write_json
from benchmarks.rounds import FILES_PER_EPOCH, Size, interleaved
from benchmarks.run import Run
from benchmarks.session import Measured, Session, session
from benchmarks.state_queries import SINKS, state_of
from twophase.identity import Attempt, DecisionId, Epoch, Generation, Owner
from twophase.sink import CommitOrder, PreparedEpoch, Share, Task
from twophase.sinks import RocksDBSink
from twophase.standing import newest_marker

BESIDE = "spark state"
ROWS_PER_KEY = 4
STEPS = 10
EPOCHS_PER_STEP = 8
CHANGED_PER_EPOCH = 10_000
VALUE_BYTES = 400
OWNER = Owner("benchmark", "sink")


def run(out: Path, *, rows: int, repetitions: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="twophase-bench-"))
    size = Size(rows, 4)
    try:
        write_input(folder / "updates", size)
        with session() as spark:
            results = interleaved("sums", tuple(SINKS), lambda each: measure(spark, folder, size, each), repetitions)
        grown = grow(folder / "grown", keys=rows // STEPS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{rows:,} updates of {rows // ROWS_PER_KEY:,} keys in 4 epochs; Spark's own state store is 1.00\n")
    print(table(results, beside=BESIDE))
    print(f"\nA state that grows, {CHANGED_PER_EPOCH:,} keys changed in each epoch (medians of {EPOCHS_PER_STEP})\n")
    print(
        f"{'state MB':>10}{'upload MB':>11}{'mean MB':>11}{'most MB':>11}{'epoch s':>10}{'snapshot s':>12}{'recovery s':>12}"
    )
    for each in grown:
        uploads = (median(each.uploaded), sum(each.uploaded) / len(each.uploaded), max(each.uploaded))
        print(f"{each.state_bytes / 1e6:>10.0f}", *(f"{size / 1e6:>10.1f}" for size in uploads), end="")
        print(f"{median(each.epoch_s):>10.2f}{median(each.snapshot_s):>12.2f}{each.recovery_s:>12.2f}")
    write_json(out / "rocksdb.json", {"sums": results, "grown": [asdict(each) for each in grown]})
    plot(out / "rocksdb.png", {f"{rows:,} updates of {rows // ROWS_PER_KEY:,} keys, 4 epochs, 2 cores": results})
    plot_growth(out / "rocksdb-growth.png", grown)
    print(f"\n{out}/rocksdb.json, {out}/rocksdb.png, {out}/rocksdb-growth.png")


# ---- beside Spark's own ----


def write_input(folder: Path, size: Size) -> None:
    folder.mkdir()
    random = np.random.default_rng(7)
    each = size.rows // size.files
    for number in range(size.files):
        customers = random.integers(0, size.rows // ROWS_PER_KEY, each)
        path = folder / f"{number:06}.parquet"
        pq.write_table(pa.table({"customer": customers, "amount": random.integers(0, 1000, each)}), path)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def measure(spark: Session, folder: Path, size: Size, contender: str) -> Measured:
    place = folder / "out"
    measured = spark.run(Run("rocksdb", contender, str(place), str(folder / "updates"), FILES_PER_EPOCH))
    if contender != BESIDE:
        require_sums(folder / "updates", state_of(str(place)))
    if len(measured.epoch_ms) != size.epochs:
        raise SystemExit(f"{contender} had {len(measured.epoch_ms)} epochs: not what it was given")
    shutil.rmtree(place)
    return measured


def require_sums(updates: Path, path: str) -> None:
    """A fast state that has other sums is not fast."""
    expected = pq.read_table(updates).group_by("customer").aggregate([("amount", "sum")])
    with twophase.state.open(path) as state:
        found = state.to_table()
    wanted = dict(zip(expected["customer"].to_pylist(), expected["amount_sum"].to_pylist(), strict=True))
    if dict(zip(found["customer"].to_pylist(), found["amount"].to_pylist(), strict=True)) != wanted:
        raise SystemExit("the sums in the state are not those of the updates")


# ---- alone ----


@dataclass(frozen=True)
class Grown:
    """What epochs cost when the state had this size."""

    state_bytes: int
    uploaded: list[int]
    epoch_s: list[float]
    snapshot_s: list[float]
    recovery_s: float
    """Of one epoch with a single row, on a machine that has nothing."""


class Writer:
    """One task that writes all of a state, epoch after epoch."""

    def __init__(self, folder: Path):
        self.working = folder / "working"
        self.sink = RocksDBSink(str(folder / "state"), "key", tasks=1, working_dir=str(self.working), retain_epochs=2)
        self._number = 0

    def epoch(self, rows: pa.RecordBatch) -> tuple[int, float, float]:
        """Bytes uploaded, seconds in all, and seconds from the last row to the vote."""
        began = time.perf_counter()
        generation = Generation("bench", 2 * self._number + 1)
        origin = newest_marker(self.sink.status(OWNER, settled=True))
        prepared = PreparedEpoch(OWNER, generation, Epoch(self._number, "h"), origin, schema=rows.schema)
        task = Task(0, Attempt(generation, self._number))
        plan = self.sink.prepare(prepared)
        transaction = self.sink.begin(plan, task)
        for first in range(0, rows.num_rows, 10_000):
            transaction.write(rows.slice(first, 10_000))
        written = time.perf_counter()
        handle = transaction.pre_commit()
        voted = time.perf_counter()
        share = Share(0, task.attempt, rows.num_rows, "", handle)
        decision = DecisionId("bench", 2 * self._number + 2)
        self.sink.commit(CommitOrder(OWNER, prepared.epoch, decision, origin, 0, (share,)))
        self._number += 1
        return handle.bytes_uploaded, time.perf_counter() - began, voted - written


def grow(folder: Path, *, keys: int) -> list[Grown]:
    """In steps of so many keys; at each step some epochs, and a recovery."""
    folder.mkdir()
    writer, random, found = Writer(folder), np.random.default_rng(11), []
    for step in range(1, STEPS + 1):
        writer.epoch(_values(random, np.arange((step - 1) * keys, step * keys)))
        for _ in range(EPOCHS_PER_STEP):  # until what the step has added is compacted
            writer.epoch(_values(random, random.integers(0, step * keys, CHANGED_PER_EPOCH)))
        epochs = [
            writer.epoch(_values(random, random.integers(0, step * keys, CHANGED_PER_EPOCH)))
            for _ in range(EPOCHS_PER_STEP)
        ]
        shutil.rmtree(writer.working)
        recovery = writer.epoch(_values(random, np.array([0])))
        newest = writer.sink.table.newest()
        assert newest is not None
        uploaded, seconds, snapshots = (list(each) for each in zip(*epochs, strict=True))
        size = sum(part.bytes for part in newest.parts)
        found.append(Grown(size, [int(each) for each in uploaded], seconds, snapshots, recovery[1]))
        print(f"state {step}/{STEPS}: {size / 1e6:,.0f} MB, {median(uploaded) / 1e6:.1f} MB an epoch", flush=True)
    return found


def _values(random: np.random.Generator, keys: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.RecordBatch:
    noise = pa.py_buffer(random.bytes(VALUE_BYTES * len(keys)))
    values = pa.Array.from_buffers(pa.binary(VALUE_BYTES), len(keys), [None, noise])
    return pa.record_batch({"key": pa.array(keys, pa.int64()), "value": values})


def plot_growth(path: Path, grown: list[Grown]) -> bool:
    """Bytes that an epoch uploads, and seconds to recover, by the size of the state; False if there is no matplotlib."""
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        return False
    figure, (above, below) = plt.subplots(2, figsize=(7, 6), sharex=True)
    sizes = [each.state_bytes / 1e6 for each in grown]
    above.plot(sizes, [median(each.uploaded) / 1e6 for each in grown], "o-", color="#4477aa", label="median")
    means = [sum(each.uploaded) / len(each.uploaded) / 1e6 for each in grown]
    above.plot(sizes, means, "s--", color="#228833", label="mean")
    above.plot(sizes, [max(each.uploaded) / 1e6 for each in grown], "^", color="#cc6677", label="most")
    above.set_ylabel("MB uploaded an epoch")
    above.set_ylim(bottom=0)
    above.legend()
    below.plot(sizes, [median(each.snapshot_s) for each in grown], "o-", color="#4477aa", label="snapshot")
    below.plot(sizes, [each.recovery_s for each in grown], "s-", color="#228833", label="recovery from nothing")
    below.set_ylabel("seconds")
    below.set_xlabel("MB of state")
    below.set_ylim(bottom=0)
    below.legend()
    above.set_title(f"{CHANGED_PER_EPOCH:,} rows of {VALUE_BYTES} bytes changed in each epoch", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True
