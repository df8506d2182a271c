"""What a new name gets in the mode mvcc: a table of versions, a view of those that count, and functions.

::

    orders                   the view: of added rows all up to the pointer; of upserted ones the newest of each key
    orders_versions          the rows, tagged
    orders_as_of(epoch)      the same as the view, up to that epoch
    orders_vacuum(retain)    upserted tables: deletes versions that newer ones have followed, but for the newest `retain` epochs
                             and for what a named follower has not acknowledged

A vacuum is one transaction: what it deletes, and from which epoch on the table can be read as it was, changes in one step. So a
reader, whose statement sees one moment, is either shown the epoch that it asks for or told that it is not kept. It does not lock
the pointer before its end, when it is done. A version goes if a newer one of its key is not newer than the first epoch that is
kept; then rows that delete a key go, where nothing is left that they could delete. In any other order a key would come back.

It looks at the epochs that were kept so far and are not any more, and finds by the primary key what they have superseded: so it
takes as long as these epochs are large, however large the table is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from twophase.clients.postgres.database import Connection
from twophase.clients.postgres.table_name import TableName, quoted
from twophase.clients.postgres.versions_table import (
    AS_OF,
    DELETED,
    IDENTIFYING,
    ORDER,
    POSITION,
    TAGS,
    VACUUM,
    newest_sql,
    vacuum_lock_sql,
    versions_of,
)
from twophase.sinks.postgres.control_schema import SCHEMA

_INVALID_PARAMETER = "22023"


@dataclass(frozen=True)
class VersionsView:
    table: TableName
    columns: tuple[str, ...]
    """What readers see."""
    keys: tuple[str, ...] = ()
    """By which it is upserted; none where rows are added."""

    def create(self, connection: Connection, columns_sql: Sequence[str]) -> None:
        """Everything; `columns_sql` are the columns that rows come with."""
        versions = versions_of(self.table).sql
        columns = [*columns_sql, *(f"{quoted(tag)} bigint NOT NULL" for tag in TAGS)]
        if self.keys:
            identifying = ", ".join(map(quoted, (*self.keys, *IDENTIFYING)))
            columns += [f"{quoted(ORDER)} bigint NOT NULL", f"{quoted(DELETED)} boolean DEFAULT false"]
            columns += [f"PRIMARY KEY ({identifying})"]
        connection.execute(f"CREATE TABLE {versions} ({', '.join(columns)})")
        # Rows of an attempt lie side by side: a summary of page ranges finds them, and costs next to nothing to keep.
        indexed = ", ".join(map(quoted, TAGS))
        connection.execute(f"CREATE INDEX ON {versions} USING brin ({indexed}) WITH (autosummarize = on)")
        self.show(connection)
        for function in (AS_OF, VACUUM) if self.keys else (AS_OF,):
            connection.execute(f"REVOKE ALL ON FUNCTION {self._function(function)} FROM PUBLIC")

    def show(self, connection: Connection) -> None:
        """The view and the functions, new or in the place of those that are there: then columns may have come behind the others."""
        target = _literal(str(self.table), connection)
        pointer = f"(SELECT position FROM {SCHEMA}.lines WHERE target = {target})"
        visible = newest_sql(self.table, self.columns, self.keys, pointer)
        connection.execute(f"CREATE OR REPLACE VIEW {self.table.sql} AS {visible}")
        then = newest_sql(self.table, self.columns, self.keys, f"least($1, {pointer})")
        body, language = (then, "sql") if not self.keys else (_refusing(then, target), "plpgsql")
        # With the rights of whoever created it: versions that are not decided are nobody's to read.
        self._replace(
            connection,
            f"{self._function(AS_OF, 'epoch bigint')} RETURNS SETOF {self.table.sql} LANGUAGE {language} STABLE SECURITY DEFINER",
            body,
        )
        if self.keys:
            self._replace(
                connection,
                f"{self._function(VACUUM, 'retain_epochs bigint, epochs_at_once bigint DEFAULT NULL')} RETURNS bigint "
                "LANGUAGE plpgsql",
                self._vacuuming(target),
            )

    def vacuum(self, connection: Connection, retain_epochs: int, epochs_at_once: int) -> None:
        call = f"SELECT {TableName(self.table.schema, self.table.name + VACUUM).sql_beside_parameters}(%s, %s)"
        connection.execute(call, (retain_epochs, epochs_at_once))

    # ---- inside ----

    def _function(self, suffix: str, arguments: str | None = None) -> str:
        name = TableName(self.table.schema, self.table.name + suffix).sql
        return name if arguments is None else f"{name}({arguments})"

    def _replace(self, connection: Connection, signature: str, body: str) -> None:
        connection.execute(
            f"CREATE OR REPLACE FUNCTION {signature} SET search_path = pg_catalog, pg_temp AS {_literal(body, connection)}"
        )

    def _vacuuming(self, target: str) -> str:
        """Variables are called by the name of their block: whatever columns are called, they are not meant."""
        versions, position, order = versions_of(self.table).sql, quoted(POSITION), quoted(ORDER)
        same = " AND ".join(f"old.{quoted(key)} = newer.{quoted(key)}" for key in self.keys)
        older = f"{same} AND (old.{position}, old.{order}) < (newer.{position}, newer.{order})"
        passed = f"newer.{position} > vacuum.began AND newer.{position} <= vacuum.ended"
        return f"""
