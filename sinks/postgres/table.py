"""The table that rows go to: what it is, whether the rows fit, how it is created, and how it gets the columns that it lacks.

Everything that can be told before a row is written is told then, in one error: a commit that fails after the decision stops the
query until somebody mends the table.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
import pyarrow as pa

from twophase.clients.postgres.database import Connection
from twophase.clients.postgres.table_name import BadName, TableName, quoted, require_name
from twophase.errors import SchemaMismatch, TargetUnavailable
from twophase.sinks.postgres.column_types import ColumnType, encoder, sql_type
from twophase.sinks.postgres.upsert import ORDINAL, Upsert

_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "i": "an index",
    "c": "a type",
}
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod) ||
       CASE WHEN c.oid IS NULL THEN '' ELSE format(' COLLATE %%I.%%I', cn.nspname, c.collname) END, b.typname, b.typtype,
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END, coalesce(e.typname, ''), coalesce(e.oid, 0)::bigint,
       a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a'
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
LEFT JOIN pg_collation c ON c.oid = a.attcollation AND a.attcollation <> t.typcollation
LEFT JOIN pg_namespace cn ON cn.oid = c.collnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_CHECKS = """
SELECT pg_get_expr(c.conbin, c.conrelid) FROM pg_constraint c
WHERE c.conrelid = %s AND c.contype = 'c' AND c.convalidated AND NOT EXISTS (
    SELECT FROM pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = ANY(c.conkey) AND NOT a.attname = ANY(%s))
ORDER BY c.conname
"""


@dataclass(frozen=True)
class TableColumn:
    name: str
    type: ColumnType
    is_required: bool
    """No row may lack it: it can't be null."""
    has_default: bool
    is_generated: bool
    """Its values can't be given."""


