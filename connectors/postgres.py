"""`twophase-postgres`: tables of PostgreSQL as a format of `writeStream`; tables with versions, and published changes, as one of
`readStream`; and of `read` what a table with versions was at an epoch."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import StructType

from twophase.connectors.arrow_schema import arrow_schema
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
        from twophase.sources import PostgresLog, PostgresVersions

        if "publication" in {key.lower() for key in options}:
            return PostgresLog.from_options(_with_parallelism(options))
        return PostgresVersions.from_options(_with_parallelism(options), schema)

    def reader(self, schema: StructType) -> BatchReader:
        from twophase.sources import PostgresVersions

        with explained():
            if "publication" in {key.lower() for key in self._given()}:
                raise self._only_streams("spark.readStream")
            source = PostgresVersions.from_options(_with_parallelism(self._given()), arrow_schema(schema))
            return BatchReader(source, *source.bounded())


def _with_parallelism(options: Mapping[str, str]) -> dict[str, str]:
    # A source can't ask Spark how many cores there are; the driver's are the best guess, and right on a laptop.
    return {"parallelism": str(os.cpu_count() or 1), **options}
