"""Native RPC, by hdfs-native: what `hdfs://` means.

hdfs-native does not repeat a request that may have been carried out. It waits for replies without a limit, so each call is bounded
from outside; and its own patience with NameNodes that can't be reached is turned off where there is only one, because ours is
there. What it raises has no number, only words: they are read here, and nowhere else.
"""

from __future__ import annotations

import errno
import io
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

from twophase.clients.hdfs.answers import NotTaken, lost, refusal
from twophase.clients.hdfs.name_node import FileStatus, RemoteFile
from twophase.clients.hdfs.patience import Overdue, bounded, patiently
from twophase.clients.hdfs.settings import HdfsSettings
from twophase.errors import OptionError
from twophase.extras import require

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

T = TypeVar("T")

_GATHERED_BYTES = 4 << 20
_PATIENCE = {
    # Two rounds over the NameNodes of a service: whoever is the active one is found, and nobody is waited for.
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "50",
    "dfs.client.failover.sleep.max.millis": "200",
}
_JAVA = re.compile(r"^\w*RPCError\(\"([A-Za-z0-9_.$]+)\", \"(.*?)(?:\\n|\"\)$|$)", re.DOTALL)
"""How it prints an exception of the NameNode: its class, and its words with the trace behind them."""
_BUILT_IN = {
    FileNotFoundError: "FileNotFoundException",
    FileExistsError: "FileAlreadyExistsException",
    PermissionError: "AccessControlException",
}
"""What it raises instead, with the same words."""
_NUMBER = re.compile(r"\(os error ([0-9]+)\)")
_PAUSE_S = 0.2
_USER = "HADOOP_USER_NAME"
_NEVER_SENT = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL}


