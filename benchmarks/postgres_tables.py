"""The tables of the benchmark: made for each run, counted by a client that knows nothing of twophase, and dropped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

import psycopg
import pyarrow as pa
from psycopg.conninfo import conninfo_to_dict

from benchmarks.processor_time import processor_s
from twophase.clients.postgres.database import close_idle
from twophase.sinks.postgres.sink import PostgresSink
from twophase.testing.child import pids_below
from twophase.testing.sink_steps import SinkSteps
from twophase.testing.sink_target import SinkTarget

Mode = Literal["wal", "mvcc", "xa"]

_TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "customer": pa.string(),
    "city": pa.string(),
    "amount": pa.float64(),
    "at": pa.timestamp("us", "UTC"),
    "note": pa.string(),
}
COLUMNS = pa.schema(_TYPES)
_SQL = 'id bigint, customer text, city text, amount double precision, "at" timestamptz, note text'


@contextmanager
def tables_at(dsn: str) -> Iterator[Tables]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield Tables(dsn, connection)
        close_idle()


class Tables:
    def __init__(self, dsn: str, connection: psycopg.Connection[tuple[Any, ...]]):
        self.dsn = dsn
        told = conninfo_to_dict(dsn)
        self.url = f"jdbc:postgresql://{told['host']}:{told['port']}/{told['dbname']}?user={told['user']}"
        self._connection = connection
        self._numbers = count(1)

    @contextmanager
    def new(self, mode: Mode | None, *, with_key: bool = False) -> Iterator[BenchTable]:
        """A table for one run; `mode` is None for JDBC, which gets what `wal` and `xa` get."""
        table = BenchTable(self.dsn, f"public.bench_{next(self._numbers)}", mode or "wal")
        if mode == "mvcc":
            SinkSteps(table).prepare(0, schema=COLUMNS)
            if with_key:
                # A key of versions can't be unique: a row may be there once for each attempt. What it costs to find rows by it can
                # be measured all the same.
                self._ask(f"CREATE INDEX ON {table.name}_versions (id)")
        else:
            self._ask(f"CREATE TABLE {table.name} ({_SQL}{', PRIMARY KEY (id)' if with_key else ''})")
        # What earlier runs have left to write is not this one's to pay.
        self._ask("CHECKPOINT")
        try:
            yield table
        finally:
            close_idle()
            doomed = f"{table.name}_versions" if mode == "mvcc" else table.name
            self._ask(f"DROP TABLE {doomed} CASCADE")
            self._ask("DROP SCHEMA IF EXISTS twophase CASCADE")

    def found(self, table: BenchTable) -> tuple[int, int]:
        """How many rows a reader sees, and the sum of their numbers."""
        ((rows, total),) = self._ask(f"SELECT count(*), coalesce(sum(id), 0)::bigint FROM {table.name}")
        return rows, total

    def server_processor_s(self) -> dict[int, float]:
        ((folder,),) = self._ask("SHOW data_directory")
        server = int(Path(folder, "postmaster.pid").read_text().split()[0])
        return processor_s([server, *pids_below(server)])

    def server_version(self) -> str:
        ((version,),) = self._ask("SHOW server_version")
        return str(version)

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        found = self._connection.execute(statement.encode())
        return found.fetchall() if found.description else []


class BenchTable(SinkTarget):
    """One table, and its sink."""

    def __init__(self, dsn: str, name: str, mode: Mode):
        self._dsn, self.name, self._mode = dsn, name, mode

    def sink(self) -> PostgresSink:
        return PostgresSink(self._dsn, self.name, mode=self._mode, create_table=True)

    def read(self) -> list[dict[str, Any]]:
        raise NotImplementedError("the benchmark counts, and reads no row")

    def residue(self) -> list[str]:
        raise NotImplementedError("the benchmark leaves nothing: it drops all")
