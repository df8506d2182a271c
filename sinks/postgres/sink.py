"""PostgresSink: rows in a table, exactly once, in one of three ways, by the option `mode`:

`wal`    A task stages its rows in a table of its own; one transaction moves those of all tasks, and the marker, into the table.
         Abort drops the staging tables.
`mvcc`   Rows go into a versions table, tagged, and no reader sees them; one transaction moves the pointer up to which readers do.
         Abort deletes the rows.
`xa`     Rows go into the table, in a transaction that its task prepares (PREPARE TRANSACTION) and the driver commits. Abort rolls
         it back.

The guarantee: every row is there once, whatever dies. With `wal` and `mvcc`, a reader sees all rows of an epoch at once; with `xa`
those of each task at once, one task after the other. With `wal` and `xa`, several queries may write to a table side by side, and so
may anybody else; with `mvcc` the table is a view that one query owns. An older generation's tasks fail in the database itself, at
the last statement before their commit; with `xa`, one that has asked and not yet prepared comes through, and is swept.

What it can't do. `wal`: the commit takes as long as an INSERT of the epoch's rows. A row that breaks a unique or foreign key, an
exclusion constraint or a trigger, breaks it there, after the decision: the query then stops until the table is mended. Each task
that has rows makes and drops a table. `mvcc`: nothing keeps rows unique. `xa`: the server must have room for prepared transactions,
which hold their locks, and keep VACUUM from what is newer, until somebody ends them: a query that is dead is recovered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from twophase.clients.postgres.database import Database
from twophase.clients.postgres.dsn import Dsn
from twophase.clients.postgres.table_name import BadName, TableName
from twophase.clients.postgres.versions_table import problem_with
from twophase.errors import OptionError, ProtocolViolation
from twophase.identity import Generation, Owner
from twophase.options import key_of, option, parse, texts_of
from twophase.secret import Secret
from twophase.sink import (
    Capabilities,
    CommitOrder,
    Description,
    Leftover,
    Outcome,
    Plan,
    PreparedEpoch,
    Sink,
    Status,
    TakeOver,
    Task,
)
from twophase.sinks.postgres.mvcc import MvccMode
from twophase.sinks.postgres.table_options import TableOptions
from twophase.sinks.postgres.transaction import PostgresHandle, PostgresTransaction
from twophase.sinks.postgres.upsert import Upsert
from twophase.sinks.postgres.wal import WalMode
from twophase.sinks.postgres.xa import XaMode

FORMAT = "twophase-postgres"
_MODES: Mapping[str, type[WalMode] | type[MvccMode] | type[XaMode]] = {"wal": WalMode, "mvcc": MvccMode, "xa": XaMode}


@dataclass(frozen=True, kw_only=True)
class PostgresOptions:
    """The options of `twophase-postgres`, for writing."""

    dsn: Secret = option(
        doc="The database, as libpq takes it: `postgresql://user@host:5432/database`, or `host=… dbname=…`. With a password in it, "
        "give `env:NAME` or `file:PATH`."
    )
    table: str = option(
        doc='The table that rows go to, as SQL names it: `orders`, `sales.orders`, `"Sales"."orders of 2026"`. Without a '
        "schema it is in `public`."
    )
    mode: Literal["wal", "mvcc", "xa"] = option(
        doc="How an epoch is committed: staged rows are moved into the table (`wal`); a pointer to the newest version is moved, "
        "and the table is a view (`mvcc`); or transactions that tasks have prepared are committed (`xa`).",
        default="wal",
    )
    write_mode: Literal["append", "upsert"] = option(
        doc="What becomes of rows: they are added (`append`), or take the place of the row with the same key (`upsert`).",
        default="append",
    )
    key_columns: tuple[str, ...] = option(
        doc="For upserts: the columns by which a row is found. With `mode` wal the table has a primary key or a unique index on "
        "exactly these.",
        default=(),
    )
    delete_column: str | None = option(
        doc="For upserts: a boolean column of the rows, which the table does not have. Where it is true, the row with that key is "
        "deleted.",
        default=None,
    )
    create_table: bool = option(
        doc="Whether the table is created, from the columns of the rows, if it is not there.", default=False
    )
    schema_change: Literal["refuse", "add"] = option(
        doc="What to do when rows have columns that the table lacks: write nothing (`refuse`), or add them to the table (`add`).",
        default="refuse",
    )
    retain_epochs: int | None = option(
        doc="For upserts with `mode` mvcc: at how many epochs before the newest the table can be read as it was, and followed. "
        "Older versions are deleted where newer ones have followed; by default none are.",
        default=None,
        minimum=1,
    )
    lock_timeout_ms: int = option(
        doc="How long to wait for a lock that somebody else holds.", default=30_000, minimum=100, maximum=2_147_483_647
    )
    request_timeout_ms: int = option(
        doc="How long to try again while the server is gone, or starts.", default=60_000, minimum=0
    )

    def problems(self) -> Iterable[str]:
        try:
            name = TableName.parse(self.table)
        except BadName as reason:
            yield f"table {reason}"
        else:
            if self.mode == "mvcc" and (problem := problem_with(name)):
                yield problem
        if problem := Dsn(self.dsn).problem():
            yield problem
        if self.write_mode == "upsert" and self.mode == "xa":
            yield "writeMode upsert is for modes wal and mvcc"
        if self.retain_epochs is not None and (self.mode, self.write_mode) != ("mvcc", "upsert"):
            yield "retainEpochs is for writeMode upsert with mode mvcc: other tables have nothing that is superseded"
        if self.write_mode == "upsert" and not self.key_columns:
            yield "keyColumns is required with writeMode upsert"
        if self.write_mode == "append" and (self.key_columns or self.delete_column):
            yield "keyColumns and deleteColumn are for writeMode upsert"
        if len(set(self.key_columns)) < len(self.key_columns):
            yield "keyColumns names a column twice"
        if self.delete_column in self.key_columns:
            yield "deleteColumn is one of keyColumns"

    @property
    def upsert(self) -> Upsert | None:
        return Upsert(self.key_columns, self.delete_column or "") if self.write_mode == "upsert" else None

    @property
    def for_table(self) -> TableOptions:
        return TableOptions(self.upsert, self.create_table, self.schema_change == "add", self.retain_epochs)


class PostgresSink(Sink[PostgresHandle]):
    """A table of a database.

    Parameters
    ----------
    dsn:
        The database, as libpq takes it; a `Secret` if it holds one: `Secret("env:ORDERS_DSN")`.
    table:
        As SQL names it.
    mode, write_mode, key_columns, delete_column, create_table, schema_change, retain_epochs, lock_timeout_ms, request_timeout_ms:
        As the options of `PostgresOptions`.
    """

    handle_type = PostgresHandle

    def __init__(
        self,
        dsn: str | Secret,
        table: str,
        *,
        mode: Literal["wal", "mvcc", "xa"] = "wal",
        write_mode: Literal["append", "upsert"] = "append",
        key_columns: str | Sequence[str] = (),
        delete_column: str | None = None,
        create_table: bool = False,
        schema_change: Literal["refuse", "add"] = "refuse",
        retain_epochs: int | None = None,
        lock_timeout_ms: int = 30_000,
        request_timeout_ms: int = 60_000,
    ):
        options = PostgresOptions(
            dsn=dsn if isinstance(dsn, Secret) else Secret(dsn),
            table=table,
            mode=mode,
            write_mode=write_mode,
            key_columns=texts_of(key_columns),
            delete_column=delete_column,
            create_table=create_table,
            schema_change=schema_change,
            retain_epochs=retain_epochs,
            lock_timeout_ms=lock_timeout_ms,
            request_timeout_ms=request_timeout_ms,
        )
        problems = [*options.problems()]
        if problems:
            raise OptionError("; ".join(problems), problems=problems)
        self._set(options)

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> PostgresSink:
        sink = cls.__new__(cls)
        sink._set(parse(PostgresOptions, given))
        return sink

    def _set(self, options: PostgresOptions) -> None:
        self._options = options
        self._table = TableName.parse(options.table)
        self._database = Database(Dsn(options.dsn), options.request_timeout_ms / 1000, options.lock_timeout_ms)
        self.capabilities = Capabilities(
            atomic=options.mode != "xa", several_owners=options.mode != "mvcc", upserts=options.upsert is not None
        )
        mode = _MODES[options.mode]
        self._mode = mode(self._database, self._table, options.for_table)

    @property
    def target(self) -> str:
        return f"postgres {self._database.dsn.place()} {self._table}"

    def describe(self) -> Description | None:
        dsn = self._database.dsn.public()
        if dsn is None:
            return None  # a literal secret must not be kept; without it nobody can connect
        options = self._options
        described = {"dsn": dsn, "table": str(self._table)}
        for name in ("mode", "write_mode", "schema_change", "lock_timeout_ms", "request_timeout_ms"):
            described[key_of(name)] = str(getattr(options, name))
        if options.upsert is not None:
            described["keyColumns"] = ",".join(options.key_columns)
        if options.delete_column is not None:
            described["deleteColumn"] = options.delete_column
        if options.retain_epochs is not None:
            described["retainEpochs"] = str(options.retain_epochs)
        return Description(FORMAT, described)

    # ---- the verbs: each mode has its own ----

    def fence(self, owner: Owner, generation: Generation) -> None:
        self._mode.fence(owner, generation)

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        _require_no_overwrite(prepared.overwrite)
        return self._mode.prepare(prepared)

    def require_fit(self, schema: pa.Schema | None, *, overwrite: bool) -> None:
        _require_no_overwrite(overwrite)
        if schema is not None and isinstance(self._mode, MvccMode):
            self._mode.require_fit(schema)

    def begin(self, plan: Plan, task: Task) -> PostgresTransaction:
        return self._mode.begin(plan, task)

    def alive(self, order: CommitOrder[PostgresHandle]) -> Mapping[int, str]:
        return self._mode.alive(order)

    def commit(self, order: CommitOrder[PostgresHandle]) -> Outcome:
        return self._mode.commit(order)

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[PostgresHandle]]) -> None:
        self._mode.abort(owner, leftovers)

    def status(self, owner: Owner, *, settled: bool) -> Status:
        return self._mode.status(owner, settled=settled)

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> list[Leftover[PostgresHandle]]:
        return self._mode.leftovers(owner)

    def take_over(self, order: TakeOver) -> None:
        if not isinstance(self._mode, MvccMode):
            super().take_over(order)
        else:
            self._mode.take_over(order)


def _require_no_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise ProtocolViolation("this sink can't replace all that is in the table")
