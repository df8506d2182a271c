"""The schema `twophase`: what a database knows of the queries that write to it.

=================  =======================================================================================================
`markers`          the epoch that each owner has in each table. Its row is also the lock that a commit takes first
`generations`      the newest generation of each ledger: tasks of older ones can't stage any more
`staged`           one row for each share that a task has voted for, with the name of its staging table, if it has rows
`lines`            mode mvcc: the newest epoch that a table's readers see, the first that they can go back to, and whose it is.
                   Its row is the lock of that mode
`attempts`         mode mvcc: one row for each share that is in a versions table and not visible; its number is on its rows
`epochs`           mode mvcc: how many rows each epoch of a table has
`readers`          mode mvcc: how far each named follower of a table has come: a vacuum takes nothing that one of them still needs
`slots`            mode xa: one row for each share, in its transaction: as long as nobody sees the rows, nobody sees this one
`layout`           the version of all this
=================  =======================================================================================================

Staging tables lie in the same schema. A share's row and its staging table appear in one transaction: neither is ever there alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from twophase.clients.postgres.database import Connection
from twophase.clients.postgres.table_name import CONTROL_SCHEMA, TableName
from twophase.errors import Fenced, TargetUnavailable
from twophase.identity import Attempt, Epoch, Generation, Owner
from twophase.sink import Marker

SCHEMA = CONTROL_SCHEMA
LAYOUT = 4
"""2 has `epochs`; 3 has `kept_from` in `lines`, and `versions` in `attempts`; 4 has `readers`. What an older release
made is completed when a query starts."""
CREATE = f"""\
CREATE SCHEMA IF NOT EXISTS {SCHEMA};
CREATE TABLE IF NOT EXISTS {SCHEMA}.layout (version integer PRIMARY KEY);
CREATE TABLE IF NOT EXISTS {SCHEMA}.markers (
    target text, owner text, epoch bigint, offsets text, decision text, base bigint, moved_at timestamptz,
    PRIMARY KEY (target, owner));
CREATE TABLE IF NOT EXISTS {SCHEMA}.generations (
    target text, owner text, ledger text, generation bigint NOT NULL, PRIMARY KEY (target, owner, ledger));
CREATE TABLE IF NOT EXISTS {SCHEMA}.staged (
    target text, owner text, attempt text, epoch bigint NOT NULL, slot integer NOT NULL, rows bigint NOT NULL,
    staging text, staged_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (target, owner, attempt));
CREATE TABLE IF NOT EXISTS {SCHEMA}.lines (
    target text PRIMARY KEY, position bigint, query text, sink text, replaced text);
ALTER TABLE {SCHEMA}.lines ADD COLUMN IF NOT EXISTS kept_from bigint;
CREATE TABLE IF NOT EXISTS {SCHEMA}.attempts (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, target text NOT NULL, query text NOT NULL, sink text NOT NULL,
    attempt text NOT NULL, position bigint NOT NULL, slot integer NOT NULL, rows bigint NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT now());
ALTER TABLE {SCHEMA}.attempts ADD COLUMN IF NOT EXISTS versions bigint;
CREATE TABLE IF NOT EXISTS {SCHEMA}.epochs (
    target text, position bigint, rows bigint NOT NULL, committed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (target, position));
CREATE TABLE IF NOT EXISTS {SCHEMA}.readers (
    target text, reader text, position bigint NOT NULL, acknowledged_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (target, reader));
CREATE TABLE IF NOT EXISTS {SCHEMA}.slots (
    target text, owner text, slot integer, epoch bigint, attempt text, offsets text NOT NULL, base bigint NOT NULL,
    rows bigint NOT NULL, PRIMARY KEY (target, owner, slot, epoch, attempt));
CREATE INDEX IF NOT EXISTS attempts_by_target ON {SCHEMA}.attempts (target);
INSERT INTO {SCHEMA}.layout VALUES ({LAYOUT}) ON CONFLICT DO NOTHING;
"""
GRANTS = f"""\
GRANT USAGE, CREATE ON SCHEMA {SCHEMA} TO %(user)s;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {SCHEMA} TO %(user)s;
"""
_ONE_AT_A_TIME = 0x74776F70
"""Two that create the same thing at the same moment collide, IF NOT EXISTS or not."""


@dataclass(frozen=True)
class Place:
    """One owner's part of the control schema."""

    table: TableName
    owner: Owner

    @property
    def names(self) -> tuple[str, str]:
        return str(self.table), str(self.owner)


@dataclass(frozen=True)
class StagedRow:
    attempt: Attempt
    epoch: int
    slot: int
    rows: int
    staging: str | None
    is_there: bool
    """Whether the staging table is, and has anything in it; True where there is no need of one."""


# ---- the schema ----


def ensure(connection: Connection) -> None:
    """Create what is not there; refuse a newer layout, or say what to run where rights do not suffice."""
    version = None
    if is_there(connection):
        found = connection.execute(f"SELECT max(version) FROM {SCHEMA}.layout").fetchone()
        version = None if found is None else found[0]
    if version is None or version < LAYOUT:
        _create(connection)
    elif version > LAYOUT:
        raise TargetUnavailable(
            f"the schema {SCHEMA} has the layout {version}, and this release knows {LAYOUT}: use the release that made it"
        )


def is_there(connection: Connection) -> bool:
    found = connection.execute(
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = 'layout'",
        (SCHEMA,),
    )
    return found.fetchone() is not None


