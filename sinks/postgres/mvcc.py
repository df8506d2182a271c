"""The mode mvcc: rows go straight into a table of versions, and readers see those up to a pointer.

::

    write        binary COPY into the versions table, each row tagged with its position in the line and its attempt
    pre-commit   the task's transaction commits; its last statements check, under the pointer's lock, that it is not late
    commit       one transaction: the pointer is locked and compared, losers' rows are deleted if there are any, the pointer moves
    abort        the attempts' rows are deleted, under the pointer's lock

`table` is a view of the versions up to the pointer. The commit takes the same time however many rows there are, because it touches
none of them. Earlier epochs stay, and `<table>_as_of(epoch)` shows the table as it was.

Upserts are rows like any other: which of them is the newest of its key is a matter of the view. Those that newer ones have followed
stay, too, unless `retainEpochs` says for how long: then some of them are deleted after each commit.

The lock comes first in the commit, and each of its statements sees what was committed before it (READ COMMITTED). A late twin is so
either seen, and deleted, or sees the moved pointer itself, and fails. To ask a twin for its generation alone would let it in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from twophase import failpoints
from twophase.clients.postgres.database import Connection, Database
from twophase.clients.postgres.refusals import in_doubt, unknown
from twophase.clients.postgres.table_name import TableName, quoted
from twophase.clients.postgres.versions_table import (
    ATTEMPT,
    DELETED,
    ORDER,
    POSITION,
    TAGS,
    keys_of,
    record,
    tags_of,
    versions_of,
)
from twophase.errors import Fenced, NotCommitted, SchemaMismatch, TargetUnavailable, TwophaseError
from twophase.identity import Generation, Owner
from twophase.line_of_epochs import elsewhere, not_taken_over, shown
from twophase.log import Log
from twophase.sink import (
    WHOLE,
    CommitOrder,
    Leftover,
    Marker,
    Outcome,
    Plan,
    PreparedEpoch,
    Status,
    TakeOver,
    Task,
)
from twophase.sinks.postgres import control_schema, line, table
from twophase.sinks.postgres.binary_copy import Column
from twophase.sinks.postgres.control_schema import SCHEMA, Place
from twophase.sinks.postgres.line import GONE, AttemptRow
from twophase.sinks.postgres.table import Layout
from twophase.sinks.postgres.table_options import TableOptions
from twophase.sinks.postgres.transaction import FORGETTING, PostgresHandle, PostgresTransaction
from twophase.sinks.postgres.upsert import Upsert
from twophase.sinks.postgres.versions_view import VersionsView

R = TypeVar("R")

_SLOT_SHIFT = 40
"""The order of a row among those of its epoch is its slot, and then its place among the rows of its task: up to 2 ** 40 of them."""
_VACUUMED_EPOCHS = 2
"""At once, after a commit: one more than come, so that a vacuum that was not made is made up for."""

log = Log("twophase.sinks.postgres")


class VersionsTransaction(PostgresTransaction):
    """Rows in the versions table, tagged."""

    _number: int | None = None

    def _receive(self, connection: Connection, layout: Layout) -> str:
        self._enter(connection)
        names, upsert = [column.name for column in layout.columns], layout.upsert
        names += [DELETED] if upsert is not None and upsert.delete else []
        names += TAGS if upsert is None else [*TAGS, ORDER]
        return f"{versions_of(self._place.table).sql} ({', '.join(map(quoted, names))})"

    def _tags(self, first: int, count: int) -> list[Column]:
        tags = [pa.array(np.full(count, tag, np.int64)) for tag in (self._position, self._number)]
        if self._upsert is not None:
            tags.append(pa.array(np.arange(first, first + count) + (self._task.slot << _SLOT_SHIFT)))
        return tags

    def _register(self, connection: Connection) -> None:
        number = self._enter(connection)
        if self._rows and self._layout is not None:
            table.require_unchanged(connection, versions_of(self._place.table), self._layout)
        line.count_rows(connection, number, self._rows)
        prepared = self._plan.prepared
        marker = line.read(connection, self._place.table, lock="FOR SHARE")
        if marker != prepared.origin:
            raise Fenced(
                f"the table is at {shown(marker)}, and this task was planned when it was at {shown(prepared.origin)}",
                owner=str(self._place.owner),
                epoch=prepared.epoch.number,
                slot=self._task.slot,
            )
        control_schema.require_newest(connection, self._place, self._task.attempt.generation)

    def _forget(self) -> None:
        marks = [(self._place.owner, str(self._task.attempt))]
        self._database.run(lambda connection: _delete(connection, self._place.table, marks), doing=FORGETTING)

    @property
    def _position(self) -> int:
        return self._plan.prepared.base + self._plan.prepared.epoch.number

    def _enter(self, connection: Connection) -> int:
        if self._number is None:
            row = AttemptRow(0, self._place.owner, self._task.attempt, self._position, self._task.slot, 0)
            self._number = line.enter(connection, self._place.table, row)
        return self._number


@dataclass(frozen=True)
class MvccMode:
    database: Database
    table: TableName
    options: TableOptions

    # ---- before the tasks ----

    def fence(self, owner: Owner, generation: Generation) -> None:
        def work(connection: Connection) -> None:
            control_schema.ensure(connection)
            line.make_room(connection, self.table)
            control_schema.raise_generation(connection, Place(self.table, owner), generation)

        self.database.run(work, doing=f"fencing older generations in the schema {SCHEMA}")

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        if prepared.schema is None:
            return Plan(prepared)
        work = partial(self._prepare, prepared, prepared.schema)
        return Plan(prepared, self.database.run(work, doing=f"looking at the table {self.table}").to_details())

    def require_fit(self, schema: pa.Schema) -> None:
        def work(connection: Connection) -> None:
            oid = self._look_up(connection, schema)
            if oid is not None and not self.options.adds_columns:
                self._layout(connection, oid, schema)
            elif oid is not None:
                self._lacking(connection, oid, schema)
            elif control_schema.is_there(connection):
                self._require_new(line.read(connection, self.table))

        self.database.run(work, doing=f"looking at the table {self.table}")

    def _prepare(self, prepared: PreparedEpoch, schema: pa.Schema, connection: Connection) -> Layout:
        upsert, oid = self.options.upsert, self._look_up(connection, schema)
        if oid is None:
            self._require_new(prepared.origin)
            self._view(tuple(_kept(schema, upsert))).create(connection, table.columns_sql(self.table, schema, upsert))
            oid = self._look_up(connection, schema)
        assert oid is not None, "there is no table right after it was created"
        if self.options.adds_columns:
            self._add_columns(connection, prepared, oid, schema)
        return self._layout(connection, oid, schema)

    def _add_columns(self, connection: Connection, prepared: PreparedEpoch, oid: int, schema: pa.Schema) -> None:
        added, hidden = self._lacking(connection, oid, schema), self._hidden(connection, schema)
        if added or hidden:
            control_schema.require_newest(connection, Place(self.table, prepared.owner), prepared.generation)
        if added:
            table.add_columns(connection, versions_of(self.table), added)
        if hidden:
            self._view((*self._shown(connection), *hidden)).show(connection)

    def _layout(self, connection: Connection, oid: int, schema: pa.Schema) -> Layout:
        """How rows of this schema are written to the versions, as they are."""
        upsert, versions = self.options.upsert, versions_of(self.table)
        self._require_keys(connection, oid)
        layout = table.layout_for(connection, versions, oid, schema, upsert, tags=self._tags)
        if hidden := self._hidden(connection, schema):
            raise SchemaMismatch(
                f"the view {self.table} does not show {', '.join(hidden)}, which its versions have: set schemaChange to add"
            )
        table.require_rights(connection, versions, oid, layout, ("INSERT",))
        return layout

    def _require_new(self, marker: Marker | None) -> None:
        if marker is not None:
            raise TargetUnavailable(
                f"the table {versions_of(self.table)} is gone, and its line is at {shown(marker)}: restore it, or remove all that "
                "is left of it"
            )

    @property
    def _tags(self) -> tuple[str, ...]:
        return tags_of(() if self.options.upsert is None else self.options.upsert.keys)

    def _view(self, columns: tuple[str, ...]) -> VersionsView:
        return VersionsView(self.table, columns, () if self.options.upsert is None else self.options.upsert.keys)

    def _look_up(self, connection: Connection, schema: pa.Schema) -> int | None:
        """The object id of the versions; None if they are not there and may be created for these rows."""
        versions = versions_of(self.table)
        if taken := [name for name in self._tags if name in schema.names]:
            raise SchemaMismatch(f"the rows have columns whose names are ours: {', '.join(taken)}")
        oid = table.look_up(connection, versions)
        self._require_view(connection, is_ours=oid is not None)
        if oid is None and not self.options.create_table:
            raise TargetUnavailable(f"there is no table {versions}: set createTable to true, and it is created")
        if oid is None:
            table.columns_sql(self.table, schema, self.options.upsert)
        return oid

    def _lacking(self, connection: Connection, oid: int, schema: pa.Schema) -> list[pa.Field[Any]]:
        """The columns that the versions lack; SchemaMismatch if the rows do not fit for another reason."""
        self._require_keys(connection, oid)
        versions = versions_of(self.table)
        return table.require_fit(connection, versions, oid, schema, self.options.upsert, tags=self._tags)

    def _hidden(self, connection: Connection, schema: pa.Schema) -> list[str]:
        """The columns of the rows that the view does not show."""
        shown = self._shown(connection)
        return [name for name in _kept(schema, self.options.upsert) if name not in shown]

    def _shown(self, connection: Connection) -> list[str]:
        found = connection.execute(
            "SELECT a.attname FROM pg_attribute a WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 ORDER BY a.attnum",
            (self.table.sql,),
        )
        return [name for (name,) in found]

    def _require_keys(self, connection: Connection, oid: int) -> None:
        if problem := _other_keys(keys_of(connection, oid), self.options.upsert):
            raise SchemaMismatch(f"the rows do not fit {self.table}: {problem}")

    def _require_view(self, connection: Connection, *, is_ours: bool) -> None:
        found = connection.execute(
            "SELECT c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE (n.nspname, c.relname) = (%s, %s)",
            (self.table.schema, self.table.name),
        ).fetchone()
        if found is None and is_ours:
            raise TargetUnavailable(f"the view {self.table} is gone, and its versions are there: create it again")
        if found is not None and not (is_ours and found[0] == "v"):
            raise SchemaMismatch(
                f"{self.table} is there already, and in mode mvcc it is a view of ours: rename it, or choose another name"
            )

    # ---- tasks ----

    def begin(self, plan: Plan, task: Task) -> VersionsTransaction:
        return VersionsTransaction(self.database, Place(self.table, plan.prepared.owner), plan, task)

    # ---- after the tasks ----

    def alive(self, order: CommitOrder[PostgresHandle]) -> Mapping[int, str]:
        def work(connection: Connection) -> dict[int, str]:
            # In this order: what is committed between the two looks is no attempt any more, and in the marker.
            lost = _lost(order, line.attempts(connection, self.table), self._versions(connection))
            marker = line.read(connection, self.table)
            return {} if marker == order.marker else dict.fromkeys(lost, "its rows are gone")

        return self.database.run(work, doing="looking at versions")

    def commit(self, order: CommitOrder[PostgresHandle]) -> Outcome:
        doing = f"committing epoch {order.epoch.number} to {self.table}"
        outcome = self.database.run(partial(self._commit, order), doing=doing, explain=unknown)
        failpoints.hit("postgres.committed", owner=str(order.owner), epoch=order.epoch.number)
        if self.options.retain_epochs is not None:
            self._vacuum(order, self.options.retain_epochs)
        return outcome

    def _commit(self, order: CommitOrder[PostgresHandle], connection: Connection) -> Outcome:
        """The one transaction. Its first statement waits for tasks that vote, and for any other that commits."""
        marker = line.read(connection, self.table, lock="FOR UPDATE")
        if marker == order.marker:
            return Outcome.ALREADY_COMMITTED
        if marker != order.origin:
            raise elsewhere("table", marker, order)
        failpoints.hit("postgres.locked", owner=str(order.owner), epoch=order.epoch.number)
        attempts = line.attempts(connection, self.table)
        versions = self._versions(connection)
        if versions is None:
            raise TargetUnavailable(f"the table {versions_of(self.table)} is gone, and an epoch is decided: restore it")
        if lost := _lost(order, attempts, versions):
            raise NotCommitted(f"the rows of slots {lost} are gone", dead_slots=lost)
        winners = line.named(attempts, {(order.owner, str(share.attempt)) for share in order.shares})
        self._clear(connection, order.marker, attempts, winners)
        line.forget(connection, [row.number for row in winners])
        record(connection, self.table, line.position_of(order.marker), sum(row.rows for row in winners))
        failpoints.hit("postgres.inserted", owner=str(order.owner), epoch=order.epoch.number)
        self._move(connection, order.origin, order.marker)
        return Outcome.COMMITTED

    def _vacuum(self, order: CommitOrder[PostgresHandle], retain_epochs: int) -> None:
        """Some of what newer versions have followed. A driver that was overtaken has no say in what readers may ask for; one that
        finishes what another has decided leaves it to its next epoch."""

        def work(connection: Connection) -> None:
            decided = Generation(order.decision.ledger, order.decision.number)
            control_schema.require_newest(connection, Place(self.table, order.owner), decided, lock="")
            if line.read(connection, self.table) == order.marker:
                self._view(()).vacuum(connection, retain_epochs, _VACUUMED_EPOCHS)

        try:
            self.database.run(work, doing=f"deleting superseded versions of {self.table}")
        except Fenced:
            return
        except TwophaseError as error:
            log.warning("superseded versions stay until the next epoch", owner=order.owner, why=error.message)

    def take_over(self, order: TakeOver) -> None:
        def work(connection: Connection) -> None:
            marker = line.read(connection, self.table, lock="FOR UPDATE")
            if marker == order.marker:
                return
            if marker != order.origin:
                raise not_taken_over("table", marker, order)
            self._clear(connection, order.marker, line.attempts(connection, self.table), ())
            record(connection, self.table, line.position_of(order.marker), 0)
            self._move(connection, order.origin, order.marker, replaced=str(order.origin.owner))

        self.database.run(work, doing=f"taking {self.table} over", explain=unknown)

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[PostgresHandle]]) -> None:
        if leftovers:
            marks = [(leftover.owner or owner, leftover.mark) for leftover in leftovers]
            self._asked(lambda connection: _delete(connection, self.table, marks), None)

    def status(self, owner: Owner, *, settled: bool) -> Status:
        lock = "FOR SHARE" if settled else ""

        def question(connection: Connection) -> Status:
            marker = line.read(connection, self.table, lock=lock)
            if marker is None:
                return Status()
            own = None if marker.owner == owner else control_schema.read_marker(connection, Place(self.table, owner))
            return Status({WHOLE: marker}, own)

        return self._asked(question, Status())

    def leftovers(self, owner: Owner) -> list[Leftover[PostgresHandle]]:
        nothing = list[AttemptRow]()
        return [
            Leftover(
                generation=row.attempt.generation,
                mark=str(row.attempt),
                what=f"{max(row.rows, 0)} rows for slot {row.slot}, at position {row.position} of {versions_of(self.table)}",
                owner=row.owner,
            )
            for row in self._asked(lambda connection: line.attempts(connection, self.table), nothing)
        ]

    # ---- inside ----

    def _asked(self, question: Callable[[Connection], R], otherwise: R) -> R:
        """The answer; `otherwise` where nothing was ever written, since asking creates nothing."""

        def work(connection: Connection) -> R:
            return question(connection) if control_schema.is_there(connection) else otherwise

        return self.database.run(work, doing=f"asking the schema {SCHEMA}", explain=in_doubt)

    def _versions(self, connection: Connection) -> int | None:
        """The object id of the table that rows are in: no other statement of a commit touches it, and without it the pointer would
        move alone. None if it is gone, and that of no table if it is empty."""
        ((oid,),) = connection.execute(
            "SELECT CASE WHEN pg_relation_size(oid) = 0 THEN 0 ELSE oid::bigint END FROM (SELECT to_regclass(%s)::oid) AS it (oid)",
            (versions_of(self.table).sql,),
        ).fetchall()
        return None if oid is None else int(oid)

    def _clear(
        self,
        connection: Connection,
        marker: Marker,
        attempts: Sequence[AttemptRow],
        winners: Sequence[AttemptRow],
    ) -> None:
        """Delete every row that this marker would show, and that is no winner's: a twin's, or what the replaced owner staged."""
        losers = [row for row in attempts if row.position <= line.position_of(marker) and row not in winners]
        _delete_rows(connection, self.table, losers)
        # Whoever staged them may still look for them: they are swept like any leftover.
        for row in losers:
            line.count_rows(connection, row.number, GONE)

    def _move(
        self, connection: Connection, origin: Marker | None, marker: Marker, *, replaced: str | None = None
    ) -> None:
        if not line.move(connection, self.table, origin, marker, replaced):
            raise Fenced(f"the line of {self.table} moved while it was locked: somebody changes {SCHEMA}.lines by hand")


def _delete(connection: Connection, name: TableName, marks: Sequence[tuple[Owner, str]]) -> None:
    """These attempts, under the pointer's lock; what is visible is no attempt any more, and what is missing is fine."""
    line.read(connection, name, lock="FOR UPDATE")
    doomed = line.named(line.attempts(connection, name), set(marks))
    _delete_rows(connection, name, doomed)
    line.forget(connection, [row.number for row in doomed])


