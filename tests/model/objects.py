"""The shared world of the model: immutable states of storage and targets, and storage's transitions.

An `Op` is one atomic step on one of them. Real code reaches the world through `ModelStorage` and `ModelTarget` only.

A look at a target shows only what the caller declared that it looks at (`Sight`). So a process does not remember what it never
used, and an operation on the rest of the target does not disturb it. The declaration can't be too small unnoticed: whatever is
not declared can't be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from tests.model import slot_sink
from tests.model.digest import digest, joined
from tests.model.footprint import Footprint, Token, footprint
from tests.model.slot_sink import SlotState
from twophase.identity import Attempt, Owner
from twophase.sinks import heap
from twophase.sinks.heap import HeapState
from twophase.storage import Entry

FILES, ATOMIC, SLOTS = "files", "atomic", "slots"


class Files:
    """An immutable set of files, by path."""

    __slots__ = ("_digest", "_hash", "by_path")

    def __init__(self, by_path: Mapping[str, bytes] | None = None):
        self.by_path = dict(by_path or {})
        self._hash = hash(frozenset(self.by_path.items()))
        self._digest: bytes | None = None

    @property
    def digest(self) -> bytes:
        if self._digest is None:
            self._digest = joined("files", *(digest(part) for item in sorted(self.by_path.items()) for part in item))
        return self._digest

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


class Unseen(BaseException):
    """Real code read something of a target that its look did not declare. Not an Exception: real code must not catch it."""


class _Hidden:
    """Stands for what a look does not show: it can be passed on, and not be used."""

    digest = joined("hidden")

    def _refuse(self, *_: Any) -> Any:
        raise Unseen("a part of a target was read that the look at it did not declare")

    __iter__ = __len__ = __bool__ = __contains__ = __getitem__ = __sub__ = __or__ = __and__ = _refuse


HIDDEN: Any = _Hidden()


@dataclass(frozen=True)
class Sight:
    """What of a target a look shows."""

    parts: frozenset[str]
    owner: Owner
    """Of a target with several owners, only what is this one's."""
    attempts: frozenset[Attempt] | None = None
    """Only the shares of these attempts, where the caller asks about no others."""

    def of(self, state: HeapState | SlotState) -> HeapState | SlotState:
        return self._of_line(state) if isinstance(state, HeapState) else self._of_slots(state)

    def _of_line(self, state: HeapState) -> HeapState:
        line, staged = state.line, state.staged
        if self.attempts is not None:
            line = tuple(c for c in line if any(s.attempt in self.attempts for s in c.shares))
            staged = frozenset(s for s in staged if s.attempt in self.attempts)
        return HeapState(
            line if "line" in self.parts else HIDDEN, staged if "staged" in self.parts else HIDDEN, fences=HIDDEN
        )

    def _of_slots(self, state: SlotState) -> SlotState:
        pending: Any = HIDDEN
        if "pending" in self.parts:
            pending = frozenset(filter(self._shows, state.pending))
            if "voted" not in self.parts:
                pending = frozenset(replace(t, values=HIDDEN, voted=HIDDEN, stray=HIDDEN) for t in pending)
        return SlotState(
            pending,
            tuple(filter(self._shows, state.visible)) if "visible" in self.parts else HIDDEN,
            frozenset(m for m in state.markers if m[1].owner == self.owner) if "markers" in self.parts else HIDDEN,
        )

    def _shows(self, share: slot_sink.SlotTransaction) -> bool:
        return share.owner == self.owner and (self.attempts is None or share.attempt in self.attempts)

    @property
    def footprint(self) -> Footprint:
        """Whether an attempt is visible changes only when it is taken out of staging: `visible` is no piece of its own."""
        by_owner = {"pending", "voted", "markers"}
        needs: set[Token] = set()
        for part in self.parts - {"visible"}:
            whole = (part, str(self.owner)) if part in by_owner else (part,)
            if self.attempts is None:
                needs.add(whole)
            elif part != "line":
                needs.update((*whole, str(attempt)) for attempt in self.attempts)
        return Footprint(frozenset(needs), frozenset())


@dataclass(frozen=True)
class Op:
    target: str
    transition: Transition
    arguments: tuple[Any, ...]
    sight: Sight | None = None

    @cached_property
    def mutates(self) -> bool:
        return self.transition not in READS

    @cached_property
    def footprint(self) -> Footprint:
        if self.sight is not None:
            return self.sight.footprint
        return footprint(self.transition.__name__, self.target, self.arguments)

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
    _sight: list[Sight] = field(default_factory=list)

    def apply(self, transition: Transition, *arguments: Any) -> Any:
        looks = transition in READS
        return self.world.perform(Op(self.name, transition, arguments, self._sight[-1] if looks else None))

    @contextlib.contextmanager
    def showing(self, owner: Owner, *parts: str, attempts: frozenset[Attempt] | None = None) -> Iterator[None]:
        """Within this, a look shows these parts and nothing else."""
        self._sight.append(Sight(frozenset(parts), owner, attempts))
        try:
            yield
        finally:
            self._sight.pop()
