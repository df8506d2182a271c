"""Snapshot: a state as it is at one committed epoch, for readers. The writer goes on meanwhile, and changes nothing of it.

::

    with twophase.state.open("/data/customers") as state:
        state.get("ada")                          one row, by its key
        state.multi_get(["ada", "bob"])           several
        state.scan("a", "b")                      a range of keys, in their order
        state.to_table()                          all rows, as Arrow

The mechanism: the files that the epoch's manifest names are linked into a temporary folder (or fetched, where the state is on
another file system), and opened there for reading. Files of a state never change; one that is dropped by retention stays readable
for whoever has linked it. So a snapshot is for ever what it was, until it is closed.
"""

from __future__ import annotations

import heapq
import itertools
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from twophase.clients.rocksdb.database import Database, Item
from twophase.clients.rocksdb.file_cache import fetch, link_in_place
from twophase.errors import DataLost, OptionError
from twophase.sink import Marker
from twophase.state.form import StateForm
from twophase.state.key_encoding import GROUP_BYTES, decode_keys, encode_keys, group_prefix
from twophase.state.key_groups import GroupRange, KeyGroups
from twophase.state.manifest import Part, Segment, StateManifest, StateTable
from twophase.state.row_encoding import decode_rows
from twophase.storage_of import storage_of

ROWS_AT_ONCE = 10_000
_TRIES = 5

Key = Any
"""Of one column: its value. Of several: a tuple, or a dict by their names."""


def table_at(path: str) -> StateTable:
    """The state at a path or URL; a relative path is taken from the current folder, once."""
    absolute = path if path.startswith("/") or re.match("[A-Za-z][A-Za-z0-9+.-]*:", path) else os.path.abspath(path)
    return StateTable(storage_of(absolute), absolute)


def open_snapshot(path: str, epoch: int | None = None, *, working_dir: str | None = None) -> Snapshot:
    """The state at `path`, as it is now, or as it was at an epoch of its line that is still kept.

    Parameters
    ----------
    working_dir:
        Where the snapshot's temporary folder is made; by default where the system has such. On the file system of the state its
        tables are linked, elsewhere they are copied.

    Raises
    ------
    OptionError
        Nothing is committed there, or the epoch is not kept (any more).
    """
    table = table_at(path)
    for left in reversed(range(_TRIES)):
        manifest = manifest_at(table, epoch)
        try:
            return Snapshot(table, manifest, working_dir=working_dir)
        except DataLost:
            # It may have been dropped between the look and the links; then there is a newer one, or it is gone.
            if left == 0 or manifest_at(table, epoch).marker == manifest.marker:
                raise
    raise AssertionError("unreachable")


def manifest_at(table: StateTable, epoch: int | None) -> StateManifest:
    try:
        found = table.newest() if epoch is None else table.manifest(epoch) if epoch in table.positions() else None
    except FileNotFoundError:
        found = None
    if found is not None:
        return found
    kept = table.positions()
    if not kept:
        raise _refused(f"there is no committed epoch of a state at {table.path}")
    raise _refused(f"epoch {epoch} of the state {table.path} is not there: it keeps {kept[0]} to {kept[-1]}")


