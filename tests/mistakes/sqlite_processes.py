"""Sinks on a database that are right as long as one process does everything, nobody looks meanwhile, and nothing fails."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from examples.sqlite_sink import SqliteHandle, SqliteSink, SqliteTransaction
from twophase.errors import Fenced
from twophase.identity import Attempt, Generation, Owner
from twophase.sink import CommitOrder, Leftover, Marker, Outcome, Plan, Share, Status, Task

Name = tuple[str, str, str]
"""Database, owner and attempt."""


class StagesInMemory(SqliteSink):
    """Until the commit, rows are in a dictionary of the process that wrote them."""

    staged: ClassVar[dict[Name, list[dict[str, Any]]]] = {}
    voted: ClassVar[set[Name]] = set()

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _StagesInMemory(self, plan.prepared.owner, task.attempt)

    def _lost(self, database: sqlite3.Connection, order: CommitOrder[SqliteHandle]) -> list[int]:
        names = {share.slot: (self.path, str(order.owner), str(share.attempt)) for share in order.shares}
        return [slot for slot, name in names.items() if name not in self.voted]

    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        for row in self.staged[self.path, str(owner), str(share.attempt)]:
            columns, places = ", ".join(f'"{name}"' for name in row), ", ".join("?" * len(row))
            database.execute(f"INSERT INTO {self.table} ({columns}) VALUES ({places})", (*row.values(),))
        self.delete(database, str(owner), str(share.attempt))

    def delete(self, database: sqlite3.Connection, owner: str, attempt: str) -> None:
        self.staged.pop((self.path, owner, attempt), None)
        self.voted.discard((self.path, owner, attempt))

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[SqliteHandle]]:
        attempts = [attempt for path, whose, attempt in self.staged if (path, whose) == (self.path, str(owner))]
        return [Leftover(Attempt.parse(attempt).generation, attempt, "rows in memory") for attempt in attempts]


class _StagesInMemory(SqliteTransaction):
    _sink: StagesInMemory

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        with self._sink.transaction() as database:
            SqliteSink.delete(self._sink, database, *self._name)
        self._sink.staged.setdefault((self._sink.path, *self._name), []).extend(batch.to_pylist())

    def pre_commit(self) -> SqliteHandle:
        self._sink.staged.setdefault((self._sink.path, *self._name), [])
        self._sink.voted.add((self._sink.path, *self._name))
        return SqliteHandle(self._rows)


class ListsWhatItBegan(SqliteSink):
    """What other processes have staged is not in its list."""

    begun: ClassVar[set[str]] = set()

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        self.begun.add(str(task.attempt))
        return super().begin(plan, task)

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[SqliteHandle]]:
        return [left for left in super().leftovers(owner, seen_from=seen_from) if left.mark in self.begun]


class RemembersMarkers(SqliteSink):
    """In the object that has read them, until it moves them itself."""

    def __init__(self, path: str, table: str):
        super().__init__(path, table)
        self.known: dict[Owner, Marker] = {}

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        outcome = super().commit(order)
        self.known.pop(order.owner, None)
        return outcome

    def _marker(self, database: sqlite3.Connection, owner: Owner) -> Marker | None:
        if owner not in self.known:
            found = super()._marker(database, owner)
            if found is None:
                return None
            self.known[owner] = found
        return self.known[owner]


class RemembersMarkersByProcess(RemembersMarkers):
    """In the process that has read them."""

    shared: ClassVar[dict[str, dict[Owner, Marker]]] = {}

    def __init__(self, path: str, table: str):
        super().__init__(path, table)
        self.known = self.shared.setdefault(path, {})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.table)


class CommitsInSteps(SqliteSink):
    """In several transactions. It compares and loses nothing, unless somebody looks or dies between two of them."""

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        with self.transaction() as database:
            is_ready = self._marker(database, order.owner) == order.origin and not self._lost(database, order)
        if not is_ready:
            return super().commit(order)
        self._commit(order)
        return Outcome.COMMITTED

    def _commit(self, order: CommitOrder[SqliteHandle]) -> None:
        raise NotImplementedError

    def _move(self, database: sqlite3.Connection, order: CommitOrder[SqliteHandle]) -> None:
        moved = (str(order.owner), str(order.epoch), str(order.decision))
        database.execute(f"INSERT OR REPLACE INTO {self.table}_markers VALUES (?, ?, ?)", moved)


class ShowsShareByShare(CommitsInSteps):
    def _commit(self, order: CommitOrder[SqliteHandle]) -> None:
        for share in order.shares[:-1]:
            with self.transaction() as database:
                self._show(database, order.owner, share)
        with self.transaction() as database:
            for share in order.shares[-1:]:
                self._show(database, order.owner, share)
            self._move(database, order)


class ShowsRowsFirst(CommitsInSteps):
    def _commit(self, order: CommitOrder[SqliteHandle]) -> None:
        with self.transaction() as database:
            for share in order.shares:
                self._show(database, order.owner, share)
        with self.transaction() as database:
            self._move(database, order)


class MovesTheMarkerFirst(CommitsInSteps):
    def _commit(self, order: CommitOrder[SqliteHandle]) -> None:
        with self.transaction() as database:
            self._move(database, order)
        with self.transaction() as database:
            for share in order.shares:
                self._show(database, order.owner, share)


class MovesTheMarkerLate(CommitsInSteps):
    """In one step with the rows; but what it has compared may not be so any more, and staged rows may be gone."""

    def _commit(self, order: CommitOrder[SqliteHandle]) -> None:
        with self.transaction() as database:
            for share in order.shares:
                self._show(database, order.owner, share)
            self._move(database, order)


class ShowsRowsThatItRead(CommitsInSteps):
    """The same, with the rows in its memory; and a request is made hundreds of times where nothing can happen any more."""

    def _commit(self, order: CommitOrder[SqliteHandle]) -> None:
        query = f"SELECT value FROM {self.table}_staged WHERE owner_ = ? AND attempt_ = ?"
        with self.transaction() as database:
            names = [(str(order.owner), str(share.attempt)) for share in order.shares]
            rows = [row for name in names for row in database.execute(query, name).fetchall()]
        with self.transaction() as database:
            database.executemany(f"INSERT INTO {self.table} (value) VALUES (?)", rows)
            for name in names:
                self.delete(database, *name)
            for _ in range(300):
                database.execute("SELECT 1")
            self._move(database, order)


class KeepsAllMarkersTogether(CommitsInSteps):
    """In one document, which is read, and written with one marker changed."""

    def _commit(self, order: CommitOrder[SqliteHandle]) -> None:
        with self.transaction() as database:
            document = database.execute(f"SELECT * FROM {self.table}_markers WHERE owner != ?", (str(order.owner),))
            others = document.fetchall()
        with self.transaction() as database:
            if self._marker(database, order.owner) != order.origin:
                return
            for share in order.shares:
                self._show(database, order.owner, share)
            self._move(database, order)
            database.executemany(f"INSERT OR REPLACE INTO {self.table}_markers VALUES (?, ?, ?)", others)


class LooksForTheLostOutside(CommitsInSteps):
    """The marker is compared and moved in one transaction; that shares are there, the one before it has seen."""

    def _commit(self, order: CommitOrder[SqliteHandle]) -> None:
        with self.transaction() as database:
            if self._marker(database, order.owner) != order.origin:
                raise Fenced("another has gone on")
            for share in order.shares:
                self._show(database, order.owner, share)
            self._move(database, order)


class NumbersRowsOutside(SqliteSink):
    """The next free number is read in one transaction, and used in another."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _NumbersRows(self, plan.prepared.owner, task.attempt)


