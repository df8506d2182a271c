"""Sinks on a database, with a mistake each: all but that is the example's."""

from __future__ import annotations

import sqlite3
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa

from examples.sqlite_sink import SqliteHandle, SqliteSink, SqliteTransaction
from twophase import failpoints
from twophase.errors import NotCommitted
from twophase.identity import Attempt, DecisionId, Epoch, Generation, Owner
from twophase.sink import CommitOrder, Leftover, Marker, Outcome, Plan, Share, Task


class ShowsAtOnce(SqliteSink):
    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _ShowsAtOnce(self, plan.prepared.owner, task.attempt)

    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        self.delete(database, str(owner), str(share.attempt))


class _ShowsAtOnce(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        with self._sink.transaction() as database:
            rows = [(value,) for value in batch.column(0).to_pylist()]
            database.executemany(f"INSERT INTO {self._sink.table} (value) VALUES (?)", rows)


class CommitsTwice(SqliteSink):
    """Staging is kept, and nobody looks whether the marker is there already."""

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        with self.transaction() as database:
            for share in order.shares:
                self._show(database, order.owner, share)
            moved = (str(order.owner), str(order.epoch), str(order.decision))
            database.execute(f"INSERT OR REPLACE INTO {self.table}_markers VALUES (?, ?, ?)", moved)
        return Outcome.COMMITTED

    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        query = f"INSERT INTO {self.table} (value) SELECT value FROM {self.table}_staged WHERE attempt_ = ?"
        database.execute(query, (str(share.attempt),))


class CommitsInTwoSteps(SqliteSink):
    """Rows, and then the marker: right, unless somebody dies between the two."""

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        with self.transaction() as database:
            if self._marker(database, order.owner) == order.marker:
                return Outcome.ALREADY_COMMITTED
            for share in order.shares:
                query = f"INSERT INTO {self.table} (value) SELECT value FROM {self.table}_staged WHERE attempt_ = ?"
                database.execute(query, (str(share.attempt),))
        failpoints.hit("sqlite.rows_shown", owner=str(order.owner), epoch=order.epoch.number)
        with self.transaction() as database:
            for share in order.shares:
                self.delete(database, str(order.owner), str(share.attempt))
            moved = (str(order.owner), str(order.epoch), str(order.decision))
            database.execute(f"INSERT OR REPLACE INTO {self.table}_markers VALUES (?, ?, ?)", moved)
        return Outcome.COMMITTED


class AbortsTooMuch(SqliteSink):
    """All that the owner has staged, and not what is named."""

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[SqliteHandle]]) -> None:
        super().abort(owner, list(self.leftovers(owner)) if leftovers else [])


class AbortsOthers(SqliteSink):
    """By attempt, and not by owner and attempt."""

    def delete(self, database: sqlite3.Connection, owner: str, attempt: str) -> None:
        database.execute(f"DELETE FROM {self.table}_staged WHERE attempt_ = ?", (attempt,))


class AbortsNothing(SqliteSink):
    def abort(self, owner: Owner, leftovers: Sequence[Leftover[SqliteHandle]]) -> None: ...


class ListsVotedSharesOnly(SqliteSink):
    """By a list of them, in which rows of a task that died are not."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _ListsVotedSharesOnly(self, plan.prepared.owner, task.attempt)

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[SqliteHandle]]:
        found = super().leftovers(owner, seen_from=seen_from)
        with self.transaction() as database:
            database.execute(f"CREATE TABLE IF NOT EXISTS {self.table}_voted (attempt)")
            voted = {attempt for (attempt,) in database.execute(f"SELECT attempt FROM {self.table}_voted")}
        return [left for left in found if left.mark in voted]


class _ListsVotedSharesOnly(SqliteTransaction):
    def pre_commit(self) -> SqliteHandle:
        with self._sink.transaction() as database:
            database.execute(f"CREATE TABLE IF NOT EXISTS {self._sink.table}_voted (attempt)")
            database.execute(f"INSERT INTO {self._sink.table}_voted VALUES (?)", self._name[1:])
        return super().pre_commit()


class NamesSharesBySlot(SqliteSink):
    """Two attempts at one slot have one name."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return super().begin(plan, replace(task, attempt=Attempt(task.attempt.generation, task.slot)))

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        shares = [replace(s, attempt=Attempt(s.attempt.generation, s.slot)) for s in order.shares]
        return super().commit(replace(order, shares=tuple(shares)))


