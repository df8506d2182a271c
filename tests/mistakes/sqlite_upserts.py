"""A sink that upserts into a table of SQLite by its column `value`, and others like it with a mistake each."""

from __future__ import annotations

import sqlite3
from dataclasses import replace

import pyarrow as pa

from examples.sqlite_sink import SqliteHandle, SqliteSink, SqliteTransaction
from twophase.errors import Fenced
from twophase.identity import Owner
from twophase.sink import CommitOrder, Outcome, Plan, Share, Task


class Upserts(SqliteSink):
    """No mistake."""

    capabilities = replace(SqliteSink.capabilities, upserts=True, ordered=False)

    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        self.replace(database, owner, share)
        self.delete(database, str(owner), str(share.attempt))

    def replace(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        columns = ", ".join(self.columns(database))
        staged, name = f"{self.table}_staged WHERE owner_ = ? AND attempt_ = ?", (str(owner), str(share.attempt))
        database.execute(f"DELETE FROM {self.table} WHERE value IN (SELECT value FROM {staged})", name)
        newest = f"SELECT max(rowid) FROM {staged} GROUP BY coalesce(value, -rowid)"
        database.execute(
            f"INSERT INTO {self.table} ({columns}) SELECT {columns} FROM {staged} AND rowid IN ({newest})", name * 2
        )


class MakesRoomEarly(Upserts):
    """When a task votes."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _MakesRoomEarly(self, plan.prepared.owner, task.attempt)


class _MakesRoomEarly(SqliteTransaction):
    def pre_commit(self) -> SqliteHandle:
        staged = f"SELECT value FROM {self._sink.table}_staged WHERE owner_ = ? AND attempt_ = ?"
        with self._sink.transaction() as database:
            database.execute(f"DELETE FROM {self._sink.table} WHERE value IN ({staged})", self._name)
        return super().pre_commit()


class KeepsTheFirstOfABatch(Upserts):
    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _KeepsTheFirstOfABatch(self, plan.prepared.owner, task.attempt)


class _KeepsTheFirstOfABatch(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        keys = batch.column("value").to_pylist()
        firsts = [at for at, key in enumerate(keys) if key is None or keys.index(key) == at]
        super().write(batch.take(pa.array(firsts, pa.int64())))


class ReplacesBeforeItCompares(Upserts):
    """Rows in one transaction, which can be repeated as often as one likes; and the marker in the next, by compare-and-set."""

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        with self.transaction() as database:
            marker = self._marker(database, order.owner)
            is_next = marker == order.origin and not self._lost(database, order)
        if not is_next:
            return super().commit(order)
        rows = self._staged(order)
        with self.transaction() as database:
            columns = self.columns(database)
            at = columns.index('"value"')
            for row in rows:
                database.execute(f"DELETE FROM {self.table} WHERE value = ?", (row[at],))
                places = ", ".join("?" * len(columns))
                database.execute(f"INSERT INTO {self.table} ({', '.join(columns)}) VALUES ({places})", row)
        with self.transaction() as database:
            if self._marker(database, order.owner) != order.origin:
                raise Fenced("another has come to its end meanwhile")
            for share in order.shares:
                self.delete(database, str(order.owner), str(share.attempt))
            database.execute(
                f"INSERT OR REPLACE INTO {self.table}_markers VALUES (?, ?, ?)",
                (str(order.owner), str(order.epoch), str(order.decision)),
            )
        return Outcome.COMMITTED

    def _staged(self, order: CommitOrder[SqliteHandle]) -> list[tuple[object, ...]]:
        with self.transaction() as database:
            columns = ", ".join(self.columns(database))
            query = f"SELECT {columns} FROM {self.table}_staged WHERE owner_ = ? AND attempt_ = ? ORDER BY rowid"
            names = [(str(order.owner), str(share.attempt)) for share in order.shares]
            return [row for name in names for row in database.execute(query, name)]
