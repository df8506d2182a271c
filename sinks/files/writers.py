"""Files of one format, from Arrow: parquet, json lines, csv.

A writer takes tables and turns each into one piece of its file: for parquet a row group, so whoever calls it gathers batches
first (Spark hands over 10,000 rows at a time, and a file of such row groups is slow to read). Parquet is as Spark's default has it:
snappy, dictionaries where they pay, pages of 1 MiB; timestamps with a zone are instants, those without are TIMESTAMP_NTZ.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from twophase import json_lines
from twophase.sinks.files import csv_lines, dictionaries

CODECS = {
    "parquet": {
        "snappy": "snappy",
        "gzip": "gzip",
        "zstd": "zstd",
        "lz4": "lz4",
        "none": "none",
        "uncompressed": "none",
    },
    "json": {"none": "none", "uncompressed": "none", "gzip": "gzip"},
    "csv": {"none": "none", "uncompressed": "none", "gzip": "gzip"},
}
"""The option `compression` → the codec's name in pyarrow. For text only what Spark, DuckDB and pyarrow all read."""
DEFAULT_CODEC = {"parquet": "snappy", "json": "none", "csv": "none"}
_ENDING = {"gzip": ".gz", "none": ""}


@dataclass(frozen=True)
class FileStyle:
    """How the files of a table are written."""

    file_format: str
    codec: Any  # one of pyarrow's names
    header: bool = False

    @property
    def ending(self) -> str:
        """Readers find the codec of a text file by its ending; that of parquet is in the file, and in the name for people."""
        if self.file_format != "parquet":
            return f".{self.file_format}{_ENDING[self.codec]}"
        return ".parquet" if self.codec == "none" else f".{self.codec}.parquet"

    @property
    def says_schema_without_rows(self) -> bool:
        return self.file_format == "parquet" or (self.file_format == "csv" and self.header)

    def writer(self, file: BinaryIO, schema: pa.Schema) -> FileWriter:
        if self.file_format == "parquet":
            return ParquetWriter(file, schema, self.codec)
        return LinesWriter(file, schema, self)


class FileWriter(ABC):
    """Writes one file. After `close` the file is durable."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.rows = 0

    def write(self, table: pa.Table) -> None:
        self._write(table)
        self.rows += table.num_rows

    def close(self) -> int:
        """Finish and make durable; returns the length."""
        try:
            self._finish()
            return self.file.tell()
        finally:
            self.file.close()

    def abandon(self) -> None:
        """Let go of a file that is to be deleted. It is finished too, or Arrow would do that whenever it drops the writer."""
        with suppress(OSError, pa.ArrowException):
            self.close()

    @abstractmethod
    def _write(self, table: pa.Table) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...


class ParquetWriter(FileWriter):
    """One row group a table. The first one says which columns get a dictionary."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, codec: Any):
        super().__init__(file)
        self._schema = schema
        self._codec = codec
        self._writer: pq.ParquetWriter | None = None

    def _write(self, table: pa.Table) -> None:
        writer = self._opened(dictionaries.worthwhile(table))
        writer.write_table(table, row_group_size=max(table.num_rows, 1))

    def _finish(self) -> None:
        writer = self._opened([])
        try:
            writer.close()
        finally:
            writer.is_open = False  # otherwise a close that failed is tried again when it is dropped

    def _opened(self, with_dictionary: list[str]) -> pq.ParquetWriter:
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self.file,
                self._schema,
                compression=self._codec,
                use_dictionary=with_dictionary,  # type: ignore[arg-type]  # the stubs know only yes and no
                data_page_size=1 << 20,
            )
        return self._writer


class LinesWriter(FileWriter):
    """Text, a row a line: json or csv."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, style: FileStyle):
        super().__init__(file)
        self._render = json_lines.render if style.file_format == "json" else csv_lines.render
        self._codec = None
        if style.codec != "none":
            self._codec = pa.CompressedOutputStream(pa.PythonFile(_Unclosed(file), "w"), style.codec)
        if style.file_format == "csv" and style.header:
            self._put(pa.py_buffer(csv_lines.header(schema.names)))

    def _write(self, table: pa.Table) -> None:
        for batch in table.to_batches():
            self._put(self._render(batch))

    def _put(self, data: pa.Buffer) -> None:
        (self._codec or self.file).write(data)

    def _finish(self) -> None:
        if self._codec is not None:
            self._codec.close()


class _Unclosed(io.RawIOBase):
    """What a codec may write to and close, while its owner still wants to know the file's length."""

    def __init__(self, file: BinaryIO):
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        return self._file.write(data)
