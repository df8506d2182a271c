"""Storage on a local disk: any POSIX file system that has hard links or `renameat2`.

::

    publish     create .tmp-…  ─►  write  ─►  fsync file  ─►  link to the name  ─►  unlink .tmp-…  ─►  fsync folder
    power cut   ├─────────────── the name is free ───────────────┤├──── free, or the whole record ────┤├── the record

The order is the guarantee: a name is linked only to data that is already on disk, and `publish` returns only when the
name is on disk too. A crash may leave a temporary file, never a torn record; `list` does not show it and
`sweep_temporary` deletes it.

An error after the name was taken can't be reported as a failure, because the record may be there to stay: it is a
TimeoutError, like any other lost reply.

What it can't do: survive a disk that lies about fsync; publish where there are neither hard links nor RENAME_NOREPLACE
(some FUSE and network mounts); rename folders without the latter (macOS). The last two are refused, never done with a
plain rename, which replaces. `delete` is not durable by itself: after a power cut a deleted name may be back, until the
next fsync of its folder.
"""

from __future__ import annotations

import ctypes
import errno
import io
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, ClassVar, cast

from twophase.storage import Entry

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_TEMPORARY = re.compile(r"\.tmp-[0-9]+-[0-9a-f]{16}")
_LISTINGS = 10
_LINK_UNSUPPORTED = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS}
_NOREPLACE_UNSUPPORTED = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS}
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_LIBC = ctypes.CDLL(None, use_errno=True)


class Posix:
    """The system calls that LocalStorage makes, one method each, so that a test can make any of them fail.

    A `folder` is an open descriptor that `name` is relative to; None means that the path is absolute. Nothing here
    follows a link in the last part of a path, except `open_folder` without `inside`, `open_file` and `read`.
    """

    def open_folder(self, path: str, inside: int | None = None) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        return os.open(path, flags if inside is None else flags | os.O_NOFOLLOW, dir_fd=inside)

    def open_file(self, path: str) -> int:
        """For reading, and for making durable what others have written."""
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def create(self, name: str, folder: int | None = None) -> int:
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)

    def write(self, file: int, data: memoryview) -> int:
        return os.write(file, data)

    def fsync(self, descriptor: int) -> None:
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def link(self, name: str, target: str, folder: int | None = None) -> None:
        os.link(name, target, src_dir_fd=folder, follow_symlinks=False)

    def rename(self, name: str, target: str, folder: int | None = None) -> None:
        """renameat2 with RENAME_NOREPLACE: the `os` module has only renames that replace."""
        renameat2 = getattr(_LIBC, "renameat2", None)
        if renameat2 is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), name, None, target)
        source = _AT_FDCWD if folder is None else folder
        if renameat2(source, os.fsencode(name), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name, None, target)

    def unlink(self, name: str, folder: int | None = None) -> None:
        os.unlink(name, dir_fd=folder)

    def mkdir(self, path: str) -> None:
        os.mkdir(path)

    def rmdir(self, name: str, folder: int) -> None:
        os.rmdir(name, dir_fd=folder)

    def stat(self, name: str, folder: int | None = None) -> os.stat_result:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def names(self, folder: int) -> list[str]:
        return sorted(os.listdir(folder))

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()


