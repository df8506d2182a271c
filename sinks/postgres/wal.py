"""The mode wal: rows are staged in tables, and moved into the reader's table by one transaction.

::

    write        binary COPY into a staging table of this attempt's own
    pre-commit   one transaction: staging table, its rows, and a row that names it
    commit       one transaction: the owner's row is locked and compared, staged rows are counted and moved, the marker moves
    abort        staging tables are dropped
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa

from twophase import failpoints
from twophase.clients.postgres.database import Connection, Database
from twophase.clients.postgres.refusals import in_doubt, unknown
from twophase.clients.postgres.table_name import TableName, quoted
from twophase.errors import Fenced, NotCommitted, TwophaseError
from twophase.identity import Generation, Owner
from twophase.line_of_epochs import elsewhere
from twophase.log import Log
from twophase.sink import WHOLE, CommitOrder, Leftover, Outcome, Plan, PreparedEpoch, Share, Status, Task
from twophase.sinks.postgres import control_schema, table
from twophase.sinks.postgres.binary_copy import Column
from twophase.sinks.postgres.control_schema import SCHEMA, Place, StagedRow, staging_name
from twophase.sinks.postgres.table import Layout
from twophase.sinks.postgres.table_options import TableOptions
from twophase.sinks.postgres.transaction import FORGETTING, PostgresHandle, PostgresTransaction
from twophase.sinks.postgres.upsert import ORDINAL, Upsert

R = TypeVar("R")

_DROPPED_AT_ONCE = 50
"""Every table that a transaction drops takes some of the server's room for locks until it ends."""

log = Log("twophase.sinks.postgres")


class StagingTransaction(PostgresTransaction):
    """Rows in a staging table of their own."""

    _staging: str | None = None

    def _receive(self, connection: Connection, layout: Layout) -> str:
        self._staging = staging_name(self._place, self._task.attempt)
        name = f"{SCHEMA}.{quoted(self._staging)}"
        connection.execute(f"CREATE TABLE {name} ({layout.staging_sql()})")
        return f"{name} ({layout.names_sql})"

    def _tags(self, first: int, count: int) -> list[Column]:
        return [] if self._upsert is None else [pa.array(np.arange(first, first + count))]

    def _register(self, connection: Connection) -> None:
        attempt, epoch = self._task.attempt, self._plan.prepared.epoch
        row = StagedRow(attempt, epoch.number, self._task.slot, self._rows, self._staging, True)
        control_schema.register(connection, self._place, row)
        control_schema.require_newest(connection, self._place, attempt.generation)

    def _forget(self) -> None:
        drop = partial(control_schema.drop_staged, place=self._place, attempts=[str(self._task.attempt)])
        self._database.run(drop, doing=FORGETTING)


