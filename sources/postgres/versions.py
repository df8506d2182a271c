"""PostgresVersions: a table in the mode mvcc, epoch by epoch: pipelines chain, and what was there can be read as it was.

::

    offset      {"position": the newest epoch that was read, "table": the table's id in its database}
    latest      the position up to which the table's readers see it
    plan        how many rows each epoch has, beside how many it was committed with; then ranges of pages
    read        COPY of the rows of some epochs in some pages

The guarantee: the same (start, end) gives the same rows, in any process, however it is split: what is visible in a table of
versions never changes. If rows are gone, the range is refused, with the epochs that lack them. Undecided rows are never read.

Of an upserted table a range has one row for each key that was changed in it: the newest, or that it was deleted. Whoever applies
ranges one after the other has the table as it was after each. What was deleted before the first range began is left out: there is
nothing to delete. So the range from the beginning is the table as it was, which is what a batch reads.

A vacuum takes versions that newer ones have followed, up to the first epoch that is kept. What is newer is whole; and so is a range
from the beginning that ends there or later, because the newest version of each key is never taken. Any other range is refused. A
vacuum may come between the plan and the end of a read: so it is asked for once more after the last row.

What it can't do: notice that somebody has changed rows in place; or go on in a database that was restored from a dump, where the
table has another id and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg
import pyarrow as pa

from twophase.clients.postgres.database import Connection, Database
from twophase.clients.postgres.dsn import Dsn
from twophase.clients.postgres.table_name import CONTROL_SCHEMA, TableName, quoted
from twophase.clients.postgres.versions_table import (
    ATTEMPT,
    DELETED,
    ORDER,
    POSITION,
    acknowledge,
    acknowledged,
    enrol,
    first_recorded,
    kept_from,
    keys_of,
    pointer_of,
    rows_of,
    tags_of,
    versions_of,
)
from twophase.errors import DataLost, OptionError, SchemaMismatch, TargetUnavailable, Unreadable
from twophase.options import parse
from twophase.secret import Secret
from twophase.source import NO_LIMIT, ReadLimit, Source
from twophase.sources.postgres.column_types import ReadColumn, columns_of
from twophase.sources.postgres.copied_rows import copied
from twophase.sources.postgres.options import EARLIEST, IGNORED, LATEST, PostgresSourceOptions

EPOCH_COLUMN = "epoch"
_NOTHING = -1
_PAGE_BYTES = 8192


@dataclass(frozen=True)
class VersionsOffset:
    """How far a table was read."""

    position: int
    table: int
    """The object id of its versions. A table that was dropped and made anew has another one."""

    @classmethod
    def parse(cls, text: str) -> VersionsOffset:
        try:
            data = json.loads(text)
            return cls(int(data["position"]), int(data["table"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"the offset {text!r} is none of a table of versions: {error!r}") from None

    def to_text(self) -> str:
        return json.dumps({"position": self.position, "table": self.table}, sort_keys=True)


@dataclass(frozen=True)
class _Line:
    """A table as it is now."""

    position: int
    table: int
    keys: tuple[str, ...] = ()
    """By which it is upserted; none where rows are added."""
    kept: int = _NOTHING
    """The first epoch at which it can be read as it was."""
    is_vacuumed: bool = False
    """Whether anybody deletes what newer versions have followed."""

    @property
    def offset(self) -> VersionsOffset:
        return VersionsOffset(self.position, self.table)

    def has(self, after: int, until: int) -> bool:
        """Whether the changes of this range are all there."""
        return until >= self.kept and (after >= self.kept or after == _NOTHING)


@dataclass(frozen=True)
class VersionsSplit:
    """Rows of some epochs, in some pages."""

    table: int
    file: int
    """The file that the pages are of. If rows were moved to another one in between, as by VACUUM FULL, pages say nothing."""
    after: int
    until: int
    first_page: int
    end_page: int
    rows: int
    epochs: int
    """How many of them have rows here."""


class PostgresVersions(Source[VersionsSplit]):
    """A table that a query writes in the mode mvcc.

    Parameters
    ----------
    dsn:
        The database, as libpq takes it; a `Secret` if it holds one.
    versions_of:
        The table, as SQL names it.
    options:
        The other fields of `PostgresSourceOptions`.
    """

    start_moves = True
    _wanted: tuple[str, ...] | None = None
    """Columns; None: all that the table has."""

    def __init__(self, dsn: str | Secret, versions_of: str, **options: Any):
        given = PostgresSourceOptions(
            dsn=dsn if isinstance(dsn, Secret) else Secret(dsn), versions_of=versions_of, **options
        )
        problems = list(given.problems())
        if problems:
            raise OptionError("; ".join(problems), problems=problems)
        self._set(given)

    @classmethod
    def from_options(cls, given: Mapping[str, str], schema: pa.Schema | None = None) -> PostgresVersions:
        """By options as Spark hands them over; `schema` has the columns that the query was started with."""
        source = cls.__new__(cls)
        source._set(parse(PostgresSourceOptions, given, ignore=IGNORED))
        source._wanted = None if schema is None else tuple(schema.names)
        return source

    def _set(self, options: PostgresSourceOptions) -> None:
        self._options = options
        self._name = TableName.parse(options.versions_of or "")
        self._database = Database(Dsn(options.dsn), options.request_timeout_ms / 1000, options.lock_timeout_ms)

    def schema(self) -> pa.Schema:
        def work(connection: Connection) -> pa.Schema:
            return pa.schema([column.field for column in self._columns(connection, self._table(connection))])

        return self._database.run(work, doing=f"looking at the columns of {self._name}")

    # ---- offsets ----

    def earliest(self) -> str:
        """Where `startingEpoch` says, now."""
        said = self._options.starting_epoch
        if self._options.as_of_epoch is not None:
            raise _wrong("asOfEpoch is for a batch (spark.read); a stream begins at startingEpoch")
        now = self._followed()
        if said == LATEST:
            return now.offset.to_text()
        before = _NOTHING if said == EARLIEST else int(said) - 1
        if before > now.position:
            raise _wrong(f"startingEpoch is {said}, and {self._name} is at epoch {now.position}")
        return VersionsOffset(before, now.table).to_text()

    def newest(self) -> str:
        return self._now().offset.to_text()

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        begin = VersionsOffset.parse(start)
        self._enrol(begin)
        now = self._followed()
        self._require_same(begin, now)
        end = now.position if until is None else min(now.position, VersionsOffset.parse(until).position)
        if begin.position > _NOTHING or now.kept == _NOTHING:
            end = max(begin.position, self._admitted(begin.position, end, limit))
        # Otherwise the table as it is: its first epochs can't be taken one by one any more.
        if begin.position < end:
            self._require_kept(begin, end, now)
        return VersionsOffset(max(begin.position, end), now.table).to_text()

    def bounded(self) -> tuple[str, str]:
        """Where a batch begins and ends, by the options, now."""
        now, wanted = self._now(), self._options.as_of_epoch
        if self._options.starting_epoch != EARLIEST:
            raise _wrong("startingEpoch is for a stream; a batch has everything up to asOfEpoch")
        if self._options.delete_column is not None:
            raise _wrong("deleteColumn is for a stream; a batch has the rows that were not deleted")
        if wanted is not None and wanted > now.position:
            raise _wrong(f"asOfEpoch is {wanted}, and {self._name} is at epoch {now.position}")
        if wanted is not None and wanted < now.kept:
            raise _wrong(f"asOfEpoch is {wanted}, and {self._name} can be read as it was only from epoch {now.kept} on")
        end = now.position if wanted is None else wanted
        return VersionsOffset(_NOTHING, now.table).to_text(), VersionsOffset(end, now.table).to_text()

    def acknowledge(self, end: str) -> None:
        """What may be vacuumed now; of a reader without a name nobody wants to know."""
        reader = self._options.reader
        if reader is not None:
            told = partial(acknowledge, name=self._name, reader=reader, position=VersionsOffset.parse(end).position)
            self._database.run(told, doing=f"telling how far {reader!r} has read {self._name}")

    def _enrol(self, begin: VersionsOffset) -> None:
        """Before anything is read: whoever vacuums has to know who still wants what."""
        reader = self._options.reader
        if reader is None:
            return

        def work(connection: Connection) -> None:
            if acknowledged(connection, self._name, reader) is None:
                enrol(connection, self._name, reader, begin.position)

        self._database.run(work, doing=f"making {reader!r} known as a reader of {self._name}")

    def _now(self) -> _Line:
        return self._database.run(self._seen_by, doing=f"asking how far {self._name} is")

    def _followed(self) -> _Line:
        """The same for a stream, which must be told of keys that were deleted."""
        now = self._now()
        self._require_told(now.keys)
        if now.is_vacuumed and self._options.reader is None:
            raise _wrong(
                f"superseded versions of {self._name} are deleted (retainEpochs), and nobody waits for a query without a name: set "
                "the option reader, to a name that no other query has"
            )
        return now

    def _seen_by(self, connection: Connection) -> _Line:
        table, pointer = self._table(connection), pointer_of(connection, self._name)
        keys = keys_of(connection, table)
        # Only upserted tables are vacuumed; a schema of an older release, which has none, can't be asked.
        kept = kept_from(connection, self._name) if keys else None
        return _Line(
            _NOTHING if pointer is None else pointer, table, keys, _NOTHING if kept is None else kept, kept is not None
        )

    def _admitted(self, begin: int, end: int, limit: ReadLimit) -> int:
        """As many epochs as the limits allow, and one at least."""
        row_limits = [most for most in (self._options.max_rows_per_trigger, limit.rows) if most is not None]
        if self._options.max_epochs_per_trigger is not None:
            end = min(end, begin + self._options.max_epochs_per_trigger)
        if not row_limits or end <= begin:
            return end
        question = partial(rows_of, name=self._name, after=begin, until=end)
        counts = self._database.run(question, doing=f"asking how many rows {self._name} has")
        room, taken = min(row_limits), begin
        for position in range(begin + 1, end + 1):
            room -= counts.get(position, 0)
            if room < 0 and taken > begin:
                break
            taken = position
        return taken

    # ---- ranges ----

    def plan(self, start: str, end: str) -> Sequence[VersionsSplit]:
        begin, until = VersionsOffset.parse(start), VersionsOffset.parse(end)
        if until.position <= begin.position:
            return []
        question = partial(self._plan, begin, until)
        return self._database.run(question, doing=f"planning epochs {begin.position + 1} to {until.position}")

    def _plan(self, begin: VersionsOffset, until: VersionsOffset, connection: Connection) -> list[VersionsSplit]:
        now = self._seen_by(connection)
        self._require_same(begin, now)
        self._require_same(until, now)
        after, last = begin.position, until.position
        if after > _NOTHING:
            self._require_told(now.keys)
        found = _counted(connection, versions_of(self._name), after, last, now.keys)
        if now.keys:
            # Asked after they were counted: a vacuum that has come before that is seen.
            now = self._seen_by(connection)
            self._require_kept(begin, last, now)
        committed = rows_of(connection, self._name, after=after, until=last)
        first = first_recorded(connection, self._name)
        counted = range(max(after + 1, now.kept + 1, last + 1 if first is None else first), last + 1)
        self._require_whole(committed, found, counted)
        pages: dict[int, int] = {}
        epochs: dict[int, set[int]] = {}
        for each in found:
            if each.wanted:
                pages[each.page] = pages.get(each.page, 0) + each.wanted
                epochs.setdefault(each.page, set()).add(each.position)
        most = self._options.split_bytes // _PAGE_BYTES
        pages_each = max(1, min(most, -(-len(pages) // self._options.parallelism)))
        # Whoever counts holds the table to the end of the transaction: this is the file whose pages were counted.
        file, numbers = _file_of(connection, now.table), sorted(pages)
        cuts = [numbers[at : at + pages_each] for at in range(0, len(numbers), pages_each)]
        return [
            VersionsSplit(
                now.table,
                file,
                after,
                last,
                part[0],
                part[-1] + 1,
                rows=sum(pages[page] for page in part),
                epochs=len(set().union(*(epochs[page] for page in part))),
            )
            for part in cuts
        ]

    def read(self, split: VersionsSplit) -> Iterator[pa.RecordBatch]:
        doing = f"reading epochs {split.after + 1} to {split.until} of {self._name}"
        connection = self._database.connect(doing=doing)
        try:
            # Not by `run`, which repeats: rows that were handed out can't be taken back.
            yield from self._read(split, connection, doing)
        finally:
            connection.close()

    def _read(self, split: VersionsSplit, connection: Connection, doing: str) -> Iterator[pa.RecordBatch]:
        try:
            self._database.begin(connection)
            # Whoever rewrites or drops the table is waited for, or waits: what the catalog says from here on is what is read.
            connection.execute(f"LOCK TABLE {versions_of(self._name).sql} IN ACCESS SHARE MODE".encode())
            if self._table(connection) != split.table or _file_of(connection, split.table) != split.file:
                raise DataLost(f"{doing}: the table was made anew, or rewritten (VACUUM FULL, CLUSTER): start again")
            columns, rows = self._columns(connection, split.table), 0
            position, versions = quoted(POSITION), versions_of(self._name)
            where = (
                f"FROM {versions.sql} AS read WHERE {position} > {split.after} AND {position} <= {split.until} "
                f"AND ctid >= '({split.first_page},0)'::tid AND ctid < '({split.end_page},0)'::tid"
            )
            if keys := keys_of(connection, split.table):
                where += f" AND {_newest(versions, keys, split.after, split.until)}"
            # Pages that were emptied are filled again, so that an older epoch may lie behind a newer one.
            where += f" ORDER BY {position}, ctid" if split.epochs > 1 else ""
            for batch in copied(connection, columns, where):
                rows += batch.num_rows
                yield batch
            if keys:
                self._require_kept(VersionsOffset(split.after, split.table), split.until, self._seen_by(connection))
        except psycopg.Error as error:
            failure = self._database.explained(error, doing)
        else:
            if rows == split.rows:
                return
            failure = DataLost(f"{doing}: {rows} rows are there, and a moment ago there were {split.rows}. Start again")
        raise failure from None

    # ---- inside ----

    def _table(self, connection: Connection) -> int:
        """The object id of its versions."""
        versions = versions_of(self._name)
        found = connection.execute(
            "SELECT c.oid::bigint, (SELECT count(*) FROM pg_class o JOIN pg_namespace m ON m.oid = o.relnamespace "
            f"WHERE m.nspname = '{CONTROL_SCHEMA}' AND o.relname IN ('lines', 'epochs')) "
            f"+ (SELECT count(*) FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname IN ('{POSITION}', '{ATTEMPT}')) "
            "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE (n.nspname, c.relname) = (%s, %s)",
            (versions.schema, versions.name),
        ).fetchone()
        if found is None or found[1] < 4:
            raise TargetUnavailable(
                f"{self._name} is no table with versions, which would be in {versions}. Only a table that twophase writes with "
                "mode mvcc has some, from its first epoch on"
            )
        return int(found[0])

    def _columns(self, connection: Connection, table: int) -> list[ReadColumn]:
        tags = tags_of(keys_of(connection, table))
        columns = [column for column in columns_of(connection, table) if column.name not in tags]
        if self._options.delete_column is not None:
            name = self._options.delete_column
            if DELETED not in tags:
                raise _wrong(f"deleteColumn is for upserted tables, and rows of {self._name} are only ever added")
            self._require_free(name, "deleteColumn", columns)
            columns.append(ReadColumn(name, pa.bool_(), f"{quoted(DELETED)} IS TRUE", pa.bool_()))
        if self._options.include_epoch:
            self._require_free(EPOCH_COLUMN, "includeEpoch", columns)
            columns.append(ReadColumn(EPOCH_COLUMN, pa.int64(), quoted(POSITION), pa.int64()))
        if self._wanted is None:
            return columns
        by_name = {column.name: column for column in columns}
        if gone := [name for name in self._wanted if name not in by_name]:
            raise SchemaMismatch(f"{self._name} has lost columns since the query was started: {', '.join(gone)}")
        return [by_name[name] for name in self._wanted]

    def _require_free(self, name: str, option: str, columns: Sequence[ReadColumn]) -> None:
        if any(column.name.lower() == name.lower() for column in columns):
            raise _wrong(f"{option} adds a column {name}, and {self._name} has one")

    def _require_told(self, keys: Sequence[str]) -> None:
        if keys and self._options.delete_column is None:
            raise _wrong(
                f"{self._name} is upserted by {', '.join(keys)}: set deleteColumn to the name of a column that says which keys "
                "were deleted"
            )
        if not keys and self._options.delete_column is not None:
            raise _wrong(f"deleteColumn is for upserted tables, and rows of {self._name} are only ever added")

    def _require_kept(self, begin: VersionsOffset, until: int, now: _Line) -> None:
        if not now.has(begin.position, until):
            raise DataLost(
                f"the changes of {self._name} in epochs {begin.position + 1} to {until} are not all there any more: it can be read "
                f"as it was, and followed, only from epoch {now.kept} on (see retainEpochs). Begin anew, with a new checkpoint"
            )

    def _require_same(self, offset: VersionsOffset, now: _Line) -> None:
        if offset.table != now.table:
            raise DataLost(
                f"{self._name} is another table than the one that was read up to epoch {offset.position}: it was dropped and made "
                "anew, or its database was restored from a dump. Begin anew, with a new checkpoint"
            )
        if offset.position > now.position:
            raise DataLost(
                f"{self._name} is at epoch {now.position}, and was read up to epoch {offset.position}: its database was restored "
                "to an earlier moment"
            )

    def _require_whole(self, committed: Mapping[int, int], found: Sequence[_Counted], positions: range) -> None:
        there: dict[int, int] = {}
        for each in found:
            there[each.position] = there.get(each.position, 0) + each.rows
        wrong = [
            f"epoch {position} has {there.get(position, 0)} rows of {committed.get(position, 'an unknown number')}"
            for position in positions
            if there.get(position, 0) != committed.get(position)
        ]
        if wrong:
            more = f", and {len(wrong) - 5} epochs more" if len(wrong) > 5 else ""
            raise DataLost(
                f"{versions_of(self._name)} is not what was committed: {'; '.join(wrong[:5])}{more}. Somebody has deleted or added "
                "rows"
            )


def _wrong(problem: str) -> OptionError:
    return OptionError(problem, problems=[problem])


@dataclass(frozen=True)
class _Counted:
    """How many rows of one position lie in one page."""

    position: int
    page: int
    rows: int
    wanted: int
    """Those of them that a range has."""


def _counted(
    connection: Connection, versions: TableName, after: int, until: int, keys: Sequence[str]
) -> list[_Counted]:
    position, page = quoted(POSITION), "(ctid::text::point)[0]::bigint"
    if keys:
        newest = f"PARTITION BY {', '.join(map(quoted, keys))} ORDER BY {position} DESC, {quoted(ORDER)} DESC"
        is_wanted = f"row_number() OVER ({newest}) = 1 AND ({after} <> {_NOTHING} OR {quoted(DELETED)} IS NOT TRUE)"
    else:
        is_wanted = "true"
    found = connection.execute(
        f"SELECT position, page, count(*), count(*) FILTER (WHERE is_wanted) FROM "
        f"(SELECT {position} AS position, {page} AS page, {is_wanted} AS is_wanted FROM {versions.sql} "
        f"WHERE {position} > {after} AND {position} <= {until}) AS every GROUP BY 1, 2".encode()
    )
    return [_Counted(*row) for row in found]


def _newest(versions: TableName, keys: Sequence[str], after: int, until: int) -> str:
    """A condition: of `read`, the rows that a range has. What is newer than a row of it is in it too, or newer than its end."""
    position, order = quoted(POSITION), quoted(ORDER)
    same = " AND ".join(f"newer.{quoted(key)} = read.{quoted(key)}" for key in keys)
    newer = f"newer.{position} <= {until} AND (newer.{position}, newer.{order}) > (read.{position}, read.{order})"
    condition = f"NOT EXISTS (SELECT FROM {versions.sql} AS newer WHERE {same} AND {newer})"
    return condition if after > _NOTHING else f"{condition} AND read.{quoted(DELETED)} IS NOT TRUE"


def _file_of(connection: Connection, table: int) -> int:
    ((file,),) = connection.execute("SELECT pg_relation_filenode(%s::oid)::bigint", (table,)).fetchall()
    return int(file)
