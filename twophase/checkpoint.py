"""Spark's checkpoint, as far as the protocol needs it: which query it is, what is logged, what is committed.

It is read through `Storage`, so it needs no Spark, and it is never written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from twophase.errors import CheckpointMismatch
from twophase.identity import offsets_hash
from twophase.storage import Storage


@dataclass(frozen=True)
class Checkpoint:
    storage: Storage
    root: str

    def query_id(self) -> str:
        """The query's id, stable across restarts."""
        path = f"{self.root}/metadata"
        try:
            name = json.loads(self.storage.read(path))["id"]
        except FileNotFoundError:
            raise CheckpointMismatch(f"{path} is not there: {self.root} is not the checkpoint of a query") from None
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointMismatch(f"{path} can't be read: {error!r}") from error
        if not isinstance(name, str) or not name:
            raise CheckpointMismatch(f"{path} can't be read: it names no query, its id is {name!r}")
        return name

    def newest(self) -> int | None:
        """The highest number in `offsets/`. Only a guess of what a running driver is about to do: another may log one more."""
        return self._highest("offsets")

    def newest_commit(self) -> int | None:
        """The highest number in `commits/`."""
        return self._highest("commits")

    def offsets_hash(self, number: int) -> str | None:
        """None if `offsets/N` is not there: never logged, or cleaned up by Spark."""
        try:
            return offsets_hash(self.storage.read(f"{self.root}/offsets/{number}"))
        except FileNotFoundError:
            return None

    def is_committed(self, number: int) -> bool:
        try:
            self.storage.read(f"{self.root}/commits/{number}")
        except FileNotFoundError:
            return False
        return True

    def _highest(self, log: str) -> int | None:
        names = [entry.name for entry in self.storage.list(f"{self.root}/{log}") if not entry.is_folder]
        return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)
