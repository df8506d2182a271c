"""`twophase-postgres`: tables of PostgreSQL, as a format of `writeStream`."""

from __future__ import annotations

from collections.abc import Mapping

from twophase.connectors.format import Format
from twophase.extras import require
from twophase.query import AnySink

require("psycopg", "postgres")


class PostgresFormat(Format):
    """Rows in a table, in one transaction an epoch."""

    @classmethod
    def name(cls) -> str:
        return "twophase-postgres"

    @classmethod
    def make_sink(cls, options: Mapping[str, str]) -> AnySink:
        from twophase.sinks import PostgresSink

        return PostgresSink.from_options(options)
