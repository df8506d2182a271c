"""One task attempt's share: files in the generation's folder, written from Arrow batches.

Batches are gathered by partition and written when a row group's worth is there (`ROW_GROUP_BYTES` or `ROW_GROUP_ROWS`). With
partitionBy a task may meet any number of partitions: all of them together gather at most `GATHERED_BYTES`, the fullest is
written first, and at most `OPEN_FILES` are open; a partition whose file had to be closed gets another one.

Files are opened by their full path and no parent is ever created: when the folder was renamed away, because a newer
generation or a committer came, the task finds nothing to write to. With partitionBy only the partition's own folders are made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

import pyarrow as pa

from twophase.errors import Fenced, ProtocolViolation, SchemaMismatch
from twophase.file_table import CsvLayout, TableForm
from twophase.handle import Handle
from twophase.sink import Task, Transaction
from twophase.sinks.files import partitions, table_schema
from twophase.sinks.files.table_schema import SchemaChange
from twophase.sinks.files.writers import FileStyle, FileWriter
from twophase.storage import FileStorage

ROW_GROUP_BYTES = 64 << 20
ROW_GROUP_ROWS = 1 << 20
GATHERED_BYTES = 128 << 20
OPEN_FILES = 64
_BATCH_COSTS_BYTES = 2048  # beyond its data: many tiny batches would otherwise count for nothing


@dataclass(frozen=True)
class FilesHandle(Handle):
    """The files of a share, by name relative to the generation's folder."""

    bytes: dict[str, int]
    rows: dict[str, int]
    form: str
    """The table's form after this epoch, as JSON. Slot 0 says it; and whoever has rows, if instants are in folders' names."""

    @property
    def row_count(self) -> int:
        return sum(self.rows.values())

    def table_form(self) -> TableForm:
        return TableForm.from_json(json.loads(self.form))


@dataclass
class _Gathered:
    """Rows of one partition that are not in a file yet."""

    batches: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def add(self, batch: pa.RecordBatch) -> int:
        size = batch.nbytes + _BATCH_COSTS_BYTES
        self.batches.append(batch)
        self.rows += batch.num_rows
        self.bytes += size
        return size

    @property
    def is_full(self) -> bool:
        return self.bytes >= ROW_GROUP_BYTES or self.rows >= ROW_GROUP_ROWS