class ForgetsTheLost(SqliteSink):
    """What is not there is taken for a share without rows."""

    def _lost(self, database: sqlite3.Connection, order: CommitOrder[SqliteHandle]) -> list[int]:
        return []


class TakesVisibleForLost(SqliteSink):
    def alive(self, order: CommitOrder[SqliteHandle]) -> Mapping[int, str]:
        with self.transaction() as database:
            return dict.fromkeys(self._lost(database, order), "gone")


class SkipsEmptyEpochs(SqliteSink):
    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        if not any(share.handle.rows for share in order.shares):
            self.abort(order.owner, [Leftover(s.attempt.generation, str(s.attempt), "") for s in order.shares])
            return Outcome.COMMITTED
        return super().commit(order)


class ShowsBackwards(SqliteSink):
    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        query = f"INSERT INTO {self.table} (value) SELECT value FROM {self.table}_staged WHERE attempt_ = ? "
        database.execute(query + "ORDER BY rowid DESC", (str(share.attempt),))
        self.delete(database, str(owner), str(share.attempt))


class JoinsNames(SqliteSink):
    """An owner's two names by a slash, as they are."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        transaction = super().begin(plan, task)
        owner = plan.prepared.owner
        transaction._name = (f"{owner.query}/{owner.sink}", str(task.attempt))
        return transaction

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[SqliteHandle]]:
        return super().leftovers(_Joined(owner.query, owner.sink), seen_from=seen_from)

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[SqliteHandle]]) -> None:
        super().abort(_Joined(owner.query, owner.sink), leftovers)

    def alive(self, order: CommitOrder[SqliteHandle]) -> Mapping[int, str]:
        return super().alive(replace(order, owner=_Joined(order.owner.query, order.owner.sink)))


class DropsEqualRows(SqliteSink):
    def _show(self, database: sqlite3.Connection, owner: Owner, share: Share[SqliteHandle]) -> None:
        query = f"INSERT INTO {self.table} (value) SELECT DISTINCT value FROM {self.table}_staged WHERE attempt_ = ?"
        database.execute(query, (str(share.attempt),))
        self.delete(database, str(owner), str(share.attempt))


class DropsNonces(SqliteSink):
    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return super().begin(plan, replace(task, attempt=replace(task.attempt, nonce="")))

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        shares = [replace(share, attempt=replace(share.attempt, nonce="")) for share in order.shares]
        return super().commit(replace(order, shares=tuple(shares)))

    def _lost(self, database: sqlite3.Connection, order: CommitOrder[SqliteHandle]) -> list[int]:
        return []


class AbortsByPrefix(SqliteSink):
    """Every name that begins so, as one does with objects in a store."""

    def delete(self, database: sqlite3.Connection, owner: str, attempt: str) -> None:
        query = f"DELETE FROM {self.table}_staged WHERE owner_ = ? AND attempt_ GLOB ?"
        database.execute(query, (owner, f"{attempt}*"))


class FoldsMarkers(SqliteSink):
    """Of owners in lower case, cut to 63 characters: as a database does with names that are not quoted."""

    def _marker(self, database: sqlite3.Connection, owner: Owner) -> Marker | None:
        query = f"SELECT epoch, moved_by FROM {self.table}_markers WHERE substr(lower(owner), 1, 63) = substr(lower(?), 1, 63)"
        found = database.execute(query, (str(owner),)).fetchone()
        return None if found is None else Marker(owner, Epoch.parse(found[0]), found[1])


class ComparesOutside(SqliteSink):
    """The marker is compared in one transaction, and moved in another."""

    pause_s = 0.05

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        with self.transaction() as database:
            if self._marker(database, order.owner) == order.marker:
                return Outcome.ALREADY_COMMITTED
        time.sleep(self.pause_s)
        with self.transaction() as database:
            for share in order.shares:
                query = f"INSERT INTO {self.table} (value) SELECT value FROM {self.table}_staged WHERE attempt_ = ?"
                database.execute(query, (str(share.attempt),))
            moved = (str(order.owner), str(order.epoch), str(order.decision))
            database.execute(f"INSERT OR REPLACE INTO {self.table}_markers VALUES (?, ?, ?)", moved)
        return Outcome.COMMITTED


class ComparesOutsideQuickly(ComparesOutside):
    """No race of two threads shows it: what is between the two transactions takes no time."""

    pause_s = 0.0


class LooksAtTheFirstShares(SqliteSink):
    """At a page of them, as a client of a service gives it."""

    def _lost(self, database: sqlite3.Connection, order: CommitOrder[SqliteHandle]) -> list[int]:
        return super()._lost(database, replace(order, shares=order.shares[:50]))


class ListsTheFirstLeftovers(SqliteSink):
    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[SqliteHandle]]:
        return super().leftovers(owner, seen_from=seen_from)[:50]


class TakesAnyRowForAll(SqliteSink):
    def _lost(self, database: sqlite3.Connection, order: CommitOrder[SqliteHandle]) -> list[int]:
        query = f"SELECT count(*) FROM {self.table}_staged WHERE owner_ = ? AND attempt_ = ?"
        names = {share.slot: (str(order.owner), str(share.attempt)) for share in order.shares if share.handle.rows}
        return [slot for slot, name in names.items() if not database.execute(query, name).fetchone()[0]]


class SetsTheMarkerLate(SqliteSink):
    """What is staged is moved once, and the marker by a transaction of its own, which looks at nothing."""

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        with self.transaction() as database:
            if self._marker(database, order.owner) == order.marker:
                return Outcome.ALREADY_COMMITTED
        with self.transaction() as database:
            for share in order.shares:
                self._show(database, order.owner, share)
            moved = (str(order.owner), str(order.epoch), str(order.decision))
            database.execute(f"INSERT OR REPLACE INTO {self.table}_markers VALUES (?, ?, ?)", moved)
        return Outcome.COMMITTED


class TrustsItsOwnAlive(SqliteSink):
    """It was asked about these shares a moment ago."""

    _asked: frozenset[str] = frozenset()

    def alive(self, order: CommitOrder[SqliteHandle]) -> Mapping[int, str]:
        self._asked = frozenset(str(share.attempt) for share in order.shares)
        return super().alive(order)

    def _lost(self, database: sqlite3.Connection, order: CommitOrder[SqliteHandle]) -> list[int]:
        lost = super()._lost(database, order)
        known = {share.slot for share in order.shares if str(share.attempt) in self._asked}
        return lost if database.in_transaction and not known else [slot for slot in lost if slot not in known]


class DropsVisibleRows(SqliteSink):
    """A task's rows lie where they will be visible, and are deleted there."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _DropsVisibleRows(self, plan.prepared.owner, task.attempt)