def _delete_rows(connection: Connection, name: TableName, attempts: Sequence[AttemptRow]) -> None:
    there = [row for row in attempts if row.rows > 0]
    if there:
        connection.execute(
            f"DELETE FROM {versions_of(name).sql_beside_parameters} WHERE {POSITION} = ANY(%s) AND {ATTEMPT} = ANY(%s)",
            (sorted({row.position for row in there}), [row.number for row in there]),
        )


def _lost(order: CommitOrder[PostgresHandle], attempts: Sequence[AttemptRow], versions: int | None) -> list[int]:
    """The slots whose shares are not there as they were voted for. An attempt's row and its rows are one transaction: where the one
    is, the others are, if the table is the one that they were written to."""
    there = {
        str(row.attempt): row.rows
        for row in attempts
        if row.owner == order.owner and (row.rows <= 0 or row.versions in (None, versions))
    }
    return [share.slot for share in order.shares if there.get(str(share.attempt)) != share.handle.rows]


def _kept(schema: pa.Schema, upsert: Upsert | None) -> list[str]:
    return [name for name in schema.names if upsert is None or name != upsert.delete]


def _other_keys(keys: Sequence[str], upsert: Upsert | None) -> str:
    """What is wrong with the keys that a table was made for; nothing if they are these."""
    wanted = () if upsert is None else upsert.keys
    if set(keys) == set(wanted):
        return ""
    made_for = f"it is upserted by {', '.join(keys)}" if keys else "its rows are only ever added"
    meant = f"keyColumns is {', '.join(wanted)}" if wanted else "writeMode is append"
    return f"{made_for}, and {meant}: choose another name"
