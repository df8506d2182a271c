"""CrashTarget: what the crash matrix needs to know of a target. A new sink writes one of these and gets its cells for nothing."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from twophase.query import AnySink
from twophase.testing.crash.orders import Order


class Killable(Protocol):
    """A server that can die and come back, with its data and at the same address."""

    def kill(self) -> None: ...

    def restart(self) -> None: ...

    def ended(self) -> Sequence[str]:
        """The parts that do not run: after `kill`, some."""


@dataclass(frozen=True)
class Surroundings:
    """What a target stands on while the matrix runs."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """Addresses and the like: they reach every `CrashTarget`, in this process and in the children."""
    servers: Mapping[str, Killable] = field(default_factory=dict)
    """Which of them are killed, by name."""


class CrashTarget(ABC):
    """One table, topic or the like, called `name`. Made by the tests, and again by each child that writes to it.

    Rows are orders: a number, a text, and an amount (`twophase.testing.crash.orders`).
    """

    title: ClassVar[str]
    """What cells are called after: `files`."""
    format: ClassVar[str | None] = None
    """What `writeStream.format` is given; None if there is none, and the target is written by `exactly_once` alone."""
    points: ClassVar[Sequence[str]] = ()
    """The sink's own failpoints on the driver, within one commit, in their order."""
    task_points: ClassVar[Sequence[str]] = ()
    """The sink's own failpoints in a task."""
    atomic: ClassVar[bool] = True
    """Whether a reader must never see part of an epoch."""
    one_owner: ClassVar[bool] = False
    """Whether another query is refused until it takes over by name."""
    fences: ClassVar[bool] = True
    """Whether it refuses what tasks of an older generation stage; if not, the next epoch sweeps it."""
    not_covered: ClassVar[Sequence[str]] = ()
    """What the matrix of this target leaves out; a sentence each, for the report."""

    def __init__(self, folder: Path, name: str = "table", settings: Mapping[str, str] | None = None):
        self.folder, self.name, self.settings = folder, name, settings or {}

    @abstractmethod
    def options(self) -> Mapping[str, str]:
        """Of the format."""

    @abstractmethod
    def sink(self) -> AnySink:
        """The same, for `exactly_once`."""

    def checkpoint(self, name: str) -> str:
        """Where the query of this name keeps its checkpoint: beside its input, unless the target says otherwise."""
        return str(self.folder / name)

    def shaped(self, rows: Any) -> Any:
        """A DataFrame of orders, with the columns that the target takes: these as they are, unless it says otherwise."""
        return rows

    @abstractmethod
    def read(self) -> Sequence[Order]:
        """The rows that a reader sees now: a reader that knows nothing of twophase, if there is one."""

    @abstractmethod
    def residue(self) -> Sequence[str]:
        """Everything in the target besides rows and markers, each by a name."""

    @classmethod
    @contextmanager
    def surroundings(cls) -> Iterator[Surroundings]:
        """Start what the target needs; it is gone when this ends."""
        yield Surroundings()


def path_of(target: type[CrashTarget]) -> str:
    """By which name another process finds the class."""
    return f"{target.__module__}:{target.__qualname__}"


def load(path: str) -> type[CrashTarget]:
    module, _, name = path.partition(":")
    found = getattr(importlib.import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, CrashTarget)):
        raise TypeError(f"{path} is not a CrashTarget")
    return found