class _NumbersRows(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        with self._sink.transaction() as database:
            free = database.execute(f"SELECT coalesce(max(rowid), 0) FROM {self._sink.table}_staged").fetchone()[0]
        with self._sink.transaction() as database:
            columns = f"rowid, owner_, attempt_, {', '.join(batch.schema.names)}"
            places = ", ".join("?" * (3 + batch.num_columns))
            rows = [(free + at, *self._name, *row.values()) for at, row in enumerate(batch.to_pylist(), start=1)]
            database.executemany(
                f"INSERT OR REPLACE INTO {self._sink.table}_staged ({columns}) VALUES ({places})", rows
            )
        self._rows += batch.num_rows


class SwallowsErrorsWhenSettled(SqliteSink):
    def status(self, owner: Owner, *, settled: bool) -> Status:
        try:
            return super().status(owner, settled=settled)
        except sqlite3.Error:
            if settled:
                return Status()
            raise


class SwallowsErrors(SqliteSink):
    """What can't be read is taken for what is not there."""

    def status(self, owner: Owner, *, settled: bool) -> Status:
        try:
            return super().status(owner, settled=settled)
        except Exception:  # noqa: BLE001 - the mistake
            return Status()


class SwallowsItsClientsErrors(SqliteSink):
    def status(self, owner: Owner, *, settled: bool) -> Status:
        try:
            return super().status(owner, settled=settled)
        except sqlite3.Error:
            return Status()


class TakesTheUnknownForAlive(SqliteSink):
    def alive(self, order: CommitOrder[SqliteHandle]) -> Mapping[int, str]:
        try:
            return super().alive(order)
        except Exception:  # noqa: BLE001 - the mistake
            return {}


class ListsNothingInDoubt(SqliteSink):
    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[SqliteHandle]]:
        try:
            return super().leftovers(owner, seen_from=seen_from)
        except Exception:  # noqa: BLE001 - the mistake
            return []
