"""One task attempt's share: the key groups that it owns, with this epoch's rows in them, as a snapshot of RocksDB.

::

    first row      the groups are restored into a folder of this attempt          (clients/rocksdb/restored.py)
    each batch     encoded from Arrow, merged by the mode, written to the working state
                   what is enough for a table is flushed, and uploaded while the next rows are written
    pre-commit     flush, compact what is due, link; upload the tables that the committed epoch lacks; last, the part file

A task without rows restores nothing and uploads nothing: what its groups have stays where it is. The task deletes nothing that is
shared, and the folder of the attempt goes with the attempt.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from twophase import failpoints
from twophase.clients.rocksdb.database import is_kept
from twophase.clients.rocksdb.file_cache import FileCache
from twophase.clients.rocksdb.restored import Restored, restored
from twophase.errors import Fenced, OptionError, ProtocolViolation
from twophase.handle import Handle
from twophase.log import Log
from twophase.sink import PreparedEpoch, Task, Transaction
from twophase.state.byte_rows import Column
from twophase.state.form import StateForm
from twophase.state.key_encoding import encode_keys
from twophase.state.key_groups import GroupRange, KeyGroups
from twophase.state.manifest import STAGED, Part, StateManifest, StateTable, StoredFile
from twophase.state.merge import merged
from twophase.state.row_encoding import decode_rows, encode_rows
from twophase.vote import canonical_json

PART = "part"
_BLOCK_BYTES = 1 << 20
_UPLOADS_AT_ONCE = 4
_ROWS_AT_ONCE = 1 << 16
FLUSHED_BYTES = 64 << 20
"""So many bytes of rows are one table."""

log = Log("twophase.sinks.rocksdb")


@dataclass(frozen=True)
class RocksDBHandle(Handle):
    """What a share adds to the state; the file `part` in the attempt's folder says which files."""

    part_bytes: int
    """0 if the task had no rows: there is nothing in staging then."""
    part_sha256: str
    form: str
    """The form of the state after this epoch, as JSON; slot 0 says it, and whoever has rows."""
    bytes_uploaded: int
    bytes_fetched: int
    bytes_moved: int
    """Of rows that came from another task's part, because the number of tasks has changed."""


@dataclass(frozen=True)
class StatePlan:
    """What a task needs to know of the state."""

    manifest: StateManifest | None
    """The committed epoch that it starts from."""
    form: StateForm

    @property
    def known_files(self) -> set[StoredFile]:
        return set() if self.manifest is None else self.manifest.files


