"""Rows of a SELECT as Arrow: COPY … TO STDOUT as csv, parsed by Arrow in blocks of whole rows.

PostgreSQL sends each row in a message of its own, so a block is as many messages as make some megabytes, and no row is cut.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.csv

from twophase.clients.postgres.database import Connection
from twophase.errors import Unreadable
from twophase.sources.postgres.column_types import ReadColumn
from twophase.sources.postgres.text_form import pin

read_csv: Any = pyarrow.csv.read_csv  # the stubs know of files alone

_BLOCK_BYTES = 4 * 1024 * 1024
_AS_THEY_LIE = {"synchronize_seqscans": "off", "max_parallel_workers_per_gather": "0"}
"""Rows come in the order in which they lie, each time."""


def copied(connection: Connection, columns: Sequence[ReadColumn], selected_from: str) -> Iterator[pa.RecordBatch]:
    """The columns of `SELECT … selected_from`, which is SQL with everything in it quoted."""
    pin(connection, **_AS_THEY_LIE)
    select = f"SELECT {', '.join(column.sql for column in columns)} {selected_from}"
    block, size = list[bytes](), 0
    with connection.cursor().copy(f"COPY ({select}) TO STDOUT (FORMAT csv)".encode()) as rows:
        for row in rows:
            block.append(bytes(row))
            size += len(block[-1])
            if size >= _BLOCK_BYTES:
                yield _parsed(block, columns)
                block, size = [], 0
    if block:
        yield _parsed(block, columns)


def _parsed(block: list[bytes], columns: Sequence[ReadColumn]) -> pa.RecordBatch:
    # Arrow drops a byte order mark at the beginning of what it parses: so this one, and not one that a value begins with.
    text = codecs.BOM_UTF8 + b"".join(block)
    names = [str(number) for number in range(len(columns))]
    try:
        table = read_csv(
            pa.BufferReader(text),
            read_options=pa.csv.ReadOptions(column_names=names, use_threads=False, block_size=len(text) + 1),
            parse_options=pa.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pa.csv.ConvertOptions(
                column_types={name: column.parsed for name, column in zip(names, columns, strict=True)},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["t"],
                false_values=["f"],
            ),
        )
        arrays = [
            column.finish(array) if column.finish is not None else array
            for column, array in zip(columns, (each.combine_chunks() for each in table.columns), strict=True)
        ]
    except pa.ArrowInvalid as error:
        raise Unreadable(f"a value does not fit its column's type: {_named(str(error), columns)}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([column.field for column in columns]))


def _named(said: str, columns: Sequence[ReadColumn]) -> str:
    """Arrow names columns by the numbers that it was given."""
    for number, column in enumerate(columns):
        said = said.replace(f"CSV column #{number}:", f"column {column.name!r}:")
    return said
