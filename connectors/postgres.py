"""`twophase-postgres`: tables of PostgreSQL, as a format of `writeStream`; those with versions of `readStream` and `read` too."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import StructType

from twophase.connectors.batch_reader import BatchReader
from twophase.connectors.explained import explained
from twophase.connectors.format import Format
from twophase.connectors.stream_reader import AnySource
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

    @classmethod
    def make_source(cls, options: Mapping[str, str], schema: pa.Schema | None) -> AnySource:
        from twophase.sources import PostgresVersions

        return PostgresVersions.from_options(_with_parallelism(options))

    def reader(self, schema: StructType) -> BatchReader:
        from twophase.sources import PostgresVersions

        with explained():
            source = PostgresVersions.from_options(_with_parallelism(self._given()))
            return BatchReader(source, *source.bounded())


def _with_parallelism(options: Mapping[str, str]) -> dict[str, str]:
    # A source can't ask Spark how many cores there are; the driver's are the best guess, and right on a laptop.
    return {"parallelism": str(os.cpu_count() or 1), **options}
