"""Rows as records: the columns that Spark's own Kafka sink takes, checked where they arrive.

value (text or bytes), and where they are there key (the same), topic (text), partition (a whole number), headers (an array of
key and value) and timestamp. Others are left out, as Spark's own sink does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from twophase.clients.kafka.rows import NO_TIME, Rows
from twophase.errors import SchemaMismatch

COLUMNS = ("key", "value", "topic", "partition", "headers", "timestamp")
_BYTES = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def check(schema: pa.Schema, topic: str | None) -> None:
    """Raise SchemaMismatch with everything that is wrong with the columns."""
    problems = [f"the column {name} is there twice" for name in COLUMNS if schema.names.count(name) > 1]
    if "value" not in schema.names:
        problems.append("the column value is missing")
    if topic is None and "topic" not in schema.names:
        problems.append("there is neither a column nor an option topic")
    fits: dict[str, Callable[[Any], bool]] = {
        "key": _is_bytes,
        "value": _is_bytes,
        "topic": _is_text,
        "partition": types.is_integer,
        "headers": _are_headers,
        "timestamp": types.is_timestamp,
    }
    wanted = {
        "key": "text or binary",
        "value": "text or binary",
        "topic": "text",
        "partition": "a whole number",
        "headers": "an array of struct<key: string, value: binary>",
        "timestamp": "a timestamp",
    }
    for name in sorted(set(schema.names) & set(COLUMNS)):
        if schema.names.count(name) > 1:
            continue
        kind = schema.field(name).type
        if not fits[name](kind) and not types.is_null(kind):
            problems.append(f"the column {name} is {kind}, and must be {wanted[name]}")
    if problems:
        raise SchemaMismatch("; ".join(problems))


def rows_by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, Rows]]:
    """The batch's rows, in their order for each topic. The option `topic` goes before the column."""
    if not batch.num_rows:
        return
    if topic is not None:
        yield topic, _rows(batch)
        return
    names = batch.column(batch.schema.get_field_index("topic"))
    if names.null_count:
        raise SchemaMismatch("a row has no topic: the column topic is null, and the option topic is not set")
    encoded: Any = names.dictionary_encode()
    if len(encoded.dictionary) == 1:
        yield encoded.dictionary[0].as_py(), _rows(batch)
        return
    for number, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, _rows(batch.filter(pc.equal(encoded.indices, pa.scalar(number, encoded.indices.type))))


def _rows(batch: pa.RecordBatch) -> Rows:
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    keys, partitions, headers = columns.get("key"), columns.get("partition"), columns.get("headers")
    times = columns.get("timestamp")
    return Rows(
        values=_bytes(columns["value"]),
        keys=None if keys is None else _bytes(keys),
        partitions=None if partitions is None else _partitions(partitions),
        headers=None if headers is None else _headers(headers),
        times=None if times is None else _times(times),
    )


def _bytes(column: pa.Array[Any]) -> pa.Array[Any]:
    return column.cast(pa.binary()) if types.is_null(column.type) else column


def _partitions(column: Any) -> Any:
    """By number; -1, which is any, where there is none."""
    try:
        numbers = column.cast(pa.int32())
    except pa.ArrowInvalid as error:
        raise SchemaMismatch(f"the column partition: {error}") from None
    least = pc.min(numbers).as_py()
    if least is not None and least < 0:
        raise SchemaMismatch(
            f"the column partition has {least}: null stands for any partition, and no number below 0 for one"
        )
    return numbers.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)


def _headers(column: Any) -> Any:
    if column.null_count == len(column):
        return None
    headers: Any = column.cast(_HEADERS)
    if headers.flatten().field("key").null_count:
        raise SchemaMismatch("a header has no key: it is null")
    return headers


def _times(column: Any) -> Any:
    """In milliseconds; `NO_TIME`, which is now, where there is none."""
    if column.null_count == len(column):
        return None
    zone = getattr(column.type, "tz", None)
    first: Any = pc.min(column)
    if first.cast(pa.int64()).as_py() < 0:
        said = first.cast(pa.timestamp("us", zone), safe=False).as_py()
        raise SchemaMismatch(f"the column timestamp has {said}: Kafka has no times before 1970")
    whole = column.cast(pa.timestamp("ms", zone), safe=False).view(pa.int64())
    return whole.fill_null(NO_TIME).to_numpy(zero_copy_only=False).astype(np.int64)


def _are_headers(kind: Any) -> bool:
    if not (types.is_list(kind) or types.is_large_list(kind)) or not types.is_struct(kind.value_type):
        return False
    parts = {field.name: field.type for field in kind.value_type}
    return set(parts) == {"key", "value"} and _is_text(parts["key"]) and _is_bytes(parts["value"])


def _is_bytes(kind: pa.DataType) -> bool:
    return any(holds(kind) for holds in _BYTES)


def _is_text(kind: pa.DataType) -> bool:
    return types.is_string(kind) or types.is_large_string(kind)
