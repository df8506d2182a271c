"""Upserts: a row replaces the one with its key, or deletes it.

Of the rows of an epoch that have one key, the newest counts: the last one of the highest slot. So an epoch is always one statement
that can be executed, whatever is in it, and the same each time it is written. Which row is the last of its task is an ordinal that
staging tables keep; the order in which a table lies on the disk is nothing to build on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from twophase.clients.postgres.database import Connection
from twophase.clients.postgres.table_name import TableName, quoted

ORDINAL = "twophase ordinal"
SLOT = "twophase slot"
_UNIQUE = """
SELECT 1 FROM pg_index i
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
AND (SELECT array_agg(a.attname::text ORDER BY a.attname) FROM pg_attribute a
     WHERE a.attrelid = i.indrelid AND a.attnum = ANY((i.indkey::int2[])[0:i.indnkeyatts - 1])) = %s::text[]
"""


@dataclass(frozen=True)
class Upsert:
    keys: tuple[str, ...]
    delete: str = ""
    """The column of the rows that says so; empty if there is none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", tuple(self.keys))

    @property
    def keys_sql(self) -> str:
        return ", ".join(map(quoted, self.keys))

    @property
    def rights(self) -> tuple[str, ...]:
        return ("SELECT", "INSERT", "UPDATE", "DELETE") if self.delete else ("SELECT", "INSERT", "UPDATE")

    def lacking(self, connection: Connection, table: TableName, oid: int) -> Iterator[str]:
        """Without a unique index there is nothing that a row could be found by."""
        if connection.execute(_UNIQUE, (oid, sorted(self.keys))).fetchone() is None:
            yield (
                f"the table has no primary key and no unique index on exactly {', '.join(self.keys)}: "
                f"CREATE UNIQUE INDEX ON {table.sql} ({self.keys_sql})"
            )

    def statement(self, table: TableName, columns: Sequence[str], sources: Sequence[tuple[int, str]]) -> str:
        """Everything that an epoch does to the table. `sources` are slots and staging tables; `columns` are those of the table."""
        named = ", ".join(map(quoted, columns))
        staged = [*columns, *([self.delete] if self.delete else []), ORDINAL]
        every = " UNION ALL ".join(
            f"SELECT {slot} AS {quoted(SLOT)}, {', '.join(map(quoted, staged))} FROM {source}"
            for slot, source in sources
        )
        newest = (
            f"SELECT DISTINCT ON ({self.keys_sql}) * FROM ({every}) AS every "
            f"ORDER BY {self.keys_sql}, {quoted(SLOT)} DESC, {quoted(ORDINAL)} DESC"
        )
        others = [quoted(name) for name in columns if name not in self.keys]
        update = f"UPDATE SET {', '.join(f'{name} = EXCLUDED.{name}' for name in others)}" if others else "NOTHING"
        deleted, kept = "", ""
        if self.delete:
            same = " AND ".join(f"old.{quoted(key)} = newest.{quoted(key)}" for key in self.keys)
            gone = f"newest.{quoted(self.delete)}"
            deleted = f", deleted AS (DELETE FROM {table.sql} AS old USING newest WHERE {same} AND {gone} IS TRUE)"
            kept = f" WHERE {gone} IS NOT TRUE"
        return (
            f"WITH newest AS MATERIALIZED ({newest}){deleted} INSERT INTO {table.sql} ({named}) "
            f"SELECT {named} FROM newest{kept} ON CONFLICT ({self.keys_sql}) DO {update}"
        )
