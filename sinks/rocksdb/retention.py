"""Which epochs of a state stay readable, and how the others go: by count, and by age.

::

    7.manifest ─► 7.manifest.dropped ─► the files that no kept manifest names ─► nothing

On the driver, as the newest generation, before its tasks begin: they start from the newest manifest, which always stays. A driver
that was overtaken drops nothing that is in use either: later epochs name files of the newest manifest that it knew, and their own.
A drop that dies halfway is finished by the next one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from twophase.log import Log
from twophase.state.manifest import DROPPED, FILES, StateManifest, StateTable

_HOUR_MS = 3_600_000

log = Log("twophase.sinks.rocksdb")


@dataclass(frozen=True)
class Retention:
    """An epoch stays if it is one of the newest, or young enough."""

    epochs: int
    hours: float | None = None

    def drop_old(self, table: StateTable, now_ms: int) -> None:
        listed, line = table.listed(), table.positions()
        for position in self._old(table, line, now_ms):
            path = table.manifest_path(position)
            with suppress(FileNotFoundError, FileExistsError):
                table.storage.rename(path, path + DROPPED)
            listed.append((position, True))
        for position, is_dropped in listed:
            if not is_dropped and position not in line:  # a stray: somebody published below what was kept
                path = table.manifest_path(position)
                with suppress(FileNotFoundError, FileExistsError):
                    table.storage.rename(path, path + DROPPED)
        dropped = sorted({position for position, is_dropped in table.listed() if is_dropped})
        if dropped:
            self._finish(table, dropped)

    def _old(self, table: StateTable, line: list[int], now_ms: int) -> list[int]:
        old = []
        for position in line[: -self.epochs]:
            if self.hours is not None and self._is_young(table, position, now_ms, self.hours):
                break
            old.append(position)
        return old

    def _is_young(self, table: StateTable, position: int, now_ms: int, hours: float) -> bool:
        try:
            return now_ms - table.manifest(position).written_ms < hours * _HOUR_MS
        except FileNotFoundError:  # another driver drops it: what it began is finished below
            return False

    def _finish(self, table: StateTable, positions: list[int]) -> None:
        kept = table.kept()
        places = {file.place for manifest in kept for file in manifest.files}
        folders = {file.folder for manifest in kept for file in manifest.files}
        for position in positions:
            path = table.manifest_path(position) + DROPPED
            try:
                manifest = StateManifest.decode(table.storage.read(path), path)
            except FileNotFoundError:
                continue
            doomed = {
                f"{file.folder}/{file.name}" if file.folder in folders else file.folder
                for file in manifest.files
                if file.place not in places
            }
            for each in sorted(doomed):
                table.storage.delete(f"{table.path}/{FILES}/{each}")
            table.storage.delete(path)
            log.info("dropped an epoch", state=table.path, epoch=position, deleted=len(doomed))
