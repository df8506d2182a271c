"""Retention: the oldest epochs of a table go when newer ones are there and every named reader has acknowledged them.

An epoch is moved out of the table in one step, and deleted then: no reader sees part of it. The oldest goes first, so that what is
left has no gap; the newest, which is the table's marker, always stays.
"""

from __future__ import annotations

from twophase.file_table import FileTable
from twophase.log import Log
from twophase.table_readers import TableReaders

_RETIRED = ".retired"
_AT_ONCE = 100
"""A table that was long when retention began is shortened over some commits."""

log = Log("twophase.sinks.files")


def retire(table: FileTable, newest: int, retained: int) -> list[int]:
    """Delete what may go, if epoch `newest` is the last; says which. What can't go now is tried again after the next commit."""
    try:
        return _retire(table, newest, retained)
    except OSError as error:
        # The epoch is committed, and old ones do no harm.
        log.warning("old epochs could not be deleted", table=table.path, why=str(error))
        return []


def _retire(table: FileTable, newest: int, retained: int) -> list[int]:
    storage, retired = table.storage, f"{table.staging}/{_RETIRED}"
    storage.delete(retired)  # of a driver that died here
    readers = TableReaders(table).next_wanted()
    first_kept = min([newest - retained + 1, *readers.values()])
    doomed = [position for position in table.positions_left() if position < first_kept][:_AT_ONCE]
    if not doomed:
        return []
    storage.make_folder(retired)
    for position in doomed:
        try:
            storage.rename(table.folder(position), f"{retired}/epoch={position}")
        except FileNotFoundError:
            # Another driver does the same. If it was the folder to move to that it took away, going on would leave a gap.
            if position in table.positions_left():
                break
    storage.delete(retired)
    return doomed