@dataclass(frozen=True)
class WalMode:
    database: Database
    table: TableName
    options: TableOptions

    # ---- before the tasks ----

    def fence(self, owner: Owner, generation: Generation) -> None:
        place = self._place(owner)

        def work(connection: Connection) -> None:
            control_schema.ensure(connection)
            control_schema.make_room(connection, place)
            control_schema.raise_generation(connection, place, generation)

        self.database.run(work, doing=f"fencing older generations in the schema {SCHEMA}")

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        if prepared.schema is None:
            return Plan(prepared)
        place, generation = self._place(prepared.owner), prepared.generation
        fenced = partial(control_schema.require_newest, place=place, generation=generation)
        look = partial(
            table.prepared,
            name=self.table,
            schema=prepared.schema,
            upsert=self.options.upsert,
            create_it=self.options.create_table,
            before_adding=fenced if self.options.adds_columns else None,
        )
        layout = self.database.run(look, doing=f"looking at the table {self.table}")
        return Plan(prepared, layout.to_details())

    # ---- tasks ----

    def begin(self, plan: Plan, task: Task) -> StagingTransaction:
        return StagingTransaction(self.database, self._place(plan.prepared.owner), plan, task)

    # ---- after the tasks ----

    def alive(self, order: CommitOrder[PostgresHandle]) -> Mapping[int, str]:
        place = self._place(order.owner)

        def work(connection: Connection) -> dict[int, str]:
            # In this order: what is committed between the two looks is missing from staging, and in the marker.
            lost = _lost(order, control_schema.staged(connection, place))
            marker = control_schema.read_marker(connection, place)
            return {} if marker == order.marker else dict.fromkeys(lost, "its staged rows are gone")

        return self.database.run(work, doing="looking at staged rows")

    def commit(self, order: CommitOrder[PostgresHandle]) -> Outcome:
        outcome = self.database.run(
            partial(self._commit, order),
            doing=f"committing epoch {order.epoch.number} to {self.table}",
            explain=unknown,
        )
        failpoints.hit("postgres.committed", owner=str(order.owner), epoch=order.epoch.number)
        try:
            self._drop(order.owner, [str(share.attempt) for share in order.shares])
        except TwophaseError as error:
            log.warning("staging tables stay until the next epoch", owner=order.owner, why=error.message)
        return outcome

    def _commit(self, order: CommitOrder[PostgresHandle], connection: Connection) -> Outcome:
        """The one transaction. Its first statement waits for any other that commits for this owner, a lost one's included."""
        place = self._place(order.owner)
        marker = control_schema.lock_marker(connection, place)
        if marker == order.marker:
            return Outcome.ALREADY_COMMITTED
        if marker != order.origin:
            raise elsewhere("table", marker, order)
        failpoints.hit("postgres.locked", owner=str(order.owner), epoch=order.epoch.number)
        staged = control_schema.staged(connection, place, lock="FOR UPDATE OF staged")
        if lost := _lost(order, staged):
            raise _gone(lost)
        staging_of = {str(row.attempt): row.staging for row in staged}
        sources = [(share, name) for share in order.shares if (name := staging_of[str(share.attempt)]) is not None]
        if sources and (upsert := sources[0][0].handle.upsert) is not None:
            self._replace(connection, upsert, sources)
        else:
            for share, staging in sources:
                self._append(connection, share, staging)
        failpoints.hit("postgres.inserted", owner=str(order.owner), epoch=order.epoch.number)
        if not control_schema.move_marker(connection, place, order.origin, order.marker):
            raise Fenced(
                f"the marker of {order.owner} moved while its row was locked: somebody changes {SCHEMA}.markers by hand"
            )
        return Outcome.COMMITTED

    def _append(self, connection: Connection, share: Share[PostgresHandle], staging: str) -> None:
        columns = ", ".join(map(quoted, control_schema.columns_of(connection, staging)))
        inserted = connection.execute(
            f"INSERT INTO {self.table.sql} ({columns}) SELECT {columns} FROM {SCHEMA}.{quoted(staging)}"
        ).rowcount
        # A trigger of the table may have left rows out, which is its business; staging that lost rows is not.
        if inserted != share.handle.rows:
            _require_rows(connection, [(share, staging)])

    def _replace(
        self, connection: Connection, upsert: Upsert, sources: Sequence[tuple[Share[PostgresHandle], str]]
    ) -> None:
        _require_rows(connection, sources)
        ours = (ORDINAL, upsert.delete)
        columns = [name for name in control_schema.columns_of(connection, sources[0][1]) if name not in ours]
        staged = [(share.slot, f"{SCHEMA}.{quoted(staging)}") for share, staging in sources]
        connection.execute(upsert.statement(self.table, columns, staged))

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[PostgresHandle]]) -> None:
        self._drop(owner, [leftover.mark for leftover in leftovers if leftover.owner in (None, owner)])

    def status(self, owner: Owner, *, settled: bool) -> Status:
        lock = "FOR SHARE" if settled else ""
        marker = self._asked(
            lambda connection: control_schema.read_marker(connection, self._place(owner), lock=lock), None
        )
        return Status({} if marker is None else {WHOLE: marker})

    def leftovers(self, owner: Owner) -> list[Leftover[PostgresHandle]]:
        nothing = list[StagedRow]()
        staged = self._asked(lambda connection: control_schema.staged(connection, self._place(owner)), nothing)
        return [
            Leftover(
                generation=row.attempt.generation,
                mark=str(row.attempt),
                what=f"{row.rows} rows for slot {row.slot} of epoch {row.epoch} in {SCHEMA}.{row.staging or 'staged'}",
                owner=owner,
            )
            for row in staged
        ]

    # ---- inside ----

    def _asked(self, question: Callable[[Connection], R], otherwise: R) -> R:
        """The answer; `otherwise` where nothing was ever written, since asking creates nothing."""

        def work(connection: Connection) -> R:
            return question(connection) if control_schema.is_there(connection) else otherwise

        return self.database.run(work, doing=f"asking the schema {SCHEMA}", explain=in_doubt)

    def _drop(self, owner: Owner, attempts: Sequence[str]) -> None:
        place = self._place(owner)
        for at in range(0, len(attempts), _DROPPED_AT_ONCE):
            some = attempts[at : at + _DROPPED_AT_ONCE]
            self._asked(partial(control_schema.drop_staged, place=place, attempts=some), None)

    def _place(self, owner: Owner) -> Place:
        return Place(self.table, owner)


def _lost(order: CommitOrder[PostgresHandle], staged: Sequence[StagedRow]) -> list[int]:
    """The slots whose shares are not in staging as they were voted for."""
    there = {str(row.attempt): row.rows for row in staged if row.is_there}
    return [share.slot for share in order.shares if there.get(str(share.attempt)) != share.handle.rows]


def _require_rows(connection: Connection, sources: Sequence[tuple[Share[PostgresHandle], str]]) -> None:
    """Raise NotCommitted if staging has other rows than were voted for."""
    lost = []
    for share, staging in sources:
        (count,) = connection.execute(f"SELECT count(*) FROM {SCHEMA}.{quoted(staging)}").fetchall()[0]
        if count != share.handle.rows:
            lost.append(share.slot)
    if lost:
        raise _gone(lost)


def _gone(slots: Sequence[int]) -> NotCommitted:
    return NotCommitted(f"the staged rows of slots {list(slots)} are gone", dead_slots=slots)
