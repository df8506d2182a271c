"""SqliteSink: rows appended to a table of a SQLite database, exactly once. A whole sink, to read and to begin from.

::

    write        rows into <table>_staged, with their owner and attempt; no reader looks there
    pre_commit   how many there are: less of them, and the share is lost
    commit       one transaction: marker N-1 → N, rows moved from <table>_staged into <table>
    abort        staged rows deleted

The guarantee: all rows of an epoch appear in one step, once; several queries may write to a table side by side. SQLite has one
writer at a time, so tasks wait for each other, and all of them need the same disk. It can't fence: a late task may stage rows that
nobody will ever commit, until the next epoch sweeps them. The table must exist; it is never created or changed here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pyarrow as pa

from twophase.errors import Fenced, NotCommitted, OptionError, SchemaMismatch
from twophase.handle import Handle
from twophase.identity import Attempt, Epoch, Generation, Owner
from twophase.sink import (
    WHOLE,
    Capabilities,
    CommitOrder,
    Leftover,
    Marker,
    Outcome,
    Plan,
    Share,
    Sink,
    Status,
    Task,
    Transaction,
)

TABLES = """
CREATE TABLE IF NOT EXISTS {0}_staged AS SELECT '' AS owner_, '' AS attempt_, * FROM {0} LIMIT 0;
CREATE TABLE IF NOT EXISTS {0}_markers (owner TEXT PRIMARY KEY, epoch TEXT, moved_by TEXT);
"""
HELD = (pa.types.is_signed_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)


@dataclass(frozen=True)
class SqliteHandle(Handle):
    rows: int


class SqliteTransaction(Transaction[SqliteHandle]):
    def __init__(self, sink: SqliteSink, owner: Owner, attempt: Attempt):
        self._sink, self._name, self._rows = sink, (str(owner), str(attempt)), 0

    def write(self, batch: pa.RecordBatch) -> None:
        rows = [(*self._name, *row.values()) for row in batch.to_pylist()]
        with self._sink.transaction() as database:
            known = self._sink.columns(database)
            for field in batch.schema:
                if f'"{field.name}"' not in known or not any(holds(field.type) for holds in HELD):
                    raise SchemaMismatch(f"{self._sink.table} does not keep {field.name} of type {field.type} as it is")
            columns = ", ".join(f'"{name}"' for name in ("owner_", "attempt_", *batch.schema.names))
            places = ", ".join("?" * (2 + batch.num_columns))
            database.executemany(f"INSERT INTO {self._sink.table}_staged ({columns}) VALUES ({places})", rows)
        self._rows += batch.num_rows

    def pre_commit(self) -> SqliteHandle:
        return SqliteHandle(self._rows)  # written rows are on the disk already

    def abort(self) -> None:
        with self._sink.transaction() as database:
            self._sink.delete(database, *self._name)


class SqliteSink(Sink[SqliteHandle]):
    capabilities = Capabilities(atomic=True, several_owners=True, ordered=True)
    handle_type = SqliteHandle

    def __init__(self, path: str, table: str):
        if not table.isidentifier():
            raise OptionError(f"{table!r} is not a plain name of a table", problems=["table"])
        self.path, self.table = path, table

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction, which excludes all others from its beginning on: what is read in it stays true until its end."""
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as database:
            database.executescript(TABLES.format(self.table))
            database.execute("BEGIN IMMEDIATE")
            yield database  # an error closes the connection, which rolls back
            database.execute("COMMIT")

    def fence(self, owner: Owner, generation: Generation) -> None:
        """Nothing: SQLite knows no generations. What an older one stages is never committed, and is swept."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return SqliteTransaction(self, plan.prepared.owner, task.attempt)

    def alive(self, order: CommitOrder[SqliteHandle]) -> Mapping[int, str]:
        with self.transaction() as database:
            if self._marker(database, order.owner) == order.marker:
                return {}
            return dict.fromkeys(self._lost(database, order), "its staged rows are gone")

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        with self.transaction() as database:
            marker = self._marker(database, order.owner)
            if marker == order.marker:
                return Outcome.ALREADY_COMMITTED
            lost = self._lost(database, order)
            if marker != order.origin and marker is not None and marker.epoch.number >= order.epoch.number:
                raise Fenced(f"the table is at {marker}, and the decision moves it from {order.origin}")
            if marker != order.origin or lost:
                raise NotCommitted("staged rows are gone", dead_slots=lost or [share.slot for share in order.shares])
            for share in order.shares:
                self._show(database, order.owner, share)
            database.execute(
                f"INSERT OR REPLACE INTO {self.table}_markers VALUES (?, ?, ?)",
                (str(order.owner), str(order.epoch), str(order.decision)),
            )
        return Outcome.COMMITTED

    def _lost(self, database: sqlite3.Connection, order: CommitOrder[SqliteHandle]) -> list[int]:
        query = f"SELECT count(*) FROM {self.table}_staged WHERE owner_ = ? AND attempt_ = ?"
        names = {share.slot: (str(order.owner), str(share.attempt)) for share in order.shares}
        there = {slot: database.execute(query, name).fetchone()[0] for slot, name in names.items()}
        return [share.slot for share in order.shares if there[share.slot] != share.handle.rows]

    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        columns = ", ".join(self.columns(database))
        query = f"SELECT {columns} FROM {self.table}_staged WHERE owner_ = ? AND attempt_ = ? ORDER BY rowid"
        database.execute(f"INSERT INTO {self.table} ({columns}) {query}", (str(owner), str(share.attempt)))
        self.delete(database, str(owner), str(share.attempt))

    def columns(self, database: sqlite3.Connection) -> list[str]:
        described = database.execute(f"SELECT * FROM {self.table} LIMIT 0").description
        return [f'"{column[0]}"' for column in described]

    def delete(self, database: sqlite3.Connection, owner: str, attempt: str) -> None:
        database.execute(f"DELETE FROM {self.table}_staged WHERE owner_ = ? AND attempt_ = ?", (owner, attempt))

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[SqliteHandle]]) -> None:
        with self.transaction() as database:
            for leftover in leftovers:
                self.delete(database, str(owner), leftover.mark)

    def status(self, owner: Owner, *, settled: bool) -> Status:
        with self.transaction() as database:
            marker = self._marker(database, owner)
        return Status({} if marker is None else {WHOLE: marker})

    def _marker(self, database: sqlite3.Connection, owner: Owner) -> Marker | None:
        query = f"SELECT epoch, moved_by FROM {self.table}_markers WHERE owner = ?"
        found = database.execute(query, (str(owner),)).fetchone()
        return None if found is None else Marker(owner, Epoch.parse(found[0]), found[1])

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[SqliteHandle]]:
        query = f"SELECT DISTINCT attempt_ FROM {self.table}_staged WHERE owner_ = ?"
        with self.transaction() as database:
            attempts = [attempt for (attempt,) in database.execute(query, (str(owner),))]
        return [Leftover(Attempt.parse(a).generation, a, f"rows in {self.table}_staged") for a in attempts]