class FilesTransaction(Transaction[FilesHandle]):
    """A share in the making.

    Parameters
    ----------
    folder:
        The generation's staging folder, which `prepare` has made.
    table:
        The form of the table before this epoch; None if it is new.
    form:
        What the sink is set to, with the schema that `prepare` was told, if any.
    """

    def __init__(
        self,
        storage: FileStorage,
        folder: str,
        table: TableForm | None,
        form: TableForm,
        style: FileStyle,
        change: SchemaChange,
        task: Task,
    ):
        self._storage = storage
        self._folder = folder
        self._table = table
        self._form = form
        self._style = style
        self._change = change
        self._task = task
        self._rows_schema: pa.Schema | None = None
        self._file_schema: pa.Schema | None = None
        self._gathered: dict[str, _Gathered] = {}
        self._gathered_bytes = 0
        self._writers: dict[str, tuple[str, FileWriter]] = {}  # partition → file's name and writer; oldest first
        self._folders = {""}
        self._files: dict[str, tuple[int, int]] = {}  # closed: bytes and rows
        self._created: list[str] = []
        self._done = False

    # ---- the contract ----

    def write(self, batch: pa.RecordBatch) -> None:
        if self._done:
            raise ProtocolViolation("nothing can be written after pre_commit")
        self._check(batch.schema)
        self._require_readable_text(batch)
        if self._form.partition_by:
            for partition, part in partitions.split(batch, self._form.partition_by):
                self._gather(partition, part)
        elif batch.num_rows:
            self._gather("", _copy(batch))

    def pre_commit(self) -> FilesHandle:
        self._done = True
        for partition in list(self._gathered):
            self._flush(partition)
        if not self._created and self._task.slot == 0:
            self._write_schema_only()
        for partition in list(self._writers):
            self._close(partition)
        self._make_names_durable()
        says_form = self._task.slot == 0 or (self._rows_schema is not None and _has_zones(self._form))
        return FilesHandle(
            bytes={name: size for name, (size, _) in self._files.items()},
            rows={name: rows for name, (_, rows) in self._files.items()},
            form=json.dumps(self._form_after().to_json()) if says_form else "",
        )

    def abort(self) -> None:
        """Delete this attempt's own files; the folder is the generation's, and is swept with it."""
        self._done = True
        self._gathered.clear()
        for _, writer in self._writers.values():
            writer.abandon()
        self._writers.clear()
        for name in self._created:
            self._storage.delete(f"{self._folder}/{name}")

    # ---- schema ----

    def _check(self, schema: pa.Schema) -> None:
        """What tasks are handed is checked where it arrives: `prepare` may not have been told, or told otherwise."""
        if self._rows_schema is not None:
            if not schema.equals(self._rows_schema):
                raise SchemaMismatch("two batches of one task have different columns", slot=self._task.slot)
            return
        told = self._form.schema
        if told is not None and not _same_columns(told, schema):
            raise SchemaMismatch(
                f"the task was planned for the columns {_shown(told)}, and got {_shown(schema)}", slot=self._task.slot
            )
        partition_by = table_schema.spelled(self._form.partition_by, schema.names)
        rows = TableForm(self._form.file_format, partition_by, schema)
        table_schema.after(self._table, rows, self._change)
        self._rows_schema = schema
        self._form = rows
        self._file_schema = table_schema.file_schema(rows, schema)

    def _require_readable_text(self, batch: pa.RecordBatch) -> None:
        """Spark casts any bytes to text. Parquet files keep them; text files and the names of folders can't."""
        is_text = self._form.file_format != "parquet"
        for name in batch.schema.names if is_text else self._form.partition_by:
            try:
                batch.column(name).validate(full=True)
            except pa.ArrowInvalid:
                where = f"{self._form.file_format} files" if is_text else "the name of a folder"
                raise SchemaMismatch(
                    f"the column {name!r} has text that is not UTF-8, which can't be in {where}", slot=self._task.slot
                ) from None

    def _form_after(self) -> TableForm:
        """What the manifest says: whoever commits may be set to something else by then."""
        form = table_schema.after(self._table, self._form, self._change)
        if form.file_format != "csv":
            return form
        columns = self._form.stored_columns or form.stored_columns
        return replace(form, csv=CsvLayout(self._style.header, tuple(columns.names) if columns is not None else ()))

    def _write_schema_only(self) -> None:
        """An epoch without rows still shows its columns, where a file without rows can."""
        schema = self._form_after().schema
        if schema is None or not self._style.says_schema_without_rows:
            return
        self._file_schema = table_schema.file_schema(self._form, schema)
        self._writer(self._form.null_partition).write(self._file_schema.empty_table())

    # ---- files ----

    def _gather(self, partition: str, batch: pa.RecordBatch) -> None:
        gathered = self._gathered.setdefault(partition, _Gathered())
        self._gathered_bytes += gathered.add(batch)
        if gathered.is_full:
            self._flush(partition)
        while self._gathered_bytes > GATHERED_BYTES:
            self._flush(max(self._gathered, key=lambda name: self._gathered[name].bytes))

    def _flush(self, partition: str) -> None:
        gathered = self._gathered.pop(partition)
        self._gathered_bytes -= gathered.bytes
        assert self._file_schema is not None
        # Without what Spark put beside the columns: metadata would make the batches' schemas differ from the file's.
        batches = [pa.RecordBatch.from_arrays(batch.columns, schema=self._file_schema) for batch in gathered.batches]
        self._writer(partition).write(pa.Table.from_batches(batches))

    def _writer(self, partition: str) -> FileWriter:
        if partition in self._writers:
            self._writers[partition] = self._writers.pop(partition)  # newest last
            return self._writers[partition][1]
        if len(self._writers) >= OPEN_FILES:
            self._close(next(iter(self._writers)))
        assert self._file_schema is not None
        name = self._new_name(partition)
        try:
            self._make_folders(partition)
            file = self._storage.create(f"{self._folder}/{name}")
        except FileNotFoundError as error:
            raise self._fenced() from error
        self._created.append(name)
        writer = self._style.writer(file, self._file_schema)
        self._writers[partition] = (name, writer)
        return writer

    def _new_name(self, partition: str) -> str:
        name = f"part-{self._task.slot:05d}-{self._task.attempt}-c{len(self._created):03d}{self._style.ending}"
        return f"{partition}/{name}" if partition else name

    def _make_folders(self, partition: str) -> None:
        path = ""
        for part in partition.split("/") if partition else ():
            path = f"{path}/{part}" if path else part
            if path not in self._folders:
                self._storage.make_child(f"{self._folder}/{path}")
                self._folders.add(path)

    def _close(self, partition: str) -> None:
        name, writer = self._writers.pop(partition)
        try:
            self._files[name] = (writer.close(), writer.rows)
        except FileNotFoundError as error:
            # Storage that asks for the folder only when a file is whole, or that knows its open files by their folder.
            raise self._fenced() from error

    def _make_names_durable(self) -> None:
        if not self._created:
            return
        try:
            for path in sorted(self._folders):
                self._storage.sync(f"{self._folder}/{path}".rstrip("/"))
        except FileNotFoundError as error:
            raise self._fenced() from error

    def _fenced(self) -> Fenced:
        return Fenced(
            f"{self._folder} is gone: a newer generation of the query, or its commit, came before this task was done",
            slot=self._task.slot,
        )


def _copy(batch: pa.RecordBatch) -> pa.RecordBatch:
    """What was handed over may be overwritten while it is gathered. A column concatenated with nothing is a copy of its rows."""
    columns = [pa.concat_arrays([column, column.slice(0, 0)]) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _has_zones(form: TableForm) -> bool:
    """Whether instants are in the names of folders: they are written in the session's time zone."""
    schema = form.schema
    return schema is not None and any(
        name in schema.names and pa.types.is_timestamp(schema.field(name).type) for name in form.partition_by
    )


def _same_columns(one: pa.Schema, other: pa.Schema) -> bool:
    return one.names == other.names and all(
        table_schema.same_type(a.type, b.type) for a, b in zip(one, other, strict=True)
    )


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema)
