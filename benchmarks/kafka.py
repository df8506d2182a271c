"""Topics: our sink and our source beside those of Spark's own connector, which writes at least once.

One broker on this machine, and on the same cores. Processor time is that of Spark and its Python processes, not of the broker.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.connector import Connector, connector
from benchmarks.kafka_queries import OURS, PLAIN, SINKS, SOURCES, SPARK, SPARK_TUNED
from benchmarks.report import epoch_difference, median, plot, table, write_json
from benchmarks.rounds import FILES_PER_EPOCH, Size, interleaved
from benchmarks.run import Run
from benchmarks.session import Failed, Measured, Session, session
from benchmarks.topics import PARTITIONS, Topics, topics_at
from twophase.testing.servers import kafka
from twophase.testing.servers.server import ServerUnavailable

KEY_BYTES, VALUE_BYTES = 12, 100
RECORD_BYTES = KEY_BYTES + VALUE_BYTES
# Deleted topics leave the disk at once, and not after a minute in which ten more are written.
BROKER = kafka.Setup(properties={"log.segment.delete.delay.ms": "1000"})


def run(out: Path, *, rows: int, repetitions: int) -> None:
    theirs = _connector()
    big, small = Size(rows, 4), Size(20_000, 20)
    with _bench({"big": big, "small": small}, theirs) as bench:
        if theirs is not None and not bench.runs(SPARK, "small", small):
            theirs = None
        left_out = () if theirs is not None else (SPARK, SPARK_TUNED)
        sinks = bench.sinks("big", big, _without(SINKS, left_out), repetitions)
        price = bench.price("big", big, repetitions)
        fixed = bench.sinks("small", small, _without(SINKS, (SPARK, *left_out)), repetitions)
        sources = bench.sources("big", big, _without(SOURCES, left_out), repetitions)
    _print(theirs, big, small, sinks, price, fixed, sources, repetitions)
    content = {
        "versions": _versions(theirs),
        "record_bytes": RECORD_BYTES,
        "partitions": PARTITIONS,
        "sinks": sinks,
        "price": price,
        "fixed": fixed,
        "sources": sources,
    }
    write_json(out / "kafka.json", content)
    what = f"{rows:,} records of {RECORD_BYTES} bytes, 4 epochs, 2 cores"
    plot(out / "kafka.png", {f"into a topic: {what}": sinks, f"from a topic: {what}": sources})
    print(f"\n{out}/kafka.json, {out}/kafka.png")


def run_price(out: Path, *, rows: int, repetitions: int) -> None:
    """The price of exactly-once alone: it is small, and on a machine that others use too it takes many pairs to see it."""
    big = Size(rows, 4)
    with _bench({"big": big}, None) as bench:
        price = bench.price("big", big, repetitions)
    _print_price({big: price})
    write_json(out / "kafka-price.json", {"versions": _versions(None), "price": price})
    print(f"\n{out}/kafka-price.json")


@contextmanager
def _bench(inputs: Mapping[str, Size], theirs: Connector | None) -> Iterator[Bench]:
    folder = Path(tempfile.mkdtemp(prefix="twophase-bench-"))
    try:
        for name, size in inputs.items():
            write_input(folder / name, size)
        (folder / "broker").mkdir()
        with (
            kafka.on_this_machine(folder / "broker", BROKER) as server,
            topics_at(server.endpoint) as topics,
            session(() if theirs is None else theirs.jars) as spark,
        ):
            yield Bench(folder, topics, spark)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Bench:
    """What all runs share."""

    folder: Path
    topics: Topics
    spark: Session

    def runs(self, contender: str, name: str, size: Size) -> bool:
        """Whether a contender that may not fit to this Spark can be measured."""
        try:
            self._sink(name, size, contender)
        except Failed as failed:
            print(f"Spark's own connector is not measured, since it does not run: {str(failed).splitlines()[0]}")
            return False
        return True

    def sinks(self, name: str, size: Size, contenders: Sequence[str], repetitions: int) -> dict[str, list[Measured]]:
        return interleaved(f"sink {name}", contenders, lambda each: self._sink(name, size, each), repetitions)

    def price(self, name: str, size: Size, repetitions: int) -> dict[str, list[Measured]]:
        """Pairs of their own: by turns one and the other is first, which in rounds of four it would not be."""
        return self.sinks(name, size, (PLAIN, OURS), 4 * repetitions)

    def sources(self, name: str, size: Size, contenders: Sequence[str], repetitions: int) -> dict[str, list[Measured]]:
        with self.topics.new() as topic:
            self.topics.fill(topic, self.folder / name)
            return interleaved(f"source {name}", contenders, lambda each: self._source(topic, size, each), repetitions)

    def _sink(self, name: str, size: Size, contender: str) -> Measured:
        os.sync()  # what the run before has left to be written is not this one's to pay for
        with self.topics.new() as topic:
            settings = {"kafka.bootstrap.servers": self.topics.bootstrap, "topic": topic}
            place, source = str(self.folder / "run"), str(self.folder / name)
            measured = self.spark.run(Run("kafka-sink", contender, place, source, FILES_PER_EPOCH, settings))
            found = self.topics.committed(topic)
        _require(contender, size, found, len(measured.epoch_ms))
        return measured

    def _source(self, topic: str, size: Size, contender: str) -> Measured:
        settings = {
            "kafka.bootstrap.servers": self.topics.bootstrap,
            "subscribe": topic,
            "maxOffsetsPerTrigger": str(size.rows_per_epoch),
        }
        measured = self.spark.run(Run("kafka-source", contender, str(self.folder / "run"), settings=settings))
        _require(contender, size, measured.seen["rows"], len(measured.epoch_ms))
        if measured.seen["bytes"] != size.rows * RECORD_BYTES:
            raise SystemExit(f"{contender} gave {measured.seen['bytes']:,} bytes: not what is in the topic")
        return measured


def write_input(folder: Path, size: Size) -> None:
    """Keys and values of letters that do not repeat."""
    folder.mkdir()
    random = np.random.default_rng(7)
    each = size.rows // size.files
    for number in range(size.files):
        columns = {"key": _letters(random, each, KEY_BYTES), "value": _letters(random, each, VALUE_BYTES)}
        path = folder / f"{number:06}.parquet"
        pq.write_table(pa.table(columns), path, use_dictionary=False)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def _letters(random: np.random.Generator, rows: int, width: int) -> pa.Array[Any]:
    letters = random.integers(ord("a"), ord("z") + 1, rows * width, dtype=np.uint8)
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets.data), pa.py_buffer(letters.data)])


def _connector() -> Connector | None:
    try:
        return connector()
    except ServerUnavailable as error:
        print(f"Spark's own connector is not measured: {str(error).splitlines()[0]}", flush=True)
        return None


def _without(contenders: Mapping[str, object], left_out: Sequence[str]) -> tuple[str, ...]:
    return tuple(each for each in contenders if each not in left_out)


def _require(contender: str, size: Size, found: int, epochs: int) -> None:
    if (found, epochs) != (size.rows, size.epochs):
        raise SystemExit(f"{contender}: {found:,} rows in {epochs} epochs are not what it was given")


def _versions(theirs: Connector | None) -> dict[str, str]:
    found = {"Spark": version("pyspark"), "confluent-kafka": version("confluent-kafka")}
    return found if theirs is None else {**found, "Spark's own connector": theirs.version}


def _print(
    theirs: Connector | None,
    big: Size,
    small: Size,
    sinks: Mapping[str, Sequence[Measured]],
    price: Mapping[str, Sequence[Measured]],
    fixed: Mapping[str, Sequence[Measured]],
    sources: Mapping[str, Sequence[Measured]],
    repetitions: int,
) -> None:
    beside = PLAIN if theirs is None else SPARK_TUNED
    print("\n" + ", ".join(f"{name} {number}" for name, number in _versions(theirs).items()))
    print(
        f"{big.rows:,} records of {RECORD_BYTES} bytes in {big.epochs} epochs, {PARTITIONS} partitions, {repetitions} runs each "
        "beyond the first, which is dropped"
    )
    print(f"\nInto a topic, counted by a consumer of committed records; {beside!r} is 1.00\n")
    print(table(sinks, beside=beside))
    _print_price({big: price, small: fixed})
    print(f"\nAn epoch of {small.rows_per_epoch:,} rows (median, ms)\n")
    for name, runs in fixed.items():
        print(f"{name:<16}{median([median(run.epoch_ms[1:]) for run in runs]):>12.0f}")
    beside = OURS if theirs is None else SPARK_TUNED
    print(f"\nFrom a topic into nothing (format noop), counted in the query; {beside!r} is 1.00\n")
    print(table(sources, beside=beside))


def _print_price(measured: Mapping[Size, Mapping[str, Sequence[Measured]]]) -> None:
    print(
        f"\nThe price of exactly-once: what an epoch takes longer by {OURS} than with {PLAIN!r} (nine of ten cases)\n"
    )
    for size, results in measured.items():
        difference, runs = epoch_difference(results, OURS, over=PLAIN), len(results[OURS])
        cpu_us = median([run.cpu_us_per_row for run in results[OURS]]) - median(
            [run.cpu_us_per_row for run in results[PLAIN]]
        )
        print(f"{size.rows_per_epoch:>9,} rows an epoch: {difference}   CPU {cpu_us:+.2f} µs/row   {runs} runs each")
