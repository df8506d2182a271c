"""Files of a state on this machine: each is fetched once, and linked into the folder of whoever opens a database.

::

    <workingDir>/<state>/cache/<query>/<sink>/<attempt>/000012.sst     as it lies in the state; never changed
    <workingDir>/<state>/fetching/…                                     not yet whole, or not yet checked
    <workingDir>/<state>/work/<attempt>/                                a task's own folder

A file is known by where it lies in the state, a name that carries its attempt and is used once for ever. So whatever a task finds
here under the name that the committed manifest gives is what that manifest means: a working state that is older, newer or another
attempt's has other names. A file gets its name only when it is whole: checked against length and checksum where it was fetched.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from twophase.errors import DataLost
from twophase.identity import Attempt, Generation
from twophase.local_storage import LocalStorage
from twophase.state.manifest import FILES, StateTable, StoredFile, corrupt

_BLOCK_BYTES = 1 << 20
_TRIES = 10
_FETCHED_WITHIN_S = 24 * 3600.0


@dataclass
class Fetched:
    """What was brought from the state to this machine, and what was here already."""

    bytes_fetched: int = 0
    bytes_found: int = 0
    rows_moved: int = field(default=0)
    """Rows that were copied from another task's part: only where the number of tasks has changed."""
    bytes_moved: int = 0


class FileCache:
    """The files of one state, below a working folder."""

    def __init__(self, table: StateTable, working_dir: str):
        self._table = table
        self._root = Path(working_dir) / hashlib.sha256(table.path.encode()).hexdigest()[:16]

    def work_folder(self, attempt: Attempt) -> Path:
        return self._root / "work" / str(attempt)

    def place(self, file: StoredFile) -> Path:
        return self._root / "cache" / file.place

    def link(self, file: StoredFile, folder: Path, fetched: Fetched) -> None:
        """Put the file into the folder of a database, from the cache or from the state."""
        for left in reversed(range(_TRIES)):
            if self._has(file):
                fetched.bytes_found += file.bytes
            else:
                self._fetch(file)
                fetched.bytes_fetched += file.bytes
            try:
                _link_or_copy(self.place(file), folder / file.name)
                return
            except FileNotFoundError:  # a task of another generation, on this machine, has tidied up
                if left == 0:
                    raise

    def add(self, file: StoredFile, source: Path) -> None:
        """Keep a file that this task has uploaded: the next one that starts from it need not fetch it."""
        cached = self.place(file)
        cached.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            _link_or_copy(source, cached)

    def keep_only(self, files: Collection[StoredFile], running: Generation) -> None:
        """Delete what older generations left that the state has no use for. Other tasks of this one do the same meanwhile."""
        kept = {self.place(file) for file in files}
        for folder in self._root.glob("cache/*/*/*"):
            if _is_past(folder.name, running):
                with suppress(FileNotFoundError):  # another task was faster
                    for path in list(folder.iterdir()):
                        if path not in kept:
                            path.unlink(missing_ok=True)
                with suppress(OSError):
                    folder.rmdir()  # only if it is empty
        for work in self._root.glob("work/*"):
            if _is_older(work.name, running):
                shutil.rmtree(work, ignore_errors=True)
        for abandoned in self._root.glob("fetching/*"):
            with suppress(FileNotFoundError):
                if abandoned.stat().st_mtime < time.time() - _FETCHED_WITHIN_S:
                    abandoned.unlink()

    def _has(self, file: StoredFile) -> bool:
        try:
            return self.place(file).stat().st_size == file.bytes
        except FileNotFoundError:
            return False

    def _fetch(self, file: StoredFile) -> None:
        """Beside the cache first: whoever tidies up must not take it for something that is left over."""
        cached, fetching = self.place(file), self._root / "fetching"
        fetching.mkdir(parents=True, exist_ok=True)
        temporary = fetching / secrets.token_hex(8)
        try:
            fetch(self._table, file, temporary)
            for left in reversed(range(_TRIES)):
                cached.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.replace(temporary, cached)
                    return
                except FileNotFoundError:  # the folder was empty for a moment, and another task has removed it
                    if left == 0:
                        raise
        finally:
            temporary.unlink(missing_ok=True)


def fetch(table: StateTable, file: StoredFile, target: Path) -> None:
    """Copy a file from the state, and check that it is what its task has uploaded."""
    path, digest, length = f"{table.path}/{FILES}/{file.place}", hashlib.sha256(), 0
    try:
        source = table.storage.open(path)
    except FileNotFoundError as error:
        raise DataLost(f"{path}, which a committed epoch names, is gone: restore it from a backup") from error
    with source, open(target, "xb") as copy:
        while block := source.read(_BLOCK_BYTES):
            digest.update(block)
            copy.write(block)
            length += len(block)
        copy.flush()
        os.fsync(copy.fileno())
    if length != file.bytes:
        raise corrupt(path, f"is torn: it has {length} bytes, and {file.bytes} were uploaded")
    if digest.hexdigest() != file.sha256:
        raise corrupt(path, "was altered, or the disk has damaged it: its checksum does not match")


def link_in_place(table: StateTable, file: StoredFile, folder: Path) -> bool:
    """Link a file straight from the state, where it lies on the same disk; False if it does not.

    For readers: what they link stays readable when the state drops it. Its content is looked at by RocksDB alone, block by block.
    """
    if not isinstance(table.storage, LocalStorage):
        return False
    path = f"{table.path}/{FILES}/{file.place}"
    local = path.removeprefix("file://")
    try:
        if os.stat(local).st_size != file.bytes:
            raise corrupt(path, f"is torn: it has {os.stat(local).st_size} bytes, and {file.bytes} were uploaded")
        os.link(local, folder / file.name)
    except FileNotFoundError as error:
        raise DataLost(
            f"{path}, which a committed epoch names, is gone: the epoch was dropped meanwhile, or the file was deleted"
        ) from error
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        return False
    return True


def _link_or_copy(source: Path, target: Path) -> None:
    """Tables never change and are linked; what else there is, RocksDB may write to."""
    if source.suffix == ".sst":
        try:
            os.link(source, target)
            return
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
                raise
    shutil.copyfile(source, target)


def _is_past(name: str, running: Generation) -> bool:
    """Whether an attempt is of an older generation; or of another ledger, whose files the manifest names if they are in use."""
    try:
        generation = Attempt.parse(name).generation
    except ValueError:
        return False
    return generation.ledger != running.ledger or generation.is_older_than(running)


def _is_older(name: str, running: Generation) -> bool:
    try:
        return Attempt.parse(name).generation.is_older_than(running)
    except ValueError:
        return False
