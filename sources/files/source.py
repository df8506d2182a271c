"""FilesSource: rows from files, replayable: a twophase table by its epochs, or a plain folder by a journal of taken files.

Which of the two lies at `path` is seen there (or said by the option `sourceKind`); `table.py` and `folder.py` say what an
offset is, and what is noticed when data are gone or changed. This module is what they have in common: the schema, the
splits, and reading them.

The guarantee: the same (start, end) gives the same rows, in any process, however it is split, while new data arrive, for as
long as the files are there; if they are not, or are not what they were, the read fails and names them.

Nothing is ever deleted here. A table's retention is its owner's business, and waits for what a source with a name acknowledges
(twophase/table_readers.py). The files of a plain folder are their owner's too; the journal keeps its names for ever, so that no
file is read twice.

What it can't do: cut a file into several tasks; see a change of a plain file that keeps both its size and its time of
change; give a running query columns that a newer epoch added (it gets them when it is started again; until then they are
logged and left out).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from twophase.errors import CheckpointMismatch, DataLost, OptionError
from twophase.file_table import FileTable, lost_manifest, open_table
from twophase.log import Log
from twophase.names import escape
from twophase.options import parse
from twophase.source import NO_LIMIT, ReadLimit, Source
from twophase.sources.files.admission import Admission
from twophase.sources.files.folder import FolderOrigin, require_unchanged
from twophase.sources.files.journal import Journal, TakenFile
from twophase.sources.files.listing import NameFilter
from twophase.sources.files.options import FilesSourceOptions
from twophase.sources.files.rows import CsvForm, partition_of, place_of, rows_of, typed
from twophase.sources.files.split import FilesForm, FilesSplit, SplitFile, shared_out
from twophase.sources.files.table import TableOrigin
from twophase.storage import Entry, FileStorage
from twophase.storage_of import scheme_of, storage_of

EPOCH_COLUMN = "epoch"
IGNORED = ("checkpointLocation", "queryName")
_JOURNAL = "taken"
_EPOCH_FOLDER = re.compile(r"epoch=(0|[1-9][0-9]*)")
_DATA_FILE = re.compile(r"part-[0-9]{5,}-[A-Za-z0-9]+\.[0-9]+\.[A-Za-z0-9_.-]+-c[0-9]{3,}\..+")
"""Slot, attempt (which begins with a generation) and a number: Spark's own names have a UUID in the place of an attempt."""

log = Log("twophase.sources.files")


class Origin(Protocol):
    """Where the files of a range come from."""

    def schema(self) -> pa.Schema: ...

    def earliest(self) -> str: ...

    def newest(self) -> str: ...

    def latest(self, start: str, limit: ReadLimit, until: str | None) -> str: ...

    def files(self, start: str, end: str) -> list[SplitFile]:
        """The files between two offsets, in their order; DataLost if any of them is gone or changed."""
        ...


