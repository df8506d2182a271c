"""Rows of a data file, as Arrow batches of exactly one schema.

The mechanism: Arrow's own readers, streaming: a row group, or a block of text, is in memory at a time, and no row ever is
a Python object. What comes out is brought to the schema column by column: a column is found by name, as Spark finds it
(without regard to case where that is unambiguous; a struct's fields and those of json exactly), cast, filled from the
folder names `column=value`, or null if the file is of an older schema. Columns that the schema does not have are not read.

The guarantee: a value is what the file says, or the read fails with the name of file and column; a cast that would lose
digits fails. Casts between kinds of values are Arrow's: a timestamp that is wanted as a date loses its time.

Times without an offset are of the column's time zone. Binary json values are base64, as Spark's and this library's.

What it can't do: nested csv columns (Arrow's reader has none, and the sink writes none); a row of csv longer than `BLOCK_BYTES`; a
lone carriage return as the end of a line of text.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from csv import Error as CsvError
from csv import reader as csv_reader
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from twophase import partition_folder
from twophase.errors import Unreadable
from twophase.sources.files.casts import cast
from twophase.sources.files.json_rows import json_rows
from twophase.sources.files.line_blocks import BLOCK_BYTES, line_blocks
from twophase.sources.files.options import FileFormat

BATCH_ROWS = 10_000
_HEADER_BYTES = 1 << 20
_CODECS: Mapping[str, Literal["gzip", "bz2", "zstd"]] = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}


@dataclass(frozen=True)
class CsvForm:
    """How csv files are written."""

    sep: str = ","
    null_value: str = ""
    escape: str | None = None
    """What stands before a quote within quotes; None if a quote is doubled there."""
    header: bool | None = False
    """None if each file must be looked at, because its manifest does not say it: its first line then is the header if it names
    the first of `columns`."""
    columns: tuple[str, ...] | None = None
    """By place, for files without a header; None if they are those of the schema. A file may have fewer."""
    blank_is_row: bool = False
    """Whether an empty line is a row: it is what a single column writes for null."""


def rows_of(
    file: BinaryIO,
    name: str,
    file_format: FileFormat,
    schema: pa.Schema,
    constants: Mapping[str, pa.Scalar[Any]],
    csv: CsvForm,
) -> Iterator[pa.RecordBatch]:
    """The rows of an open file as batches of `schema`; `constants` are columns that are the same in all of them."""
    wanted = pa.schema([field for field in schema if field.name not in constants])
    try:
        for batch in _parsed(file, name, file_format, wanted, csv):
            shaped = _shaped(batch, schema, constants)
            for start in range(0, shaped.num_rows, BATCH_ROWS):
                yield shaped.slice(start, BATCH_ROWS)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise Unreadable(f"{name} can't be read as {file_format}: {error}") from error


def partition_of(name: str) -> list[tuple[str, str | None]]:
    """The columns that the folders of a file's name give it: `day=2024-01-02/x%3Dy=1/f.parquet` has two."""
    pairs = (folder.partition("=") for folder in name.split("/")[:-1])
    return [
        (_unescaped(column), None if value == partition_folder.NULL else _unescaped(value))
        for column, equals, value in pairs
        if equals
    ]


def _unescaped(text: str) -> str:
    return re.sub("(?:%[0-9A-Fa-f]{2})+", lambda found: _character(bytes.fromhex(found[0].replace("%", ""))), text)


def _character(data: bytes) -> str:
    # Spark escapes nothing but ASCII, and makes one character of each escape; Arrow escapes UTF-8.
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def typed(text: str | None, kind: pa.DataType, *, name: str, column: str) -> pa.Scalar[Any]:
    """A partition column's value."""
    try:
        column_of_one = cast(pa.array([text], pa.string()), kind)
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise Unreadable(f"{name}: its folder says {column}={text!r}, which is no {kind}: {error}") from error
    value: pa.Scalar[Any] = column_of_one[0]
    return value


