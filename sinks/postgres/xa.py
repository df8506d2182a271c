"""The mode xa: rows go straight into the reader's table, in transactions that tasks prepare and the driver commits.

::

    write        binary COPY into the table
    pre-commit   the marker of the slot is inserted, then PREPARE TRANSACTION: durable, and nobody sees it
    commit       COMMIT PREPARED, one slot after the other
    abort        ROLLBACK PREPARED

A transaction that is prepared belongs to no session. It outlives the task and the server, and ends only when somebody ends it: so
its name says whose it is, and leftovers are found by their names. Ended once, it is forgotten. Whoever asks to commit it again is
told that it is not there, exactly as if it had been rolled back: what became of it says the marker, which is visible if the rows
are.

A prepared transaction keeps its locks. No row is locked that anybody else needs: a marker's key has the attempt in it. Where the
table keeps something unique, two attempts at one slot would wait for each other, and the first can't end: there a task first rolls
back what earlier attempts of its generation have prepared for its slot. If one of these was voted for, that is noticed before the
decision, and the epoch is run again; if it was decided, the commit says that it is dead, and it is written again.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import psycopg

from twophase import failpoints
from twophase.clients.postgres.database import Connection, Database
from twophase.clients.postgres.refusals import in_doubt, unknown
from twophase.clients.postgres.table_name import TableName
from twophase.errors import NotCommitted, OutcomeUnknown, TargetUnavailable
from twophase.identity import Attempt, Epoch, Generation, Owner
from twophase.sink import CommitOrder, Leftover, Marker, Outcome, Plan, PreparedEpoch, Share, Status, Task
from twophase.sinks.postgres import control_schema, table
from twophase.sinks.postgres.binary_copy import Column
from twophase.sinks.postgres.control_schema import SCHEMA, Place
from twophase.sinks.postgres.table import Layout
from twophase.sinks.postgres.table_options import TableOptions
from twophase.sinks.postgres.transaction import PostgresHandle, PostgresTransaction
from twophase.slot_markers import hidden, require_no_other

R = TypeVar("R")

LONGEST_GID_BYTES = 199
_GID = re.compile(r"twophase\.[0-9a-f]{12}\.[0-9a-f]{16}\.(?P<slot>[0-9]+)\.(?P<attempt>.+)")
_UNIQUE = "unique"
_BUSY_PAUSE_S = 0.02
_NO_ROOM = (
    "the server has no room for another prepared transaction: set max_prepared_transactions to more than the tasks of an epoch, of "
    "all queries that use mode xa, and restart it"
)


@dataclass(frozen=True)
class PreparedTransaction:
    """One that a task has prepared, as its name tells."""

    gid: str
    slot: int
    attempt: Attempt


def gid_of(place: Place, slot: int, attempt: Attempt) -> str:
    """Its name: table and owner by hashes, since their names may be long, and what it is in words, since sweepers must know."""
    gid = f"{_prefix(place)}{slot}.{attempt}"
    if len(gid.encode()) > LONGEST_GID_BYTES:
        raise TargetUnavailable(f"the name of a transaction would have more than {LONGEST_GID_BYTES} bytes: {gid}")
    return gid


def _prefix(place: Place) -> str:
    by_table = hashlib.sha256(str(place.table).encode()).hexdigest()[:12]
    by_owner = hashlib.sha256(repr(place.names).encode()).hexdigest()[:16]
    return f"twophase.{by_table}.{by_owner}."


class XaTransaction(PostgresTransaction):
    """Rows in the table itself, in a transaction that is prepared."""

    def _receive(self, connection: Connection, layout: Layout) -> str:
        return f"{self._place.table.sql} ({layout.names_sql})"

    def _tags(self, first: int, count: int) -> list[Column]:
        return []

    def _register(self, connection: Connection) -> None:
        prepared = self._plan.prepared
        if self._rows and self._layout is not None:
            table.require_unchanged(connection, self._place.table, self._layout)
        connection.execute(
            f"INSERT INTO {SCHEMA}.slots (target, owner, slot, epoch, attempt, offsets, base, rows) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            (
                *self._place.names,
                self._task.slot,
                prepared.epoch.number,
                str(self._task.attempt),
                prepared.epoch.offsets,
                prepared.base,
                self._rows,
            ),
        )
        # Without a lock, which would be held until the commit, and keep the next generation out. One that comes too late all the
        # same is a leftover.
        control_schema.require_newest(connection, self._place, self._task.attempt.generation, lock="")

    def _vote(self, connection: Connection) -> None:
        try:
            connection.execute(f"PREPARE TRANSACTION {_literal(self._gid, connection)}")
        except psycopg.errors.OutOfMemory as error:
            raise TargetUnavailable(f"{_NO_ROOM} ({error.diag.message_hint or error.diag.message_primary})") from None

    def _forget(self) -> None:
        self._database.run_alone(
            partial(_ended, verb="ROLLBACK", gid=self._gid, patience_s=self._database.patience_s),
            doing="rolling a prepared transaction back",
        )

    @property
    def _gid(self) -> str:
        return gid_of(self._place, self._task.slot, self._task.attempt)


@dataclass(frozen=True)
class XaMode:
    database: Database
    table: TableName
    options: TableOptions

    # ---- before the tasks ----

    def fence(self, owner: Owner, generation: Generation) -> None:
        def work(connection: Connection) -> None:
            ((room,),) = connection.execute("SHOW max_prepared_transactions").fetchall()
            if int(room) == 0:
                raise TargetUnavailable(f"mode xa needs prepared transactions, which are off: {_NO_ROOM}")
            control_schema.ensure(connection)
            control_schema.raise_generation(connection, Place(self.table, owner), generation)

        self.database.run(work, doing=f"fencing older generations in the schema {SCHEMA}")

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        schema = prepared.schema
        if schema is None:
            return Plan(prepared)

        place, generation = Place(self.table, prepared.owner), prepared.generation
        fenced = partial(control_schema.require_newest, place=place, generation=generation)

        def work(connection: Connection) -> tuple[Layout, bool]:
            layout = table.prepared(
                connection,
                self.table,
                schema,
                None,
                create_it=self.options.create_table,
                before_adding=fenced if self.options.adds_columns else None,
            )
            return layout, _keeps_unique(connection, self.table)

        layout, unique = self.database.run(work, doing=f"looking at the table {self.table}")
        return Plan(prepared, {**layout.to_details(), _UNIQUE: unique})

    # ---- tasks ----

    def begin(self, plan: Plan, task: Task) -> XaTransaction:
        place = Place(self.table, plan.prepared.owner)
        gid_of(place, task.slot, task.attempt)
        if plan.details.get(_UNIQUE):
            self._roll_back(
                place,
                lambda found: (
                    (found.slot, found.attempt.generation) == (task.slot, task.attempt.generation)
                    and found.attempt != task.attempt
                ),
            )
        return XaTransaction(self.database, place, plan, task)

    # ---- after the tasks ----

    def alive(self, order: CommitOrder[PostgresHandle]) -> Mapping[int, str]:
        # In this order: what is committed between the two looks is not prepared any more, and has its marker.
        prepared = {str(found.attempt) for found in self._prepared(Place(self.table, order.owner))}
        return {
            share.slot: "its prepared transaction is gone: somebody has rolled it back"
            for share in hidden(order, self._markers(order.owner))
            if str(share.attempt) not in prepared
        }

    def commit(self, order: CommitOrder[PostgresHandle]) -> Outcome:
        markers = self._markers(order.owner)
        waiting = hidden(order, markers)
        if not waiting:
            return Outcome.ALREADY_COMMITTED
        require_no_other(order, markers)
        missing = [share for share in waiting if not self._commit(order, share)]
        if missing:
            self._require_shown(order, missing)
        self._clean_up(order)
        return Outcome.COMMITTED

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[PostgresHandle]]) -> None:
        marks = {leftover.mark for leftover in leftovers if leftover.owner in (None, owner)}
        if marks:
            self._roll_back(Place(self.table, owner), lambda found: str(found.attempt) in marks)

    def status(self, owner: Owner, *, settled: bool) -> Status:
        """Nothing is ever in doubt for long: the marker of a transaction is there when its commit has ended."""
        return Status(self._markers(owner))

    def leftovers(self, owner: Owner) -> list[Leftover[PostgresHandle]]:
        return [
            Leftover(
                generation=found.attempt.generation,
                mark=str(found.attempt),
                what=f"the prepared transaction {found.gid} of slot {found.slot}",
                owner=owner,
            )
            for found in self._prepared(Place(self.table, owner))
        ]

    # ---- inside ----

    def _commit(self, order: CommitOrder[PostgresHandle], share: Share[PostgresHandle]) -> bool:
        """Whether it was there to be committed. If the reply is lost it is asked for again, and then it is not."""
        gid = gid_of(Place(self.table, order.owner), share.slot, share.attempt)
        done = self.database.run_alone(
            partial(_ended, verb="COMMIT", gid=gid, patience_s=self.database.patience_s),
            doing=f"committing slot {share.slot} of epoch {order.epoch.number} to {self.table}",
            explain=unknown,
        )
        failpoints.hit("postgres.slot_committed", owner=str(order.owner), epoch=order.epoch.number, slot=share.slot)
        return done

    def _require_shown(self, order: CommitOrder[PostgresHandle], missing: Sequence[Share[PostgresHandle]]) -> None:
        """Not prepared any more: committed before, as the markers say that are there now, or rolled back."""
        dead = [share.slot for share in hidden(order, self._markers(order.owner)) if share in missing]
        if dead:
            raise NotCommitted(
                f"the prepared transactions of slots {dead} were rolled back by somebody", dead_slots=dead
            )

    def _clean_up(self, order: CommitOrder[PostgresHandle]) -> None:
        """What other attempts of these generations have prepared: no decision can name it any more, and it holds locks. And markers
        that newer ones have followed."""
        place = Place(self.table, order.owner)
        named = {share.attempt for share in order.shares}
        generations = {attempt.generation for attempt in named}
        self._roll_back(place, lambda found: found.attempt.generation in generations and found.attempt not in named)
        self.database.run(
            lambda connection: connection.execute(
                f"DELETE FROM {SCHEMA}.slots AS old WHERE (target, owner) = (%s, %s) AND EXISTS (SELECT FROM {SCHEMA}.slots AS new "
                "WHERE (new.target, new.owner, new.slot) = (old.target, old.owner, old.slot) AND new.epoch > old.epoch)",
                place.names,
            ),
            doing="deleting older markers",
        )

    def _roll_back(self, place: Place, wanted: Callable[[PreparedTransaction], bool]) -> None:
        for found in self._prepared(place):
            if wanted(found):
                self.database.run_alone(
                    partial(_ended, verb="ROLLBACK", gid=found.gid, patience_s=self.database.patience_s),
                    doing=f"rolling back {found.gid}",
                )

    def _prepared(self, place: Place) -> list[PreparedTransaction]:
        def question(connection: Connection) -> list[PreparedTransaction]:
            found = connection.execute(
                "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s) ORDER BY gid",
                (_prefix(place),),
            )
            parsed = ((gid, _GID.fullmatch(gid)) for (gid,) in found)
            return [
                PreparedTransaction(gid, int(named["slot"]), Attempt.parse(named["attempt"]))
                for gid, named in parsed
                if named is not None
            ]

        return self.database.run(question, doing="looking for prepared transactions", explain=in_doubt)

    def _markers(self, owner: Owner) -> dict[int, Marker]:
        """The newest of each slot."""
        place = Place(self.table, owner)

        def question(connection: Connection) -> dict[int, Marker]:
            if not control_schema.is_there(connection):
                return {}
            found = connection.execute(
                "SELECT DISTINCT ON (slot) slot, epoch, offsets, attempt, base "
                f"FROM {SCHEMA}.slots WHERE (target, owner) = (%s, %s) ORDER BY slot, epoch DESC",
                place.names,
            )
            return {row[0]: Marker(owner, Epoch(row[1], row[2]), row[3], row[4]) for row in found}

        return self.database.run(question, doing=f"asking the schema {SCHEMA}", explain=in_doubt)


def _ended(connection: Connection, *, verb: str, gid: str, patience_s: float) -> bool:
    """Whether it was there. One that another session is ending at this moment is waited for."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            connection.execute(f"{verb} PREPARED {_literal(gid, connection)}")
        except psycopg.errors.UndefinedObject:
            return False
        except psycopg.errors.ObjectNotInPrerequisiteState as busy:
            if time.monotonic() > deadline:
                raise OutcomeUnknown(f"another session is ending {gid}, and does not come to its end") from busy
            time.sleep(_BUSY_PAUSE_S)
        else:
            return True


def _keeps_unique(connection: Connection, name: TableName) -> bool:
    """Whether rows of two transactions may have to wait for each other: unique indexes, primary keys and exclusions."""
    found = connection.execute(
        "SELECT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE (n.nspname, c.relname) = (%s, %s) AND (i.indisunique OR i.indisexclusion))",
        (name.schema, name.name),
    ).fetchone()
    return found is not None and bool(found[0])


def _literal(text: str, connection: Connection) -> str:
    return psycopg.sql.Literal(text).as_string(connection)