def _create(connection: Connection) -> None:
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_ONE_AT_A_TIME,))
            connection.execute(CREATE)
    except psycopg.errors.InsufficientPrivilege:
        user = connection.execute("SELECT quote_ident(current_user)").fetchall()[0][0]
        script = CREATE + GRANTS % {"user": user}
    else:
        return
    raise TargetUnavailable(f"the user may not create the schema {SCHEMA}. Let somebody run this who may:\n{script}")


# ---- generations ----


def raise_generation(connection: Connection, place: Place, generation: Generation) -> None:
    """Shut older generations of this ledger out; Fenced if a newer one did so before."""
    connection.execute(
        f"INSERT INTO {SCHEMA}.generations AS known VALUES (%s, %s, %s, %s) ON CONFLICT (target, owner, ledger) "
        "DO UPDATE SET generation = EXCLUDED.generation WHERE known.generation < EXCLUDED.generation",
        (*place.names, generation.ledger, generation.number),
    )
    require_newest(connection, place, generation)


def require_newest(connection: Connection, place: Place, generation: Generation, *, lock: str = "FOR SHARE") -> None:
    """Fenced if this generation was overtaken. With the lock the answer stays true until the transaction ends: a fence waits."""
    found = connection.execute(
        f"SELECT generation FROM {SCHEMA}.generations WHERE (target, owner, ledger) = (%s, %s, %s) {lock}",
        (*place.names, generation.ledger),
    ).fetchone()
    if found is not None and found[0] > generation.number:
        raise Fenced(
            f"generation {generation} was overtaken by {found[0]}: another driver of this query runs, or ran",
            owner=str(place.owner),
        )


# ---- markers ----


def read_marker(connection: Connection, place: Place, *, lock: str = "") -> Marker | None:
    """`lock` is `FOR UPDATE` or `FOR SHARE`: then a commit that is under way is waited for."""
    found = connection.execute(
        f"SELECT epoch, offsets, decision, base FROM {SCHEMA}.markers WHERE (target, owner) = (%s, %s) {lock}",
        place.names,
    ).fetchone()
    if found is None or found[0] is None:
        return None
    epoch, offsets, decision, base = found
    return Marker(place.owner, Epoch(epoch, offsets), decision, base)


def make_room(connection: Connection, place: Place) -> None:
    """The owner's row, without an epoch. It is there before anybody commits: one that a commit makes is seen by nobody before its
    end, and nobody would wait for it."""
    connection.execute(
        f"INSERT INTO {SCHEMA}.markers (target, owner) VALUES (%s, %s) ON CONFLICT DO NOTHING", place.names
    )


def lock_marker(connection: Connection, place: Place) -> Marker | None:
    """Two that commit at once wait for each other here."""
    make_room(connection, place)
    return read_marker(connection, place, lock="FOR UPDATE")


def move_marker(connection: Connection, place: Place, origin: Marker | None, marker: Marker) -> bool:
    """Compare and set; whether it was at `origin`."""
    at = (None,) * 4 if origin is None else (origin.epoch.number, origin.epoch.offsets, origin.by, origin.base)
    moved = connection.execute(
        f"UPDATE {SCHEMA}.markers SET epoch = %s, offsets = %s, decision = %s, base = %s, moved_at = now() "
        "WHERE (target, owner) = (%s, %s) AND (epoch, offsets, decision, base) IS NOT DISTINCT FROM "
        "(%s::bigint, %s::text, %s::text, %s::bigint)",
        (marker.epoch.number, marker.epoch.offsets, marker.by, marker.base, *place.names, *at),
    )
    return moved.rowcount == 1


# ---- staged shares ----


def staging_name(place: Place, attempt: Attempt) -> str:
    """One of its own for each table, owner and attempt, of a length that PostgreSQL keeps."""
    by_table = hashlib.sha256(str(place.table).encode()).hexdigest()[:12]
    by_attempt = hashlib.sha256(repr((*place.names, str(attempt))).encode()).hexdigest()[:32]
    return f"staged_{by_table}_{by_attempt}"


def register(connection: Connection, place: Place, row: StagedRow) -> None:
    connection.execute(
        f"INSERT INTO {SCHEMA}.staged (target, owner, attempt, epoch, slot, rows, staging) VALUES (%s, %s, %s, %s, %s, %s, %s)",
        (*place.names, str(row.attempt), row.epoch, row.slot, row.rows, row.staging),
    )


def staged(connection: Connection, place: Place, *, lock: str = "") -> list[StagedRow]:
    """What this owner has staged for the table."""
    found = connection.execute(
        f"""
        SELECT attempt, epoch, slot, rows, staging, staging IS NULL OR EXISTS (
            SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE n.nspname = '{SCHEMA}' AND c.relname = staging AND pg_relation_size(c.oid) > 0)
        FROM {SCHEMA}.staged WHERE (target, owner) = (%s, %s) ORDER BY attempt {lock}
        """,
        place.names,
    )
    return [StagedRow(Attempt.parse(row[0]), *row[1:]) for row in found]


def columns_of(connection: Connection, staging: str) -> list[str]:
    found = connection.execute(
        "SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (SCHEMA, staging),
    )
    return [name for (name,) in found]


def drop_staged(connection: Connection, place: Place, attempts: Sequence[str]) -> None:
    """Rows and staging tables of these attempts; missing ones are fine."""
    found = connection.execute(
        f"DELETE FROM {SCHEMA}.staged WHERE (target, owner) = (%s, %s) AND attempt = ANY(%s) RETURNING staging",
        (*place.names, list(attempts)),
    )
    tables = sorted(staging for (staging,) in found if staging is not None)
    if tables:
        connection.execute(f"DROP TABLE IF EXISTS {', '.join(f'{SCHEMA}.{staging}' for staging in tables)}")