class _DropsVisibleRows(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        self._written = batch.column("value").to_pylist()

    def abort(self) -> None:
        super().abort()
        with self._sink.transaction() as database:
            places = [(value,) for value in getattr(self, "_written", [])]
            database.executemany(f"DELETE FROM {self._sink.table} WHERE value = ?", places)


class ComparesEpochsAsText(SqliteSink):
    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        with self.transaction() as database:
            marker = self._marker(database, order.owner)
        if marker and marker not in (order.marker, order.origin) and str(marker.epoch) < str(order.epoch):
            raise NotCommitted("the line went on", dead_slots=[share.slot for share in order.shares])
        return super().commit(order)


class CastsToTheFirstType(SqliteSink):
    """What came first says what a column is."""

    kinds: ClassVar[dict[tuple[str, str], pa.DataType]] = {}

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _CastsToTheFirstType(self, plan.prepared.owner, task.attempt)


class _CastsToTheFirstType(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        kinds = CastsToTheFirstType.kinds
        fields = [
            field.with_type(kinds.setdefault((self._sink.path, field.name), field.type)) for field in batch.schema
        ]
        super().write(batch.cast(pa.schema(fields), safe=False))


class ForgetsAlways(SqliteSink):
    def forgets(self, order: CommitOrder[SqliteHandle]) -> bool:
        return True


class ListsLowerNumbersOnly(SqliteSink):
    """Of whatever ledger, as if all had the same."""

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[SqliteHandle]]:
        found = super().leftovers(owner, seen_from=seen_from)
        return [left for left in found if seen_from is None or left.generation.number < seen_from.number]


class TakesAnyOrderFirst(SqliteSink):
    """Where there is no marker yet."""

    _origin: Marker | None = None

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        self._origin = order.origin
        return super().commit(order)

    def _marker(self, database: sqlite3.Connection, owner: Owner) -> Marker | None:
        return super()._marker(database, owner) or self._origin


class NamesPlacesForSlots(SqliteSink):
    def _lost(self, database: sqlite3.Connection, order: CommitOrder[SqliteHandle]) -> list[int]:
        places = tuple(replace(share, slot=place) for place, share in enumerate(order.shares))
        return super()._lost(database, replace(order, shares=places))


class CountsInTheSink(SqliteSink):
    counted = 0

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _CountsInTheSink(self, plan.prepared.owner, task.attempt)


class _CountsInTheSink(SqliteTransaction):
    _sink: CountsInTheSink

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch)
        self._sink.counted += batch.num_rows

    def pre_commit(self) -> SqliteHandle:
        counted, self._sink.counted = self._sink.counted, 0
        return SqliteHandle(counted)


