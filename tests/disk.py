"""A disk that fails: errors and kills at any system call of LocalStorage, and every state that a power cut may leave.

`FaultyPosix` makes the real calls, counts and records them, and strikes at one of them. `CrashStates` takes such a
record and gives every content of the folder that POSIX allows after a power cut at any point of it::

    posix = FaultyPosix()
    storage = LocalStorage(posix)
    storage.publish(f"{root}/1", b"one")
    posix.note("1")                              # from here on, record 1 must survive
    for state in CrashStates(root, tuple(posix.operations)):
        state.materialise(root)                  # or any other folder: then run the recovery on it
        ...                                      # state.notes says what had been promised when the power went

What a power cut may do is taken from POSIX, not from one file system:

- data that was not followed by an fsync of its file may be absent, cut, zeros of the right length, or there;
- each creation, link, rename or removal of a name that was not followed by an fsync of its folder may have happened or
  not, whatever happened to the others, earlier or later;
- a rename is atomic: it has happened or not, and is certain once both its folders were synced.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import stat
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from pathlib import Path
from typing import Literal, TypeVar

from twophase.local_storage import Posix

T = TypeVar("T")

Effect = Literal["kill", "EIO", "ENOSPC"]
When = Literal["before", "halfway", "after"]

# More than this many changes that may or may not have happened would be more states than anyone waits for.
MOST_PENDING = 14


@dataclass(frozen=True)
class Fault:
    """What happens at call number `at`, counted from 0. Halfway is for writes; all other calls are struck before."""

    at: int
    effect: Effect
    when: When = "before"


@dataclass(frozen=True)
class Operation:
    """A call that took effect, with absolute paths; or a note (`path` is its text)."""

    verb: str
    path: str
    target: str = ""
    data: bytes = b""


class FaultyPosix(Posix):
    """The real system calls, recorded, with at most one fault.

    Parameters
    ----------
    fault:
        Where to strike; None only records.
    fsync:
        Whether to really sync. Without it a long test is faster, and the record is the same.
    """

    def __init__(self, fault: Fault | None = None, *, fsync: bool = True):
        self.fault = fault
        self.calls = 0
        self.fired: str | None = None  # the verb that was struck
        self.operations: list[Operation] = []
        self._fsync = fsync
        self._paths: dict[int, str] = {}

    def note(self, text: str) -> None:
        """Put a mark into the record, usually what has been promised so far. It is no call: nothing strikes here."""
        self.operations.append(Operation("note", text))

    def open_folder(self, path: str, inside: int | None = None) -> int:
        full = self._full(path, inside)
        descriptor = self._call(Operation("open_folder", full), partial(super().open_folder, path, inside))
        self._paths[descriptor] = full
        return descriptor

    def open_file(self, path: str) -> int:
        descriptor = self._call(Operation("open_file", path), partial(super().open_file, path))
        self._paths[descriptor] = path
        return descriptor

    def create(self, name: str, folder: int | None = None) -> int:
        full = self._full(name, folder)
        descriptor = self._call(Operation("create", full), partial(super().create, name, folder))
        self._paths[descriptor] = full
        return descriptor

    def write(self, file: int, data: memoryview) -> int:
        def operation(part: memoryview) -> Operation:
            return Operation("write", self._paths[file], data=bytes(part))

        fault = self.fault
        if fault is not None and fault.at == self.calls and fault.when == "halfway":
            half = data[: len(data) // 2]
            super().write(file, half)
            self.operations.append(operation(half))
        return self._call(operation(data), partial(super().write, file, data))

    def fsync(self, descriptor: int) -> None:
        sync = partial(super().fsync, descriptor) if self._fsync else (lambda: None)
        self._call(Operation("fsync", self._paths[descriptor]), sync)

    def close(self, descriptor: int) -> None:
        self._call(Operation("close", self._paths[descriptor]), partial(super().close, descriptor))
        del self._paths[descriptor]

    def link(self, name: str, target: str, folder: int | None = None) -> None:
        operation = Operation("link", self._full(name, folder), target)
        self._call(operation, partial(super().link, name, target, folder))

    def rename(self, name: str, target: str, folder: int | None = None) -> None:
        operation = Operation("rename", self._full(name, folder), target)
        self._call(operation, partial(super().rename, name, target, folder))

    def unlink(self, name: str, folder: int | None = None) -> None:
        operation = Operation("unlink", self._full(name, folder))
        self._call(operation, partial(super().unlink, name, folder))

    def mkdir(self, path: str) -> None:
        self._call(Operation("mkdir", path), partial(super().mkdir, path))

    def rmdir(self, name: str, folder: int) -> None:
        self._call(Operation("rmdir", self._full(name, folder)), partial(super().rmdir, name, folder))

    def stat(self, name: str, folder: int | None = None) -> os.stat_result:
        operation = Operation("stat", self._full(name, folder))
        return self._call(operation, partial(super().stat, name, folder))

    def names(self, folder: int) -> list[str]:
        return self._call(Operation("names", self._paths[folder]), partial(super().names, folder))

    def read(self, path: str) -> bytes:
        return self._call(Operation("read", path), partial(super().read, path))

    def is_folder(self, descriptor: int) -> bool:
        return stat.S_ISDIR(os.fstat(descriptor).st_mode)

    def _full(self, name: str, folder: int | None) -> str:
        return name if folder is None else f"{self._paths[folder]}/{name}"

    def _call(self, operation: Operation, call: Callable[[], T]) -> T:
        fault = self.fault if self.fault is not None and self.fault.at == self.calls else None
        self.calls += 1
        if fault is not None and fault.when != "after":
            self._strike(fault, operation)
        result = call()
        self.operations.append(operation)
        if fault is not None:
            self._strike(fault, operation)
        return result

    def _strike(self, fault: Fault, operation: Operation) -> None:
        self.fired = operation.verb
        if fault.effect == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        number = getattr(errno, fault.effect)
        raise OSError(number, os.strerror(number), operation.path)


@dataclass(frozen=True)
class CrashState:
    """What the disk may hold after a power cut.

    `tree` has each path relative to the root, with its content, or None for a folder; `notes` are those that were
    recorded before the cut; `cut` is the number of operations before it (of one of the cuts that give this state).
    """

    notes: tuple[str, ...]
    tree: tuple[tuple[str, bytes | None], ...]
    cut: int = field(compare=False)

    @property
    def files(self) -> dict[str, bytes]:
        return {path: content for path, content in self.tree if content is not None}

    @property
    def folders(self) -> set[str]:
        return {path for path, content in self.tree if content is None}

    def materialise(self, folder: str | Path) -> None:
        """Make `folder` hold this state and nothing else."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        for entry in root.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        for path, content in self.tree:  # sorted: a folder comes before what is in it
            if content is None:
                (root / path).mkdir()
            else:
                (root / path).write_bytes(content)


