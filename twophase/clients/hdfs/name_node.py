"""NameNode: the few requests that storage on HDFS is made of. `native.py` and `web.py` each make them in their own way.

Paths are those of HDFS, without scheme and host. Each request is made once: `NotTaken` if nobody took it, a TimeoutError if its
reply was lost, and otherwise what `answers.py` makes of a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True)
class FileStatus:
    """What a NameNode knows of one name."""

    name: str
    is_folder: bool
    length: int
    modified_ms: int


@dataclass(frozen=True)
class RemoteFile:
    """A file to read from."""

    length: int
    read: Callable[[int, int], bytes]
    """Of an offset and a length."""


class NameNode(Protocol):
    def status(self, path: str) -> FileStatus: ...

    def list(self, folder: str) -> Sequence[FileStatus]:
        """What is in a folder; NotADirectoryError if it is a file."""
        ...

    def make_folder(self, path: str) -> None:
        """With its parents; an existing one is fine."""
        ...

    def make_child(self, path: str) -> None:
        """One folder in a folder that is there, or FileNotFoundError; an existing one is fine."""
        ...

    def make_children(self, folder: str, names: Sequence[str]) -> None:
        """These folders, in a folder that is this process's own; FileNotFoundError if somebody has swept it."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Never replaces, and never moves into a folder that is there: rename2 without options."""
        ...

    def delete(self, path: str) -> None:
        """With all below it; a missing one is fine."""
        ...

    def create(self, path: str) -> BinaryIO:
        """A new file in a folder that is there. When `close` returns, the file is whole; its errors are the same as here."""
        ...

    def read(self, path: str) -> bytes: ...

    def open(self, path: str) -> RemoteFile: ...