class FilesSource(Source[FilesSplit]):
    """Files as a source of rows. Opens nothing until it is used.

    Parameters
    ----------
    schema:
        The columns to read, by name; those that a file does not have are null, those not named are left out. Without it,
        a table's newest schema, or that of a folder's first parquet file. A folder of json or csv needs it.
    """

    def __init__(self, options: FilesSourceOptions, schema: pa.Schema | None = None):
        self.options = options
        self._table = open_table(options.path, hdfs=options.hdfs)
        self._schema = None if schema is None else self._complete(schema)
        self._origin: Origin | None = None

    @classmethod
    def from_options(cls, options: Mapping[str, str], schema: pa.Schema | None = None) -> FilesSource:
        return cls(parse(FilesSourceOptions, options, ignore=IGNORED), schema)

    def schema(self) -> pa.Schema:
        if self._schema is None:
            found = self._found().schema()
            if self.options.include_epoch and any(name.lower() == EPOCH_COLUMN for name in found.names):
                raise _wrong(f"includeEpoch: the table {self._table.path} has a column {EPOCH_COLUMN!r} of its own")
            self._schema = self._complete(found)
        return self._schema

    def earliest(self) -> str:
        return self._found().earliest()

    def newest(self) -> str:
        """The offset after all that is there now, whatever the options allow an epoch: where a bounded run ends."""
        return self._found().newest()

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        """As the contract says; and never past `until`, if it is given."""
        origin = self._found()
        if isinstance(origin, TableOrigin):
            origin.enrol(start, self.options.reader)
        return origin.latest(start, limit, until)

    def plan(self, start: str, end: str) -> Sequence[FilesSplit]:
        origin = self._found()
        groups = shared_out(
            origin.files(start, end),
            split_bytes=self.options.split_bytes,
            parallelism=self.options.parallelism,
        )
        if not groups:
            return []
        self._tell_of_new_columns(origin)
        return [
            FilesSplit(
                files=files,
                schema=self.schema(),
                form=self._form(origin),
                epoch_column=EPOCH_COLUMN if self.options.include_epoch else None,
            )
            for files in groups
        ]

    def read(self, split: FilesSplit) -> Iterator[pa.RecordBatch]:
        for file in split.files:
            yield from _read(self._table.storage, file, split)

    def acknowledge(self, end: str) -> None:
        """Nothing is forgotten here: the files are not this source's to delete. But a table's retention is told, by name."""
        origin = self._found()
        if isinstance(origin, TableOrigin) and self.options.reader is not None:
            origin.acknowledge(end, self.options.reader)

    def _found(self) -> Origin:
        if self._origin is None:
            self._origin = _origin(self._table, self.options)
        return self._origin

    def _form(self, origin: Origin) -> FilesForm:
        if isinstance(origin, TableOrigin):
            return origin.form(self.options.header)
        options = self.options
        return FilesForm(
            file_format=options.file_format or "parquet",
            csv=CsvForm(options.separator, options.null_value, options.escape, options.header or False),
            folders_are_columns=not options.recursive_file_lookup,
        )

    def _complete(self, schema: pa.Schema) -> pa.Schema:
        # As Spark does: what a file lacks is null, whatever the schema says.
        fields = [pa.field(field.name, field.type) for field in schema]
        if self.options.include_epoch and EPOCH_COLUMN not in schema.names:
            fields.append(pa.field(EPOCH_COLUMN, pa.int64()))
        return pa.schema(fields)

    def _tell_of_new_columns(self, origin: Origin) -> None:
        if not isinstance(origin, TableOrigin):
            return
        newest = origin.table.newest()
        there = [] if newest is None or newest.form.schema is None else newest.form.schema.names
        left_out = [name for name in there if name not in self.schema().names]
        if left_out and (self._table.path, *left_out) not in _told:
            _told.add((self._table.path, *left_out))
            log.warning("columns of the table are not read", table=self._table.path, columns=", ".join(left_out))


def _origin(table: FileTable, options: FilesSourceOptions) -> Origin:
    if options.source_kind == "table" or (options.source_kind == "auto" and _is_table(table)):
        return TableOrigin(
            table,
            Admission(options.max_epochs_per_trigger, options.max_rows_per_trigger, options.max_bytes_per_trigger),
        )
    if options.include_epoch:
        raise _wrong(f"includeEpoch is for tables, and {table.path} is a plain folder")
    if scheme_of(table.path) != "file":
        raise _wrong(
            f"{table.path} is no twophase table yet, and plain folders are read from a local disk only: if a query is about to "
            "write its first epoch there, set sourceKind to table, and give the schema"
        )
    return FolderOrigin(
        table.storage,
        table.path,
        file_format=options.file_format or "parquet",
        names=NameFilter(options.recursive_file_lookup, options.path_glob_filter),
        journal=_journal(table, options),
        admission=Admission(options.max_files_per_trigger, options.max_rows_per_trigger, options.max_bytes_per_trigger),
    )


def _is_table(table: FileTable) -> bool:
    """Whether an epoch with a manifest is there, whatever else is: a damaged table must not be read as a plain folder."""
    if table.path in _tables and _has_epochs(table):
        return True
    there = table.storage.list(table.path)
    epochs = [int(found[1]) for entry in there if entry.is_folder and (found := _EPOCH_FOLDER.fullmatch(entry.name))]
    if any(table.has_manifest(epoch) for epoch in epochs):
        _tables.add(table.path)
        return True
    for epoch in epochs:
        if _is_of_sink(table.storage, table.folder(epoch)):
            raise lost_manifest(
                table.folder(epoch), more=", or set sourceKind to folder, if these are to be read as plain files"
            )
    # Nothing yet: a query that is about to write the first epoch has staged it beside.
    return not there and any(staged_beside(table))


