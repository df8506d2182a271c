"""PostgresLog: what is committed to published tables, transaction by transaction, from a replication slot.

::

    offset      {"lsn": the position after the last transaction that was read, and whose log it is}
    latest      the slot is peeked: where transactions end, and how many changes each has
    plan        one split: a slot has one reader at a time
    read        peeked again, and decoded; transactions that end within the range
    acknowledge the slot moves there, and the server forgets what is before

The guarantee: the same (start, end) gives the same changes in the same order, whole transactions in the order of their commits,
until it is acknowledged. A range that begins before the slot's position is refused, and never read in part.

What it can't do. The server decodes a range anew each time that it is read, beginning at the slot, and one at a time. A slot keeps
the server's log until it is read: a query that is gone for good needs its slot dropped, and where published tables are quiet while
others are busy, the log grows until the next change of a published one. A large value that an update left as it was is not in
`new`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from twophase.clients.postgres.database import Connection, Database
from twophase.clients.postgres.dsn import Dsn
from twophase.errors import OptionError
from twophase.options import parse
from twophase.secret import Secret
from twophase.source import NO_LIMIT, ReadLimit, Source
from twophase.sources.postgres.options import IGNORED, PostgresSourceOptions
from twophase.sources.postgres.pgoutput import Change, Decoder, Transaction
from twophase.sources.postgres.slot import LogOffset, Slot, end_of_log, shown

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("operation", pa.string()),
    ("schema", pa.string()),
    ("table", pa.string()),
    ("old", pa.string()),
    ("new", pa.string()),
    ("lsn", pa.string()),
    ("xid", pa.int64()),
    ("commit_time", pa.timestamp("us", "UTC")),
    ("sequence", pa.int64()),
]
SCHEMA = pa.schema(_COLUMNS)
_BATCH_ROWS = 10_000
_FETCHED_ROWS = 1_000
_MICROSECONDS_TO_2000 = 946_684_800_000_000


@dataclass(frozen=True)
class LogSplit:
    after: LogOffset
    until: int


class PostgresLog(Source[LogSplit]):
    """Changes of the tables of a publication.

    Parameters
    ----------
    dsn:
        The database, as libpq takes it; a `Secret` if it holds one.
    publication, slot:
        As in `CREATE PUBLICATION`, and the name of a logical replication slot, which is this query's alone.
    options:
        The other fields of `PostgresSourceOptions`.
    """

    start_moves = True

    def __init__(self, dsn: str | Secret, publication: str, slot: str, **options: Any):
        given = PostgresSourceOptions(
            dsn=dsn if isinstance(dsn, Secret) else Secret(dsn), publication=publication, slot=slot, **options
        )
        problems = list(given.problems())
        if problems:
            raise OptionError("; ".join(problems), problems=problems)
        self._set(given)

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> PostgresLog:
        source = cls.__new__(cls)
        source._set(parse(PostgresSourceOptions, given, ignore=IGNORED))
        return source

    def _set(self, options: PostgresSourceOptions) -> None:
        self._options = options
        self._slot = Slot(options.slot or "", options.publication or "")
        self._database = Database(Dsn(options.dsn), options.request_timeout_ms / 1000, options.lock_timeout_ms)

    def schema(self) -> pa.Schema:
        return SCHEMA

    # ---- offsets ----

    def earliest(self) -> str:
        """Where the slot is; it is made, if it is not there."""
        self._make()
        return self._database.run(self._slot.found, doing=self._doing).to_text()

    def newest(self) -> str:
        # Spark asks for it before it asks where to begin. One that is gone is made anew, and noticed by `latest`.
        self._make()
        peeked = self._database.run(self._slot.peeked, doing=self._doing)
        return peeked.at(peeked.commits[-1][0] if peeked.commits else peeked.start.position).to_text()

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        begin, bound = LogOffset.parse(start), None if until is None else LogOffset.parse(until).position
        peeked = self._database.run(self._slot.peeked, doing=self._doing)
        self._slot.require_kept(begin, peeked.start, peeked.written)
        limits = [most for most in (self._options.max_rows_per_trigger, limit.rows) if most is not None]
        room, end = min(limits) if limits else None, begin.position
        for commit, changes in peeked.commits:
            if commit <= begin.position:
                continue
            if bound is not None and commit > bound:
                break
            if room is not None and changes > room and end > begin.position:
                break
            room, end = None if room is None else room - changes, commit
        return peeked.at(end).to_text()

    def acknowledge(self, end: str) -> None:
        offset = LogOffset.parse(end)

        self._database.run(
            lambda connection: self._slot.advance(connection, offset.position),
            doing=f"moving the slot {self._slot.name} on",
        )

    # ---- ranges ----

    def plan(self, start: str, end: str) -> Sequence[LogSplit]:
        begin, until = LogOffset.parse(start), LogOffset.parse(end)
        if until.position <= begin.position:
            return []

        def work(connection: Connection) -> None:
            self._slot.require_published(connection)
            self._slot.require_kept(begin, self._slot.found(connection), end_of_log(connection))

        self._database.run(work, doing=self._doing)
        return [LogSplit(begin, until.position)]

    def read(self, split: LogSplit) -> Iterator[pa.RecordBatch]:
        doing = f"reading the changes up to {shown(split.until)} from the slot {self._slot.name}"
        connection = self._database.connect(doing=doing)
        try:
            # Not by `run`, which repeats: rows that were handed out can't be taken back.
            yield from self._batches(self._transactions(connection, split))
        except psycopg.Error as error:
            failure = self._database.explained(error, doing)
        else:
            return
        finally:
            connection.close()
        raise failure from None

    def _transactions(self, connection: Connection, split: LogSplit) -> Iterator[tuple[int, Transaction]]:
        decoder = Decoder()
        self._slot.found(connection)
        patience_s = self._options.request_timeout_ms / 1000
        with self._slot.opened(connection, split.until, patience_s=patience_s) as cursor:
            # The slot may have been moved before it was peeked into: now it was, whole.
            self._slot.require_kept(split.after, self._slot.found(connection), end_of_log(connection))
            while messages := cursor.fetchmany(_FETCHED_ROWS):
                for xid, message in messages:
                    transaction = decoder.take(message)
                    if transaction is not None and split.after.position < transaction.end <= split.until:
                        yield xid, transaction

    def _batches(self, transactions: Iterator[tuple[int, Transaction]]) -> Iterator[pa.RecordBatch]:
        rows: list[tuple[Any, ...]] = []
        for xid, transaction in transactions:
            for sequence, change in enumerate(transaction.changes):
                rows.append(_row(xid, transaction, sequence, change))
                if len(rows) == _BATCH_ROWS:
                    yield _batch(rows)
                    rows = []
        if rows:
            yield _batch(rows)

    # ---- inside ----

    @property
    def _doing(self) -> str:
        return f"looking into the slot {self._slot.name}"

    def _make(self) -> None:
        self._database.run(self._slot.make, doing=f"making the slot {self._slot.name}")


def _row(xid: int, transaction: Transaction, sequence: int, change: Change) -> tuple[Any, ...]:
    told = (change.operation, change.schema, change.table, change.old, change.new)
    return (*told, shown(transaction.end), xid, transaction.committed_us + _MICROSECONDS_TO_2000, sequence)


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