class Snapshot:
    """Rows by key at one epoch. Threads may share it. Close it: its links take no room, but what they keep does."""

    def __init__(
        self,
        table: StateTable,
        manifest: StateManifest,
        groups: GroupRange | None = None,
        *,
        working_dir: str | None = None,
    ):
        self._table = table
        self._manifest = manifest
        every = GroupRange(0, manifest.form.key_groups)
        self._segments = [
            Segment(both, each.part) for each in manifest.segments if (both := each.groups.within(groups or every))
        ]
        self._part_of = {group: each.part for each in self._segments for group in _numbers(each)}
        self._folder = Path(tempfile.mkdtemp(prefix="twophase-state-", dir=working_dir))
        self._open: dict[str, Database] = {}
        self._lock = threading.Lock()
        try:
            for number, part in enumerate(self._parts()):
                self._link(part, self._folder / str(number))
        except BaseException:
            self.close()
            raise

    # ---- what it is ----

    @property
    def epoch(self) -> int:
        """In the line of the state: Spark's batch id, plus what was there before a take-over."""
        return self._manifest.position

    @property
    def marker(self) -> Marker:
        return self._manifest.marker

    @property
    def form(self) -> StateForm:
        return self._manifest.form

    @property
    def schema(self) -> pa.Schema:
        """Key columns first. Of a state that never had rows: no columns."""
        return pa.schema([]) if self.form.schema is None else self.form.schema

    # ---- reading ----

    def get(self, key: Key) -> dict[str, Any] | None:
        """The row of this key; None if there is none."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[Key]) -> list[dict[str, Any] | None]:
        """The rows of these keys, in their order; None for those that are not there."""
        if self.form.schema is None or not keys:
            return [None] * len(keys)
        columns = self._key_columns([self._whole(key) for key in keys])
        groups = KeyGroups(self.form.key_groups).of(columns, len(keys))
        encoded: list[bytes] = encode_keys(groups, columns, len(keys)).to_pylist()
        by_part: dict[str, list[int]] = {}
        parts = {}
        for place, group in enumerate(groups.tolist()):
            part = self._part_of.get(group)
            if part is not None:
                by_part.setdefault(part.snapshot, []).append(place)
                parts[part.snapshot] = part
        found: dict[int, Item] = {}
        for snapshot, places in by_part.items():
            values = self._database(parts[snapshot]).get([encoded[place] for place in places])
            found |= {p: (encoded[p], value) for p, value in zip(places, values, strict=True) if value is not None}
        rows = self._decoded(list(found.values())).to_pylist()
        by_place = dict(zip(found, rows, strict=True))
        return [by_place.get(place) for place in range(len(keys))]

    def scan(self, start: Key | None = None, end: Key | None = None, *, limit: int | None = None) -> pa.Table:
        """Rows with keys from `start` on and before `end`, in the order of the keys; the first columns of a key will do."""
        if self.form.schema is None:
            return self.schema.empty_table()
        first, last = self._bound(start), self._bound(end)
        ranges = [self._of_group(each, group, first, last) for each in self._segments for group in _numbers(each)]
        ordered = heapq.merge(*ranges, key=lambda item: item[0][GROUP_BYTES:])
        return self._as_table(itertools.islice(ordered, limit))

    def batches(self, rows_at_once: int = ROWS_AT_ONCE) -> Iterator[pa.RecordBatch]:
        """All rows, group by group."""
        for segment in self._segments:
            items = self._database(segment.part).items_of(segment.groups)
            while some := list(itertools.islice(items, rows_at_once)):
                yield self._decoded(some)

    def to_table(self) -> pa.Table:
        return pa.Table.from_batches(self.batches(), schema=self.schema)

    def items(self, groups: GroupRange) -> Iterator[Item]:
        """Keys and values of these groups as they are stored, in their order."""
        for segment in self._segments:
            if both := segment.groups.within(groups):
                yield from self._database(segment.part).items_of(both)

    def snapshot_of(self, group: int) -> str | None:
        """The id of the part that the group is read from: where two epochs have the same, they have the same rows."""
        part = self._part_of.get(group)
        return None if part is None else part.snapshot

    # ---- its end ----

    def close(self) -> None:
        with self._lock:
            for database in self._open.values():
                database.close()
            self._open.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- parts ----

    def _parts(self) -> Iterable[Part]:
        return {each.part.snapshot: each.part for each in self._segments}.values()

    def _link(self, part: Part, folder: Path) -> None:
        folder.mkdir()
        for file in part.files:
            if not (file.name.endswith(".sst") and link_in_place(self._table, file, folder)):
                fetch(self._table, file, folder / file.name)

    def _database(self, part: Part) -> Database:
        with self._lock:
            if part.snapshot not in self._open:
                number = [each.snapshot for each in self._parts()].index(part.snapshot)
                self._open[part.snapshot] = Database(str(self._folder / str(number)), read_only=True)
            return self._open[part.snapshot]

    def _of_group(self, segment: Segment, group: int, first: bytes, last: bytes) -> Iterator[Item]:
        prefix = group_prefix(group)
        return self._database(segment.part).items(prefix + first, prefix + last if last else group_prefix(group + 1))

    def _decoded(self, items: Sequence[Item]) -> pa.RecordBatch:
        keys = pa.array([key for key, _ in items], pa.large_binary())
        values = pa.array([value for _, value in items], pa.large_binary())
        columns = [*decode_keys(keys, self.form.key_types), *decode_rows(values, self.form.value_types)]
        return pa.RecordBatch.from_arrays(columns, schema=self.form.known_schema)

    def _as_table(self, items: Iterable[Item]) -> pa.Table:
        found = iter(items)
        batches = []
        while some := list(itertools.islice(found, ROWS_AT_ONCE)):
            batches.append(self._decoded(some))
        return pa.Table.from_batches(batches, schema=self.schema)

    # ---- keys ----

    def _columns_of(self, key: Key) -> tuple[Any, ...]:
        if isinstance(key, Mapping):
            given = tuple(key[name] for name in self.form.key_columns if name in key)
            if len(given) < len(key) or any(name not in key for name in self.form.key_columns[: len(given)]):
                raise _refused(
                    f"a key of this state has the columns {', '.join(self.form.key_columns)}, and not {list(key)}"
                )
            return given
        return key if isinstance(key, tuple) else (key,)

    def _whole(self, key: Key) -> tuple[Any, ...]:
        given = self._columns_of(key)
        if len(given) != len(self.form.key_columns):
            raise _refused(f"a key of this state has the columns {', '.join(self.form.key_columns)}: give all of them")
        return given

    def _key_columns(self, keys: Sequence[tuple[Any, ...]]) -> list[pa.Array[Any]]:
        try:
            return [pa.array(list(values), kind) for values, kind in zip(zip(*keys, strict=True), self.form.key_types)]  # noqa: B905
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise _refused(f"a key does not fit the types of the key columns: {error}") from error

    def _bound(self, key: Key | None) -> bytes:
        if key is None:
            return b""
        found: bytes = encode_keys(None, self._key_columns([self._columns_of(key)]), 1)[0].as_py()
        return found


def _numbers(segment: Segment) -> range:
    return range(segment.groups.first, segment.groups.end)


def _refused(problem: str) -> OptionError:
    return OptionError(problem, problems=[problem])
