"""WebHDFS, by the package hdfs: what `webhdfs://` and `swebhdfs://` mean.

Its requests are made through the client's own methods, one each, because its public ones leave out what matters: the rename's
`renameoptions` (without them a rename to a folder that is there moves into it), and `createparent`, without which a late writer
would bring back a folder that is gone.

A file is gathered here, in memory and then on this machine's disk, and sent when it is closed. Only then does the NameNode say
whether its name is free and its folder is still there; and a writer that is killed leaves nothing.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from getpass import getuser
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from twophase.clients.hdfs.answers import NotTaken, lost, refusal
from twophase.clients.hdfs.name_node import FileStatus, RemoteFile
from twophase.clients.hdfs.patience import patiently
from twophase.clients.hdfs.settings import HdfsSettings
from twophase.extras import require

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_IN_MEMORY_BYTES = 32 << 20
_CONNECTS_WITHIN_S = 5.0
_LOST_NAME_NODE = "EOFException"


class WebNameNode:
    """One NameNode, by HTTP."""

    def __init__(self, url: str, settings: HdfsSettings):
        self._client = _client_of(url, settings)
        self._errors = require("hdfs.util", "hdfs").HdfsError
        self._transport = require("requests.exceptions", "hdfs")
        self._patience_s = settings.patience_ms / 1000
        self._data_timeout_s = (_CONNECTS_WITHIN_S, settings.data_timeout_ms / 1000)

    # ---- requests ----

    def status(self, path: str) -> FileStatus:
        answer = self._ask("look at", path, lambda: self._client._get_file_status(path))
        return _status(answer.json()["FileStatus"], path.rpartition("/")[2])

    def list(self, folder: str) -> Sequence[FileStatus]:
        found = self._ask("list", folder, lambda: self._client._list_status(folder)).json()
        statuses = found["FileStatuses"]["FileStatus"]
        if any(not each["pathSuffix"] for each in statuses):
            raise NotADirectoryError(errno.ENOTDIR, "is a file and not a folder", folder)
        return [_status(each, each["pathSuffix"]) for each in statuses]

    def make_folder(self, path: str) -> None:
        self._ask("make", path, lambda: self._client._mkdirs(path))

    def make_child(self, path: str) -> None:
        """WebHDFS makes all parents. So the folder is made beside its parent, and moved to its place: that makes none."""
        parent = path.rpartition("/")[0] or "/"
        temporary = f"{parent.rpartition('/')[0]}/.tmp-{os.getpid()}-{secrets.token_hex(8)}"
        if self._is_folder(path):
            return
        self.status(parent)  # or FileNotFoundError: what is gone is mostly seen here
        self.make_folder(temporary)
        try:
            self.rename(temporary, path)
        except FileExistsError:
            self.delete(temporary)
            if not self._is_folder(path):
                raise
        except FileNotFoundError:
            self.delete(temporary)
            raise

    def make_children(self, folder: str, names: Sequence[str]) -> None:
        for name in names:
            self.make_folder(f"{folder}/{name}")
        # Had it been swept in between, it would have come back with the rest of them.
        there = {each.name for each in self.list(folder)}
        if there != set(names):
            raise FileNotFoundError(errno.ENOENT, "was swept while it was made", folder)

    def _is_there(self, path: str) -> bool:
        try:
            self.status(path)
        except FileNotFoundError:
            return False
        return True

    def _is_folder(self, path: str) -> bool:
        try:
            return self.status(path).is_folder
        except FileNotFoundError:
            return False

    def rename(self, source: str, target: str) -> None:
        rename = self._client._rename
        self._ask("rename", source, lambda: rename(source, destination=target, renameoptions="none"))

    def delete(self, path: str) -> None:
        self._ask("delete", path, lambda: self._client._delete(path, recursive="true"))

    def create(self, path: str) -> BinaryIO:
        with _questions():
            self._require_free(path)
        return cast(BinaryIO, _NewFile(lambda *told: patiently(lambda: self._send(path, *told), self._patience_s)))

    def _require_free(self, path: str) -> None:
        if not self.status(path.rpartition("/")[0] or "/").is_folder:
            raise NotADirectoryError(errno.ENOTDIR, "its folder is a file", path)
        try:
            self.status(path)
        except FileNotFoundError:
            return
        raise FileExistsError(errno.EEXIST, "is there already", path)

    def _send(self, path: str, file: BinaryIO, length: int) -> None:
        file.seek(0)
        with _questions():  # the NameNode only says which DataNode to send it to
            begun = self._ask(
                "create", path, lambda: self._client._create(path, overwrite="false", createparent="false")
            )
        try:
            self._ask("write", path, lambda: self._put(begun.headers["location"], _Body(file, length)))
        except OSError as error:
            # The DataNode spoke to a NameNode that was started again meanwhile, over a connection to the one before. If there is no
            # file, nothing has come of it.
            if error.errno == errno.EIO and _LOST_NAME_NODE in str(error) and not self._is_there(path):
                raise NotTaken(f"write {path}: the DataNode has lost the NameNode ({error.strerror})") from None
            raise

    def _put(self, location: str, body: _Body) -> Any:
        """To the DataNode that the NameNode chose; with a length, so that a body that was cut off is known as one."""
        answer = self._client._session.put(
            location,
            data=body,
            timeout=self._data_timeout_s,
            headers={"content-type": "application/octet-stream"},
        )
        if not answer:
            raise require("hdfs.client", "hdfs")._to_error(answer)
        return answer

    def read(self, path: str) -> bytes:
        return self._range(path, 0, None)

    def open(self, path: str) -> RemoteFile:
        status = self.status(path)
        if status.is_folder:
            raise IsADirectoryError(errno.EISDIR, "is a folder", path)
        return RemoteFile(status.length, partial(self._range, path))

    def _range(self, path: str, offset: int, length: int | None) -> bytes:
        told = {} if length is None else {"length": length}
        return cast(bytes, self._ask("read", path, lambda: self._client._open(path, offset=offset, **told).content))

    # ---- answers ----

    def _ask(self, what: str, path: str, request: Callable[[], Any]) -> Any:
        try:
            return request()
        except self._errors as error:
            said, exception = str(error), str(error.exception or "IOException")
            if "Authentication failure" in said:
                exception = "AccessControlException"
            raise refusal(exception, said, path) from None
        except (self._transport.ConnectTimeout, self._transport.ConnectionError) as error:
            if _was_never_sent(error):
                raise NotTaken(f"{what} {path}: no connection to the NameNode or a DataNode ({error})") from None
            raise lost(what, path, error) from None
        except KeyError as error:  # an error whose form the package does not know, such as a proxy's
            raise OSError(errno.EIO, f"{what}: an answer that is none of WebHDFS's, without {error}", path) from None
        except (self._transport.RequestException, OSError) as error:
            raise lost(what, path, error) from None


@contextmanager
def _questions() -> Iterator[None]:
    """What is asked in here changes nothing, so that a lost reply is no more than one to ask for again."""
    try:
        yield
    except TimeoutError as error:
        raise NotTaken(str(error)) from None


def _client_of(url: str, settings: HdfsSettings) -> Any:
    clients = require("hdfs.client", "hdfs")
    timeout_s = (_CONNECTS_WITHIN_S, settings.timeout_ms / 1000)
    if settings.delegation_token is not None:
        return clients.TokenClient(url, settings.delegation_token.reveal(), timeout=timeout_s)
    if settings.hadoop.reveal().get("hadoop.security.authentication", "").lower() == "kerberos":
        return require("hdfs.ext.kerberos", "hdfs").KerberosClient(url, timeout=timeout_s)
    user = settings.user or os.environ.get("HADOOP_USER_NAME") or getuser()
    return clients.InsecureClient(url, user=user, timeout=timeout_s)


def _status(given: Any, name: str) -> FileStatus:
    return FileStatus(name, given["type"] == "DIRECTORY", int(given["length"]), int(given["modificationTime"]))


def _was_never_sent(error: BaseException) -> bool:
    """Whether no connection was made at all; any other trouble may have come after the request was read."""
    never = require("urllib3.exceptions", "hdfs")
    todo: list[Any] = [error]
    while todo:
        each = todo.pop()
        if isinstance(each, never.NewConnectionError | never.ConnectTimeoutError | never.NameResolutionError):
            return True
        reason = getattr(each, "reason", None)
        todo += [cause for cause in (*getattr(each, "args", ()), reason) if isinstance(cause, BaseException)]
    return False


class _NewFile(io.RawIOBase):
    """A file that is being gathered. `close` sends it, once."""

    def __init__(self, send: Callable[[BinaryIO, int], None]):
        self._send = send
        self._gathered = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115 - closed by close
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Buffer, /) -> int:
        if self.closed:
            raise ValueError("the file is closed")
        piece = memoryview(data).cast("B")
        self._gathered.write(piece)
        self._position += len(piece)
        return len(piece)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        with self._gathered as gathered:
            self._send(cast(BinaryIO, gathered), self._position)


class _Body:
    """What is sent, with its length: requests would ask the file for its number, and so have it written to disk."""

    def __init__(self, file: BinaryIO, length: int):
        self._file = file
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[bytes]:
        return iter(partial(self.read, 1 << 16), b"")

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)
