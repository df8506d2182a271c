"""A topic copied to another by a real query that is killed again and again: every record is there once, and in its order.

``python -m integration_tests.kafka_copy --records 1000000 --kills 20``

Victims take turns: the driver with all its processes, an executor, a broker. Moments are random, some way into an epoch; the query
must have committed at least one epoch since the last kill. All the while a consumer of committed records that knows nothing of
twophase reads the copy, and at the end Java's own console consumer does too.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from integration_tests.topics import close_clients, committed_records, create_topic, producer_in_order
from twophase.clients.kafka.connections import control_of
from twophase.clients.kafka.partition import LATEST, Partition
from twophase.options import PassThrough
from twophase.testing.child import Child, running
from twophase.testing.servers import kafka
from twophase.testing.servers.jars import fetch
from twophase.testing.servers.java import java_command
from twophase.testing.servers.server import Server

SOURCE, COPY = "source", "copy"
PARTITIONS = 4
EXECUTOR = "CoarseGrainedExecutorBackend"
_RUN_WITHIN_S = 300.0
_COMES_WITHIN_S = 120.0


@dataclass(frozen=True)
class Told:
    """What one run of the program copies."""

    bootstrap: str
    checkpoint: str
    per_epoch: int
    master: str

    def command(self) -> list[str]:
        given = (self.bootstrap, self.checkpoint, str(self.per_epoch), self.master)
        return [sys.executable, "-m", "integration_tests.kafka_copy", "--program", *given]


def copy(told: Told) -> None:
    """The program: one run of the query, until there is nothing more."""
    from pyspark.sql import SparkSession

    import twophase
    from twophase.testing.quick_start import quick_start

    # An executor that is killed is no reason for the query to fail.
    builder = quick_start(SparkSession.builder.master(told.master)).config("spark.task.maxFailures", "20")
    spark = builder.config("spark.excludeOnFailure.enabled", "false").getOrCreate()
    twophase.register(spark)
    kafka = {"kafka.bootstrap.servers": told.bootstrap}
    rows = (
        spark.readStream.format("twophase-kafka")
        .options(**kafka, subscribe=SOURCE, startingOffsets="earliest", maxOffsetsPerTrigger=str(told.per_epoch))
        .load()
        .select("key", "value", "partition")
    )
    writer = rows.writeStream.format("twophase-kafka").options(**kafka, topic=COPY)
    query = writer.option("checkpointLocation", told.checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    print('{"copied": true}', flush=True)


# ---- what is copied ----


def fill(bootstrap: str, records: int) -> None:
    for topic in (SOURCE, COPY):
        create_topic(bootstrap, topic, PARTITIONS)
    producer = producer_in_order(bootstrap, **{"linger.ms": 20, "batch.size": 524_288})
    for number in range(records):
        place, partition = divmod(number, PARTITIONS)
        while True:
            try:
                producer.produce(SOURCE, b"%d:%d" % (partition, place) + b"." * 90, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0
    filled = [place_of(record.value()) for record in committed_records(bootstrap, SOURCE)]
    for number in range(PARTITIONS):
        expected = list(range(len(range(number, records, PARTITIONS))))
        assert [place for partition, place in filled if partition == number] == expected, "the source is not in order"


def place_of(value: bytes) -> tuple[int, int]:
    partition, _, place = value.rstrip(b".").partition(b":")
    return int(partition), int(place)


@dataclass
class Onlooker:
    """A consumer of committed records. It expects the next record of each partition, and nothing else."""

    bootstrap: str
    found: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    wrong: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "onlooker",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.assign([TopicPartition(COPY, number, 0) for number in range(PARTITIONS)])
        while not self._stop.is_set():
            for record in consumer.consume(10_000, timeout=0.2):
                self._look(record)
        consumer.close()

    def _look(self, record: Any) -> None:
        error = record.error()
        if error is not None:
            if error.code() not in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT):
                self.wrong.append(str(error))
            return
        (partition, place), number, offset = place_of(record.value()), record.partition(), record.offset()
        expected = self.found[number]
        if (partition, place) != (number, expected):
            self.wrong.append(
                f"partition {number}, offset {offset}: record {place} of {partition}, and {expected} was expected"
            )
        self.found[number] = place + 1

    @contextmanager
    def looking(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join(60)


# ---- who dies ----


@dataclass
class Copy:
    """The runs of a query, and what was done to them."""

    folder: Path
    server: Server[str]
    records: int
    kills: int
    seed: int = 7
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._victims = itertools.cycle(("driver", "executor", "broker", "driver"))
        self._checkpoint = self.folder / "checkpoint"

    def to_the_end(self) -> None:
        told = Told(
            self.server.endpoint,
            str(self._checkpoint),
            # More epochs than kills: the query may not be done before all have died.
            per_epoch=max(PARTITIONS, self.records // (2 * self.kills + 10)),
            master="local-cluster[2,1,1024]",
        )
        said = ""
        for number in range(10 * self.kills + 10):
            with running(told.command(), output=self.folder / f"run-{number}.txt", cwd=Path.cwd()) as child:
                if self._one_run(child):
                    return
                said = child.output()
        raise AssertionError(f"the copy is not done after so many runs:\n{said}")

    def _one_run(self, child: Child) -> bool:
        """Until it is done (True), or the driver is dead."""
        since = self._newest("commits")
        while len(self.done) < self.kills:
            if not self._wait_for_epoch(child, since):
                return '"copied"' in child.output()
            victim = next(self._victims)
            self._kill(child, victim)
            self.done.append(victim)
            print(f"{time.strftime('%H:%M:%S')} {len(self.done):>3} {victim:<9} epoch {since + 1}", flush=True)
            if victim == "driver":
                return False
            since = self._newest("commits")
        child.wait_for(lambda: not child.is_running, "the end of the copy", timeout_s=_RUN_WITHIN_S)
        return '"copied"' in child.output()

    def _wait_for_epoch(self, child: Child, since: int) -> bool:
        """One epoch is committed, and another one has begun, some way into which we are then. False if the child has ended."""
        deadline = time.monotonic() + _RUN_WITHIN_S
        while self._newest("commits") <= since or self._newest("offsets") <= self._newest("commits"):
            if not child.is_running:
                return False
            assert time.monotonic() < deadline, f"no epoch within {_RUN_WITHIN_S} s:\n{child.output()}"
            time.sleep(0.01)
        time.sleep(self._random.random() * 1.5)
        return child.is_running

    def _kill(self, child: Child, victim: str) -> None:
        if victim == "driver":
            child.kill()
        elif victim == "executor":
            found = [pid for pid in child.pids() if EXECUTOR in _command_of(pid)]
            if found:
                subprocess.run(["kill", f"-{signal.SIGKILL.value}", str(self._random.choice(found))], check=False)
        else:
            self.server.kill()
            time.sleep(self._random.random() * 3)
            self.server.start()

    def _newest(self, log: str) -> int:
        names = [path.name for path in (self._checkpoint / log).glob("*")]
        return max((int(name) for name in names if name.isdigit()), default=-1)


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


# ---- what must hold ----


def check(bootstrap: str, records: int, onlooker: Onlooker) -> None:
    expected = {number: len(range(number, records, PARTITIONS)) for number in range(PARTITIONS)}
    deadline = time.monotonic() + _COMES_WITHIN_S
    while onlooker.found != expected and not onlooker.wrong and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not onlooker.wrong, "\n".join(onlooker.wrong)
    assert onlooker.found == expected
    require_settled(bootstrap)
    seen = sorted(map(place_of, read_by_java(bootstrap)))
    assert seen == [(number, place) for number, count in expected.items() for place in range(count)]


def require_settled(bootstrap: str) -> None:
    """No transaction is open: the last stable offset is the end of the log."""
    control = control_of(PassThrough({"bootstrap.servers": bootstrap}), patience_s=60)
    partitions = [Partition(COPY, number) for number in range(PARTITIONS)]
    assert control.offsets(partitions, LATEST, committed=True) == control.offsets(partitions, LATEST)


def read_by_java(bootstrap: str) -> Sequence[bytes]:
    """The console consumer of Kafka's own tools, which ends when nothing has come for some seconds."""
    words = ("--bootstrap-server", bootstrap, "--topic", COPY, "--from-beginning", "--timeout-ms", "10000")
    isolated = ("--command-property", "isolation.level=read_committed")
    command = java_command(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", *words, *isolated, class_path=fetch("kafka"), heap_mb=512
    )
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=600, check=False)
    return [line for line in ran.stdout.splitlines() if line.endswith(b".")]


def run(folder: Path, *, records: int, kills: int, seed: int) -> list[str]:
    """Who was killed, in this order; AssertionError if a record is not there once and in its order."""
    with kafka.on_this_machine(folder) as server:
        fill(server.endpoint, records)
        onlooker = Onlooker(server.endpoint)
        copying = Copy(folder, server, records, kills, seed)
        with onlooker.looking():
            copying.to_the_end()
            check(server.endpoint, records, onlooker)
        close_clients()
    return copying.done


def main() -> int:
    if sys.argv[1:2] == ["--program"]:
        bootstrap, checkpoint, per_epoch, master = sys.argv[2:]
        copy(Told(bootstrap, checkpoint, int(per_epoch), master))
        return 0
    parser = argparse.ArgumentParser(prog="python -m integration_tests.kafka_copy", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    told = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="twophase-copy-", ignore_cleanup_errors=True) as folder:
        done = run(Path(folder), records=told.records, kills=told.kills, seed=told.seed)
    counts = ", ".join(f"{done.count(victim)} x {victim}" for victim in ("driver", "executor", "broker"))
    print(
        f"{told.records:,} records copied, each once and in order; killed: {counts}; {time.monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
