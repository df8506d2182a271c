"""The mode mvcc: rows go straight into a table of versions, and readers see those up to a pointer.

::

    write        binary COPY into the versions table, each row tagged with its position in the line and its attempt
    pre-commit   the task's transaction commits; its last statements check, under the pointer's lock, that it is not late
    commit       one transaction: the pointer is locked and compared, losers' rows are deleted if there are any, the pointer moves
    abort        the attempts' rows are deleted, under the pointer's lock

`table` is a view of the versions up to the pointer. The commit takes the same time however many rows there are, because it touches
none of them. Earlier epochs stay, and `<table>_as_of(epoch)` shows the table as it was.

The lock comes first in the commit, and each of its statements sees what was committed before it (READ COMMITTED). A late twin is so
either seen, and deleted, or sees the moved pointer itself, and fails. To ask a twin for its generation alone would let it in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import psycopg
import pyarrow as pa

from twophase import failpoints
from twophase.clients.postgres.database import Connection, Database
from twophase.clients.postgres.refusals import in_doubt, unknown
from twophase.clients.postgres.table_name import TableName, quoted
from twophase.clients.postgres.versions_table import AS_OF, ATTEMPT, POSITION, TAGS, record, versions_of
from twophase.errors import Fenced, NotCommitted, SchemaMismatch, TargetUnavailable, TwophaseError
from twophase.identity import Generation, Owner
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
from twophase.sinks.postgres.line import DELETED, AttemptRow
from twophase.sinks.postgres.table import Layout
from twophase.sinks.postgres.transaction import FORGETTING, PostgresHandle, PostgresTransaction
from twophase.sinks.postgres.upsert import Upsert

R = TypeVar("R")


class VersionsTransaction(PostgresTransaction):
    """Rows in the versions table, tagged."""

    _number: int | None = None

    def _receive(self, connection: Connection, layout: Layout) -> str:
        self._enter(connection)
        tags = ", ".join(map(quoted, TAGS))
        return f"{versions_of(self._place.table).sql} ({layout.names_sql}, {tags})"

    def _tags(self, first: int, count: int) -> list[Column]:
        return [pa.array(np.full(count, tag, np.int64)) for tag in (self._position, self._number)]

    def _register(self, connection: Connection) -> None:
        number = self._enter(connection)
        line.count_rows(connection, number, self._rows)
        prepared = self._plan.prepared
        marker = line.read(connection, self._place.table, lock="FOR SHARE")
        if marker != prepared.origin:
            raise Fenced(
                f"the table is at {_shown(marker)}, and this task was planned when it was at {_shown(prepared.origin)}",
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
    upsert: Upsert | None
    create_table: bool

    # ---- before the tasks ----

    def fence(self, owner: Owner, generation: Generation) -> None:
        def work(connection: Connection) -> None:
            control_schema.ensure(connection)
            line.make_room(connection, self.table)
            control_schema.raise_generation(connection, Place(self.table, owner), generation)

        self.database.run(work, doing=f"fencing older generations in the schema {SCHEMA}")

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        schema = prepared.schema
        if schema is None:
            return Plan(prepared)
        layout = self.database.run(partial(self._prepare, schema), doing=f"looking at the table {self.table}")
        return Plan(prepared, layout.to_details())

    def require_fit(self, schema: pa.Schema) -> None:
        self.database.run(partial(self._fitting, schema), doing=f"looking at the table {self.table}")

    def _prepare(self, schema: pa.Schema, connection: Connection) -> Layout:
        layout = self._fitting(schema, connection)
        if layout is None:
            self._create(connection, schema)
            layout = self._fitting(schema, connection)
        assert layout is not None, "there is no table right after it was created"
        return layout

    def _fitting(self, schema: pa.Schema, connection: Connection) -> Layout | None:
        """How rows of this schema are written to the table; None if it is not there and may be created for them."""
        versions = versions_of(self.table)
        if taken := [name for name in TAGS if name in schema.names]:
            raise SchemaMismatch(f"the rows have columns whose names are ours: {', '.join(taken)}")
        oid = table.look_up(connection, versions)
        self._require_view(connection, is_ours=oid is not None)
        if oid is None and not self.create_table:
            raise TargetUnavailable(f"there is no table {versions}: set createTable to true, and it is created")
        if oid is None:
            table.columns_sql(self.table, schema)
            return None
        layout = table.layout_for(connection, versions, oid, schema, None, TAGS)
        table.require_rights(connection, versions, oid, layout)
        return layout

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

    def _create(self, connection: Connection, schema: pa.Schema) -> None:
        versions = versions_of(self.table)
        columns = table.columns_sql(self.table, schema)
        tags = [f"{quoted(tag)} bigint NOT NULL" for tag in TAGS]
        connection.execute(f"CREATE TABLE {versions.sql} ({', '.join([*columns, *tags])})")
        # Rows of an attempt lie side by side: a summary of page ranges finds them, and costs next to nothing to keep.
        indexed = ", ".join(map(quoted, TAGS))
        connection.execute(f"CREATE INDEX ON {versions.sql} USING brin ({indexed}) WITH (autosummarize = on)")
        target = psycopg.sql.Literal(str(self.table)).as_string(connection)
        pointer = f"(SELECT position FROM {SCHEMA}.lines WHERE target = {target})"
        names = ", ".join(map(quoted, schema.names))
        visible = f"SELECT {names} FROM {versions.sql} WHERE {POSITION} <="
        connection.execute(f"CREATE VIEW {self.table.sql} AS {visible} {pointer}")
        as_of = f"{TableName(self.table.schema, self.table.name + AS_OF).sql}(epoch bigint)"
        body = psycopg.sql.Literal(f"{visible} least($1, {pointer})").as_string(connection)
        # With the rights of whoever created it: versions that are not decided are nobody's to read.
        connection.execute(
            f"CREATE FUNCTION {as_of} RETURNS SETOF {self.table.sql} LANGUAGE sql STABLE SECURITY DEFINER "
            f"SET search_path = pg_catalog, pg_temp AS {body}"
        )
        connection.execute(f"REVOKE ALL ON FUNCTION {as_of.replace('(epoch ', '(')} FROM PUBLIC")

    # ---- tasks ----

    def begin(self, plan: Plan, task: Task) -> VersionsTransaction:
        return VersionsTransaction(self.database, Place(self.table, plan.prepared.owner), plan, task)

    # ---- after the tasks ----

    def alive(self, order: CommitOrder[PostgresHandle]) -> Mapping[int, str]:
        def work(connection: Connection) -> dict[int, str]:
            # In this order: what is committed between the two looks is no attempt any more, and in the marker.
            lost = _lost(order, line.attempts(connection, self.table))
            marker = line.read(connection, self.table)
            return {} if marker == order.marker else dict.fromkeys(lost, "its rows are gone")

        return self.database.run(work, doing="looking at versions")

    def commit(self, order: CommitOrder[PostgresHandle]) -> Outcome:
        doing = f"committing epoch {order.epoch.number} to {self.table}"
        outcome = self.database.run(partial(self._commit, order), doing=doing, explain=unknown)
        failpoints.hit("postgres.committed", owner=str(order.owner), epoch=order.epoch.number)
        return outcome

    def _commit(self, order: CommitOrder[PostgresHandle], connection: Connection) -> Outcome:
        """The one transaction. Its first statement waits for tasks that vote, and for any other that commits."""
        marker = line.read(connection, self.table, lock="FOR UPDATE")
        if marker == order.marker:
            return Outcome.ALREADY_COMMITTED
        if marker != order.origin:
            raise _elsewhere(marker, order)
        failpoints.hit("postgres.locked", owner=str(order.owner), epoch=order.epoch.number)
        attempts = line.attempts(connection, self.table)
        if lost := _lost(order, attempts):
            raise NotCommitted(f"the rows of slots {lost} are gone", dead_slots=lost)
        winners = line.named(attempts, {(order.owner, str(share.attempt)) for share in order.shares})
        self._clear(connection, order.marker, attempts, winners)
        line.forget(connection, [row.number for row in winners])
        record(connection, self.table, line.position_of(order.marker), sum(row.rows for row in winners))
        failpoints.hit("postgres.inserted", owner=str(order.owner), epoch=order.epoch.number)
        self._move(connection, order.origin, order.marker)
        return Outcome.COMMITTED

    def take_over(self, order: TakeOver) -> None:
        def work(connection: Connection) -> None:
            marker = line.read(connection, self.table, lock="FOR UPDATE")
            if marker == order.marker:
                return
            if marker != order.origin:
                raise Fenced(
                    f"the table is at {_shown(marker)}, and the take-over moves it from {_shown(order.origin)}"
                )
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
            line.count_rows(connection, row.number, DELETED)

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


def _lost(order: CommitOrder[PostgresHandle], attempts: Sequence[AttemptRow]) -> list[int]:
    """The slots whose shares are not there as they were voted for. An attempt's row and its rows are one transaction: where the one
    is, the others are."""
    there = {str(row.attempt): row.rows for row in attempts if row.owner == order.owner}
    return [share.slot for share in order.shares if there.get(str(share.attempt)) != share.handle.rows]


def _elsewhere(marker: Marker | None, order: CommitOrder[PostgresHandle]) -> TwophaseError:
    if marker is not None and marker.owner == order.owner and marker.epoch.number < order.epoch.number:
        slots = [share.slot for share in order.shares]
        return NotCommitted("the line went on without this decision", dead_slots=slots)
    return Fenced(
        f"the table is at {_shown(marker)}, and the decision {order.decision} moves it from {_shown(order.origin)}"
    )


def _shown(marker: Marker | None) -> str:
    return "no epoch" if marker is None else f"epoch {marker.epoch} of {marker.owner}, by {marker.by}"