def parquet_schema(file: BinaryIO, name: str) -> pa.Schema:
    """The schema of a parquet file, in types that Spark has."""
    try:
        found = pq.read_schema(file)
    except pa.ArrowException as error:
        raise Unreadable(f"{name} can't be read as parquet: {error}") from error
    return pa.schema([pa.field(field.name, streamed_type(field.type)) for field in found])


def parquet_rows(file: BinaryIO, name: str) -> int:
    try:
        return int(pq.read_metadata(file).num_rows)
    except pa.ArrowException as error:
        raise Unreadable(f"{name} can't be read as parquet: {error}") from error


def streamed_type(kind: pa.DataType) -> pa.DataType:
    """The type that Spark has for a column of this one: as its own parquet reader chooses."""
    if pa.types.is_dictionary(kind):
        return streamed_type(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, streamed_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(streamed_type(kind.key_type), streamed_type(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(streamed_type(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return _WIDER.get(kind, kind)


_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
}


def _parsed(
    file: BinaryIO, name: str, file_format: FileFormat, wanted: pa.Schema, csv: CsvForm
) -> Iterator[pa.RecordBatch]:
    if file_format == "parquet":
        yield from _parquet(file, wanted)
        return
    suffix = name[name.rfind(".") :]
    if file_format == "csv":
        form = _looked_at(file, suffix, csv)
        header = _header(file, suffix, form) if form.header else None
        yield from _csv(_unpacked(file, suffix), wanted, form, header)
    elif file_format == "json":
        yield from json_rows(_unpacked(file, suffix), wanted)
    else:
        yield from _text(_unpacked(file, suffix), wanted)


def _unpacked(file: BinaryIO, suffix: str) -> Any:
    lent: Any = _Lent(file)
    plain = pa.PythonFile(lent, mode="r")
    return pa.CompressedInputStream(plain, _CODECS[suffix]) if suffix in _CODECS else plain


class _Lent:
    """A file that Arrow may read and close, and that stays open: its streams close what they read from when collected."""

    closed = False

    def __init__(self, file: BinaryIO):
        self._file = file

    def read(self, length: int = -1) -> bytes:
        return self._file.read(length)

    def close(self) -> None: ...


def _parquet(file: BinaryIO, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    parquet = pq.ParquetFile(file)
    there = parquet.schema_arrow.names
    columns = [there[at] for field in wanted if (at := place_of(there, field.name)) is not None]
    yield from parquet.iter_batches(batch_size=BATCH_ROWS, columns=columns)


def _looked_at(file: BinaryIO, suffix: str, form: CsvForm) -> CsvForm:
    """The form with its header known. Whoever knows the number of rows notices if the guess was wrong."""
    if form.header is not None:
        return form
    names = [f'"{_escaped(name)}"' for name in form.columns or ()]
    # Not closed: that would close the file. The whole of it lies in what is read, or it is no header.
    first = (
        _unpacked(file, suffix)
        .read(len(form.sep.join(names).encode()) + 1)
        .partition(b"\n")[0]
        .decode("utf-8", "replace")
    )
    file.seek(0)
    return replace(form, header=first in (form.sep.join(names[:count]) for count in range(1, len(names) + 1)))


def _escaped(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _header(file: BinaryIO, suffix: str, form: CsvForm) -> list[str]:
    """The names in the first record that is not blank."""
    text = _unpacked(file, suffix).read(_HEADER_BYTES).decode("utf-8-sig", "replace")
    file.seek(0)
    quoting: Any = {"doublequote": form.escape is None, "escapechar": form.escape}
    records = csv_reader(io.StringIO(text, newline=""), delimiter=form.sep, **quoting)
    try:
        return next((record for record in records if record), [])
    except CsvError as error:
        raise pa.ArrowInvalid(f"its header: {error}") from error


def _csv(stream: Any, wanted: pa.Schema, form: CsvForm, header: list[str] | None) -> Iterator[pa.RecordBatch]:
    """By name where there is a header, else by place: a shorter file is of an older schema."""
    places = form.columns or tuple(wanted.names)
    there = places if header is None else header
    columns = [name if header is not None else f"f{at}" for at, name in enumerate(there)]
    # What is not wanted is not looked at: any bytes will do. To infer its type could fail.
    types: dict[str, pa.DataType] = dict.fromkeys(columns, pa.binary())
    found = {field.name: at for field in wanted if (at := place_of(there, field.name)) is not None}
    types |= {columns[at]: _csv_type(wanted.field(name).type) for name, at in found.items()}
    try:
        reader = pyarrow.csv.open_csv(
            stream,
            read_options=pyarrow.csv.ReadOptions(
                block_size=BLOCK_BYTES, autogenerate_column_names=not form.header, use_threads=False
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=form.sep,
                double_quote=form.escape is None,
                escape_char=form.escape or False,
                newlines_in_values=True,
                ignore_empty_lines=not form.blank_is_row,
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types,
                null_values=[form.null_value],
                strings_can_be_null=True,
                # The sink quotes a null that is alone in its row, which would otherwise be a blank line. Where there is no text,
                # nothing else is quoted and empty; a text that is null comes back empty.
                quoted_strings_can_be_null=not any(_is_text(wanted.field(name).type) for name in found),
            ),
        )
    except pa.ArrowInvalid as error:
        if "Empty CSV" in str(error):  # nothing but blank lines
            return
        raise
    if header is not None and reader.schema.names != header:  # or a type would be guessed, and values altered by it
        raise pa.ArrowInvalid(f"its header can be read in two ways: {header} and {reader.schema.names}")
    if not form.header and len(reader.schema) > len(places):
        raise pa.ArrowInvalid(f"it has {len(reader.schema)} columns without a header, and only {len(places)} are known")
    for batch in reader:
        yield batch if form.header else batch.rename_columns(list(places[: batch.num_columns]))


def _csv_type(kind: pa.DataType) -> pa.DataType:
    """What Arrow's csv reader can make of it: it wants an offset in every time of a column with a zone, and has no wide numbers."""
    if pa.types.is_float16(kind):
        return pa.float32()
    as_text = pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_decimal256(kind)
    return pa.string() if as_text or pa.types.is_string_view(kind) else kind


def _text(stream: Any, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    for block in line_blocks(stream):
        yield _lines(block.removesuffix(b"\n"), wanted)


def _lines(data: bytes, wanted: pa.Schema) -> pa.RecordBatch:
    text = pa.array([data], pa.binary()).cast(pa.string())
    lines = pc.replace_substring_regex(pc.split_pattern(text, "\n").flatten(), "\r$", "")
    # One column is kept where all that is wanted is in the names of folders: a batch without columns forgets its rows.
    names = wanted.names or [""]
    return pa.record_batch([lines] * len(names), names=names)


def _shaped(batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, pa.Scalar[Any]]) -> pa.RecordBatch:
    columns: list[pa.Array[Any]] = []
    for field in schema:
        at = place_of(batch.schema.names, field.name)
        if field.name in constants:
            constant: Any = constants[field.name]
            columns.append(pa.repeat(constant, batch.num_rows))
        elif at is None:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(_column(batch.column(at), field))
    # A batch without columns forgets how many rows it has.
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch.select([])


def _column(values: pa.Array[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    try:
        return cast(values, field.type)
    except pa.ArrowException as error:
        raise pa.ArrowInvalid(
            f"column {field.name!r} is of type {values.type}, and can't become {field.type}: {error}"
        ) from error


def place_of(names: Sequence[str], wanted: str) -> int | None:
    """Where a column is: by its name, else by its name in any case; None if it is not there."""
    exact = [at for at, name in enumerate(names) if name == wanted]
    found = exact or [at for at, name in enumerate(names) if name.lower() == wanted.lower()]
    if len(found) > 1:
        raise pa.ArrowInvalid(f"more than one column is called {wanted!r}")
    return found[0] if found else None
