"""A target with a server, for the crash matrix: orders in a table of PostgreSQL, written by a sink in its shortest form.

Rows are staged with their attempt; one transaction moves them and the marker. Every transaction excludes all others, which is
simple and slow: this shows what the kit does to a server, and is no sink for anybody's data.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from twophase.errors import Fenced, NotCommitted
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
    Sink,
    Status,
    Task,
    Transaction,
)
from twophase.testing.crash.orders import Order
from twophase.testing.crash.target import CrashTarget, Surroundings
from twophase.testing.servers import postgres

_TABLES = """
CREATE TABLE IF NOT EXISTS {0} (id bigint, name text, amount double precision);
CREATE TABLE IF NOT EXISTS {0}_staged (owner text, attempt text, id bigint, name text, amount double precision);
CREATE TABLE IF NOT EXISTS {0}_markers (owner text PRIMARY KEY, epoch text, moved_by text);
"""
_ONE_AT_A_TIME = 7

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True)
class RowsHandle(Handle):
    rows: int


class RowsTransaction(Transaction[RowsHandle]):
    def __init__(self, sink: RowsSink, owner: Owner, attempt: Attempt):
        self._sink, self._owner, self._attempt, self._rows = sink, str(owner), str(attempt), list[tuple[Any, ...]]()

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += [(self._owner, self._attempt, *row.values()) for row in batch.to_pylist()]

    def pre_commit(self) -> RowsHandle:
        with self._sink.transaction() as database, database.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {self._sink.table}_staged VALUES (%s, %s, %s, %s, %s)", self._rows)
        return RowsHandle(len(self._rows))

    def abort(self) -> None:
        with self._sink.transaction() as database:
            self._sink.delete(database, self._owner, self._attempt)


class RowsSink(Sink[RowsHandle]):
    capabilities = Capabilities(atomic=True, several_owners=True)
    handle_type = RowsHandle

    def __init__(self, dsn: str, table: str):
        self.dsn, self.table = dsn, table

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        with psycopg.connect(self.dsn, connect_timeout=10) as database:
            database.execute("SELECT pg_advisory_xact_lock(%s)", (_ONE_AT_A_TIME,))
            database.execute(_TABLES.format(self.table))
            yield database

    def fence(self, owner: Owner, generation: Generation) -> None:
        """Nothing: what an older generation stages is never committed, and is swept."""

    def begin(self, plan: Plan, task: Task) -> RowsTransaction:
        return RowsTransaction(self, plan.prepared.owner, task.attempt)

    def alive(self, order: CommitOrder[RowsHandle]) -> Mapping[int, str]:
        with self.transaction() as database:
            if self._marker(database, order.owner) == order.marker:
                return {}
            return dict.fromkeys(self._lost(database, order), "its staged rows are gone")

    def commit(self, order: CommitOrder[RowsHandle]) -> Outcome:
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
                name = (str(order.owner), str(share.attempt))
                moved = f"SELECT id, name, amount FROM {self.table}_staged WHERE owner = %s AND attempt = %s"
                database.execute(f"INSERT INTO {self.table} {moved}", name)
                self.delete(database, *name)
            database.execute(
                f"INSERT INTO {self.table}_markers VALUES (%s, %s, %s) "
                "ON CONFLICT (owner) DO UPDATE SET epoch = EXCLUDED.epoch, moved_by = EXCLUDED.moved_by",
                (str(order.owner), str(order.epoch), str(order.decision)),
            )
        return Outcome.COMMITTED

    def _lost(self, database: Connection, order: CommitOrder[RowsHandle]) -> list[int]:
        found = f"SELECT count(*) FROM {self.table}_staged WHERE owner = %s AND attempt = %s"
        return [
            share.slot
            for share in order.shares
            if database.execute(found, (str(order.owner), str(share.attempt))).fetchall() != [(share.handle.rows,)]
        ]

    def delete(self, database: Connection, owner: str, attempt: str) -> None:
        database.execute(f"DELETE FROM {self.table}_staged WHERE owner = %s AND attempt = %s", (owner, attempt))

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[RowsHandle]]) -> None:
        with self.transaction() as database:
            for leftover in leftovers:
                self.delete(database, str(owner), leftover.mark)

    def status(self, owner: Owner, *, settled: bool) -> Status:
        with self.transaction() as database:
            marker = self._marker(database, owner)
        return Status({} if marker is None else {WHOLE: marker})

    def _marker(self, database: Connection, owner: Owner) -> Marker | None:
        query = f"SELECT epoch, moved_by FROM {self.table}_markers WHERE owner = %s"
        found = database.execute(query, (str(owner),)).fetchone()
        return None if found is None else Marker(owner, Epoch.parse(found[0]), found[1])

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[RowsHandle]]:
        query = f"SELECT DISTINCT attempt FROM {self.table}_staged WHERE owner = %s"
        with self.transaction() as database:
            attempts = [attempt for (attempt,) in database.execute(query, (str(owner),))]
        return [Leftover(Attempt.parse(a).generation, a, f"rows in {self.table}_staged") for a in attempts]


class RowsTarget(CrashTarget):
    """The table has a name of its own in each folder: all cells share a server."""

    title = "postgres-rows"

    @property
    def table(self) -> str:
        return f"{self.folder.name}_{self.name}".replace("-", "_").lower()

    def options(self) -> Mapping[str, str]:
        return {}

    def sink(self) -> RowsSink:
        return RowsSink(self.settings["dsn"], self.table)

    def read(self) -> Sequence[Order]:
        with self.sink().transaction() as database:
            return [(row[0], row[1], row[2]) for row in database.execute(f"SELECT id, name, amount FROM {self.table}")]

    def residue(self) -> Sequence[str]:
        with self.sink().transaction() as database:
            query = f"SELECT DISTINCT owner, attempt FROM {self.table}_staged"
            return [f"{owner} {attempt}" for owner, attempt in database.execute(query)]

    @classmethod
    @contextmanager
    def surroundings(cls) -> Iterator[Surroundings]:
        with tempfile.TemporaryDirectory() as folder, postgres.on_this_machine(Path(folder)) as server:
            yield Surroundings({"dsn": server.endpoint}, {"postgres": server})
