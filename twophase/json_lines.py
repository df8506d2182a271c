"""JSON lines from Arrow, column by column: pyarrow has a reader for them and no writer.

Each column becomes an array of texts, by Arrow's own functions; the texts of a row are joined by one more. Nothing loops over rows,
except base64 of binary values, which Arrow can't do.

As Spark writes it: null fields are left out, nulls in lists and maps are `null`; NaN and infinities are the texts "NaN",
"Infinity", "-Infinity"; binary is base64; keys of maps are text. Timestamps are ISO 8601 in UTC and keep their microseconds, of
which Spark's own writer drops three digits; Spark reads them back.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pyarrow import types

from twophase.errors import SchemaMismatch

# An Arrow array, and Arrow's functions: the stubs reject much of what these take and give.
Column: TypeAlias = Any
pc: Any = pyarrow.compute
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_FIRST_DAY, _LAST_DAY = (int(np.datetime64(day, "D").astype(np.int64)) for day in ("-32767-01-01", "32767-12-31"))
_SHORT = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_CONTROL = [(chr(code), _SHORT.get(chr(code), f"\\u{code:04x}")) for code in range(0x20)]


def render(batch: pa.RecordBatch) -> pa.Buffer:
    """The rows as UTF-8, each ended by a newline."""
    lines = _object(batch.schema.names, batch.columns, batch.num_rows)
    return text_of(_joined(lines, "\n"))


def text_of(texts: Column) -> pa.Buffer:
    """All texts, one after the other, as one piece of memory: Arrow has them like that. None of them may be null."""
    if len(texts) == 0:
        return pa.py_buffer(b"")
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return data.slice(int(ends[0]), int(ends[-1] - ends[0])) if data is not None else pa.py_buffer(b"")


def texts(array: Column) -> Column:
    """The JSON text of each value; null where the value is null."""
    kind = array.type
    if types.is_dictionary(kind):
        return texts(array.cast(kind.value_type))
    if isinstance(array, pa.ExtensionArray):
        return texts(array.storage)
    if types.is_null(kind):
        return pa.nulls(len(array), pa.large_string())
    if types.is_struct(kind):
        names = [field.name for field in kind]
        return _only_valid(array, _object(names, array.flatten(), len(array)))
    if types.is_map(kind):
        return _map(array)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _list(array)
    if types.is_floating(kind):
        return _float(array)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        return array.cast(pa.string()).cast(pa.large_string())
    return _quoted(plain_texts(array))


def plain_texts(array: Column) -> Column:
    """The text of each value of a type that JSON has no literal for, before it is quoted."""
    kind = array.type
    require_writable_years(array)
    if types.is_timestamp(kind):
        return _timestamps(array)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        encoded = (None if value is None else base64.b64encode(value).decode() for value in array.to_pylist())
        return pa.array(list(encoded), pa.large_string())
    if types.is_string(kind) or types.is_large_string(kind):
        return array.cast(pa.large_string())
    return array.cast(pa.string()).cast(pa.large_string())  # dates and times of day, as ISO 8601


def require_writable_years(array: Column) -> None:
    """Arrow has no right text for years beyond ±32,767: it wraps around, or writes that it can't."""
    kind = array.type
    if not (types.is_timestamp(kind) or types.is_date(kind)):
        return
    per_day = 1 if types.is_date32(kind) else _PER_DAY["ms" if types.is_date64(kind) else kind.unit]
    extremes = pc.min_max(array.cast(pa.int32() if types.is_date32(kind) else pa.int64())).as_py()
    found = [value for value in extremes.values() if value is not None]
    if any(not _FIRST_DAY * per_day <= value < _LAST_DAY * per_day for value in found):
        raise SchemaMismatch(
            f"a {kind} in the rows is of a year beyond ±32,767, which can't be written as text: parquet files hold it, in a column "
            "that is not a partition column"
        )


def _object(names: Sequence[str], columns: Sequence[Column], count: int) -> Column:
    """{"name":value,…} for each row, without the fields that are null."""
    fields = []
    for name, column in zip(names, columns, strict=True):
        # A comma before each field: which one comes first differs by row.
        before = f",{json.dumps(name, ensure_ascii=False)}:"
        fields.append(pc.fill_null(_joined(pa.scalar(before, pa.large_string()), texts(column)), ""))
    if not fields:
        return pa.array(["{}"] * count, pa.large_string())
    body = pc.utf8_slice_codeunits(_joined(*fields), start=1)
    return _joined("{", body, "}")


def _list(array: Column) -> Column:
    ends = np.cumsum(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False))
    items = pc.fill_null(texts(array.flatten()), "null")
    joined = _by_row(items, np.concatenate(([0], ends)))
    return _only_valid(array, _joined("[", joined, "]"))


def _map(array: Column) -> Column:
    # `keys` and `items` of a slice are those of the whole array; taking every row makes one that begins at 0.
    whole = array.take(pa.array(np.arange(len(array))))
    ends = whole.offsets.to_numpy()
    keys = texts(whole.keys[ends[0] : ends[-1]])
    if not types.is_string(whole.keys.type) and not types.is_large_string(whole.keys.type):
        keys = pc.if_else(pc.starts_with(keys, '"'), keys, _quoted(keys))
    values = pc.fill_null(texts(whole.items[ends[0] : ends[-1]]), "null")
    entries = _by_row(_joined(keys, ":", values), ends - ends[0])
    return _only_valid(array, _joined("{", entries, "}"))


def _float(array: Column) -> Column:
    wide = array.cast(pa.float32()) if types.is_float16(array.type) else array
    plain = wide.cast(pa.string()).cast(pa.large_string())
    # A whole number keeps its point, or a reader that infers types takes it for an integer.
    whole = pc.match_substring_regex(plain, "^-?[0-9]+$")
    plain = pc.if_else(whole, _joined(plain, ".0"), plain)
    plain = pc.if_else(pc.is_nan(wide), '"NaN"', plain)
    infinite = pc.if_else(pc.greater(wide, 0), '"Infinity"', '"-Infinity"').cast(pa.large_string())
    return pc.if_else(pc.is_inf(wide), infinite, plain)


def _timestamps(array: Column) -> Column:
    # %S has as many digits after the point as the unit.
    zone = array.type.tz
    if zone is not None:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    return pc.strftime(array, "%Y-%m-%dT%H:%M:%S" + ("" if zone is None else "Z")).cast(pa.large_string())


def _quoted(plain: Column) -> Column:
    escaped = pc.replace_substring(pc.replace_substring(plain, "\\", "\\\\"), '"', '\\"')
    if pc.any(pc.match_substring_regex(escaped, "[\\x00-\\x1f]")).as_py():
        for character, spelled in _CONTROL:
            escaped = pc.replace_substring(escaped, character, spelled)
    return _joined('"', escaped, '"')


def _only_valid(array: Column, rendered: Column) -> Column:
    return pc.if_else(array.is_valid(), rendered, pa.scalar(None, pa.large_string()))


def _joined(*parts: Column | str) -> Column:
    """The parts of each row, one after the other; null if one of them is."""
    large = [pa.scalar(part, pa.large_string()) if isinstance(part, str) else part for part in parts]
    return pc.binary_join_element_wise(*large, pa.scalar("", pa.large_string()))


def _by_row(items: Column, ends: np.ndarray[Any, Any]) -> Column:
    """The items of each row with commas between them."""
    rows = pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), items)
    return pc.binary_join(rows, pa.scalar(",", pa.large_string()))