#variable_conflict use_column
<<vacuum>>
DECLARE
    began bigint;
    ended bigint;
    superseded bigint;
    deleted bigint;
BEGIN
    PERFORM {vacuum_lock_sql(target)};
    SELECT coalesce(line.kept_from, -1), least(line.position - greatest($1, 0), (
        SELECT min(reader.position) FROM {SCHEMA}.readers AS reader WHERE reader.target = {target}))
    INTO vacuum.began, vacuum.ended FROM {SCHEMA}.lines AS line WHERE line.target = {target};
    SELECT max(passed.position) INTO vacuum.ended FROM (
        SELECT epoch.position FROM {SCHEMA}.epochs AS epoch
        WHERE epoch.target = {target} AND epoch.position > vacuum.began AND epoch.position <= vacuum.ended
        ORDER BY epoch.position LIMIT $2) AS passed;
    IF vacuum.ended IS NULL THEN
        UPDATE {SCHEMA}.lines AS line SET kept_from = -1 WHERE line.target = {target} AND line.kept_from IS NULL;
        RETURN 0;
    END IF;
    DELETE FROM {versions} AS old USING {versions} AS newer WHERE {passed} AND {older};
    GET DIAGNOSTICS superseded = ROW_COUNT;
    DELETE FROM {versions} AS newer WHERE {passed} AND newer.{quoted(DELETED)} IS TRUE
    AND NOT EXISTS (SELECT FROM {versions} AS old WHERE {older});
    GET DIAGNOSTICS deleted = ROW_COUNT;
    UPDATE {SCHEMA}.lines AS line SET kept_from = vacuum.ended WHERE line.target = {target};
    RETURN vacuum.superseded + vacuum.deleted;
END
"""


def _refusing(then: str, target: str) -> str:
    return f"""
#variable_conflict use_column
<<asked>>
DECLARE
    kept bigint;
BEGIN
    SELECT line.kept_from INTO asked.kept FROM {SCHEMA}.lines AS line WHERE line.target = {target};
    IF $1 < asked.kept THEN
        RAISE EXCEPTION USING ERRCODE = '{_INVALID_PARAMETER}', MESSAGE = 'epoch ' || $1 || ' of ' || {target} ||
            ' can not be read as it was any more: the first that can is ' || asked.kept;
    END IF;
    RETURN QUERY {then};
END
"""


def _literal(text: str, connection: Connection) -> str:
    return psycopg.sql.Literal(text).as_string(connection)
