"""Rows as events: the column `value` (text or bytes), and the one that routing keys are in, checked where they arrive.

Other columns are left out, as the Kafka sink does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import types

from twophase.errors import SchemaMismatch

VALUE = "value"
_BYTES = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)


@dataclass(frozen=True)
class Rows:
    values: Any
    keys: Any | None


def check(schema: pa.Schema, key_column: str | None) -> None:
    """Raise SchemaMismatch with everything that is wrong with the columns."""
    wanted = (VALUE,) if key_column in (None, VALUE) else (VALUE, str(key_column))
    problems = [f"the column {name} is there twice" for name in wanted if schema.names.count(name) > 1]
    problems += [f"the column {name} is missing" for name in wanted if name not in schema.names]
    if VALUE in schema.names and not problems and not _is_bytes(schema.field(VALUE).type):
        problems.append(f"the column {VALUE} is {schema.field(VALUE).type}, and must be text or binary")
    if key_column is not None and key_column in schema.names and not problems:
        kind = schema.field(key_column).type
        if not (types.is_string(kind) or types.is_large_string(kind)):
            problems.append(f"the column {key_column} is {kind}, and a routing key is text")
    if problems:
        raise SchemaMismatch("; ".join(problems))


def rows_of(batch: pa.RecordBatch, key_column: str | None) -> Rows:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    values = columns[VALUE]
    if values.null_count:
        raise SchemaMismatch(f"a row has no event: the column {VALUE} is null")
    if key_column is None:
        return Rows(values, None)
    keys = columns[key_column]
    if keys.null_count:
        raise SchemaMismatch(f"a row has no routing key: the column {key_column} is null")
    return Rows(values, keys)


def _is_bytes(kind: pa.DataType) -> bool:
    return any(holds(kind) for holds in _BYTES)