class ForgetsTheRestOfABuffer(SqliteSink):
    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _ForgetsTheRest(self, plan.prepared.owner, task.attempt)


class _ForgetsTheRest(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        full = batch.num_rows - batch.num_rows % 1000
        super().write(batch.slice(0, full) if full else batch)


class SortsLargeBatches(SqliteSink):
    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _SortsLarge(self, plan.prepared.owner, task.attempt)


class _SortsLarge(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch.sort_by("value") if batch.num_rows > 1000 else batch)


class ByPosition(SqliteSink):
    """The first column is the first, whatever its name."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _ByPosition(self, plan.prepared.owner, task.attempt)


class _ByPosition(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch.rename_columns(["value", "typed"][: batch.num_columns]))


class DropsNewColumns(SqliteSink):
    """What the table has no column for is not written."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _DropsNewColumns(self, plan.prepared.owner, task.attempt)


class _DropsNewColumns(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        super().write(batch.select([name for name in batch.schema.names if name in ("value", "typed")]))


class FoldsText(SqliteSink):
    """To one form of Unicode, as some file systems and databases do."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _FoldsText(self, plan.prepared.owner, task.attempt)


class _FoldsText(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        super().write(pa.RecordBatch.from_pylist([_folded(row) for row in batch.to_pylist()], schema=batch.schema))


def _folded(row: dict[str, Any]) -> dict[str, Any]:
    return {
        name: unicodedata.normalize("NFC", value) if isinstance(value, str) else value for name, value in row.items()
    }


class DropsRowsOfNulls(SqliteSink):
    """As an empty line of a file."""

    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _DropsRowsOfNulls(self, plan.prepared.owner, task.attempt)


class _DropsRowsOfNulls(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        rows = [row for row in batch.to_pylist() if any(value is not None for value in row.values())]
        super().write(pa.RecordBatch.from_pylist(rows, schema=batch.schema))


class NumbersDecisions(SqliteSink):
    """Without their ledger."""

    def commit(self, order: CommitOrder[SqliteHandle]) -> Outcome:
        return super().commit(replace(order, decision=DecisionId("", order.decision.number)))


class _Joined(Owner):
    def __str__(self) -> str:
        return f"{self.query}/{self.sink}"