@dataclass(frozen=True)
class LocalStorage:
    """Storage on a local disk. Paths are absolute, plain (`/a/b`) or as a URI (`file:/a/b`, `file:///a/b`).

    As in Hadoop's paths, nothing is percent-decoded: `%20` in a URI is a name with a percent sign.
    """

    posix: Posix = field(default_factory=Posix, repr=False, compare=False)

    spells_small_files: ClassVar[bool] = False

    def normalise(self, path: str) -> str:
        # POSIX lets realpath keep two leading slashes, which on Linux mean nothing.
        return "file:///" + os.path.realpath(_local(path)).lstrip("/")

    def publish(self, path: str, data: bytes) -> None:
        self._publish(path, data, _split(path)[1])

    def publish_through(self, path: str, data: bytes, *, through: str) -> None:
        self._publish(path, data, _local(through))

    def _publish(self, path: str, data: bytes, through: str) -> None:
        target, parent, name = _split(path)
        if _TEMPORARY.fullmatch(name):
            raise ValueError(f"{path!r} is named as a temporary file: it would not be listed")
        temporary = _temporary()
        with self._folder(through) as folder:
            try:
                identity = self._write(temporary, folder, data)
                self._claim(temporary, folder, target, identity)
            finally:
                # By descriptor, so that it is found even if the folder was renamed in between. What can't be deleted
                # is left to the sweep: no reason to call a published record failed, or to hide why publishing failed.
                with suppress(OSError):
                    self.posix.unlink(temporary, folder)
        self._sync_names(parent, done=f"{path} is published")

    def publish_folders(self, path: str, names: Sequence[str], *, through: str) -> None:
        temporary = f"{_local(through)}/{_temporary()}"
        self.posix.mkdir(temporary)
        try:
            for name in names:
                self.posix.mkdir(f"{temporary}/{name}")
            self.sync(temporary)
            self.rename(temporary, path)
        finally:
            # As above. Where it was published, there is nothing to delete.
            with suppress(OSError):
                self.delete(temporary)

    def rename(self, source: str, target: str) -> None:
        """Rename durably, without replacing. The names inside a renamed folder are made durable by `sync`, before.

        Where the file system has no RENAME_NOREPLACE, a file is linked to its new name and then unlinked from the old
        one: a crash in between leaves both names.
        """
        (old, old_parent, _), (new, new_parent, _) = _split(source), _split(target)
        status = self.posix.stat(old)
        try:
            self._move(old, new, is_folder=stat.S_ISDIR(status.st_mode))
        except (FileExistsError, FileNotFoundError):
            raise
        except OSError as error:
            # Another process may have made the same rename: that it is done does not say that this call did it.
            if self._landed(_identity(status), new, error):
                raise TimeoutError(f"{source} is now {target}, but the rename answered: {error}") from error
            raise
        for parent in dict.fromkeys((new_parent, old_parent)):
            self._sync_names(parent, done=f"{source} is renamed to {target}")

    def create(self, path: str) -> BinaryIO:
        # By the whole path in one call: a descriptor of the folder would outlive the folder's renaming, and let a late
        # writer into what has been sealed.
        return cast(BinaryIO, _NewFile(self.posix, self.posix.create(_split(path)[0])))

    def make_child(self, folder: str) -> None:
        local = _split(folder)[0]
        try:
            self.posix.mkdir(local)
        except FileExistsError:
            if not os.path.isdir(local):
                raise

    def open(self, path: str) -> BinaryIO:
        return open(_local(path), "rb")

    def read(self, path: str) -> bytes:
        return self.posix.read(_local(path))

    def list(self, folder: str) -> list[Entry]:
        found: list[tuple[str, os.stat_result | None]] = []
        for _ in range(_LISTINGS):
            try:
                with self._folder(_local(folder)) as descriptor:
                    names = [name for name in self.posix.names(descriptor) if not _TEMPORARY.fullmatch(name)]
                    found = [(name, self._stat(name, descriptor)) for name in names]
            except FileNotFoundError:
                return []
            if all(status is not None for _, status in found):
                break
            # A name went between the listing and the look at it. Leaving it out would mix two moments: if all names went and
            # others came, a folder that never was empty would seem so.
        return [_entry(name, status) for name, status in found if status is not None]

    def make_folder(self, folder: str) -> None:
        existing = _local(folder)
        missing = []
        while not os.path.isdir(existing):
            missing.append(existing)
            existing = os.path.dirname(existing)
        # Whoever made it may have died before making it durable; all above it is, because folders are made one by one,
        # in this way. Where its parent can't be read, it is not one of ours.
        with suppress(PermissionError):
            self.sync(os.path.dirname(existing))
        for path in reversed(missing):
            try:
                self.posix.mkdir(path)
            except FileExistsError:
                if not os.path.isdir(path):
                    raise
            self.sync(os.path.dirname(path))

    def delete(self, path: str) -> None:
        """Delete a file, or a folder and all below it; of a link, the link. Not durable until the folder is synced."""
        _, parent, name = _split(path)
        with suppress(FileNotFoundError), self._folder(parent) as folder:
            self._remove(name, folder)

    def sync(self, folder: str) -> None:
        with self._folder(_local(folder)) as descriptor:
            self.posix.fsync(descriptor)

    def sweep_temporary(self, folder: str, older_than_s: float) -> int:
        """Delete what dead publications left in `folder`; returns how many.

        A publication that is still alive and loses its file to this fails with FileNotFoundError and publishes nothing.
        """
        newest = time.time() - older_than_s
        swept = 0
        with suppress(FileNotFoundError), self._folder(_local(folder)) as descriptor:
            for name in filter(_TEMPORARY.fullmatch, self.posix.names(descriptor)):
                status = self._stat(name, descriptor)
                if status is not None and status.st_mtime <= newest:
                    with suppress(FileNotFoundError):
                        self._sweep(name, descriptor, _local(folder), is_folder=stat.S_ISDIR(status.st_mode))
                        swept += 1
        return swept

    def _sweep(self, name: str, descriptor: int, folder: str, *, is_folder: bool) -> None:
        if is_folder:
            # Taken away in one step: its publication may be alive after all, and must not publish it half empty.
            doomed = _temporary()
            self.posix.rename(name, f"{folder}/{doomed}", descriptor)
            self._remove(doomed, descriptor)
        else:
            self.posix.unlink(name, descriptor)

    def _write(self, name: str, folder: int, data: bytes) -> tuple[int, int]:
        """Create a file with this content, durable but for its name; returns its identity."""
        file = self.posix.create(name, folder)
        try:
            rest = memoryview(data)
            while rest:
                written = self.posix.write(file, rest)
                if written == 0:
                    raise OSError(errno.EIO, "nothing could be written", name)
                rest = rest[written:]
            self.posix.fsync(file)
        finally:
            # After the fsync an error here says nothing about the data; before it, the first error is the one to tell.
            with suppress(OSError):
                self.posix.close(file)
        return _identity(self.posix.stat(name, folder))

    def _claim(self, temporary: str, folder: int, target: str, identity: tuple[int, int]) -> None:
        """Give the written file its name, if that is free."""
        try:
            self._name(temporary, folder, target)
        except OSError as error:
            # A network mount that repeats a request can say "exists" about our own link. Nobody else knows this file,
            # so its identity settles it.
            if not self._landed(identity, target, error):
                raise

    def _name(self, temporary: str, folder: int, target: str) -> None:
        # The target by its path, not by the descriptor: where the folder was renamed away, publishing must fail.
        try:
            self.posix.link(temporary, target, folder)
        except OSError as error:
            if error.errno not in _LINK_UNSUPPORTED:
                raise
            try:
                self.posix.rename(temporary, target, folder)
            except OSError as second:
                if second.errno not in _NOREPLACE_UNSUPPORTED:
                    raise
                raise _unsupported("neither hard links nor RENAME_NOREPLACE: can't publish", target) from error

    def _move(self, source: str, target: str, *, is_folder: bool) -> None:
        try:
            self.posix.rename(source, target)
        except OSError as error:
            if error.errno not in _NOREPLACE_UNSUPPORTED:
                raise
            if is_folder:
                # EINVAL has two meanings; both end here.
                what = "no RENAME_NOREPLACE for folders, or the target is inside the source: can't rename"
                raise _unsupported(what, source) from error
            self.posix.link(source, target)
            try:
                self.posix.unlink(source)
            except OSError as second:
                raise TimeoutError(f"{target} is there, but its old name {source} too: {second}") from second

    def _landed(self, identity: tuple[int, int], target: str, error: OSError) -> bool:
        """Whether an operation that answered with `error` has taken effect all the same."""
        try:
            return _identity(self.posix.stat(target)) == identity
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as second:
            raise TimeoutError(f"{target}: {error}; and whether it is there can't be seen: {second}") from error

    def _sync_names(self, folder: str, *, done: str) -> None:
        """Make done work durable; it can't be called failed any more."""
        try:
            self.sync(folder)
        except OSError as error:
            raise TimeoutError(f"{done}, but not known to be durable: {error}") from error

    def _remove(self, name: str, folder: int) -> None:
        status = self._stat(name, folder)
        if status is None:
            return
        with suppress(FileNotFoundError):
            if not stat.S_ISDIR(status.st_mode):
                self.posix.unlink(name, folder)
                return
            # By descriptors all the way down: a folder that is swapped for a link in between is not entered.
            with self._folder(name, inside=folder) as inner:
                for child in self.posix.names(inner):
                    self._remove(child, inner)
            self.posix.rmdir(name, folder)

    def _stat(self, name: str, folder: int) -> os.stat_result | None:
        """None if it vanished since it was listed."""
        try:
            return self.posix.stat(name, folder)
        except FileNotFoundError:
            return None

    @contextmanager
    def _folder(self, path: str, inside: int | None = None) -> Iterator[int]:
        descriptor = self.posix.open_folder(path, inside)
        try:
            yield descriptor
        finally:
            with suppress(OSError):  # nothing was written through it
                self.posix.close(descriptor)


