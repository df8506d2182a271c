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

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from twophase.sources.postgres.text_form import pin

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


_OFFSET = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_SKIPPED = "55000"
_PAUSE_S = 0.2


@dataclass(frozen=True)
class LogOffset:
    """A position in the log of one server, on one of its timelines."""

    position: int
    system: str
    timeline: int

    @classmethod
    def parse(cls, text: str) -> LogOffset:
        try:
            data = json.loads(text)
            found = _OFFSET.fullmatch(data["lsn"])
            if found is None:
                raise ValueError(data["lsn"])
            return cls((int(found[1], 16) << 32) | int(found[2], 16), str(data["system"]), int(data["timeline"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"the offset {text!r} is none of a change log: {error!r}") from None

    def to_text(self) -> str:
        return json.dumps({"lsn": _shown(self.position), "system": self.system, "timeline": self.timeline})


@dataclass(frozen=True)
class LogSplit:
    after: LogOffset
    until: int


@dataclass(frozen=True)
class Peeked:
    """What a slot has."""

    start: LogOffset
    written: int
    """Where the server's log ends."""
    commits: list[tuple[int, int]]
    """The ends of transactions, in their order, each with how many changes it has."""

    def at(self, position: int) -> LogOffset:
        return replace(self.start, position=position)


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
        self._make()
        return self._database.run(self._found, doing=self._doing).to_text()

    def newest(self) -> str:
        # Spark asks for it before it asks where to begin. One that is gone is made anew, and noticed by `latest`.
        self._make()
        peeked = self._database.run(self._peeked, doing=self._doing)
        return peeked.at(peeked.commits[-1][0] if peeked.commits else peeked.start.position).to_text()

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        begin, bound = LogOffset.parse(start), None if until is None else LogOffset.parse(until).position
        peeked = self._database.run(self._peeked, doing=self._doing)
        self._require_kept(begin, peeked.start, peeked.written)
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

        def work(connection: Connection) -> None:
            if self._found(connection).position < offset.position:
                shown = _shown(offset.position)
                connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (self._slot, shown))

        self._database.run(work, doing=f"moving the slot {self._slot} on")

    # ---- ranges ----

    def plan(self, start: str, end: str) -> Sequence[LogSplit]:
        begin, until = LogOffset.parse(start), LogOffset.parse(end)
        if until.position <= begin.position:
            return []

        def work(connection: Connection) -> None:
            self._require_published(connection)
            self._require_kept(begin, self._found(connection), _written(connection))

        self._database.run(work, doing=self._doing)
        return [LogSplit(begin, until.position)]

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
        decoder = Decoder()
        self._found(connection)
        with self._patiently_opened(connection, split) as cursor:
            # The slot may have been moved before it was peeked into: now it was, whole.
            self._require_kept(split.after, self._found(connection), _written(connection))
            while messages := cursor.fetchmany(_FETCHED_ROWS):
                for xid, message in messages:
                    transaction = decoder.take(message)
                    if transaction is not None and split.after.position < transaction.end <= split.until:
                        yield xid, transaction

    @contextmanager
    def _patiently_opened(
        self, connection: Connection, split: LogSplit
    ) -> Iterator[psycopg.ServerCursor[tuple[Any, ...]]]:
        """The messages, of which none is fetched yet. A slot has one reader at a time: a reader that was killed is one for as long
        as its server process has not noticed."""
        deadline = time.monotonic() + self._options.request_timeout_ms / 1000
        while True:
            # A consumer that takes its time between two batches is not asleep.
            pin(
                connection,
                statement_timeout="0",
                idle_in_transaction_session_timeout="0",
                client_min_messages="warning",
            )
            cursor = connection.cursor(name="twophase_changes", scrollable=True)
            try:
                with _warnings_of(connection) as told:
                    cursor.execute(f"SELECT xid::text::bigint, data FROM {_PEEK}".encode(), self._asked(split.until))
                    cursor.fetchone()  # the function runs to its end before it gives its first row
                    cursor.scroll(0, mode="absolute")
            except psycopg.errors.ObjectInUse:
                connection.rollback()
                cursor.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
                continue
            self._require_whole(told)
            break
        with cursor:
            yield cursor

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

    def _peeked(self, connection: Connection) -> Peeked:
        self._require_published(connection)
        self._found(connection)
        with _warnings_of(connection) as told:
            connection.execute("SELECT set_config('client_min_messages', 'warning', true)")
            found = connection.execute(
                f"""
                SELECT max(encode(substring(data FROM 11 FOR 8), 'hex')) FILTER (WHERE get_byte(data, 0) = {COMMIT}),
                       count(*) FILTER (WHERE get_byte(data, 0) = ANY (%(changes)s))
                FROM {_PEEK} WITH ORDINALITY AS peeked (lsn, xid, data, place)
                GROUP BY xid::text ORDER BY max(place)
                """.encode(),
                {**self._asked(None), "changes": list(CHANGES)},
            ).fetchall()
        self._require_whole(told)
        # Asked after the peek: what was moved before it is not in it.
        slot, written = self._found(connection), _written(connection)
        return Peeked(slot, written, [(int(end, 16), changes) for end, changes in found if changes])

    def _found(self, connection: Connection) -> LogOffset:
        """Where the slot is."""
        slot = self._looked_up(connection)
        if slot is None:
            raise DataLost(
                f"the slot {self._slot} is gone, and with it what was not read yet: begin anew, with a new checkpoint"
            )
        return slot

    def _looked_up(self, connection: Connection) -> LogOffset | None:
        found = connection.execute(
            "SELECT slot_type, plugin, database = current_database(), two_phase, (confirmed_flush_lsn - '0/0')::text, "
            "coalesce(wal_status = 'lost', false), (SELECT system_identifier::text FROM pg_control_system()), "
            # The name of the file that is being written begins with the timeline; the control file lags behind a promotion.
            "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int "
            "FROM pg_replication_slots WHERE slot_name = %s",
            (self._slot,),
        ).fetchone()
        if found is None:
            return None
        kind, plugin, is_here, two_phase, position, lost, system, timeline = found
        if (kind, plugin, is_here, two_phase) != ("logical", "pgoutput", True, False):
            raise _wrong(
                f"slot {self._slot!r} is there, and is no logical slot of this database with the plugin pgoutput and without "
                "two_phase"
            )
        if lost:
            raise DataLost(
                f"the server has given the slot {self._slot} up (see wal_status in pg_replication_slots, and "
                "max_slot_wal_keep_size): what was not read is gone. Begin anew, with a new slot and a new checkpoint"
            )
        if position is None:
            raise TargetUnavailable(
                f"the slot {self._slot} is just being made, which waits for every transaction that is open (pg_stat_activity, "
                "pg_prepared_xacts)"
            )
        return LogOffset(int(position), system, timeline)

    def _make(self) -> None:
        """The slot, if it is not there."""

        def work(connection: Connection) -> None:
            (level,) = connection.execute("SELECT current_setting('wal_level')").fetchall()[0]
            if level != "logical":
                raise TargetUnavailable(
                    f"wal_level of the server is {level}: set it to logical, and restart the server"
                )
            self._require_published(connection)
            if self._looked_up(connection) is None:
                connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self._slot,))

        self._database.run(work, doing=f"making the slot {self._slot}")

    def _require_published(self, connection: Connection) -> None:
        published = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (self._publication,))
        if published.fetchone() is None:
            raise TargetUnavailable(
                f"there is no publication {self._publication!r}: CREATE PUBLICATION … FOR TABLE …, before the slot is made"
            )

    def _require_whole(self, told: Sequence[str]) -> None:
        """A server tells by a warning that it leaves out changes of a time in which the publication was not there."""
        if told:
            raise DataLost(
                f"the publication {self._publication!r} was not there when some of the changes were made, and nobody can tell "
                f"which ({told[0]}). Begin anew, with a new slot and a new checkpoint"
            )

    def _require_kept(self, begin: LogOffset, slot: LogOffset, written: int) -> None:
        if (begin.system, begin.timeline) != (slot.system, slot.timeline):
            raise DataLost(
                f"the log was read up to {_shown(begin.position)} on the timeline {begin.timeline} of the server {begin.system}, "
                f"and this is the timeline {slot.timeline} of {slot.system}: a standby has taken over, a backup was restored, or "
                "it is another server. Positions mean something else here. Begin anew, with a new checkpoint"
            )
        if begin.position > written:
            raise DataLost(
                f"the server's log ends at {_shown(written)}, and was read up to {_shown(begin.position)}: it was set back"
            )
        if begin.position < slot.position:
            raise DataLost(
                f"the slot {self._slot} is at {_shown(slot.position)}, and changes from {_shown(begin.position)} on are to be "
                "read: somebody else reads from it, or a checkpoint was restored. Begin anew, with a slot of its own and a "
                "new checkpoint"
            )


@contextmanager
def _warnings_of(connection: Connection) -> Iterator[list[str]]:
    """What the server says that it has left out, within the context."""
    told: list[str] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == _SKIPPED:
            told.append(notice.message_primary or "")  # now: afterwards the notice is empty

    connection.add_notice_handler(hear)
    try:
        yield told
    finally:
        connection.remove_notice_handler(hear)


def _written(connection: Connection) -> int:
    """Where the server's log ends."""
    ((position,),) = connection.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::text").fetchall()
    return int(position)


def _wrong(problem: str) -> OptionError:
    return OptionError(problem, problems=[problem])


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
