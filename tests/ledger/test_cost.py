"""The cost of an epoch is the same however long the history is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.disk import FaultyPosix
from tests.ledger.ledger_folder import Relay, contents, ledger_in, records, run_epoch
from twophase.ledger import KEPT_RECORDS
from twophase.local_storage import LocalStorage
from twophase.storage import Entry, Storage


class Counting(Relay):
    """Counts what is asked of the storage, and the bytes that are published and read."""

    def __init__(self, inner: Storage):
        super().__init__(inner)
        self.asked: Counter[str] = Counter()
        self.published_bytes = 0
        self.read_bytes = 0

    def normalise(self, path: str) -> str:
        self.asked["normalise"] += 1
        return super().normalise(path)

    def publish(self, path: str, data: bytes) -> None:
        self.asked["publish"] += 1
        self.published_bytes += len(data)
        super().publish(path, data)

    def read(self, path: str) -> bytes:
        self.asked["read"] += 1
        data = super().read(path)
        self.read_bytes += len(data)
        return data

    def list(self, folder: str) -> list[Entry]:
        self.asked["list"] += 1
        return super().list(folder)

    def make_folder(self, folder: str) -> None:
        self.asked["make_folder"] += 1
        super().make_folder(folder)

    def delete(self, path: str) -> None:
        self.asked["delete"] += 1
        super().delete(path)

    def sync(self, folder: str) -> None:
        self.asked["sync"] += 1
        super().sync(folder)


@pytest.mark.parametrize(("kept_records", "steady_from"), [(10, 10), (KEPT_RECORDS, 60)])
def test_an_epoch_costs_the_same_however_long_the_history_is(folder: Path, kept_records: int, steady_from: int) -> None:
    posix = FaultyPosix(fsync=False)
    costs, sizes, files = [], [], []
    for number in range(501 if kept_records == 10 else 120):
        storage = Counting(LocalStorage(posix))
        calls = posix.calls
        run_epoch(ledger_in(folder, storage, kept_records=kept_records), number)
        posix.operations.clear()
        costs.append((posix.calls - calls, storage.asked))
        sizes.append((storage.published_bytes, storage.read_bytes))
        files.append(len(contents(folder)))

    assert all(cost == costs[steady_from] for cost in costs[steady_from:])
    assert costs[-1][1]["publish"] == 2
    assert max(files) == kept_records + 1
    # Numbers are written in decimal: from 10 to 1000 each of them grows by two digits, and nothing else does.
    numbers_in_an_epoch = 40
    for kind in (0, 1):
        grown = [size[kind] - sizes[steady_from][kind] for size in sizes[steady_from:]]
        assert 0 <= min(grown) <= max(grown) <= 2 * numbers_in_an_epoch
    records(folder)