def _has_epochs(table: FileTable) -> bool:
    try:
        return table.newest() is not None
    except CheckpointMismatch:
        return True  # of which one is missing, or something else is among them: whoever reads it says so


def _is_of_sink(storage: FileStorage, folder: str) -> bool:
    """Whether a file is below that is named as a sink of tables names its files, and nobody else."""
    entries = storage.list(folder)
    return any(_DATA_FILE.fullmatch(entry.name) for entry in entries if not entry.is_folder) or any(
        _is_of_sink(storage, f"{folder}/{entry.name}") for entry in entries if entry.is_folder and "=" in entry.name
    )


def staged_beside(table: FileTable) -> Iterator[str]:
    """What a sink keeps beside its table; the journal of a plain folder lies there too, and does not count."""
    return (entry.name for entry in table.storage.list(table.staging) if _is_owners(entry))


def _is_owners(entry: Entry) -> bool:
    return entry.is_folder and entry.name != _JOURNAL and not entry.name.startswith(".")


def _journal(place: FileTable, options: FilesSourceOptions) -> Journal:
    ledger = options.ledger
    if ledger is not None:
        # By the folder's name too: two folders that share a ledger must not share a journal.
        return Journal(
            storage_of(ledger, option="ledger", hdfs=options.hdfs), f"{ledger.rstrip('/')}/{escape(place.path)}"
        )
    return Journal(place.storage, f"{place.staging}/{_JOURNAL}")


def _read(storage: FileStorage, file: SplitFile, split: FilesSplit) -> Iterator[pa.RecordBatch]:
    if file.bytes == 0:
        return
    _check(storage, file)
    try:
        opened = storage.open(file.path)
    except FileNotFoundError:
        raise DataLost(f"the file {file.path} is gone: restore it") from None
    rows = 0
    with opened:
        length = opened.seek(0, os.SEEK_END)
        opened.seek(0)
        if length != file.bytes:
            raise DataLost(f"the file {file.path} has {length} bytes, and had {file.bytes}: it was changed or replaced")
        csv = split.form.csv
        if file.csv is not None:
            csv = replace(csv, header=file.csv.header, columns=file.csv.columns or csv.columns)
        for batch in rows_of(opened, file.path, split.form.file_format, split.schema, _constants(file, split), csv):
            rows += batch.num_rows
            yield batch
    # Again: it may have been replaced between the first look and the end.
    _check(storage, file)
    if file.rows is not None and rows != file.rows:
        guessed = split.form.file_format == "csv" and file.csv is None
        hint = "; or set the option header, if its first line was mistaken" if guessed else ""
        raise DataLost(f"the file {file.path} has {rows} rows, and its manifest says {file.rows}: it was changed{hint}")


def _check(storage: FileStorage, file: SplitFile) -> None:
    if file.modified_ns is not None:
        require_unchanged(storage, file.path, TakenFile(file.name, file.bytes, file.modified_ns))


def _constants(file: SplitFile, split: FilesSplit) -> dict[str, pa.Scalar[Any]]:
    """The columns that are the same in all rows of a file: its folders', and its epoch."""
    kinds = {field.name: field.type for field in split.schema}
    constants: dict[str, pa.Scalar[Any]] = {}
    for column, text in partition_of(file.name) if split.form.folders_are_columns else []:
        at = place_of(split.schema.names, column)
        if at is not None:
            wanted = split.schema.field(at)
            # By the type that wrote the folder's name, where it is known: a time in it is of that type's zone.
            written = file.folder_types.get(column, wanted.type)
            constants[wanted.name] = typed(text, written, name=file.path, column=column).cast(wanted.type)
    if split.epoch_column in kinds:
        constants[split.epoch_column] = pa.scalar(file.epoch, pa.int64()).cast(kinds[split.epoch_column])
    return constants


def _wrong(problem: str) -> OptionError:
    return OptionError(f"1 problem with the options: {problem}", problems=[problem])


# Hints for the process, never the truth: what was seen to be a table, and what was logged once.
_tables: set[str] = set()
_told: set[tuple[str, ...]] = set()