@dataclass(frozen=True)
class Layout:
    """The columns that an epoch writes, and what their values must keep to: travels to tasks in the plan."""

    columns: tuple[TableColumn, ...]
    checks: tuple[str, ...]
    """Conditions of the table, in SQL."""
    upsert: Upsert | None = None

    def to_details(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_details(cls, details: Mapping[str, Any]) -> Layout | None:
        """None where the plan was made before the columns were known."""
        if "columns" not in details:
            return None
        columns = (TableColumn(**{**told, "type": ColumnType(**told["type"])}) for told in details["columns"])
        upsert = None if details["upsert"] is None else Upsert(**details["upsert"])
        return cls(tuple(columns), tuple(details["checks"]), upsert)

    @property
    def row_columns(self) -> tuple[TableColumn, ...]:
        """Those that rows come with: the table's, and the one that says delete."""
        if self.upsert is None or not self.upsert.delete:
            return self.columns
        return (*self.columns, TableColumn(self.upsert.delete, ColumnType("boolean", "bool"), False, False, False))

    def staging_sql(self) -> str:
        """The columns of a staging table. Whatever a row could violate by itself it violates here, in its task, and not in the
        commit, when the epoch is decided."""
        keys = () if self.upsert is None else self.upsert.keys
        unless = f"{quoted(self.upsert.delete)} IS TRUE OR " if self.upsert is not None and self.upsert.delete else ""
        columns = [
            f"{quoted(c.name)} {c.type.shown}{' NOT NULL' if c.name in keys or (c.is_required and not unless) else ''}"
            for c in self.row_columns
        ]
        if self.upsert is not None:
            columns.append(f"{quoted(ORDINAL)} bigint NOT NULL")
        # A row that is to be deleted needs its key, and nothing else.
        required = [f"{quoted(c.name)} IS NOT NULL" for c in self.columns if c.is_required and unless]
        checks = [f"CHECK ({unless}({condition}))" for condition in (*required, *self.checks)]
        return ", ".join([*columns, *checks])

    @property
    def names_sql(self) -> str:
        names = [column.name for column in self.row_columns]
        return ", ".join(map(quoted, names if self.upsert is None else [*names, ORDINAL]))


def look_up(connection: Connection, table: TableName) -> int | None:
    """Its object id; None if there is nothing of this name. Refuses what rows can't be committed to, or would not stay in."""
    found = connection.execute(
        "SELECT c.oid::bigint, c.relkind, c.relpersistence FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s",
        (table.schema, table.name),
    ).fetchone()
    if found is None:
        return None
    oid, kind, persistence = found
    if kind not in ("r", "p"):
        raise SchemaMismatch(f"{table} is {_KINDS.get(kind, 'something else')}, and not an ordinary table")
    if persistence != "p":
        # Its marker would stay when a crash of the server empties it: rows would be missing without a word.
        raise SchemaMismatch(
            f"{table} is unlogged or temporary, and loses its rows when the server crashes: ALTER TABLE … SET LOGGED"
        )
    return int(oid)


def prepared(
    connection: Connection,
    name: TableName,
    schema: pa.Schema,
    upsert: Upsert | None,
    *,
    create_it: bool,
    before_adding: Callable[[Connection], None] | None,
) -> Layout:
    """How rows of this schema are written to the table, which is created if it is not there and may be. Columns that it lacks are
    added if `before_adding`, which may refuse, is given."""
    oid = look_up(connection, name)
    if oid is None and create_it:
        create(connection, name, schema, upsert)
        oid = look_up(connection, name)
    if oid is None:
        raise TargetUnavailable(f"there is no table {name}: create it, or set createTable to true")
    lacking = () if upsert is None else tuple(upsert.lacking(connection, name, oid))
    if before_adding is not None:
        added = require_fit(connection, name, oid, schema, upsert, lacking=lacking)
        if added:
            before_adding(connection)
            add_columns(connection, name, added)
    layout = layout_for(connection, name, oid, schema, upsert, lacking=lacking)
    require_rights(connection, name, oid, layout, ("INSERT",) if upsert is None else upsert.rights)
    return layout


def columns_sql(table: TableName, schema: pa.Schema, upsert: Upsert | None) -> list[str]:
    """The columns of a new table, one each."""
    problems = [*_wrong_keys(schema, upsert), *_bad_names(schema)]
    kept = _kept(schema, upsert)
    problems += [_unheld(field) for field in kept if sql_type(field.type) is None]
    if problems:
        raise _mismatch(table, problems)
    return [f"{quoted(field.name)} {sql_type(field.type)}" for field in kept]


def create(connection: Connection, table: TableName, schema: pa.Schema, upsert: Upsert | None) -> None:
    parts = columns_sql(table, schema, upsert)
    if upsert is not None:
        parts.append(f"PRIMARY KEY ({upsert.keys_sql})")
    connection.execute(f"CREATE TABLE IF NOT EXISTS {table.sql} ({', '.join(parts)})")


def add_columns(connection: Connection, table: TableName, fields: Sequence[pa.Field[Any]]) -> None:
    """Whoever has added one meanwhile may have given it another type: look at the table again."""
    added = ", ".join(f"ADD COLUMN IF NOT EXISTS {quoted(field.name)} {sql_type(field.type)}" for field in fields)
    statement = f"ALTER TABLE {table.sql} {added}"
    try:
        connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege:
        raise TargetUnavailable(f"the user lacks a right: only the owner of {table} may run {statement}") from None


def require_fit(
    connection: Connection,
    table: TableName,
    oid: int,
    schema: pa.Schema,
    upsert: Upsert | None,
    *,
    tags: Collection[str] = (),
    lacking: Iterable[str] = (),
) -> list[pa.Field[Any]]:
    """The columns that the table lacks, and may be given; SchemaMismatch with everything else that keeps these rows from it.

    `tags` are columns of ours, `lacking` is what else is wrong with the table.
    """
    there, kept = _there(connection, oid, tags), _kept(schema, upsert)
    added = [field for field in kept if field.name not in there and not _nearly(field.name, there)]
    _require_fit(table, there, schema, upsert, added, lacking)
    return added


def layout_for(
    connection: Connection,
    table: TableName,
    oid: int,
    schema: pa.Schema,
    upsert: Upsert | None,
    *,
    tags: Collection[str] = (),
    lacking: Iterable[str] = (),
) -> Layout:
    """How these rows are written to the table, as it is; SchemaMismatch with everything that keeps them from it."""
    there, kept = _there(connection, oid, tags), _kept(schema, upsert)
    _require_fit(table, there, schema, upsert, (), lacking)
    checks = tuple(row[0] for row in connection.execute(_CHECKS, (oid, kept.names)))
    return Layout(tuple(there[name] for name in kept.names), checks, upsert)


def _require_fit(
    table: TableName,
    there: Mapping[str, TableColumn],
    schema: pa.Schema,
    upsert: Upsert | None,
    added: Sequence[pa.Field[Any]],
    lacking: Iterable[str],
) -> None:
    problems = [*_bad_names(schema), *_wrong_keys(schema, upsert)]
    problems += [_unheld(field) for field in added if sql_type(field.type) is None]
    problems += _differences(there, pa.schema([field for field in _kept(schema, upsert) if field not in added]))
    problems += lacking
    if upsert is not None and upsert.delete in there:
        problems.append(f"the table has a column {upsert.delete!r}, and deleteColumn is one of the rows alone")
    if problems:
        raise _mismatch(table, problems)


def require_unchanged(connection: Connection, table: TableName, layout: Layout) -> None:
    """That the table, to which this transaction has written, is what its task was planned for. A binary form does not tell a type:
    a bigint that is written to a column that has become double precision is another number, without a word."""
    # Whoever alters the table waits for this transaction from its first row on: what it is now, it was when that came.
    oid = look_up(connection, table)
    there = {} if oid is None else _there(connection, oid, ())
    changed = [column.name for column in layout.columns if _type_of(there.get(column.name)) != column.type]
    if changed:
        raise SchemaMismatch(f"{table} was altered while the epoch was written: {', '.join(changed)}. Start again")


def _type_of(column: TableColumn | None) -> ColumnType | None:
    return None if column is None else column.type


def _there(connection: Connection, oid: int, tags: Collection[str]) -> dict[str, TableColumn]:
    return {
        row[0]: TableColumn(row[0], ColumnType(*row[1:7]), *row[7:])
        for row in connection.execute(_COLUMNS, (oid,))
        if row[0] not in tags
    }


def _kept(schema: pa.Schema, upsert: Upsert | None) -> pa.Schema:
    """What the table has of the rows: not the column that says delete."""
    return pa.schema([field for field in schema if upsert is None or field.name != upsert.delete])


def require_rights(connection: Connection, table: TableName, oid: int, layout: Layout, needed: Sequence[str]) -> None:
    names = [column.name for column in layout.columns]
    lacking, user = connection.execute(
        "SELECT array_agg(DISTINCT needed), quote_ident(current_user) "
        "FROM unnest(%s::text[]) AS name, unnest(%s::text[]) AS needed "
        "WHERE CASE needed WHEN 'DELETE' THEN NOT has_table_privilege(%s::oid, needed) "
        "ELSE NOT has_column_privilege(%s::oid, name, needed) END",
        (names, list(needed), oid, oid),
    ).fetchall()[0]
    if lacking:
        raise TargetUnavailable(f"the user lacks a right: GRANT {', '.join(lacking)} ON {table.sql} TO {user}")


def _wrong_keys(schema: pa.Schema, upsert: Upsert | None) -> Iterator[str]:
    if upsert is None:
        return
    for key in upsert.keys:
        if key not in schema.names:
            yield f"the rows have no column {key!r}, which is one of keyColumns"
    if upsert.delete and (upsert.delete not in schema.names or schema.field(upsert.delete).type != pa.bool_()):
        yield f"the rows have no boolean column {upsert.delete!r}, which is deleteColumn"
    if ORDINAL in schema.names:
        yield f"the rows have a column {ORDINAL!r}, which is a name of ours"


def _differences(there: Mapping[str, TableColumn], schema: pa.Schema) -> Iterator[str]:
    for field in schema:
        column = there.get(field.name)
        if column is None:
            yield f"the table has no column {field.name!r}{_nearly(field.name, there)}"
        elif column.is_generated:
            yield f"the column {field.name!r} is generated by the database"
        elif encoder(field.type, column.type) is None:
            wanted = sql_type(field.type)
            yield (
                _unheld(field)
                if wanted is None
                else (
                    f"the column {field.name!r} is {column.type.shown}, and the rows have {field.type}, which needs {wanted}"
                )
            )
    for column in there.values():
        if column.name not in schema.names and column.is_required and not (column.has_default or column.is_generated):
            yield f"the rows have no column {column.name!r}, which may not be null and has no default"


def _nearly(name: str, there: Mapping[str, TableColumn]) -> str:
    """PostgreSQL makes unquoted names small, and Spark does not look at case: both are easily missed."""
    same = [each for each in there if each.lower() == name.lower()]
    return f" (it has {same[0]!r}: case counts)" if same else ""


def _bad_names(schema: pa.Schema) -> Iterator[str]:
    if not schema.names:
        yield "the rows have no columns"
    for name in schema.names:
        try:
            require_name(name)
        except BadName as reason:
            yield f"the column {name!r} {reason}"
        if schema.names.count(name) > 1:
            yield f"the rows have the column {name!r} twice"


def _unheld(field: pa.Field[Any]) -> str:
    return f"the column {field.name!r} is {field.type}, which PostgreSQL has no type for"


def _mismatch(table: TableName, problems: Sequence[str]) -> SchemaMismatch:
    return SchemaMismatch(f"the rows do not fit {table}: {'; '.join(problems)}")