class NativeNameNode:
    """One NameNode, or the NameNodes of a name service."""

    def __init__(self, url: str, settings: HdfsSettings):
        self._vendor = require("hdfs_native", "hdfs")
        self._timeout_s = settings.timeout_ms / 1000
        self._patience_s = settings.patience_ms / 1000
        self._syncs = settings.sync
        self._data_timeout_s = settings.data_timeout_ms / 1000
        _speak_as(settings.user)
        self._connect = partial(
            self._vendor.Client,
            url,
            {**_PATIENCE, **settings.hadoop.reveal()},
            kerberos_principal=settings.kerberos_principal,
            kerberos_keytab=settings.kerberos_keytab,
            kerberos_cache=settings.kerberos_cache,
        )
        try:
            self._client = self._connect()
        except Exception as error:  # noqa: BLE001 - it has no error class of its own
            raise ValueError(f"hdfs-native can't use {url}: {error}") from None

    # ---- requests ----

    def status(self, path: str) -> FileStatus:
        return _status(self.ask("look at", path, lambda: self._client.get_file_info(path)))

    def list(self, folder: str) -> Sequence[FileStatus]:
        found = self.ask("list", folder, lambda: list(self._client.list_status(folder)))
        if len(found) == 1 and not found[0].isdir and found[0].path == folder:
            raise NotADirectoryError(errno.ENOTDIR, "is a file and not a folder", folder)
        return [_status(each) for each in found]

    def make_folder(self, path: str) -> None:
        self.ask("make", path, lambda: self._client.mkdirs(path, create_parent=True))

    def make_child(self, path: str) -> None:
        self.ask("make", path, lambda: self._client.mkdirs(path, create_parent=False))

    def make_children(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            self.make_child(f"{folder}/{name}")

    def rename(self, source: str, target: str) -> None:
        self.ask("rename", source, lambda: self._client.rename(source, target, overwrite=False))

    def delete(self, path: str) -> None:
        self.ask("delete", path, lambda: self._client.delete(path, recursive=True))

    def create(self, path: str) -> BinaryIO:
        return cast(BinaryIO, _NewFile(self, path, self._patience_s, syncs=self._syncs))

    def begin(self, path: str) -> Any:
        """hdfs-native's own file."""
        how = self._vendor.WriteOptions(overwrite=False, create_parent=False)
        return self.ask("create", path, lambda: self._client.create(path, how))

    def read(self, path: str) -> bytes:
        file = self.open(path)
        return file.read(0, file.length)

    def open(self, path: str) -> RemoteFile:
        known = [self._located(path)]

        def read(offset: int, length: int) -> bytes:
            inner = known.pop() if known else self._located(path)
            try:
                data = self.ask("read", path, lambda: bytes(inner.read_range(offset, length)), data=True)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                # It keeps to the DataNodes that it was told of. Whoever asks again is told anew, and nothing was changed.
                raise NotTaken(f"read {path}: no DataNode gives it ({error.strerror})") from None
            known.append(inner)
            return data

        return RemoteFile(len(known[0]), read)

    def _located(self, path: str) -> Any:
        """hdfs-native's own file, with the DataNodes that have it."""
        return self.ask("open", path, lambda: self._client.read(path))

    # ---- answers ----

    def ask(self, what: str, path: str, call: Callable[[], T], *, data: bool = False) -> T:
        try:
            return bounded(call, self._data_timeout_s if data else self._timeout_s)
        except Overdue as error:
            # Its one connection is waiting for ever: whoever asks next gets another.
            self._client = self._connect()
            raise lost(what, path, error) from None
        except Exception as error:  # noqa: BLE001 - it has no error class of its own
            raise _told(what, path, error, data=data) from None


def _speak_as(user: str | None) -> None:
    """hdfs-native asks the environment, and so for the whole process."""
    if user is None:
        return
    if os.environ.setdefault(_USER, user) != user:
        problem = f"hdfs.user is {user!r}, and the environment's {_USER} is another: in one process all speak as one"
        raise OptionError(problem, problems=[problem])


def _told(what: str, path: str, error: Exception, *, data: bool) -> Exception:
    """What hdfs-native raised, as what it means. About data it is a DataNode that said so, or could not be reached."""
    said = str(error)
    for kind, exception in _BUILT_IN.items():
        if isinstance(error, kind):
            return refusal(exception, said, path)
    java = _JAVA.search(said)
    if java is not None:
        return refusal(java[1], java[2], path)
    if data:
        return OSError(errno.EIO, f"{what}: {said}", path)
    number_said = _NUMBER.search(said)
    if number_said is not None and int(number_said[1]) in _NEVER_SENT:
        return NotTaken(f"{what} {path}: no connection to the NameNode ({said})")
    if isinstance(error, OSError | RuntimeError):
        return lost(what, path, said)
    return error


def _status(given: Any) -> FileStatus:
    return FileStatus(given.path.rpartition("/")[2], given.isdir, given.length, given.modification_time)


class _NewFile(io.RawIOBase):
    """A file that is being written, in large pieces. `close` makes its data durable, once.

    A file of one piece is written again from its beginning while DataNodes don't take it. Of a longer one, hdfs-native goes on with
    the DataNodes that are left; if there are none, its writer has to begin again.
    """

    def __init__(self, node: NativeNameNode, path: str, patience_s: float, *, syncs: bool):
        self._node = node
        self._path = path
        self._patience_s = patience_s
        self._syncs = syncs
        self._inner = node.begin(path)
        self._gathered = bytearray()
        self._position = 0
        self._has_sent = False
        self._has_failed = False

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Buffer, /) -> int:
        if self.closed:
            raise ValueError("the file is closed")
        piece = memoryview(data).cast("B")
        self._gathered += piece
        self._position += len(piece)
        if len(self._gathered) >= _GATHERED_BYTES:
            self._has_sent = True
            self._send()
        return len(piece)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        if self._has_failed:
            return  # its error was told; what is there is not whole, and must not look so
        if self._has_sent:
            self._finish()
        else:
            self._finish_patiently()

    def _finish_patiently(self) -> None:
        deadline = time.monotonic() + self._patience_s
        piece = bytes(self._gathered)
        while True:
            try:
                return self._finish()
            except OSError as error:
                is_passing = isinstance(error, NotTaken) or error.errno == errno.EIO
                if not is_passing or time.monotonic() + _PAUSE_S > deadline:
                    raise
            time.sleep(_PAUSE_S)
            self._gathered = bytearray(piece)
            self._inner = patiently(self._begun_again, deadline - time.monotonic())

    def _begun_again(self) -> Any:
        self._node.delete(self._path)
        return self._node.begin(self._path)

    def _finish(self) -> None:
        self._send()
        if self._position and self._syncs:
            self._ask("sync", self._inner.hsync)
        self._ask("close", self._inner.close)

    def _send(self) -> None:
        if self._gathered:
            piece, self._gathered = bytes(self._gathered), bytearray()
            self._ask("write", lambda: self._inner.write(piece))

    def _ask(self, what: str, call: Callable[[], Any]) -> None:
        try:
            self._node.ask(what, self._path, call, data=True)
        except BaseException:
            self._has_failed = True
            raise
