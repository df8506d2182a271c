"""What is in a plain folder: names, sizes and times of change, by the rules that Spark has for names.

Names that begin with `.` or `_`, and those of Hadoop's copies in progress, are not files to read; a folder `_x=1` is, as
in Spark. Links are followed, and a link to a folder above it is not followed twice.

This is the one place that asks a file system for times of change, which `Storage` does not know: another storage needs
another `look` and `entries` here.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from twophase.sources.files.journal import TakenFile
from twophase.storage import Storage

_COPYING = "._COPYING_"


@dataclass(frozen=True)
class NameFilter:
    """Which files below a folder are read."""

    recursive: bool = False
    glob: str | None = None

    def takes(self, name: str) -> bool:
        """Whether the file of this name, relative to the folder, is to be read."""
        *folders, file = name.split("/")
        return self._takes_file(file) and all(self.enters(folder) for folder in folders)

    def enters(self, folder: str) -> bool:
        if folder.startswith(".") or (folder.startswith("_") and "=" not in folder):
            return False
        return self.recursive or "=" in folder

    def _takes_file(self, name: str) -> bool:
        hidden = name.startswith((".", "_")) or name.endswith(_COPYING)
        return not hidden and (self.glob is None or fnmatch.fnmatchcase(name, self.glob))


def found_below(storage: Storage, folder: str, names: NameFilter) -> list[TakenFile]:
    """The files to read that are there now, oldest first. FileNotFoundError if the folder itself is not there."""
    found = list(_walk(_local(storage, folder), "", names, frozenset()))
    return sorted(found, key=lambda file: (file.modified_ns, file.name))


def look(storage: Storage, path: str, name: str) -> TakenFile:
    """The file as it is now; FileNotFoundError if it is gone."""
    return _taken(name, os.stat(_local_file(storage, path)))


def _walk(folder: str, prefix: str, names: NameFilter, above: frozenset[str]) -> Iterator[TakenFile]:
    above |= {os.path.realpath(folder)}
    for entry in os.listdir(folder):
        path, name = f"{folder}/{entry}", prefix + entry
        try:
            status = os.stat(path)
            if not stat.S_ISDIR(status.st_mode):
                if stat.S_ISREG(status.st_mode) and names.takes(name):
                    yield _taken(name, status)
            elif names.enters(entry) and os.path.realpath(path) not in above:
                yield from _walk(path, f"{name}/", names, above)
        except FileNotFoundError:
            continue  # gone since it was listed, or a link to nothing: it was never taken, so nothing is lost


def _taken(name: str, status: os.stat_result) -> TakenFile:
    return TakenFile(name, status.st_size, status.st_mtime_ns)


def _local(storage: Storage, folder: str) -> str:
    return storage.normalise(folder).removeprefix("file://")


def _local_file(storage: Storage, path: str) -> str:
    # The folder only: a link in place of the file must not change which name is looked at.
    folder, _, name = path.rpartition("/")
    return f"{_local(storage, folder)}/{name}"
