"""A reader that polls a target all the while, as any program might; what it sees is held against the checkers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from twophase.checkpoint import Checkpoint
from twophase.ledger import Ledger
from twophase.storage_of import storage_of
from twophase.testing.checkers import History, Read, Slots, violations
from twophase.testing.crash.orders import ROWS_PER_FILE, Order, order
from twophase.testing.crash.target import CrashTarget

_POLL_S = 0.2


class PollingReader:
    """Knows which rows belong to which epoch, and reads the checkpoint to know which epochs may and which must be there."""

    def __init__(self, target: CrashTarget, written: Mapping[int, Slots], checkpoint: str):
        self._target, self._written, self._checkpoint = target, written, checkpoint
        self._stop = threading.Event()
        self._one_at_a_time = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._before: Read | None = None
        self.polls = 0
        self.faults: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - a reader that fails is a finding
                self.faults.append(repr(error))
            self._stop.wait(_POLL_S)

    def look(self) -> Sequence[Order]:
        """One poll; what was seen."""
        with self._one_at_a_time:  # or a read would be compared with one that began after it
            committed = newest_commit(self._checkpoint)
            rows = self._target.read()
            read = Read(rows, committed=committed, decided=newest_decision(self._checkpoint))
            self.polls += 1
            reads = [read] if self._before is None else [self._before, read]
            self._before = read
            self.faults += violations(History(self._written, reads), atomic=self._target.atomic, ordered=False)
            return rows


@contextmanager
def polling(target: CrashTarget, written: Mapping[int, Slots], checkpoint: str) -> Iterator[PollingReader]:
    reader = PollingReader(target, written, checkpoint)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()


def checkpoint_at(location: str) -> Checkpoint:
    return Checkpoint(storage_of(location), location)


def newest_commit(checkpoint: str) -> int | None:
    """The newest epoch that Spark has logged as committed."""
    return checkpoint_at(checkpoint).newest_commit()


def newest_decision(checkpoint: str) -> int | None:
    """The newest epoch that the ledger has decided."""
    folder = f"{checkpoint}/twophase"
    ledger = Ledger(storage_of(folder), folder, new_id=_never, now_ms=lambda: 0)
    tail = ledger.read()
    return None if tail is None or tail.decision is None else tail.decision.epoch.number


def written_by_epoch(files: int, files_per_epoch: int, takes: Callable[[int], bool]) -> dict[int, Slots]:
    """Which rows each epoch of a query writes that reads these files, some of them an epoch."""
    written: dict[int, Slots] = {}
    for epoch, first in enumerate(range(0, files, files_per_epoch)):
        numbers = range(first * ROWS_PER_FILE, min(first + files_per_epoch, files) * ROWS_PER_FILE)
        written[epoch] = [[order(number) for number in numbers if takes(number)]]
    return written


def _never() -> str:
    raise AssertionError("a reader publishes nothing")
