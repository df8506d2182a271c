"""Where shares wait to become an epoch: the names below a table's staging folder, and how they go away.

::

    .orders.twophase/<query>/<sink>/          one folder an owner
      7.c05e65b5.3/                           epoch 7, generation c05e65b5.3: tasks write here
      7.c05e65b5.3.sealed/                    the committer's: no task can open a file in it any more
      7.c05e65b5.3.take-over/                 the empty epoch of a take-over, on its way
      7.c05e65b5.3.probe/                     empty: shows that folders can be renamed into the table
      7.c05e65b5.3.aborted/                   being deleted

All shares of a decision are of one generation, so one folder is staged, committed or aborted whole. A folder is renamed before
it is deleted: a late task then finds no folder to write to, and a late committer no folder to publish half of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from twophase.errors import OptionError
from twophase.file_table import FileTable
from twophase.identity import Generation, Owner

_NAME = re.compile(
    r"(?P<number>-?[0-9]+)\.(?P<ledger>[A-Za-z0-9]+)\.(?P<generation>[0-9]+)(?P<state>(\.sealed|\.take-over|\.probe)?(\.aborted)*)"
)
SEALED = ".sealed"
TAKE_OVER = ".take-over"
PROBE = ".probe"
_ABORTED = ".aborted"


@dataclass(frozen=True)
class StagedFolder:
    """One folder that a generation staged for one epoch."""

    owner: Owner
    number: int
    generation: Generation
    state: str = ""

    @property
    def name(self) -> str:
        return f"{self.number}.{self.generation}{self.state}"

    def path(self, table: FileTable) -> str:
        return f"{owner_folder(table, self.owner)}/{self.name}"

    def as_(self, state: str) -> StagedFolder:
        return replace(self, state=state)

    @classmethod
    def parse(cls, owner: Owner, name: str) -> StagedFolder | None:
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        generation = Generation(found["ledger"], int(found["generation"]))
        return cls(owner, int(found["number"]), generation, found["state"])


def owner_folder(table: FileTable, owner: Owner) -> str:
    return f"{table.staging}/{owner}"


def refuse_cut_name(owner: Owner) -> None:
    """A name too long to be one folder's name is cut, and what lies in such a folder can't be told to be its owner's."""
    try:
        whole = Owner.parse(str(owner)) == owner
    except ValueError:
        whole = False
    if not whole:
        problem = "owner (or the sink's name) is too long to be the name of a folder: at most 200 plain letters"
        raise OptionError(problem, problems=[problem], owner=str(owner))


def staged_folders(table: FileTable) -> Iterator[StagedFolder]:
    """Everything staged, whoever's it is. Names that are not ours are passed over."""
    storage = table.storage
    for query in _folders(table, table.staging):
        for sink in _folders(table, f"{table.staging}/{query}"):
            with suppress(ValueError):
                owner = Owner.parse(f"{query}/{sink}")
                for entry in storage.list(owner_folder(table, owner)):
                    staged = StagedFolder.parse(owner, entry.name) if entry.is_folder else None
                    if staged is not None:
                        yield staged


def drop(table: FileTable, owner: Owner, generation: Generation) -> None:
    """Delete all that this generation has staged for this owner. Creates nothing; what is gone already is fine."""
    folder = owner_folder(table, owner)
    for entry in table.storage.list(folder):
        staged = StagedFolder.parse(owner, entry.name)
        if staged is not None and staged.generation == generation:
            _drop(table, staged)


def _drop(table: FileTable, staged: StagedFolder) -> None:
    storage, source = table.storage, staged.path(table)
    if not staged.state.endswith(_ABORTED):
        staged = staged.as_(staged.state + _ABORTED)
        with suppress(FileNotFoundError):
            try:
                storage.rename(source, staged.path(table))
            except FileExistsError:
                # An earlier abort died while deleting, and the folder came again: storage that makes parents does that.
                storage.delete(staged.path(table))
                storage.rename(source, staged.path(table))
    storage.delete(staged.path(table))


def _folders(table: FileTable, folder: str) -> list[str]:
    return [entry.name for entry in table.storage.list(folder) if entry.is_folder]
