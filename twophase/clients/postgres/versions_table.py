"""A table in the mode mvcc, as its writer leaves it and its readers find it.

::

    sales.orders_versions    every row of every epoch, tagged with its position in the line of epochs, and with its attempt
    twophase.lines           up to which position readers see them
    twophase.epochs          how many rows each position has

What has a position up to the pointer is committed, and stays as it is. What has a higher one is nobody's to read.
"""

from __future__ import annotations

from twophase.clients.postgres.database import Connection
from twophase.clients.postgres.table_name import CONTROL_SCHEMA, LONGEST_BYTES, TableName

POSITION, ATTEMPT = "twophase_position", "twophase_attempt"
TAGS = (POSITION, ATTEMPT)
VERSIONS, AS_OF = "_versions", "_as_of"


def problem_with(name: TableName) -> str:
    """What keeps a table of this name from having versions; nothing if it may have them."""
    if len((name.name + VERSIONS).encode()) > LONGEST_BYTES:
        return f"table is too long a name for mode mvcc, which adds {VERSIONS}: PostgreSQL keeps {LONGEST_BYTES} bytes"
    return ""


def versions_of(name: TableName) -> TableName:
    return TableName(name.schema, name.name + VERSIONS)


def pointer_of(connection: Connection, name: TableName) -> int | None:
    """The newest position that readers see; None if there is none yet."""
    found = connection.execute(
        f"SELECT position FROM {CONTROL_SCHEMA}.lines WHERE target = %s", (str(name),)
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
