"""A task's working state: exactly the key groups that it owns, as the committed epoch has them.

::

    the same number of tasks    one part, as it is                                 nothing is copied
    another number              the part with most of the groups is the base:      groups that others take are dropped
                                groups of other parts are copied into it           only these move

The base's files stay what they are in the state, so that they are not uploaded again either.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from twophase.clients.rocksdb.database import Database
from twophase.clients.rocksdb.file_cache import Fetched, FileCache
from twophase.state.key_groups import GroupRange
from twophase.state.manifest import Part, Segment

_COPIED_AT_ONCE = 10_000


@dataclass(frozen=True)
class Restored:
    """A working state that is open."""

    database: Database
    base: Part | None
    """Whose files it began with, under the names that they have in its folder."""
    fetched: Fetched


def restored(cache: FileCache, segments: Sequence[Segment], owned: GroupRange, folder: Path) -> Restored:
    """Open a database in the new folder, with what these segments have of the groups that are owned."""
    fetched = Fetched()
    overlaps = [Segment(both, each.part) for each in segments if (both := each.groups.within(owned))]
    base = _base(overlaps)
    folder.mkdir(parents=True)
    if base is not None:
        link_part(cache, base, folder, fetched)
    database = Database(str(folder))
    try:
        if base is not None:
            mine = [each.groups for each in overlaps if each.part.snapshot == base.snapshot]
            for dropped in _without(base.groups, mine):
                database.drop(dropped)
        for number, other in enumerate(
            each for each in overlaps if base is None or each.part.snapshot != base.snapshot
        ):
            _copy(cache, other, database, folder.with_name(f"{folder.name}.moved-{number}"), fetched)
    except BaseException:
        database.close()
        raise
    return Restored(database, base, fetched)


def link_part(cache: FileCache, part: Part, folder: Path, fetched: Fetched) -> None:
    for file in part.files:
        cache.link(file, folder, fetched)


def _base(overlaps: Sequence[Segment]) -> Part | None:
    sizes: dict[str, int] = {}
    for each in overlaps:
        sizes[each.part.snapshot] = sizes.get(each.part.snapshot, 0) + len(each.groups)
    largest = max(sizes, key=lambda snapshot: sizes[snapshot], default=None)
    return next((each.part for each in overlaps if each.part.snapshot == largest), None)


def _without(groups: GroupRange, kept: Iterable[GroupRange]) -> list[GroupRange]:
    rest = [groups]
    for each in kept:
        rest = [left for one in rest for left in one.without(each)]
    return rest


def _copy(cache: FileCache, segment: Segment, database: Database, folder: Path, fetched: Fetched) -> None:
    """Bring a segment of another part into the database."""
    folder.mkdir()
    link_part(cache, segment.part, folder, fetched)
    source = Database(str(folder), read_only=True)
    try:
        keys: list[bytes] = []
        values: list[bytes | None] = []
        for key, value in source.items_of(segment.groups):
            keys.append(key)
            values.append(value)
            fetched.rows_moved += 1
            fetched.bytes_moved += len(key) + len(value)
            if len(keys) == _COPIED_AT_ONCE:
                database.write(keys, values)
                keys, values = [], []
        database.write(keys, values)
    finally:
        source.close()
        shutil.rmtree(folder, ignore_errors=True)
