"""A reader that polls a table all the while, as any program might, and remembers whether it ever saw part of an epoch."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from integration_tests.crash.orders import rows_of


class PollingReader:
    """Knows only the rows: every id belongs to an epoch by its number, and an epoch is visible whole or not at all."""

    def __init__(self, table: Path, ids_per_epoch: int, rows_per_epoch: int):
        self._table = table
        self._ids_per_epoch = ids_per_epoch
        self._rows_per_epoch = rows_per_epoch
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.polls = 0
        self.faults: list[str] = []
        self._most = 0

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
            self._stop.wait(0.1)

    def look(self) -> None:
        """One poll: whole epochs, each row once, the epochs a prefix, and never fewer rows than before."""
        ids = [row[0] for row in rows_of(self._table)]
        self.polls += 1
        epochs = Counter(i // self._ids_per_epoch for i in set(ids))
        torn = {epoch: count for epoch, count in epochs.items() if count != self._rows_per_epoch}
        if torn:
            self.faults.append(f"part of an epoch: {torn}")
        if len(ids) != len(set(ids)):
            self.faults.append(f"{len(ids) - len(set(ids))} rows twice")
        if sorted(epochs) != list(range(len(epochs))):
            self.faults.append(f"not a prefix: {sorted(epochs)}")
        if len(ids) < self._most:
            self.faults.append(f"{self._most} rows, and then {len(ids)}")
        self._most = max(self._most, len(ids))


@contextmanager
def polling(table: Path, ids_per_epoch: int, rows_per_epoch: int) -> Iterator[PollingReader]:
    reader = PollingReader(table, ids_per_epoch, rows_per_epoch)
    reader.start()
    try:
        yield reader
    finally:
        reader.stop()