class RocksDBTransaction(Transaction[RocksDBHandle]):
    """A share in the making.

    Parameters
    ----------
    owned:
        The groups of this task; None if nobody has said how many tasks there are.
    """

    def __init__(
        self,
        table: StateTable,
        cache: FileCache,
        prepared: PreparedEpoch,
        plan: StatePlan,
        groups: KeyGroups,
        owned: GroupRange | None,
        task: Task,
    ):
        self._table = table
        self._cache = cache
        self._prepared = prepared
        self._plan = plan
        self._groups = groups
        self._owned = owned
        self._task = task
        self._form = plan.form
        self._rows_schema: pa.Schema | None = None
        self._work = cache.work_folder(task.attempt)
        self._restored: Restored | None = None
        self._unflushed_bytes = 0
        self._threads = ThreadPoolExecutor(_UPLOADS_AT_ONCE)  # starts none before it is given something
        self._uploads: dict[str, Future[StoredFile]] = {}
        self._done = False

    # ---- the contract ----

    def write(self, batch: pa.RecordBatch) -> None:
        if self._done:
            raise ProtocolViolation("nothing can be written after pre_commit")
        self._check(batch.schema)
        for first in range(0, batch.num_rows, _ROWS_AT_ONCE):
            some = batch.slice(first, _ROWS_AT_ONCE)
            self._write(some)
            self._unflushed_bytes += some.nbytes
            if self._unflushed_bytes >= FLUSHED_BYTES:
                self._upload_early()

    def pre_commit(self) -> RocksDBHandle:
        self._done = True
        says_form = self._form.schema is not None and (self._task.slot == 0 or self._restored is not None)
        form = canonical_json(self._form.to_json()) if says_form else ""
        if self._restored is None:
            self._threads.shutdown()
            return RocksDBHandle(0, "", form, 0, 0, 0)
        self._restored.database.snapshot(str(self._work / "snapshot"))
        self._restored.database.close()
        part, uploaded = self._upload(self._restored.base)
        data = canonical_json(part.to_json()).encode()
        self._create(PART, data)
        fetched = self._restored.fetched
        shutil.rmtree(self._work, ignore_errors=True)
        log.info(
            "snapshot",
            owner=self._prepared.owner,
            epoch=self._prepared.epoch.number,
            slot=self._task.slot,
            bytes=part.bytes,
            uploaded=uploaded,
            fetched=fetched.bytes_fetched,
            moved=fetched.bytes_moved,
        )
        checksum = hashlib.sha256(data).hexdigest()
        return RocksDBHandle(len(data), checksum, form, uploaded, fetched.bytes_fetched, fetched.bytes_moved)

    def abort(self) -> None:
        """Drop this attempt's own files, here and in staging."""
        self._done = True
        self._threads.shutdown(cancel_futures=True)
        if self._restored is not None:
            self._restored.database.close()
        shutil.rmtree(self._work, ignore_errors=True)
        self._table.storage.delete(self._folder)

    # ---- rows ----

    def _check(self, schema: pa.Schema) -> None:
        if self._rows_schema is None or not schema.equals(self._rows_schema):
            self._form = self._form.fitting(self._form, schema)
            self._rows_schema = schema

    def _write(self, batch: pa.RecordBatch) -> None:
        form = self._form
        keys = self._keys(batch)
        restored = self._opened()
        values = [_plain(batch.column(name)) for name in form.value_columns]
        if form.merge_mode in ("sum", "max"):
            how: Literal["sum", "max"] = "sum" if form.merge_mode == "sum" else "max"
            self._merge(keys, pa.Table.from_arrays(values, list(form.value_columns)), how)
            return
        encoded: list[bytes | None] = encode_rows(values, batch.num_rows).to_pylist()
        if form.merge_mode == "delete-flag":
            flags = [bool(flag) for flag in batch.column(form.delete_column).to_pylist()]
            encoded = [None if flag else value for flag, value in zip(flags, encoded, strict=True)]
        restored.database.write(keys.to_pylist(), encoded)

    def _keys(self, batch: pa.RecordBatch) -> Column:
        columns = [_plain(batch.column(name)) for name in self._form.key_columns]
        groups = self._groups.of(columns, batch.num_rows)
        owned = self._owned
        if owned is None or (strange := groups[(groups < owned.first) | (groups >= owned.end)]).size:
            raise self._misplaced(None if owned is None else int(strange[0]))
        return encode_keys(groups, columns, batch.num_rows)

    def _misplaced(self, group: int | None) -> OptionError:
        columns = ", ".join(repr(name) for name in self._form.key_columns)
        what = (
            "nobody has said how many tasks write, so that no task knows which key groups are its own"
            if group is None
            else f"a row of key group {group} came to slot {self._task.slot}, which owns {self._owned}"
        )
        problem = (
            f"{what}: rows go to tasks by their key group. twophase.exactly_once sends them there by itself; for the format, "
            f"write twophase.by_key_group(df, [{columns}], tasks=N, key_groups={self._groups.count}) and set the option tasks to N"
        )
        return OptionError(problem, problems=[problem], slot=self._task.slot)

    def _merge(self, keys: Column, rows: pa.Table, how: Literal["sum", "max"]) -> None:
        distinct = keys.dictionary_encode()
        every: list[bytes] = distinct.dictionary.to_pylist()
        database = self._opened().database
        before = database.get(every)
        places = [place for place, value in enumerate(before) if value is not None]
        stored = pa.array([value for value in before if value is not None], pa.large_binary())
        old = pa.Table.from_arrays(decode_rows(stored, self._form.value_types), schema=rows.schema)
        index = np.concatenate([np.array(places, np.int64), distinct.indices.to_numpy().astype(np.int64)])
        now = merged(pa.concat_tables([old, rows]), pa.array(index), len(every), how).combine_chunks()
        columns = [_one_chunk(column) for column in now.columns]
        database.write(every, encode_rows(columns, len(every)).to_pylist())

    # ---- the working state ----

    def _opened(self) -> Restored:
        if self._restored is None:
            manifest, owned = self._plan.manifest, self._owned
            assert owned is not None
            shutil.rmtree(self._work, ignore_errors=True)
            self._restored = restored(
                self._cache, () if manifest is None else manifest.segments, owned, self._work / "database"
            )
            self._cache.keep_only(self._plan.known_files, self._prepared.generation)
        return self._restored

    # ---- staging ----

    @property
    def _snapshot(self) -> str:
        return f"{self._prepared.owner}/{self._task.attempt}"

    @property
    def _folder(self) -> str:
        return f"{self._table.path}/{STAGED}/{self._snapshot}"

    def _upload_early(self) -> None:
        """What is written by now becomes a table, and is on its way while the next rows come."""
        restored, early = self._opened(), self._work / "early"
        restored.database.flush()
        self._unflushed_bytes = 0
        early.mkdir(exist_ok=True)
        for name in restored.database.tables():
            if name not in self._uploads and name not in _tables_of(restored.base):
                with suppress(FileNotFoundError):  # a compaction was faster
                    os.link(self._work / "database" / name, early / name)
                    self._send(early / name)

    def _send(self, path: Path) -> None:
        if not self._uploads:
            self._table.storage.make_folder(self._folder)
        self._uploads[path.name] = self._threads.submit(self._uploaded, path)

    def _upload(self, base: Part | None) -> tuple[Part, int]:
        """Whatever the committed epoch lacks goes to staging. What it has keeps the name that it has there."""
        folder, known = self._work / "snapshot", _tables_of(base)
        names = sorted(path.name for path in folder.iterdir() if is_kept(path.name))
        new = [name for name in names if name not in known]
        for name in new:
            if name not in self._uploads:
                self._send(folder / name)
        uploaded = {name: upload.result() for name, upload in self._uploads.items()}
        self._threads.shutdown()
        for name in uploaded.keys() - set(new):  # compacted since
            self._table.storage.delete(f"{self._folder}/{name}")
        for name in new:
            self._cache.add(uploaded[name], folder / name)
        files = (*(known[name] for name in names if name in known), *(uploaded[name] for name in new))
        assert self._owned is not None
        return Part(self._snapshot, self._owned, files), sum(file.bytes for file in uploaded.values())

    def _uploaded(self, path: Path) -> StoredFile:
        digest, length = hashlib.sha256(), 0
        try:
            with open(path, "rb") as source, self._table.storage.create(f"{self._folder}/{path.name}") as target:
                while block := source.read(_BLOCK_BYTES):
                    digest.update(block)
                    target.write(block)
                    length += len(block)
        except FileNotFoundError as error:
            raise self._swept() from error
        prepared = self._prepared
        failpoints.hit(
            "rocksdb.uploading", owner=str(prepared.owner), epoch=prepared.epoch.number, slot=self._task.slot
        )
        return StoredFile(path.name, self._snapshot, length, digest.hexdigest())

    def _create(self, name: str, data: bytes) -> None:
        try:
            with self._table.storage.create(f"{self._folder}/{name}") as file:
                file.write(data)
            self._table.storage.sync(self._folder)
        except FileNotFoundError as error:
            raise self._swept() from error

    def _swept(self) -> Fenced:
        return Fenced(f"{self._folder} is gone: a newer generation of the query came", slot=self._task.slot)


def _tables_of(part: Part | None) -> dict[str, StoredFile]:
    """By their names in the database, which gives no number to two tables."""
    return {file.name: file for file in (() if part is None else part.files) if file.name.endswith(".sst")}


def _plain(column: Any) -> pa.Array[Any]:
    """As one array, whatever it came as."""
    return _one_chunk(column) if isinstance(column, pa.ChunkedArray) else column


def _one_chunk(column: pa.ChunkedArray[Any]) -> pa.Array[Any]:
    chunks: Sequence[pa.Array[Any]] = column.chunks
    return pa.concat_arrays(chunks) if len(chunks) != 1 else chunks[0]


def form_of(handle: RocksDBHandle) -> StateForm | None:
    return StateForm.from_json(json.loads(handle.form)) if handle.form else None
