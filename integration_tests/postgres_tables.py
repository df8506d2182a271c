"""Tables of PostgreSQL as clients see them that know nothing of twophase, and as a target of the suites."""

from __future__ import annotations

import datetime
import hashlib
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
from pyarrow import types

from twophase.identity import Owner
from twophase.sink import Description, Share
from twophase.sinks.postgres.sink import PostgresSink
from twophase.testing.arrow_columns import ARROW_COLUMNS
from twophase.testing.crash.orders import Order
from twophase.testing.crash.target import CrashTarget, Surroundings
from twophase.testing.servers import postgres
from twophase.testing.sink_target import TYPED, VALUE, SinkTarget

POINTS = ("postgres.locked", "postgres.inserted", "postgres.committed")


_sessions: dict[str, psycopg.Connection[tuple[Any, ...]]] = {}


def ask(dsn: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """One statement, in a session that later ones use too."""
    known = _sessions.get(dsn)
    try:
        return _asked(known or _opened(dsn), statement, values)
    except psycopg.OperationalError:
        if known is None:
            raise
        # The server was killed since: nothing was asked yet.
        known.close()
        return _asked(_opened(dsn), statement, values)


def _opened(dsn: str) -> psycopg.Connection[tuple[Any, ...]]:
    _sessions[dsn] = psycopg.connect(dsn, autocommit=True, connect_timeout=10, prepare_threshold=None)
    return _sessions[dsn]


def _asked(
    session: psycopg.Connection[tuple[Any, ...]], statement: str, values: Sequence[Any]
) -> list[tuple[Any, ...]]:
    found = session.execute(statement.encode(), values)
    return found.fetchall() if found.description else []


def close_sessions() -> None:
    for session in _sessions.values():
        session.close()
    _sessions.clear()


def staged_in(dsn: str, table: str) -> list[str]:
    """What lies in the control schema for a table beside its markers: as the catalog says it, and as the schema's own list does."""
    if not ask(dsn, "SELECT 1 FROM pg_namespace WHERE nspname = 'twophase'"):
        return []
    prefix = f"staged_{hashlib.sha256(table.encode()).hexdigest()[:12]}_"
    tables = ask(
        dsn, "SELECT tablename FROM pg_tables WHERE schemaname = 'twophase' AND starts_with(tablename, %s)", prefix
    )
    rows = ask(dsn, "SELECT owner, attempt FROM twophase.staged WHERE target = %s", table)
    return [*(name for (name,) in tables), *(f"{owner} {attempt}" for owner, attempt in rows)]


class TableUnderTest(SinkTarget):
    """A table with a new name, which the sink creates."""

    fences = True
    arrow_types = frozenset(ARROW_COLUMNS) - {"null", "string with NUL"}
    failpoints: Sequence[str] = POINTS
    client_errors = (OSError, psycopg.OperationalError)
    many_slots = 120  # each is a table
    many_batches = 200
    many_failures = 10

    def __init__(self, dsn: str):
        self.dsn = dsn
        self.table = f"public.orders_{uuid.uuid4().hex}"
        self._typed: pa.DataType = pa.null()

    def sink(self) -> PostgresSink:
        return PostgresSink(self.dsn, self.table, create_table=True)

    def rebuilt(self, description: Description) -> PostgresSink:
        return PostgresSink.from_options(description.options)

    def read(self) -> Sequence[dict[str, Any]]:
        if ask(self.dsn, "SELECT to_regclass(%s)", self.table) == [(None,)]:
            return []
        cursor = _sessions[self.dsn].execute(f"SELECT * FROM {self.table}".encode())
        names = [column.name for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        return [{**row, TYPED: as_arrow_says(row.get(TYPED), self._typed)} for row in rows]

    def residue(self) -> Sequence[str]:
        return staged_in(self.dsn, self.table)

    def lose_a_row(self, owner: Owner, share: Share[Any]) -> bool:
        named = "SELECT staging FROM twophase.staged WHERE target = %s AND attempt = %s"
        ((staging,),) = ask(self.dsn, named, self.table, str(share.attempt))
        ask(self.dsn, f'DELETE FROM twophase."{staging}" WHERE ctid = (SELECT max(ctid) FROM twophase."{staging}")')
        return True

    def typed_batch(self, column: pa.Array[Any]) -> pa.RecordBatch | None:
        self._typed = column.type
        return super().typed_batch(column)


class KeysUnderTest(TableUnderTest):
    """The same with upserts: the number is the key."""

    def sink(self) -> PostgresSink:
        return PostgresSink(self.dsn, self.table, write_mode="upsert", key_columns=[VALUE], create_table=True)


class VersionsUnderTest(TableUnderTest):
    """The same in the mode mvcc: the table is a view, and what is not visible lies beside it."""

    def sink(self) -> PostgresSink:
        return PostgresSink(self.dsn, self.table, mode="mvcc", create_table=True)

    def lose_a_row(self, owner: Owner, share: Share[Any]) -> bool:
        """No: rows and the attempt's record are one transaction, on a table that outlives a crash. No commit counts them again."""
        return False

    def residue(self) -> Sequence[str]:
        return hidden_in(self.dsn, self.table)


class VersionKeysUnderTest(VersionsUnderTest):
    """Upserts with versions, of which few are kept."""

    def sink(self) -> PostgresSink:
        return PostgresSink(
            self.dsn,
            self.table,
            mode="mvcc",
            write_mode="upsert",
            key_columns=[VALUE],
            create_table=True,
            retain_epochs=1,
        )


class PreparedUnderTest(TableUnderTest):
    """The same in the mode xa: what is not visible are prepared transactions."""

    fences = False  # a task that has asked, and has not prepared yet, comes through
    failpoints = ("postgres.slot_committed",)
    many_slots = 100  # the server has room for twice as many

    def sink(self) -> PostgresSink:
        return PostgresSink(self.dsn, self.table, mode="xa", create_table=True)

    def lose_a_row(self, owner: Owner, share: Share[Any]) -> bool:
        """No: a prepared transaction is there, or it is not."""
        return False

    def residue(self) -> Sequence[str]:
        return prepared_in(self.dsn, self.table)

    def end(self) -> None:
        """What a test has left on purpose would take the room of others."""
        for gid in self.residue():
            ask(self.dsn, f"ROLLBACK PREPARED '{gid}'")


def prepared_in(dsn: str, table: str) -> list[str]:
    """Transactions for this table that belong to no session, by their names."""
    by_table = hashlib.sha256(table.encode()).hexdigest()[:12]
    found = ask(dsn, "SELECT gid FROM pg_prepared_xacts WHERE starts_with(gid, %s)", f"twophase.{by_table}.")
    return sorted(gid for (gid,) in found)


def hidden_in(dsn: str, table: str) -> list[str]:
    """Versions that no reader sees, and attempts that the control schema knows of."""
    if not ask(dsn, "SELECT 1 FROM pg_namespace WHERE nspname = 'twophase'"):
        return []
    rows = ask(dsn, "SELECT query, sink, attempt FROM twophase.attempts WHERE target = %s", table)
    found = [f"{query}/{sink} {attempt}" for query, sink, attempt in rows]
    if ask(dsn, "SELECT to_regclass(%s)", f"{table}_versions") == [(None,)]:
        return found
    visible = "coalesce((SELECT position FROM twophase.lines WHERE target = %s), -1000)"
    hidden = (
        f"SELECT DISTINCT twophase_position, twophase_attempt FROM {table}_versions WHERE twophase_position > {visible}"
    )
    return [*found, *(f"position {position}, attempt {attempt}" for position, attempt in ask(dsn, hidden, table))]


def as_arrow_says(value: Any, kind: pa.DataType) -> Any:
    """What a client reads, as Arrow gives the same value. In JSON, fields that are null are left out and dates are text."""
    if value is None:
        return None
    if types.is_struct(kind):
        return {field.name: as_arrow_says(value.get(field.name), field.type) for field in kind}
    if types.is_map(kind):
        return [(key, as_arrow_says(item, kind.item_type)) for key, item in value.items()]
    if types.is_uint64(kind) and value == int(value):
        return int(value)  # a numeric without places: PostgreSQL has no integer that is as large
    if types.is_date(kind) and isinstance(value, str):
        return datetime.date.fromisoformat(value)
    return value


class PostgresTarget(CrashTarget):
    """A table of the crash matrix. All cells share a server, so its name has the cell's folder in it."""

    title = "postgres"
    format = "twophase-postgres"
    points: ClassVar[Sequence[str]] = POINTS

    @property
    def dsn(self) -> str:
        return self.settings["dsn"]

    @property
    def table(self) -> str:
        return f"public.{self.folder.name}_{self.name}".replace("-", "_").lower()

    def options(self) -> Mapping[str, str]:
        # A driver that is frozen in its commit is given up by the server after a third of the time.
        return {"dsn": self.dsn, "table": self.table, "createTable": "true", "lockTimeoutMs": "9000"}

    def sink(self) -> PostgresSink:
        return PostgresSink.from_options(self.options())

    def read(self) -> Sequence[Order]:
        # A session of its own: a reader polls from another thread.
        with psycopg.connect(self.dsn, autocommit=True, connect_timeout=10) as connection:
            if connection.execute("SELECT to_regclass(%s)", (self.table,)).fetchone() == (None,):
                return []
            rows = connection.execute(f"SELECT id, name, amount FROM {self.table}".encode())
            return [(row[0], row[1], row[2]) for row in rows]

    def residue(self) -> Sequence[str]:
        return staged_in(self.dsn, self.table)

    @classmethod
    @contextmanager
    def surroundings(cls) -> Iterator[Surroundings]:
        with (
            tempfile.TemporaryDirectory(prefix="twophase-postgres-") as folder,
            postgres.on_this_machine(Path(folder)) as server,
        ):
            yield Surroundings({"dsn": server.endpoint}, {"postgres": server})


class VersionsTarget(PostgresTarget):
    """The same, in the mode mvcc."""

    title = "postgres-mvcc"
    one_owner = True

    def options(self) -> Mapping[str, str]:
        return {**super().options(), "mode": "mvcc"}

    def residue(self) -> Sequence[str]:
        return hidden_in(self.dsn, self.table)


class PreparedTarget(PostgresTarget):
    """The same, in the mode xa."""

    title = "postgres-xa"
    points: ClassVar[Sequence[str]] = ("postgres.slot_committed",)
    atomic = False  # slots commit one after the other
    fences = False

    def options(self) -> Mapping[str, str]:
        return {**super().options(), "mode": "xa"}

    def residue(self) -> Sequence[str]:
        return prepared_in(self.dsn, self.table)