class _NewFile(io.RawIOBase):
    """A file that is being written. `close` makes its data durable, once."""

    def __init__(self, posix: Posix, descriptor: int):
        self._posix = posix
        self._descriptor = descriptor
        self._position = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def write(self, data: Buffer, /) -> int:
        """All of it: whoever writes Arrow buffers does not expect a part."""
        if self.closed:
            # Its number may be another file's by now. Arrow's writers do write late: one that was dropped open ends its file.
            raise ValueError("the file is closed")
        rest = memoryview(data).cast("B")
        length = len(rest)
        while rest:
            written = self._posix.write(self._descriptor, rest)
            if written == 0:
                raise OSError(errno.EIO, "nothing could be written")
            rest = rest[written:]
        self._position += length
        return length

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._posix.fsync(self._descriptor)
        finally:
            super().close()
            # After the fsync an error here says nothing about the data; before it, the first error is the one to tell.
            with suppress(OSError):
                self._posix.close(self._descriptor)


def _temporary() -> str:
    return f".tmp-{os.getpid()}-{secrets.token_hex(8)}"


def _local(path: str) -> str:
    """The absolute path on this machine, without a trailing slash."""
    local = path
    if path.startswith("file:"):
        authority = re.match(r"file:(//[^/]*)?", path)
        assert authority is not None
        if authority[1] not in (None, "//", "//localhost"):
            raise ValueError(f"{path!r} names another machine: write file:///path")
        local = path[authority.end() :]
    if not local.startswith("/"):
        raise ValueError(f"{path!r} is not an absolute path on a local disk")
    if "\0" in local:
        raise ValueError(f"{path!r} holds a zero character")  # the C library would take the path to end there
    return "/" + local.strip("/")


def _split(path: str) -> tuple[str, str, str]:
    """The local path, its folder and the name in it; refuses what does not end in a name."""
    local = _local(path)
    parent, name = os.path.split(local)
    if name in ("", ".", ".."):
        raise ValueError(f"{path!r} does not end in a name")
    return local, parent, name


def _entry(name: str, status: os.stat_result) -> Entry:
    is_folder = stat.S_ISDIR(status.st_mode)
    return Entry(name, is_folder, 0 if is_folder else status.st_size)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _unsupported(what: str, path: str) -> OSError:
    return OSError(errno.EOPNOTSUPP, f"this file system has {what}", path)
