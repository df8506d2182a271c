"""PostgresLog: what is committed to published tables, transaction by transaction, from a replication slot.

::

    offset      {"lsn": the position after the last transaction that was read}
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

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa

from twophase.clients.postgres.database import Connection, Database
from twophase.clients.postgres.dsn import Dsn
from twophase.errors import DataLost, OptionError, TargetUnavailable, Unreadable
from twophase.options import parse
from twophase.secret import Secret
from twophase.source import NO_LIMIT, ReadLimit, Source
from twophase.sources.postgres.options import IGNORED, PostgresSourceOptions
from twophase.sources.postgres.pgoutput import CHANGES, COMMIT, Change, Decoder, Transaction

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
_PEEK = (
    "pg_logical_slot_peek_binary_changes(%(slot)s, %(until)s::pg_lsn, NULL, 'proto_version', '1', 'publication_names', "
    "%(publication)s)"
)


@dataclass(frozen=True)
class LogSplit:
    after: int
    until: int


@dataclass(frozen=True)
class Slot:
    """As the server knows it."""

    position: int
    """What was committed before is forgotten."""
    lost: bool


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
        self._slot, self._publication = options.slot or "", options.publication or ""
        self._database = Database(Dsn(options.dsn), options.request_timeout_ms / 1000, options.lock_timeout_ms)

    def schema(self) -> pa.Schema:
        return SCHEMA

    # ---- offsets ----

    def earliest(self) -> str:
        """Where the slot is; it is made, if it is not there."""
        return _to_text(self._database.run_alone(self._made, doing=f"asking for the slot {self._slot}").position)

    def newest(self) -> str:
        position, commits = self._database.run(self._commits, doing=self._doing)
        return _to_text(commits[-1][0] if commits else position)

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        begin, bound = _from_text(start), None if until is None else _from_text(until)
        position, commits = self._database.run(self._commits, doing=self._doing)
        self._require_kept(begin, position)
        limits = [most for most in (self._options.max_rows_per_trigger, limit.rows) if most is not None]
        room, end = min(limits) if limits else None, begin
        for commit, changes in commits:
            if commit <= begin:
                continue
            if bound is not None and commit > bound:
                break
            if room is not None and changes > room and end > begin:
                break
            room, end = None if room is None else room - changes, commit
        return _to_text(end)

    def acknowledge(self, end: str) -> None:
        position = _from_text(end)

        def work(connection: Connection) -> None:
            if self._found(connection).position < position:
                connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (self._slot, _shown(position)))

        self._database.run_alone(work, doing=f"moving the slot {self._slot} on")

    # ---- ranges ----

    def plan(self, start: str, end: str) -> Sequence[LogSplit]:
        split = LogSplit(_from_text(start), _from_text(end))
        if split.until <= split.after:
            return []
        self._require_kept(split.after, self._database.run(self._found, doing=self._doing).position)
        return [split]

    def read(self, split: LogSplit) -> Iterator[pa.RecordBatch]:
        doing = f"reading the changes up to {_shown(split.until)} from the slot {self._slot}"
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
        self._require_kept(split.after, self._found(connection).position)
        decoder = Decoder()
        with connection.cursor(name="twophase_changes") as cursor:
            cursor.itersize = _FETCHED_ROWS
            cursor.execute(f"SELECT xid::text::bigint, data FROM {_PEEK}", self._asked(split.until))
            for xid, message in cursor:
                transaction = decoder.take(message)
                if transaction is not None and split.after < transaction.end <= split.until:
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
        return f"looking into the slot {self._slot}"

    def _asked(self, until: int | None) -> dict[str, str | None]:
        quoted = '"' + self._publication.replace('"', '""') + '"'
        return {"slot": self._slot, "until": None if until is None else _shown(until), "publication": quoted}

    def _commits(self, connection: Connection) -> tuple[int, list[tuple[int, int]]]:
        """Where the slot is; and the ends of transactions after it, each with how many changes it has."""
        position = self._found(connection).position
        found = connection.execute(
            f"""
            SELECT max(encode(substring(data FROM 11 FOR 8), 'hex')) FILTER (WHERE get_byte(data, 0) = {COMMIT}),
                   count(*) FILTER (WHERE get_byte(data, 0) = ANY (%(changes)s))
            FROM {_PEEK} WITH ORDINALITY AS peeked (lsn, xid, data, place)
            GROUP BY xid::text ORDER BY max(place)
            """.encode(),
            {**self._asked(None), "changes": list(CHANGES)},
        )
        return position, [(int(end, 16), changes) for end, changes in found if changes]

    def _found(self, connection: Connection) -> Slot:
        slot = self._looked_up(connection)
        if slot is None:
            raise DataLost(
                f"the slot {self._slot} is gone, and with it what was not read yet: begin anew, with a new checkpoint"
            )
        if slot.lost:
            raise DataLost(
                f"the server has given the slot {self._slot} up (see wal_status in pg_replication_slots, and "
                "max_slot_wal_keep_size): what was not read is gone. Begin anew, with a new slot and a new checkpoint"
            )
        return slot

    def _looked_up(self, connection: Connection) -> Slot | None:
        found = connection.execute(
            "SELECT slot_type, plugin, database = current_database(), "
            "(confirmed_flush_lsn - '0/0')::text, coalesce(wal_status = 'lost', false) "
            "FROM pg_replication_slots WHERE slot_name = %s",
            (self._slot,),
        ).fetchone()
        if found is None:
            return None
        kind, plugin, is_here, position, lost = found
        if (kind, plugin, is_here) != ("logical", "pgoutput", True):
            problem = f"slot {self._slot!r} is there, and is no logical slot of this database with the plugin pgoutput"
            raise OptionError(problem, problems=[problem])
        return Slot(int(position), lost)

    def _made(self, connection: Connection) -> Slot:
        (((level,),),) = (connection.execute("SELECT current_setting('wal_level')").fetchall(),)
        if level != "logical":
            raise TargetUnavailable(f"wal_level of the server is {level}: set it to logical, and restart the server")
        published = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (self._publication,))
        if published.fetchone() is None:
            raise TargetUnavailable(
                f"there is no publication {self._publication!r}: CREATE PUBLICATION … FOR TABLE …, before the slot is made"
            )
        slot = self._looked_up(connection)
        if slot is None:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self._slot,))
        return self._found(connection)

    def _require_kept(self, begin: int, position: int) -> None:
        if begin < position:
            raise DataLost(
                f"the slot {self._slot} is at {_shown(position)}, and changes from {_shown(begin)} on are to be read: somebody "
                "else reads from it, or a checkpoint was restored. Begin anew, with a slot of its own and a new checkpoint"
            )


def _row(xid: int, transaction: Transaction, sequence: int, change: Change) -> tuple[Any, ...]:
    told = (change.operation, change.schema, change.table, change.old, change.new)
    return (*told, _shown(transaction.end), xid, transaction.committed_us + _MICROSECONDS_TO_2000, sequence)


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _shown(position: int) -> str:
    """As PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def _to_text(position: int) -> str:
    return json.dumps({"lsn": _shown(position)})


def _from_text(text: str) -> int:
    try:
        high, low = str(json.loads(text)["lsn"]).split("/")
        return (int(high, 16) << 32) | int(low, 16)
    except (ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"the offset {text!r} is none of a change log: {error!r}") from None
