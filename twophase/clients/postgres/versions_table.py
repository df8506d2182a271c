"""A table in the mode mvcc, as its writer leaves it and its readers find it.

::

    sales.orders_versions    every row of every epoch, tagged with its position in the line of epochs, and with its attempt
    twophase.lines           up to which position readers see them, and from which one on they can be read as they were
    twophase.epochs          how many rows each position has
    twophase.readers         up to which position each follower that has a name has read and committed them

What has a position up to the pointer is committed, and stays as it is. What has a higher one is nobody's to read.

Of an upserted table, the newest version of each key counts: that of the highest position, and there of the highest order. The keys
are in its primary key, before the tags: so they are what the table says, and not what somebody is set to. Versions that newer
ones have followed may be deleted, up to the position that is kept, and never beyond what a named follower has read; those that
are newer are all there.
"""

from __future__ import annotations

from collections.abc import Sequence

from twophase.clients.postgres.database import Connection
from twophase.clients.postgres.table_name import CONTROL_SCHEMA, LONGEST_BYTES, TableName, quoted

POSITION, ATTEMPT = "twophase_position", "twophase_attempt"
ORDER, DELETED = "twophase_order", "twophase_deleted"
TAGS = (POSITION, ATTEMPT)
UPSERT_TAGS = (*TAGS, ORDER, DELETED)
"""Of upserted tables: also which of an epoch's rows is the newest of its key, and whether it deletes it."""
IDENTIFYING = (POSITION, ORDER, ATTEMPT)
"""What the primary key of an upserted table has behind its keys."""
VERSIONS, AS_OF, VACUUM = "_versions", "_as_of", "_vacuum"
_PRIMARY_KEY = """
SELECT array_agg(a.attname::text ORDER BY k.place) FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (number, place)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
WHERE i.indrelid = %s AND i.indisprimary
"""


def problem_with(name: TableName) -> str:
    """What keeps a table of this name from having versions; nothing if it may have them."""
    if len((name.name + VERSIONS).encode()) > LONGEST_BYTES:
        return f"table is too long a name for mode mvcc, which adds {VERSIONS}: PostgreSQL keeps {LONGEST_BYTES} bytes"
    return ""


def versions_of(name: TableName) -> TableName:
    return TableName(name.schema, name.name + VERSIONS)


def keys_of(connection: Connection, versions: int) -> tuple[str, ...]:
    """By which columns the table with this object id is upserted; none if its rows are only ever added."""
    found = connection.execute(_PRIMARY_KEY, (versions,)).fetchone()
    columns = tuple(found[0]) if found is not None and found[0] is not None else ()
    at = len(columns) - len(IDENTIFYING)
    return columns[:at] if at > 0 and columns[at:] == IDENTIFYING else ()


def tags_of(keys: Sequence[str]) -> tuple[str, ...]:
    """The columns of ours, in a table that is upserted by these keys or by none."""
    return UPSERT_TAGS if keys else TAGS


def newest_sql(name: TableName, columns: Sequence[str], keys: Sequence[str], until: str) -> str:
    """A SELECT of the table as it was at the position that `until` gives, which is SQL."""
    named, versions = ", ".join(map(quoted, columns)), versions_of(name).sql
    if not keys:
        return f"SELECT {named} FROM {versions} WHERE {quoted(POSITION)} <= {until}"
    # All downwards, as the primary key lies when it is read backwards.
    order = ", ".join(f"{quoted(column)} DESC" for column in (*keys, POSITION, ORDER))
    newest = (
        f"SELECT DISTINCT ON ({', '.join(map(quoted, keys))}) {named}, {quoted(DELETED)} FROM {versions} "
        f"WHERE {quoted(POSITION)} <= {until} ORDER BY {order}"
    )
    return f"SELECT {named} FROM ({newest}) AS newest WHERE {quoted(DELETED)} IS NOT TRUE"


def pointer_of(connection: Connection, name: TableName) -> int | None:
    """The newest position that readers see; None if there is none yet."""
    found = connection.execute(
        f"SELECT position FROM {CONTROL_SCHEMA}.lines WHERE target = %s", (str(name),)
    ).fetchone()
    return None if found is None else found[0]


def kept_from(connection: Connection, name: TableName) -> int | None:
    """The first position at which an upserted table can be read as it was; None if nobody deletes anything."""
    found = connection.execute(
        f"SELECT kept_from FROM {CONTROL_SCHEMA}.lines WHERE target = %s", (str(name),)
    ).fetchone()
    return None if found is None else found[0]


def vacuum_lock_sql(target: str) -> str:
    """What whoever vacuums holds to the end of the transaction; `target` is SQL."""
    return f"pg_advisory_xact_lock(hashtextextended('twophase vacuum ' || {target}, 0))"


def enrol(connection: Connection, name: TableName, reader: str, position: int) -> None:
    """From now on, nothing that is newer than `position` is vacuumed before this reader has acknowledged it. One that is known
    stays where it is. A vacuum that is under way is waited for: what it has taken is seen by whoever asks after this."""
    connection.execute(f"SELECT {vacuum_lock_sql('%s')}", (str(name),))
    connection.execute(
        f"INSERT INTO {CONTROL_SCHEMA}.readers (target, reader, position) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        (str(name), reader, position),
    )


def acknowledge(connection: Connection, name: TableName, reader: str, position: int) -> None:
    """The reader has everything up to `position`; never backwards."""
    connection.execute(
        f"INSERT INTO {CONTROL_SCHEMA}.readers AS known (target, reader, position) VALUES (%s, %s, %s) "
        "ON CONFLICT (target, reader) DO UPDATE SET position = EXCLUDED.position, acknowledged_at = now() "
        "WHERE known.position < EXCLUDED.position",
        (str(name), reader, position),
    )


def acknowledged(connection: Connection, name: TableName, reader: str) -> int | None:
    """How far the reader has come; None if nobody knows it."""
    found = connection.execute(
        f"SELECT position FROM {CONTROL_SCHEMA}.readers WHERE (target, reader) = (%s, %s)", (str(name), reader)
    ).fetchone()
    return None if found is None else found[0]


def rows_of(connection: Connection, name: TableName, *, after: int, until: int) -> dict[int, int]:
    """Position → how many rows were committed there, in the order of positions."""
    found = connection.execute(
        f"SELECT position, rows FROM {CONTROL_SCHEMA}.epochs WHERE target = %s AND position > %s AND position <= %s "
        "ORDER BY position",
        (str(name), after, until),
    )
    return dict(found.fetchall())


def first_recorded(connection: Connection, name: TableName) -> int | None:
    """Older epochs are of a release that did not count."""
    found = connection.execute(
        f"SELECT min(position) FROM {CONTROL_SCHEMA}.epochs WHERE target = %s", (str(name),)
    ).fetchone()
    return None if found is None else found[0]


def record(connection: Connection, name: TableName, position: int, rows: int) -> None:
    """In the transaction that moves the pointer there. A table of this name that was dropped may have left its counts."""
    connection.execute(
        f"INSERT INTO {CONTROL_SCHEMA}.epochs (target, position, rows) VALUES (%s, %s, %s) ON CONFLICT (target, position) "
        "DO UPDATE SET rows = EXCLUDED.rows, committed_at = now()",
        (str(name), position, rows),
    )