@dataclass(frozen=True)
class CrashStates:
    """Every state of `root` that a power cut during `operations` may leave, each once for the same notes.

    `initial` is what was there, durably, before the first operation. Operations outside `root` are ignored.
    """

    root: str
    operations: Sequence[Operation]
    initial: Mapping[str, bytes | None] = field(default_factory=dict)

    def __iter__(self) -> Iterator[CrashState]:
        disk = _Disk(self.root, self.initial)
        notes: tuple[str, ...] = ()
        seen: set[CrashState] = set()
        for cut in range(len(self.operations) + 1):
            if cut > 0:
                operation = self.operations[cut - 1]
                if operation.verb == "note":
                    notes = (*notes, operation.path)
                disk.apply(operation)
            for tree in disk.after_power_cut():
                state = CrashState(notes, tree, cut)
                if state not in seen:
                    seen.add(state)
                    yield state


@dataclass
class _Node:
    """A file or a folder, apart from its names. Of `content`, the first `durable_bytes` are on disk."""

    number: int
    is_folder: bool
    content: bytes = b""
    durable_bytes: int = 0

    def after_power_cut(self) -> Iterator[bytes]:
        rest = self.content[self.durable_bytes :]
        for tail in dict.fromkeys((rest, rest[:0], rest[: len(rest) // 2], bytes(len(rest)))):
            yield self.content[: self.durable_bytes] + tail


_Name = tuple[int, str]  # the number of a folder's node, and a name in it


@dataclass
class _Change:
    """A change of names that may be lost in a power cut, as one; certain once no folder is left in `unsynced`."""

    names: Mapping[_Name, _Node | None]
    unsynced: set[int]

    def apply(self, names: dict[_Name, _Node]) -> None:
        for name, node in self.names.items():
            if node is None:
                names.pop(name, None)
            else:
                names[name] = node


class _Disk:
    """The nodes and names of a file system: as the processes see it, and what of it is certain."""

    def __init__(self, root: str, initial: Mapping[str, bytes | None]):
        self._root = root
        self._numbers = count()
        self._root_node = _Node(next(self._numbers), is_folder=True)
        self._names: dict[_Name, _Node] = {}  # as the processes see it
        self._certain: dict[_Name, _Node] = {}
        self._changes: list[_Change] = []
        for path, content in sorted(initial.items()):
            node = _Node(next(self._numbers), content is None, content or b"", len(content or b""))
            name = self._name(f"{root}/{path}")
            assert name is not None
            self._names[name] = self._certain[name] = node

    def apply(self, operation: Operation) -> None:
        name = self._name(operation.path)
        node = self._node(operation.path)
        if operation.verb == "fsync" and node is not None:
            self._fsync(node)
        elif operation.verb == "write" and node is not None:
            node.content += operation.data
        elif operation.verb in ("create", "mkdir") and name is not None:
            self._change({name: _Node(next(self._numbers), is_folder=operation.verb == "mkdir")})
        elif operation.verb in ("unlink", "rmdir") and name is not None:
            self._change({name: None})
        elif operation.verb in ("link", "rename"):
            target = self._name(operation.target)
            assert (name is None) == (target is None), f"{operation} crosses the border of the recorded folder"
            if name is not None and target is not None:
                self._change({target: node} if operation.verb == "link" else {name: None, target: node})

    def after_power_cut(self) -> Iterator[tuple[tuple[str, bytes | None], ...]]:
        pending = [change for change in self._changes if change.unsynced]
        if len(pending) > MOST_PENDING:
            raise ValueError(
                f"{len(pending)} changes may have happened or not: record a shorter history, or sync in between"
            )
        for happened in product((False, True), repeat=len(pending)):
            dropped = [change for change, kept in zip(pending, happened, strict=True) if not kept]
            names = dict(self._certain)
            for change in self._changes:
                if not any(change is other for other in dropped):
                    change.apply(names)
            yield from _contents(dict(_walk(names, self._root_node)))

    def _fsync(self, node: _Node) -> None:
        node.durable_bytes = len(node.content)
        for change in self._changes:
            change.unsynced.discard(node.number)
        # What is certain needs no history, but only up to the first change that is not: later ones apply on top of it.
        while self._changes and not self._changes[0].unsynced:
            self._changes.pop(0).apply(self._certain)

    def _change(self, names: Mapping[_Name, _Node | None]) -> None:
        change = _Change(names, {folder for folder, _ in names})
        self._changes.append(change)
        change.apply(self._names)

    def _name(self, path: str) -> _Name | None:
        """None for what is outside the root, and for the root itself."""
        parent, _, last = path.rpartition("/")
        folder = self._node(parent)
        return None if folder is None else (folder.number, last)

    def _node(self, path: str) -> _Node | None:
        if path == self._root:
            return self._root_node
        if not path.startswith(f"{self._root}/"):
            return None
        name = self._name(path)
        return None if name is None else self._names.get(name)


def _walk(names: Mapping[_Name, _Node], folder: _Node, prefix: str = "") -> Iterator[tuple[str, _Node]]:
    """What can be reached from `folder`, a folder before what is in it."""
    for (parent, name), node in names.items():
        if parent == folder.number:
            yield prefix + name, node
            if node.is_folder:
                yield from _walk(names, node, f"{prefix}{name}/")


def _contents(reached: Mapping[str, _Node]) -> Iterator[tuple[tuple[str, bytes | None], ...]]:
    """Each combination of what the files may hold; one file under two names holds the same under both."""
    files = {node.number: node for node in reached.values() if not node.is_folder}
    for contents in product(*(node.after_power_cut() for node in files.values())):
        content_of = dict(zip(files, contents, strict=True))
        yield tuple(sorted((path, content_of.get(node.number)) for path, node in reached.items()))


def in_child(work: Callable[[], object]) -> int:
    """Do `work` in a forked process; returns 0, 1 if it raised, or minus the signal that killed it."""
    child = _fork(work)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def race(works: Sequence[Callable[[], str]]) -> list[str]:
    """Do all `works` at once, each in a forked process; returns what each returned (at most a pipe's worth)."""
    gate, starter = os.pipe()
    pipes = [os.pipe() for _ in works]
    children = [_fork(_runner(work, gate, starter, answer)) for work, (_, answer) in zip(works, pipes, strict=True)]
    os.close(gate)
    os.close(starter)  # the end of the pipe: all are released
    answers = []
    for (result, answer), child in zip(pipes, children, strict=True):
        os.close(answer)
        with open(result, encoding="utf-8") as stream:
            answers.append(stream.read())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    return answers


def _runner(work: Callable[[], str], gate: int, starter: int, answer: int) -> Callable[[], None]:
    def run() -> None:
        os.close(starter)
        os.read(gate, 1)
        os.write(answer, work().encode())

    return run


def _fork(work: Callable[[], object]) -> int:
    with warnings.catch_warnings():
        # From Python 3.12 on, a fork beside threads warns. The child makes system calls only, and never returns.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child != 0:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - whatever it was, the parent's stack must not be unwound here
        traceback.print_exc()
    finally:
        os._exit(status)
