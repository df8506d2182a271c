"""The line of epochs of a table in the mode mvcc: whose it is, up to where it is visible, and which attempts are not.

A table's readers see the versions up to the position in its row of `twophase.lines`; a position is base + Spark's epoch. Whoever
has that row locked knows that nothing moves: a commit and an abort lock it for themselves, a task that votes locks it against
these.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from twophase.clients.postgres.database import Connection
from twophase.clients.postgres.table_name import TableName
from twophase.clients.postgres.versions_table import versions_of
from twophase.identity import Attempt, Owner
from twophase.sink import Marker
from twophase.sinks.postgres import control_schema
from twophase.sinks.postgres.control_schema import SCHEMA, Place


@dataclass(frozen=True)
class AttemptRow:
    number: int
    owner: Owner
    attempt: Attempt
    position: int
    slot: int
    rows: int
    """How many are in the versions table; `GONE` if another attempt was committed in its place."""
    versions: int | None = None
    """The object id of the table that they are in; None if an older release wrote them."""


GONE = -1


def position_of(marker: Marker) -> int:
    return marker.base + marker.epoch.number


def make_room(connection: Connection, table: TableName) -> None:
    connection.execute(f"INSERT INTO {SCHEMA}.lines (target) VALUES (%s) ON CONFLICT DO NOTHING", (str(table),))


def read(connection: Connection, table: TableName, *, lock: str = "") -> Marker | None:
    """The newest marker, whoever owns it. `lock` is `FOR UPDATE` or `FOR SHARE`."""
    # The row is there from the first fence on, and is locked also while it has no position.
    found = connection.execute(
        f"SELECT position, query, sink FROM {SCHEMA}.lines WHERE target = %s {lock}", (str(table),)
    ).fetchone()
    if found is None or found[0] is None:
        return None
    return control_schema.read_marker(connection, Place(table, Owner(*found[1:])))


def move(connection: Connection, table: TableName, origin: Marker | None, marker: Marker, replaced: str | None) -> bool:
    """Compare and set; whether the line was at `origin`. The row is locked."""
    at = (None,) * 3 if origin is None else (position_of(origin), origin.owner.query, origin.owner.sink)
    to = (position_of(marker), marker.owner.query, marker.owner.sink)
    moved = connection.execute(
        f"UPDATE {SCHEMA}.lines SET position = %s, query = %s, sink = %s, replaced = coalesce(%s, replaced) "
        "WHERE target = %s AND (position, query, sink) IS NOT DISTINCT FROM (%s::bigint, %s::text, %s::text)",
        (*to, replaced, str(table), *at),
    )
    place = Place(table, marker.owner)
    control_schema.make_room(connection, place)
    own = control_schema.read_marker(connection, place)
    return moved.rowcount == 1 and control_schema.move_marker(connection, place, own, marker)


# ---- attempts ----


def enter(connection: Connection, table: TableName, row: AttemptRow) -> int:
    """The number of a new attempt."""
    found = connection.execute(
        f"INSERT INTO {SCHEMA}.attempts (target, query, sink, attempt, position, slot, rows, versions) "
        "VALUES (%s, %s, %s, %s, %s, %s, %s, to_regclass(%s)::oid::bigint) RETURNING id",
        (
            *(str(table), row.owner.query, row.owner.sink, str(row.attempt), row.position, row.slot, row.rows),
            versions_of(table).sql,
        ),
    ).fetchall()
    return int(found[0][0])


def count_rows(connection: Connection, number: int, rows: int) -> None:
    connection.execute(f"UPDATE {SCHEMA}.attempts SET rows = %s WHERE id = %s", (rows, number))


def attempts(connection: Connection, table: TableName) -> list[AttemptRow]:
    """Everything that is in the versions table, or voted for, and not visible: of any owner."""
    found = connection.execute(
        f"SELECT id, query, sink, attempt, position, slot, rows, versions FROM {SCHEMA}.attempts WHERE target = %s ORDER BY id",
        (str(table),),
    )
    return [AttemptRow(row[0], Owner(row[1], row[2]), Attempt.parse(row[3]), *row[4:]) for row in found]


def forget(connection: Connection, numbers: Sequence[int]) -> None:
    """Attempts that are visible from now on, or were swept."""
    connection.execute(f"DELETE FROM {SCHEMA}.attempts WHERE id = ANY(%s)", (list(numbers),))


def named(rows: Sequence[AttemptRow], marks: Collection[tuple[Owner, str]]) -> list[AttemptRow]:
    return [row for row in rows if (row.owner, str(row.attempt)) in marks]
