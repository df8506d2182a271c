"""Storage on HDFS: what a table, a ledger and a checkpoint need, from the requests that a NameNode carries out in one step.

::

    publish     make .tmp-… in the folder, with all that is in it  ─►  rename to the name, never replacing
    killed      ├──────────────── the name is free ───────────────────┤├───────── the whole record ──────────

What is published is a file, or if it is small, as records and manifests are, a folder of folders that spell it
(spelled_folders.py). A small file costs up to half a second here: its close asks whether the DataNode has reported the block, it
mostly has not yet, and the client then sleeps for 400 or 500 ms. Folders are known to the NameNode alone, and made in 3 ms each.

Every change of a name is one request, which the NameNode has logged durably before it answers: there is nothing to sync. A rename
that lost its reply is asked again. Then "not found" and "exists" are no answers, because the first request may have been the
one that was carried out: for a publication, whose temporary file nobody else knows, what lies under the name settles it; for any
other rename it is a TimeoutError, and whoever asked looks for what it wanted to be there.

The guarantee is that of `twophase.storage`, against kills of any process, NameNode and DataNode included. What it can't do: make
the last bytes of a file survive a power cut of all DataNodes that have them, where clients or DataNodes don't sync (hdfs-native
does so before each close; WebHDFS can't ask for it: `dfs.datanode.synconclose`).
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO, ClassVar, TypeVar

from twophase.clients.hdfs.name_node import FileStatus, NameNode
from twophase.clients.hdfs.patience import looks, patiently
from twophase.clients.hdfs.ranges import opened
from twophase.clients.hdfs.settings import HdfsSettings
from twophase.secret import Secret
from twophase.spelled_folders import read_from, spelled
from twophase.storage import Entry

T = TypeVar("T")

_TEMPORARY = re.compile(r"\.tmp-[0-9]+-[0-9a-f]{16}")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/]*)(/.*)?", re.DOTALL)
_SPELLED_BYTES = 64 << 10
_SPELLED_NAMES = 64
"""About eight kilobytes, compressed. Above that a file is not much slower, and kinder to the NameNode."""
_AHEAD_BYTES = 1 << 20


@dataclass(frozen=True)
class HdfsStorage(ABC):
    """Storage on one HDFS. Paths are URLs of it, or begin with a slash; nothing in them is percent-decoded, as in Hadoop's."""

    authority: str
    """The host and port of the NameNode, or the name of a name service."""
    settings: HdfsSettings = field(default_factory=HdfsSettings)

    spells_small_files: ClassVar[bool] = True
    schemes: ClassVar[tuple[str, ...]]

    @classmethod
    def at(cls, path: str, settings: HdfsSettings) -> HdfsStorage:
        """The storage that the URL `path` lies on; ValueError if it names none."""
        scheme, authority, _ = _parts(path)
        if scheme not in cls.schemes:
            raise ValueError(f"{path!r} is not a URL that begins with {' or '.join(cls.schemes)}")
        if not authority:
            raise ValueError(
                f"{path!r} names no NameNode: write {scheme}://host:port/path, or the name of a name service"
            )
        return cls.on(scheme, authority, settings)

    @classmethod
    def on(cls, scheme: str, authority: str, settings: HdfsSettings) -> HdfsStorage:
        return cls(authority, settings)

    @property
    def scheme(self) -> str:
        return self.schemes[0]

    @abstractmethod
    def connect(self) -> NameNode: ...

    # ---- the contract ----

    def normalise(self, path: str) -> str:
        return f"{self.scheme}://{self.authority}{self._path(path)}".rstrip("/")

    def publish(self, path: str, data: bytes) -> None:
        self._publish(path, data, self._split(path)[1])

    def publish_through(self, path: str, data: bytes, *, through: str) -> None:
        self._publish(path, data, self._path(through))

    def _publish(self, path: str, data: bytes, through: str) -> None:
        target, _, name = self._split(path)
        if _TEMPORARY.fullmatch(name):
            raise ValueError(f"{path!r} is named as a temporary file: it would not be listed")
        names = list(spelled(data)) if len(data) <= _SPELLED_BYTES else []
        if 0 < len(names) <= _SPELLED_NAMES:
            self._publish_folders(target, names, through)
            return
        temporary = f"{through}/{_temporary()}"
        try:
            self._put(temporary, data)
            self._claim(temporary, target, lambda: self._read(target) == data)
        finally:
            self._drop(temporary)

    def publish_folders(self, path: str, names: Sequence[str], *, through: str) -> None:
        self._publish_folders(self._split(path)[0], names, self._path(through))

    def _publish_folders(self, target: str, names: Sequence[str], through: str) -> None:
        temporary = f"{through}/{_temporary()}"
        self._ask(lambda node: node.make_child(temporary), again=True)
        try:
            self._ask(lambda node: node.make_children(temporary, names), again=True)
            self._claim(temporary, target, lambda: sorted(names) == sorted(each.name for each in self._listed(target)))
        finally:
            self._drop(temporary)

    def rename(self, source: str, target: str) -> None:
        old, new = self._split(source)[0], self._split(target)[0]
        silence = self._renamed(old, new)
        if silence is not None:
            raise silence

    def read(self, path: str) -> bytes:
        return self._read(self._path(path))

    def list(self, folder: str) -> list[Entry]:
        found = self._listed(self._path(folder))
        entries = [Entry(each.name, each.is_folder, 0 if each.is_folder else each.length) for each in found]
        return sorted(entry for entry in entries if not _TEMPORARY.fullmatch(entry.name))

    def make_folder(self, folder: str) -> None:
        self._ask(lambda node: node.make_folder(self._path(folder)), again=True)

    def delete(self, path: str) -> None:
        """In one step, a folder with all below it. A file that is being written is gone too: its writer can't close it."""
        doomed = self._split(path)[0]
        self._ask(lambda node: node.delete(doomed), again=True)

    def sync(self, folder: str) -> None:
        """Nothing to do but to look: a NameNode answers when what it did is in its log."""
        path = self._path(folder)
        if not self._ask(lambda node: node.status(path), again=True).is_folder:
            raise NotADirectoryError(errno.ENOTDIR, "is a file and not a folder", path)

    def sweep_temporary(self, folder: str, older_than_s: float) -> int:
        newest_ms = (time.time() - older_than_s) * 1000
        doomed = [
            each.name
            for each in self._listed(self._path(folder))
            if _TEMPORARY.fullmatch(each.name) and each.modified_ms <= newest_ms
        ]
        for name in doomed:
            self.delete(f"{self._path(folder)}/{name}")
        return len(doomed)

    def create(self, path: str) -> BinaryIO:
        target = self._split(path)[0]
        return self._ask(lambda node: node.create(target))

    def make_child(self, folder: str) -> None:
        path = self._split(folder)[0]
        self._ask(lambda node: node.make_child(path), again=True)

    def open(self, path: str) -> BinaryIO:
        place = self._path(path)
        remote = self._ask(lambda node: node.open(place), again=True)
        return opened(
            lambda offset, length: self._ask(lambda _: remote.read(offset, length), again=True),
            remote.length,
            ahead_bytes=_AHEAD_BYTES,
        )

    # ---- requests ----

    def _ask(self, request: Callable[[NameNode], T], *, again: bool = False) -> T:
        """The answer to a request; made again while nobody takes it, and with `again` if its reply was lost: for requests that
        may be carried out twice."""
        node = self._node()
        if not again:
            return patiently(lambda: request(node), self._patience_s)
        silence = TimeoutError(errno.ETIMEDOUT, "not asked")
        for left_s in looks(self._patience_s):
            try:
                return patiently(lambda: request(node), left_s)
            except TimeoutError as error:
                silence = error
        raise silence

    @property
    def _patience_s(self) -> float:
        return self.settings.patience_ms / 1000

    def _drop(self, temporary: str) -> None:
        """What can't be deleted is left to the sweep: no reason to call a published record failed, or to hide why it did."""
        with suppress(OSError):
            self._node().delete(temporary)

    def _put(self, path: str, data: bytes) -> None:
        file = self._ask(lambda node: node.create(path))
        try:
            file.write(data)
        finally:
            file.close()

    def _read(self, path: str) -> bytes:
        try:
            return self._ask(lambda node: node.read(path), again=True)
        except IsADirectoryError:
            names = [each.name for each in self._listed(path)]
            with suppress(ValueError):
                if names:
                    return read_from(names)
            raise

    def _listed(self, folder: str) -> Sequence[FileStatus]:
        try:
            return self._ask(lambda node: node.list(folder), again=True)
        except FileNotFoundError:
            return []

    def _claim(self, temporary: str, target: str, is_mine: Callable[[], bool]) -> None:
        """Give what was written its name, if that is free."""
        silence = self._renamed(temporary, target)
        if silence is None:
            return
        if not self._is_there(target):
            raise silence
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
            if is_mine():
                return
        if self._is_there(temporary):
            # Somebody else has the name: whatever becomes of the lost request, it changes nothing.
            raise FileExistsError(errno.EEXIST, "another was published there", target) from silence
        raise silence

    def _is_there(self, path: str) -> bool:
        try:
            self._ask(lambda node: node.status(path), again=True)
        except FileNotFoundError:
            return False
        return True

    def _renamed(self, source: str, target: str) -> TimeoutError | None:
        """Rename; or what says that nobody knows whether this call did it."""
        silence: TimeoutError | None = None
        for left_s in looks(self._patience_s):
            try:
                patiently(lambda: self._node().rename(source, target), left_s)
                return None
            except TimeoutError as error:
                silence = error
            except (FileNotFoundError, FileExistsError) as error:
                if silence is None:
                    raise
                return TimeoutError(errno.ETIMEDOUT, f"{silence.strerror}; asked again, it said: {error}", source)
        return silence

    def _node(self) -> NameNode:
        """One for each process: neither threads nor sockets outlive a fork."""
        key = (os.getpid(), self)
        with _lock:
            if key not in _nodes:
                _nodes[key] = self.connect()
            return _nodes[key]

    # ---- names ----

    def _path(self, path: str) -> str:
        """The path within this HDFS, in its one spelling."""
        local = path
        if not path.startswith("/"):
            scheme, authority, local = _parts(path)
            if scheme not in self.schemes or authority != self.authority:
                raise ValueError(f"{path!r} does not lie on {self.scheme}://{self.authority}")
        parts = [part for part in local.split("/") if part]
        if any(part in (".", "..") or ":" in part or "\0" in part for part in parts):
            raise ValueError(f"{path!r} has a part that HDFS does not take: '.', '..', or one with a colon")
        return "/" + "/".join(parts)

    def _split(self, path: str) -> tuple[str, str, str]:
        """The path, its folder and the name in it; refuses what does not end in a name."""
        whole = self._path(path)
        parent, _, name = whole.rpartition("/")
        if not name:
            raise ValueError(f"{path!r} does not end in a name")
        return whole, parent or "/", name


