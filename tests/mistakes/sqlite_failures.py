"""Sinks on a database that are right as long as no call to it fails, and nobody dies between two of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

import pyarrow as pa

from examples.sqlite_sink import TABLES, SqliteHandle, SqliteSink, SqliteTransaction
from twophase.errors import NotCommitted
from twophase.identity import Attempt, Generation, Owner
from twophase.sink import CommitOrder, Leftover, Outcome, Plan, Share, Task


class TakesAnErrorForDone(SqliteSink):
    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        try:
            return super().commit(order)
        except sqlite3.OperationalError:
            return Outcome.COMMITTED


class TakesALostReplyForFailure(SqliteSink):
    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        try:
            return super().commit(order)
        except sqlite3.OperationalError as error:
            raise NotCommitted("it has failed", dead_slots=[share.slot for share in order.shares]) from error


class TakesASentCommitForDone(SqliteSink):
    """Its reply must have been lost."""

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as database:
            database.executescript(TABLES.format(self.table))
            database.execute("BEGIN IMMEDIATE")
            yield database
            with suppress(sqlite3.OperationalError):
                database.execute("COMMIT")


class KeepsItsConnection(SqliteSink):
    """What an error has left open is a part of what comes next."""

    _kept: sqlite3.Connection | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.table)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        if self._kept is None:
            self._kept = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        if not self._kept.in_transaction:
            self._kept.executescript(TABLES.format(self.table))
            self._kept.execute("BEGIN IMMEDIATE")
        yield self._kept
        self._kept.execute("COMMIT")


class SwallowsErrorsOfWrites(SqliteSink):
    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _SwallowsErrors(self, plan.prepared.owner, task.attempt)


class _SwallowsErrors(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        try:
            super().write(batch)
        except sqlite3.OperationalError:
            return


class RepeatsWrites(SqliteSink):
    """A write whose reply was lost is made again, and what is there is voted for."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _RepeatsWrites(self, plan.prepared.owner, task.attempt)


class _RepeatsWrites(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        try:
            super().write(batch)
        except sqlite3.OperationalError:
            super().write(batch)

    def pre_commit(self) -> SqliteHandle:
        query = f"SELECT count(*) FROM {self._sink.table}_staged WHERE owner_ = ? AND attempt_ = ?"
        with self._sink.transaction() as database:
            return SqliteHandle(database.execute(query, self._name).fetchone()[0])


class KeepsAList(SqliteSink):
    """Of what is staged, beside it: leftovers are what is in the list."""

    def list_(self, database: sqlite3.Connection, owner: str, attempt: str) -> None:
        self._create(database)
        database.execute(f"INSERT OR IGNORE INTO {self.table}_listed VALUES (?, ?)", (owner, attempt))

    def unlist(self, database: sqlite3.Connection, owner: str, attempt: str) -> None:
        self._create(database)
        database.execute(f"DELETE FROM {self.table}_listed WHERE owner_ = ? AND attempt_ = ?", (owner, attempt))

    def _create(self, database: sqlite3.Connection) -> None:
        database.execute(
            f"CREATE TABLE IF NOT EXISTS {self.table}_listed (owner_, attempt_, UNIQUE (owner_, attempt_))"
        )

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _ListsFirst(self, plan.prepared.owner, task.attempt)

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[SqliteHandle]]:
        with self.transaction() as database:
            self._create(database)
            query = f"SELECT attempt_ FROM {self.table}_listed WHERE owner_ = ?"
            attempts = [attempt for (attempt,) in database.execute(query, (str(owner),))]
        return [Leftover(Attempt.parse(attempt).generation, attempt, "what is listed") for attempt in attempts]

    def delete(self, database: sqlite3.Connection, owner: str, attempt: str) -> None:
        super().delete(database, owner, attempt)
        self.unlist(database, owner, attempt)


class _ListsFirst(SqliteTransaction):
    _sink: KeepsAList

    def write(self, batch: pa.RecordBatch) -> None:
        with self._sink.transaction() as database:
            self._sink.list_(database, *self._name)
        super().write(batch)


class ListsAfterWriting(KeepsAList):
    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _ListsAfterwards(self, plan.prepared.owner, task.attempt)


class _ListsAfterwards(_ListsFirst):
    def write(self, batch: pa.RecordBatch) -> None:
        SqliteTransaction.write(self, batch)
        with self._sink.transaction() as database:
            self._sink.list_(database, *self._name)


class AbortsInTwoSteps(KeepsAList):
    """The entry in the list, and then the rows."""

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[SqliteHandle]]) -> None:
        for left in leftovers:
            with self.transaction() as database:
                self.unlist(database, str(owner), left.mark)
            with self.transaction() as database:
                self.delete(database, str(owner), left.mark)


class CleansUpInTwoSteps(KeepsAList):
    """After the commit, share by share."""

    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        columns = ", ".join(self.columns(database))
        query = f"SELECT {columns} FROM {self.table}_staged WHERE owner_ = ? AND attempt_ = ? ORDER BY rowid"
        database.execute(f"INSERT INTO {self.table} ({columns}) {query}", (str(owner), str(share.attempt)))

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        outcome = super().commit(order)
        for share in order.shares if outcome is Outcome.COMMITTED else ():
            with self.transaction() as database:
                self.unlist(database, str(order.owner), str(share.attempt))
            with self.transaction() as database:
                self.delete(database, str(order.owner), str(share.attempt))
        return outcome
