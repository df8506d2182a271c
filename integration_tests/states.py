"""Keyed states as readers see them; and as a target of the crash matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import twophase
from twophase.errors import OptionError
from twophase.sinks import RocksDBSink
from twophase.state.manifest import StateTable
from twophase.storage_of import storage_of
from twophase.testing.crash.orders import Order
from twophase.testing.crash.target import CrashTarget

TASKS = 2


class StateTarget(CrashTarget):
    title = "rocksdb"
    format = "twophase-rocksdb"
    points: ClassVar[Sequence[str]] = ("rocksdb.sealed", "rocksdb.published")
    task_points: ClassVar[Sequence[str]] = ("rocksdb.uploading",)
    one_owner = True
    fences = False
    not_covered: ClassVar[Sequence[str]] = (
        "Updates, by RocksDB: every order has a key of its own here. What updates become is compared with a fold, over random "
        "histories, in tests/test_state_histories.py.",
    )

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def working_dir(self) -> Path:
        return self.folder / "working"

    @property
    def tasks(self) -> int:
        return int(self.settings.get("tasks", TASKS))

    def options(self) -> Mapping[str, str]:
        told = {
            "path": str(self.path),
            "keyColumns": "id",
            "tasks": str(self.tasks),
            "workingDir": str(self.working_dir),
        }
        return {**told, "retainEpochs": "100"}

    def sink(self) -> RocksDBSink:
        return RocksDBSink(str(self.path), "id", tasks=self.tasks, working_dir=str(self.working_dir), retain_epochs=100)

    def shaped(self, rows: Any) -> Any:
        return twophase.by_key_group(rows, "id", tasks=self.tasks)

    def read(self) -> Sequence[Order]:
        return rows_of(self.path)

    def residue(self) -> Sequence[str]:
        return residue_of(self.path)


def rows_of(path: Path, epoch: int | None = None) -> list[Order]:
    try:
        state = twophase.state.open(str(path), epoch)
    except OptionError:  # nothing is committed yet
        return []
    with state:
        rows = state.to_table().to_pylist()
    return [(row["id"], row["name"], row["amount"]) for row in rows]


def residue_of(path: Path) -> list[str]:
    """What is in a state that none of its epochs names."""
    table = StateTable(storage_of(str(path)), str(path))
    named = {file.place for manifest in table.kept() for file in manifest.files}
    folders = {place.rpartition("/")[0] for place in named}
    found = [*path.glob("staged/*/*/*"), *(each for each in path.glob("manifests/*") if each.suffix != ".manifest")]
    for folder in path.glob("files/*/*/*"):
        if folder.relative_to(path / "files").as_posix() not in folders:
            found.append(folder)
        else:
            tables = (each for each in folder.glob("*.sst"))
            found += [each for each in tables if each.relative_to(path / "files").as_posix() not in named]
    return sorted(str(each.relative_to(path)) for each in found)