class NativeStorage(HdfsStorage):
    """By native RPC."""

    schemes = ("hdfs",)

    def connect(self) -> NameNode:
        from twophase.clients.hdfs.native import NativeNameNode

        return NativeNameNode(f"hdfs://{self.authority}", self.settings)


@dataclass(frozen=True)
class WebStorage(HdfsStorage):
    """By WebHDFS: slower, and all that is open in some places."""

    is_encrypted: bool = False

    schemes = ("webhdfs", "swebhdfs")

    @classmethod
    def on(cls, scheme: str, authority: str, settings: HdfsSettings) -> HdfsStorage:
        return cls(authority, settings, is_encrypted=scheme == "swebhdfs")

    @property
    def scheme(self) -> str:
        return self.schemes[self.is_encrypted]

    def connect(self) -> NameNode:
        from twophase.clients.hdfs.web import WebNameNode

        return WebNameNode(f"{'https' if self.is_encrypted else 'http'}://{self.authority}", self.settings)


def storage_at(path: str, settings: Mapping[str, str | Secret]) -> HdfsStorage:
    """The storage for a URL of HDFS; ValueError if there is none for it."""
    kind = NativeStorage if _parts(path)[0] in NativeStorage.schemes else WebStorage
    return kind.at(path, HdfsSettings.of(settings))


def _parts(url: str) -> tuple[str, str, str]:
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError(f"{url!r} is not a URL of HDFS: write hdfs://host:port/path")
    return found[1].lower(), found[2], found[3] or "/"


def _temporary() -> str:
    return f".tmp-{os.getpid()}-{secrets.token_hex(8)}"


_nodes: dict[tuple[int, HdfsStorage], NameNode] = {}
_lock = threading.Lock()
