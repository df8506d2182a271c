"""A manifest, stored so that readers of the table take it for no rows, since some of them read every file there is.

=========  ===============================================================================================
parquet    a file without rows that has the epoch's columns; the manifest is in its key-value metadata
json       only spaces, tabs and line ends, which stand for nothing in JSON: two bits of the manifest each
the rest   no file at all: a folder of empty folders, which spell the manifest with their names
=========  ===============================================================================================

A parquet file shows readers the columns of a table that has no rows yet. They are the epoch's, because DuckDB takes a table's
columns from the first file that it meets, and that may be this one.

The rest is csv, and parquet before the table's first column is known, since a parquet file must have one. No text is without rows
to every reader of csv: DuckDB (2.0, tried) takes a header for a row, an empty file for one without columns, a comment for text.
What folders can't do: outlive those who remove empty ones, or copy files alone. So where a file will do, it is one.
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

_KEY = "twophase.manifest"
_PARQUET = b"PAR1"
_BLANK = b" \t\n\r"
_BLANKS_OF_BYTE = [bytes(_BLANK[byte >> shift & 3] for shift in (6, 4, 2, 0)) for byte in range(256)]


def wrapped(manifest: bytes, file_format: str, columns: pa.Schema | None) -> bytes | None:
    """The file's bytes, or None if no file has no rows; `columns` are those of the epoch's files, None if they are not known."""
    if file_format == "parquet" and columns is not None and len(columns) > 0:
        file = io.BytesIO()
        with pq.ParquetWriter(file, columns) as writer:
            # Not as the schema's metadata: that is written twice, once of it as base64.
            writer.add_key_value_metadata({_KEY: manifest})  # type: ignore[dict-item]
        return file.getvalue()
    if file_format == "json":
        return b"".join(map(_BLANKS_OF_BYTE.__getitem__, manifest))
    return None


def unwrapped(data: bytes) -> bytes:
    """The manifest in a file of any kind; ValueError that says what is wrong with it. What is no wrapping at all is given back."""
    if data.startswith(_PARQUET):
        return _in_parquet(data)
    if data and not data.strip(_BLANK):
        if len(data) % 4:
            raise ValueError("is torn")
        return int(data.translate(bytes.maketrans(_BLANK, b"0123")), 4).to_bytes(len(data) // 4, "big")
    return data


def _in_parquet(data: bytes) -> bytes:
    try:
        metadata = pq.read_metadata(pa.BufferReader(data)).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise ValueError("is torn: it is not a whole parquet file") from error
    if _KEY.encode() not in metadata:
        raise ValueError("is not a manifest, but a parquet file")
    return metadata[_KEY.encode()]
