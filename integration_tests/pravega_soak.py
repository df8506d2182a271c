"""Epochs of three tasks to a stream, while their driver is killed at random and the stream is scaled: `make pravega-soak`.

::

    this process      starts the emulator, kills -9 the driver, scales the stream, and counts events in the end
    driver            the real coordinator on a real checkpoint folder; its tasks are threads; begins where the last one died

An epoch's events are known by its number, so whatever is missing, twice or strange is named. Some tasks are given up half-way and
run again, as those of an executor that died.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from integration_tests.pravega_streams import (
    PravegaTarget,
    StreamUnderTest,
    controller_at,
    events_of,
    new_stream,
    open_transactions,
)
from twophase.checkpoint import Checkpoint
from twophase.clients.pravega.connections import close_connections
from twophase.clients.pravega.stream import Stream
from twophase.local_storage import LocalStorage
from twophase.testing.query_steps import SINK, QuerySteps
from twophase.vote import Vote

TASKS = 3
EVENTS = 50
_SOON_S, _LATE_S = 0.2, 3.0
_UP_WITHIN_S = 60.0


class SoakStream(StreamUnderTest):
    """A stream that is there already."""

    def __init__(self, address: str, stream: Stream):
        self.address, self.stream, self._lease_ms = address, stream, 60_000


def values_of(epoch: int) -> list[list[int]]:
    first = epoch * TASKS * EVENTS
    return [list(range(first + slot * EVENTS, first + (slot + 1) * EVENTS)) for slot in range(TASKS)]


def drive(address: str, stream: Stream, root: Path, epochs: int) -> None:
    """Run epochs from where Spark's log would say."""
    query = QuerySteps(root, SoakStream(address, stream))
    checkpoint = Checkpoint(LocalStorage(), str(root))
    number = checkpoint.newest() or 0
    if checkpoint.is_committed(number):
        number += 1
    print("running", flush=True)
    while number < epochs:
        query.log(number)
        query.prepare()
        with ThreadPoolExecutor(TASKS) as pool:
            query.votes = list(pool.map(run_task, [query] * TASKS, range(TASKS), values_of(number)))
        query.commit()
        query.log_commit()
        number += 1
    query.recover()  # what the last epoch's losers have begun


def run_task(query: QuerySteps, slot: int, values: list[int]) -> Vote:
    is_to_be_written = query.plan is not None and query.plan.sinks[SINK].plan is not None
    if is_to_be_written and random.random() < 0.2:
        query.killed_task(slot, values[: EVENTS // 2], random.choice(["written", "pre-committed"]))
    return query.task(slot, query.target.batch(values[: EVENTS // 2]), query.target.batch(values[EVENTS // 2 :]))


def soak(address: str, epochs: int, kills: int) -> list[str]:
    """What is wrong in the end."""
    stream, killed, scaled = new_stream(address, segments=2), 0, 0
    controller = controller_at(address)
    command = [sys.executable, "-m", "integration_tests.pravega_soak", "--address", address]
    command += ["--scope", stream.scope, "--stream", stream.name]
    with tempfile.TemporaryDirectory(prefix="twophase-soak-") as folder:
        ended = False
        while not ended or killed < kills:
            # What was begun is finished; and there are more epochs than were asked for, if these do not last for all kills.
            begun = count_in(folder, "offsets")
            wanted = max(epochs, begun if killed >= kills else begun + 20)
            driver = subprocess.Popen(
                [*command, "--root", folder, "--epochs", str(wanted)], stdout=subprocess.PIPE, text=True
            )
            assert driver.stdout is not None
            driver.stdout.readline()
            try:
                driver.wait(random.uniform(_SOON_S, _LATE_S) if killed < kills else _UP_WITHIN_S)
            except subprocess.TimeoutExpired:
                killed += killed < kills
                driver.kill()
            ended = driver.wait() == 0
            if driver.returncode not in (0, -9):
                return [f"the driver ended by itself, with {driver.returncode}"]
            if killed and killed % 25 == 0 and scaled < killed // 25:
                now, scaled = [each.segment for each in controller.current(stream)], scaled + 1
                many = 2 + scaled % 3
                controller.scale(stream, now, [(at / many, (at + 1) / many) for at in range(many)])
            print(f"{count_in(folder, 'commits')} epochs, {killed} kills, {scaled} scalings", flush=True)
        count = count_in(folder, "commits")
    found = Counter(int(event) for event in events_of(controller, stream))
    wrong = [f"{value} is there {times} times" for value, times in found.items() if times != 1]
    expected = {value for epoch in range(count) for values in values_of(epoch) for value in values}
    wrong += [f"{value} is missing" for value in expected - found.keys()]
    wrong += [f"{value} was never committed" for value in found.keys() - expected]
    wrong += [f"{name} is open" for name in open_transactions(controller, stream)]
    print(f"{count} epochs of {TASKS} tasks, {killed} kills, {scaled} scalings, {sum(found.values())} events")
    return wrong


def count_in(folder: str, log: str) -> int:
    return len(list((Path(folder) / log).glob("[0-9]*")))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--kills", type=int, default=100)
    for name in ("address", "scope", "stream", "root"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.root is not None:
        drive(told.address, Stream(told.scope, told.stream), Path(told.root), told.epochs)
        return 0
    begun = time.monotonic()
    with PravegaTarget.surroundings() as surroundings:
        wrong = soak(surroundings.settings["controller"], told.epochs, told.kills)
    close_connections()
    print("\n".join(wrong[:20]) or f"every event is there once ({time.monotonic() - begun:.0f} s)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
