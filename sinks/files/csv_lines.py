"""CSV lines from Arrow, in the dialect that Spark writes and reads by default.

Texts are always quoted, so that an empty text (`""`) differs from a null (nothing) in the file; inside, a quote and a
backslash have a backslash before them. Nothing loops over rows. Numbers, dates and timestamps are as in json lines.

What CSV can't do: a text with a line break needs `multiLine` in Spark, and readers of the RFC 4180 dialect (doubled quotes)
need to be told that the escape character is a backslash (DuckDB finds that out by itself). Spark and DuckDB read
an empty text back as null, whoever wrote it. In a file with one column a null text is written as an empty one: an empty line
would be no row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyarrow import types

from twophase.json_lines import Column, plain_texts, text_of

pc: Any = pyarrow.compute  # the stubs reject what the functions take


def header(names: Sequence[str]) -> bytes:
    return (",".join(_quote(name) for name in names) + "\n").encode("utf-8")


def render(batch: pa.RecordBatch) -> pa.Buffer:
    """The rows as UTF-8, each ended by a newline."""
    # A null alone in its row would be an empty line, which readers skip.
    null = '""' if batch.num_columns == 1 else ""
    columns = [pc.fill_null(_texts(column), null) for column in batch.columns]
    separator = pa.scalar(",", pa.large_string())
    lines = pc.binary_join_element_wise(*columns, separator)
    return text_of(
        pc.binary_join_element_wise(lines, pa.scalar("\n", pa.large_string()), pa.scalar("", pa.large_string()))
    )


def _texts(array: Column) -> Column:
    kind = array.type
    if types.is_dictionary(kind):
        return _texts(array.cast(kind.value_type))
    if types.is_null(kind):
        return pa.nulls(len(array), pa.large_string())
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        escaped = pc.replace_substring(array.cast(pa.large_string()), "\\", "\\\\")
        escaped = pc.replace_substring(escaped, '"', '\\"')
        quote = pa.scalar('"', pa.large_string())
        return pc.binary_join_element_wise(quote, escaped, quote, pa.scalar("", pa.large_string()))
    if types.is_floating(kind):
        return _floats(array)
    return plain_texts(array)


def _floats(array: Column) -> Column:
    """NaN, Inf and -Inf as Spark's csv has them."""
    plain = array.cast(pa.string()).cast(pa.large_string())
    for written, read in (("nan", "NaN"), ("inf", "Inf"), ("-inf", "-Inf")):
        plain = pc.if_else(pc.equal(plain, written), read, plain)
    return plain


def _quote(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
