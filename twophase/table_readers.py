"""The readers of a file table that have names, and how far each has come: what retention waits for.

::

    .orders.twophase/.readers/             there as soon as the table's owner deletes old epochs
      billing/00000000000000000007         the reader `billing` wants epoch 7 next: all before it may go

A number is published before the one below it is deleted, and the highest counts: a reader that dies in between has not gone back.
Both sides need nothing but the table's storage.

The guarantee: an epoch that a named reader has not acknowledged is not deleted by `retainEpochs`. A reader that never comes again
holds all epochs from there on, until somebody deletes its folder: nobody else can know that it is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from twophase.file_table import FileTable
from twophase.names import escape

_FOLDER = ".readers"
"""No owner's folder begins with a dot."""
_DIGITS = 20


class TableReaders:
    def __init__(self, table: FileTable):
        self._storage = table.storage
        self._folder = f"{table.staging}/{_FOLDER}"

    def expect(self) -> None:
        """From now on whoever reads the table needs a name."""
        self._storage.make_folder(self._folder)

    def are_expected(self) -> bool:
        try:
            self._storage.sync(self._folder)
        except FileNotFoundError:
            return False
        return True

    def next_wanted(self) -> Mapping[str, int]:
        """By each reader's folder: the lowest position that it has not acknowledged."""
        found = {}
        for reader in self._storage.list(self._folder):
            numbers = self._numbers(reader.name)
            if numbers:
                found[reader.name] = numbers[-1]
        return found

    def enrol(self, name: str, wanted: int) -> None:
        """Make the reader known, if it is not: nothing from `wanted` on is deleted any more."""
        if not self._numbers(escape(name)):
            self.acknowledge(name, wanted)

    def acknowledge(self, name: str, wanted: int) -> None:
        """The reader has everything before `wanted`. An older one than the last changes nothing."""
        reader = escape(name)
        known = self._numbers(reader)
        if known and known[-1] >= wanted:
            return
        folder = f"{self._folder}/{reader}"
        if not known:
            self._storage.make_folder(folder)
        with suppress(FileExistsError):
            self._storage.publish(f"{folder}/{wanted:0{_DIGITS}d}", b"")
        for number in known:
            self._storage.delete(f"{folder}/{number:0{_DIGITS}d}")

    def _numbers(self, reader: str) -> list[int]:
        names = (entry.name for entry in self._storage.list(f"{self._folder}/{reader}"))
        return sorted(int(name) for name in names if len(name) == _DIGITS and name.isascii() and name.isdigit())
