"""The shared world of the model: immutable states of storage and targets, and storage's transitions.

An `Op` is one atomic step on one of them. Real code reaches the world through `ModelStorage` and `ModelTarget` only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.model import slot_sink
from twophase.sinks import heap
from twophase.storage import Entry

FILES, ATOMIC, SLOTS = "files", "atomic", "slots"


class Files:
    """An immutable set of files, by path."""

    __slots__ = ("_hash", "by_path")

    def __init__(self, by_path: Mapping[str, bytes] | None = None):
        self.by_path = dict(by_path or {})
        self._hash = hash(frozenset(self.by_path.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Files) and self._hash == other._hash and self.by_path == other.by_path


def publish(files: Files, path: str, data: bytes) -> tuple[Files, None]:
    if path in files.by_path:
        raise FileExistsError(path)
    return Files({**files.by_path, path: data}), None


def read(files: Files, path: str) -> tuple[Files, bytes]:
    if path not in files.by_path:
        raise FileNotFoundError(path)
    return files, files.by_path[path]


def list_folder(files: Files, folder: str) -> tuple[Files, tuple[Entry, ...]]:
    prefix = folder + "/"
    inside = (path.removeprefix(prefix) for path in files.by_path if path.startswith(prefix))
    return files, tuple(sorted(Entry(name, False, 0) for name in inside if "/" not in name))


def delete(files: Files, path: str) -> tuple[Files, None]:
    return Files({p: data for p, data in files.by_path.items() if p != path}), None


Transition = Callable[..., tuple[Any, Any]]

READS: frozenset[Transition] = frozenset({read, list_folder, heap.look, slot_sink.look})


@dataclass(frozen=True)
class Op:
    target: str
    transition: Transition
    arguments: tuple[Any, ...]

    @property
    def mutates(self) -> bool:
        return self.transition not in READS

    def __str__(self) -> str:
        shown = ", ".join(a.rpartition("/")[2] if isinstance(a, str) else type(a).__name__ for a in self.arguments)
        return f"{self.target}.{self.transition.__name__}({shown})"


class Performer(Protocol):
    def perform(self, op: Op) -> Any: ...


@dataclass(frozen=True)
class ModelStorage:
    """`Storage` over the model's files. Every publication is durable: what un-fsynced names do is tested on real disks."""

    world: Performer

    def normalise(self, path: str) -> str:
        return f"model:{path}"

    def publish(self, path: str, data: bytes) -> None:
        self.world.perform(Op(FILES, publish, (path, data)))

    def rename(self, source: str, target: str) -> None:
        raise AssertionError(f"the ledger renames nothing: {source} -> {target}")

    def read(self, path: str) -> bytes:
        data: bytes = self.world.perform(Op(FILES, read, (path,)))
        return data

    def list(self, folder: str) -> list[Entry]:
        return list(self.world.perform(Op(FILES, list_folder, (folder,))))

    def make_folder(self, folder: str) -> None:
        """Folders exist by their files."""

    def delete(self, path: str) -> None:
        self.world.perform(Op(FILES, delete, (path,)))

    def sweep_temporary(self, folder: str, older_than_s: float) -> int:
        """Publications leave nothing behind here."""
        return 0

    def sync(self, folder: str) -> None:
        """Everything is durable at once here."""


@dataclass(frozen=True)
class ModelTarget:
    """The seam of `HeapSink` and `SlotSink`: one transition at a time on a target of the world."""

    world: Performer
    name: str

    def apply(self, transition: Transition, *arguments: Any) -> Any:
        return self.world.perform(Op(self.name, transition, arguments))
