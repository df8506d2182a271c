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

from dataclasses import dataclass
from typing import Protocol


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
        """Make `data` appear at `path`, whole and durable, if and only if the name is free."""
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
