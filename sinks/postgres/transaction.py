"""One task attempt's share: rows by binary COPY, and a row that says so.

The session is opened when there is something to say: a task may wait for its first row for minutes. Rows and the share's row are
one transaction, whose last statement asks whether the generation was overtaken; a task that dies before its end leaves nothing at
all.
"""

from __future__ import annotations

from abc import abstractmethod
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import psycopg
import pyarrow as pa

from twophase.clients.postgres.database import Connection, Database
from twophase.clients.postgres.refusals import unknown
from twophase.errors import ProtocolViolation, SchemaMismatch
from twophase.handle import Handle
from twophase.sink import Plan, Task, Transaction
from twophase.sinks.postgres import binary_copy
from twophase.sinks.postgres.binary_copy import Column, Encode, Matrix, big_endian
from twophase.sinks.postgres.column_types import encoder
from twophase.sinks.postgres.control_schema import Place
from twophase.sinks.postgres.table import Layout, TableColumn
from twophase.sinks.postgres.upsert import Upsert

_DOING = "staging rows"
FORGETTING = "dropping a share"


@dataclass(frozen=True)
class PostgresHandle(Handle):
    """How many rows a commit must find in the share's staging table, and what it does with them: as it was when they were written,
    whatever the options say by now."""

    rows: int
    keys: tuple[str, ...] = ()
    """Of upserts; none for rows that are added."""
    delete: str = ""

    @property
    def upsert(self) -> Upsert | None:
        return Upsert(self.keys, self.delete) if self.keys else None


class PostgresTransaction(Transaction[PostgresHandle]):
    """What all modes have in common; where rows go, and what the vote says, is a mode's own."""

    def __init__(self, database: Database, place: Place, plan: Plan, task: Task):
        self._database, self._place, self._plan, self._task = database, place, plan, task
        self._layout = Layout.from_details(plan.details)
        self._connection: Connection | None = None
        self._copying = ExitStack()
        self._copy: psycopg.Copy | None = None
        self._encoders: tuple[pa.Schema, list[Encode]] | None = None
        self._rows = 0
        self._is_over = False

    # ---- what a mode says ----

    @abstractmethod
    def _receive(self, connection: Connection, layout: Layout) -> str:
        """Where rows go: what comes between COPY and FROM. Called when there is a first one."""

    @abstractmethod
    def _tags(self, first: int, count: int) -> list[Column]:
        """Whole numbers that each row carries behind its own columns; `first` is how many rows there were before."""

    @abstractmethod
    def _register(self, connection: Connection) -> None:
        """Say that the share is whole; refuse if it comes too late. The last statements before the commit."""

    def _vote(self, connection: Connection) -> None:
        """Make durable what is registered."""
        connection.commit()

    @abstractmethod
    def _forget(self) -> None:
        """Delete what was voted for."""

    # ---- the verbs ----

    def write(self, batch: pa.RecordBatch) -> None:
        if self._is_over:
            raise ProtocolViolation("nothing can be written after pre_commit")
        if batch.num_rows == 0:
            return
        encoders = self._encoders_for(batch.schema)
        columns = [batch.column(column.name) for column in self._columns(batch.schema)]
        try:
            stream = self._stream()
            tags = self._tags(self._rows, batch.num_rows)
            stream.write(binary_copy.rows([*columns, *tags], [*encoders, *(_whole_numbers for _ in tags)]))
        except psycopg.Error as error:
            failure = self._database.explained(error, _DOING)
        else:
            self._rows += batch.num_rows
            return
        raise failure

    def pre_commit(self) -> PostgresHandle:
        if self._is_over:
            raise ProtocolViolation("this share was voted for already")
        self._is_over = True
        try:
            self._stage()
        except psycopg.Error as error:
            # The reply to COMMIT may be what was lost. The attempt is given up either way: if it is there, it is a leftover.
            failure = self._database.explained(error, _DOING, unknown)
        else:
            upsert = self._upsert
            return (
                PostgresHandle(self._rows) if upsert is None else PostgresHandle(self._rows, upsert.keys, upsert.delete)
            )
        raise failure

    def abort(self) -> None:
        self._drop()
        if self._is_over:
            self._forget()

    def __del__(self) -> None:
        # Whoever forgets it has given it up: the server must not wait for a session that nobody will use again.
        self._drop()

    # ---- inside ----

    @property
    def _upsert(self) -> Upsert | None:
        return None if self._layout is None else self._layout.upsert

    def _stage(self) -> None:
        connection = self._opened()
        if self._copy is not None:
            self._copy.write(binary_copy.TRAILER)
            self._copying.close()
        self._register(connection)
        self._vote(connection)
        self._drop()

    def _stream(self) -> psycopg.Copy:
        if self._copy is None:
            assert self._layout is not None, "rows were encoded by it"
            connection = self._opened()
            statement = f"COPY {self._receive(connection, self._layout)} FROM STDIN (FORMAT binary)"
            self._copy = self._copying.enter_context(connection.cursor().copy(statement))
            self._copy.write(binary_copy.HEADER)
        return self._copy

    def _opened(self) -> Connection:
        if self._connection is None:
            self._connection = self._database.connect(doing=_DOING)
            self._database.begin(self._connection)
        return self._connection

    def _drop(self) -> None:
        """The session and all that it has not committed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        with suppress(psycopg.Error):  # a COPY whose session is gone says so
            self._copying.close()

    def _columns(self, schema: pa.Schema) -> tuple[TableColumn, ...]:
        if self._layout is None:
            raise ProtocolViolation("rows were written by a plan that knows no columns")
        names = [column.name for column in self._layout.row_columns]
        if sorted(names) != sorted(schema.names):
            raise SchemaMismatch(f"the rows have the columns {schema.names}, and were planned with {names}")
        return self._layout.row_columns

    def _encoders_for(self, schema: pa.Schema) -> list[Encode]:
        """Made once: batches of one task have one schema, mostly the same object."""
        if self._encoders is None or (self._encoders[0] is not schema and self._encoders[0] != schema):
            made = []
            for column in self._columns(schema):
                encode = encoder(schema.field(column.name).type, column.type)
                if encode is None:
                    raise SchemaMismatch(
                        f"the column {column.name!r} is {column.type.shown}, and the rows have {schema.field(column.name).type}"
                    )
                made.append(encode)
            self._encoders = (schema, made)
        return self._encoders[1]


def _whole_numbers(column: Column) -> Matrix:
    return big_endian(column, "i8")
