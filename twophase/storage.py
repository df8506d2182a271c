"""Storage: the few file operations on which the ledger, manifests and claims stand.

The one primitive that everything leans on is `publish`: a file appears under its name whole and durable, or not at all, and
only if the name was free. A bare exclusive create can't give that: a crash between create and write leaves an empty record
for ever.

Errors are the built-in ones, because they say exactly what is needed:

=====================  =====================================================================================
FileExistsError        the name is taken; nothing was changed
FileNotFoundError      the source, or the parent folder, is not there; nothing was changed
TimeoutError           the reply was lost: the operation took effect, will take effect later, or never will
any other OSError      the operation failed; for `publish`, the name is untouched by this call
=====================  =====================================================================================

Paths are absolute, with `/` between their parts, in the storage's own terms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol


@dataclass(frozen=True, order=True)
class Entry:
    """One name in a folder."""

    name: str
    is_folder: bool
    length: int


class Storage(Protocol):
    """A file system with exclusive publication and no-overwrite rename. Implementations are picklable."""

    def normalise(self, path: str) -> str:
        """One spelling per place, as a URI: links resolved, no trailing slash."""
        ...

    def publish(self, path: str, data: bytes) -> None:
        """Make `data` appear at `path`, whole and durable, if and only if the name is free.

        What a listing says of it besides its name is the storage's own affair: where files are slow, small data may be a
        folder. `read` gives it back all the same.
        """
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or a folder durably; an existing `target`, even an empty folder, is never replaced."""
        ...

    def read(self, path: str) -> bytes: ...

    def list(self, folder: str) -> list[Entry]:
        """What is in `folder`, sorted by name, without temporary files of unfinished publications; [] if it is not there."""
        ...

    def make_folder(self, folder: str) -> None:
        """Create the folder and its parents, durably; an existing one is fine."""
        ...

    def delete(self, path: str) -> None:
        """Delete a file, or a folder and all below it; a missing one is fine."""
        ...

    def sweep_temporary(self, folder: str, older_than_s: float) -> int:
        """Delete what publications that died left in `folder`, and say how many; a missing folder has none."""
        ...

    def sync(self, folder: str) -> None:
        """Make every name now in `folder` durable. Whoever acts on a name that it read calls this first."""
        ...


class FileStorage(Storage, Protocol):
    """A storage that also holds data: what a table of files needs beyond what a ledger does."""

    @property
    def spells_small_files(self) -> bool:
        """Whether what is published and small is no file, so that no reader of plain files can mistake it for one."""
        ...

    def publish_through(self, path: str, data: bytes, *, through: str) -> None:
        """As `publish`, but the temporary file lies in the folder `through`, of the same file system: so none is ever left
        in the folder of `path`, which may be about to become visible."""
        ...

    def publish_folders(self, path: str, names: Sequence[str], *, through: str) -> None:
        """As `publish_through`, but what appears is a folder of empty folders that have these names."""
        ...

    def create(self, path: str) -> BinaryIO:
        """A new file to write to; FileExistsError if the name is taken, FileNotFoundError if its folder is not there.

        Never creates a folder: a late writer whose folder was renamed away must fail. When `close` returns, the data is
        durable; the name is after a `sync` of the folder.
        """
        ...

    def make_child(self, folder: str) -> None:
        """Create one folder in a folder that is there, or raise FileNotFoundError; an existing one is fine. Durable after
        a `sync` of its parent."""
        ...

    def open(self, path: str) -> BinaryIO:
        """A file to read from, at any position."""
        ...
