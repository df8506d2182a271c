"""Where the files of an attempt are on their way into a state, and how they go away.

::

    staged/<query>/<sink>/<attempt>/             uploaded by a task: its own tables, and `part`, which is written last
    files/<query>/<sink>/<attempt>/              moved there by the committer, before the manifest that names it
    …/<attempt>.aborted/                         being deleted

A folder below `files/` that no kept manifest names is staged too: its committer died before it published. A folder is renamed
before it is deleted, so that a late task finds no folder to write to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from twophase.errors import OptionError
from twophase.identity import Attempt, Owner
from twophase.sink import Share
from twophase.sinks.rocksdb.transaction import PART, RocksDBHandle
from twophase.state.manifest import FILES, STAGED, Part, StateManifest, StateTable

_ABORTED = ".aborted"


@dataclass(frozen=True)
class AttemptFolder:
    """What one attempt has uploaded."""

    owner: Owner
    attempt: Attempt
    place: str
    """`staged` or `files`."""
    is_aborted: bool = False

    @property
    def snapshot(self) -> str:
        return f"{self.owner}/{self.attempt}"

    def path(self, table: StateTable) -> str:
        return f"{table.path}/{self.place}/{self.snapshot}{_ABORTED if self.is_aborted else ''}"


def refuse_cut_name(owner: Owner) -> None:
    """A name too long to be one folder's name is cut, and what lies in such a folder can't be told to be its owner's."""
    try:
        whole = Owner.parse(str(owner)) == owner
    except ValueError:
        whole = False
    if not whole:
        problem = "owner (or the sink's name) is too long to be the name of a folder: at most 200 plain letters"
        raise OptionError(problem, problems=[problem], owner=str(owner))


def seal(table: StateTable, owner: Owner, share: Share[RocksDBHandle]) -> None:
    """Move what was staged for a share to where a manifest can name it. Moved before, or gone: what is there will tell."""
    staged = AttemptFolder(owner, share.attempt, STAGED).path(table)
    sealed = AttemptFolder(owner, share.attempt, FILES).path(table)
    try:
        table.storage.rename(staged, sealed)
    except FileExistsError:
        return
    except FileNotFoundError:
        if not table.storage.list(staged):
            return
        table.storage.make_folder(sealed.rpartition("/")[0])
        with suppress(FileNotFoundError, FileExistsError):
            table.storage.rename(staged, sealed)


def part_of(table: StateTable, owner: Owner, share: Share[RocksDBHandle], place: str) -> Part | str:
    """What the share adds to the state, if all of it is there as it was voted for; else what is wrong with it."""
    folder, handle = AttemptFolder(owner, share.attempt, place), share.handle
    path = folder.path(table)
    try:
        data = table.storage.read(f"{path}/{PART}")
    except FileNotFoundError:
        return f"{path} is gone"
    if len(data) != handle.part_bytes or hashlib.sha256(data).hexdigest() != handle.part_sha256:
        return f"{path}/{PART} is not what the task has written"
    part = Part.from_json(json.loads(data))
    lengths = {entry.name: entry.length for entry in table.storage.list(path)}
    for file in part.files:
        if file.folder == folder.snapshot and lengths.get(file.name) != file.bytes:
            found = lengths.get(file.name)
            return (
                f"{path}/{file.name} is gone"
                if found is None
                else f"{path}/{file.name} has {found} bytes, not {file.bytes}"
            )
    return part


def unnamed_folders(table: StateTable) -> Iterator[AttemptFolder]:
    """Everything staged, whoever's it is. Folders first, manifests after them: what is committed meanwhile is named then."""
    found = [folder for place in (STAGED, FILES) for folder in _folders(table, place)]
    named = named_snapshots(table.kept()) if any(folder.place == FILES for folder in found) else set()
    return (folder for folder in found if folder.place == STAGED or folder.is_aborted or folder.snapshot not in named)


def named_snapshots(manifests: list[StateManifest]) -> set[str]:
    """The attempts of which a manifest names a file."""
    return {file.folder for manifest in manifests for file in manifest.files}


def drop(table: StateTable, owner: Owner, attempt: Attempt) -> None:
    """Delete what this attempt has staged. Creates nothing; what is gone already is fine, and what a manifest names is kept."""
    _drop(table, AttemptFolder(owner, attempt, STAGED))
    sealed, doomed = (AttemptFolder(owner, attempt, FILES, is_aborted) for is_aborted in (False, True))
    is_there = any(table.storage.list(folder.path(table)) for folder in (sealed, doomed))
    if is_there and sealed.snapshot not in named_snapshots(table.kept()):
        _drop(table, sealed)


def _drop(table: StateTable, folder: AttemptFolder) -> None:
    storage, source = table.storage, folder.path(table)
    doomed = AttemptFolder(folder.owner, folder.attempt, folder.place, is_aborted=True).path(table)
    storage.delete(doomed)
    with suppress(FileNotFoundError):
        storage.rename(source, doomed)
    storage.delete(doomed)


def _folders(table: StateTable, place: str) -> Iterator[AttemptFolder]:
    storage, root = table.storage, f"{table.path}/{place}"
    for query in storage.list(root):
        for sink in storage.list(f"{root}/{query.name}") if query.is_folder else ():
            with suppress(ValueError):
                owner = Owner.parse(f"{query.name}/{sink.name}")
                for entry in storage.list(f"{root}/{owner}") if sink.is_folder else ():
                    name = entry.name.removesuffix(_ABORTED)
                    with suppress(ValueError):
                        yield AttemptFolder(owner, Attempt.parse(name), place, entry.name != name)
