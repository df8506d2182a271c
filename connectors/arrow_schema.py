"""Spark's schema as Arrow's."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from twophase.errors import SchemaMismatch


def arrow_schema(schema: StructType) -> pa.Schema:
    """The columns that tasks will be handed; SchemaMismatch names one that Arrow can't hold.

    Timestamps arrive in the session's time zone, which is not told here: to a target they are instants, whatever the zone.
    """
    for field in schema.fields:
        try:
            to_arrow_schema(StructType([field]), timezone="UTC")
        except PySparkTypeError as error:
            raise SchemaMismatch(
                f"the column {field.name!r} has the type {field.dataType.simpleString()}, which can't be handed to a Python "
                "sink: cast it, or leave it out"
            ) from error
    return to_arrow_schema(schema, timezone="UTC")
