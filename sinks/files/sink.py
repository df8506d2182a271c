"""FilesSink: a table of files, exactly once, for readers that know nothing of twophase.

::

    begin, write     files in <parent>/.<table>.twophase/<owner>/<N>.<generation>/
    pre-commit       closed and fsynced, with their folders
    commit           seal ─► compare ─► manifest ─► rename to <table>/epoch=<position>     (publication.py)
    abort            rename away, then delete                                              (staging.py)

The mechanism: one rename that never replaces shows all files of an epoch at once, together with the manifest that says whose
epoch it is and by which decision. The highest epoch's manifest is the marker.

The guarantee: `spark.read.parquet(path)`, DuckDB and pyarrow datasets see whole committed epochs, each once, at any moment and
whatever pattern they are given: the manifest has no rows, or is no file. An epoch survives kill -9 and power cuts from the vote
on. One owner at a time; a second one is refused.

What it can't do: work on object stores, which have no rename; replace what is there (complete mode). It needs a file system with
RENAME_NOREPLACE, on which table and staging are together.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import pyarrow as pa

from twophase.errors import Fenced, NotCommitted, OptionError
from twophase.file_table import PROBE_IN_TABLE, DataFile, FileTable, Manifest, TableForm, open_table
from twophase.identity import Generation, Owner
from twophase.line_of_epochs import elsewhere, not_taken_over, refuse_restored
from twophase.options import PassThrough, key_of, option, parse, texts_of
from twophase.secret import Secret
from twophase.sink import (
    WHOLE,
    Capabilities,
    CommitOrder,
    Description,
    Leftover,
    Marker,
    Outcome,
    Plan,
    PreparedEpoch,
    Share,
    Sink,
    Status,
    TakeOver,
    Task,
)
from twophase.sinks.files import staging, table_schema
from twophase.sinks.files.publication import Publication
from twophase.sinks.files.retention import retire
from twophase.sinks.files.staging import PROBE, SEALED, TAKE_OVER, StagedFolder, owner_folder
from twophase.sinks.files.table_schema import SchemaChange
from twophase.sinks.files.transaction import FilesHandle, FilesTransaction
from twophase.sinks.files.writers import CODECS, DEFAULT_CODEC, FileStyle
from twophase.storage import FileStorage
from twophase.table_readers import TableReaders

FileFormat = Literal["parquet", "json", "csv"]
TEMPORARY_LIVES_S = 3600.0
_NO_RENAME = {
    errno.EXDEV: "and what is beside it is on another file system: choose a folder below a mount point, not the mount point",
    errno.EOPNOTSUPP: "whose file system can't rename a folder without replacing: choose another one",
}


@dataclass(frozen=True, kw_only=True)
class FilesOptions:
    """The options of `twophase-files`, for writing."""

    path: str = option(
        doc="The table's folder: a local path, `file:///…`, or on HDFS `hdfs://namenode:8020/…` or `webhdfs://namenode:9870/…`."
    )
    file_format: FileFormat = option(doc="What its files are.", default="parquet")
    partition_by: tuple[str, ...] = option(
        doc="Columns that become folders, outermost first. They are found in any case, and keep their own spelling.",
        default=(),
    )
    compression: str | None = option(
        doc="The codec: for parquet `snappy` (default), `gzip`, `zstd`, `lz4` or `none`; for json and csv `none` (default) "
        "or `gzip`.",
        default=None,
    )
    schema_change: SchemaChange = option(
        doc="What to do when columns differ from the table's: take added ones (`add`), none (`refuse`), or any change (`any`).",
        default="add",
    )
    header: bool = option(doc="Whether csv files begin with a line of column names.", default=False)
    retain_epochs: int | None = option(
        doc="Keep so many epochs, and delete older ones after each commit; but none that a follower, which needs a name for it "
        "(its option `reader`), has not acknowledged.",
        default=None,
        minimum=1,
    )
    hdfs: PassThrough = option(doc="For a path on HDFS: [how it is spoken to](#hdfs).", prefix="hdfs.")

    def problems(self) -> Iterable[str]:
        codecs = CODECS[self.file_format]
        if self.compression is not None and self.compression.lower() not in codecs:
            yield f"compression is {self.compression!r}, not one of {', '.join(codecs)}, which {self.file_format} files can have"
        if self.header and self.file_format != "csv":
            yield "header is for csv files only"
        if len({name.lower() for name in self.partition_by}) < len(self.partition_by):
            yield "partitionBy names a column twice"

    @property
    def style(self) -> FileStyle:
        codec = CODECS[self.file_format][(self.compression or DEFAULT_CODEC[self.file_format]).lower()]
        return FileStyle(self.file_format, codec, self.header)


class FilesSink(Sink[FilesHandle]):
    """A table of files: one line of epochs, one owner at a time.

    Parameters
    ----------
    path:
        The table's folder. A relative one is taken from the current folder, now.
    file_format, partition_by, compression, schema_change, header, retain_epochs:
        As the options of `FilesOptions`.
    hdfs:
        The options `hdfs.*`, without that prefix, for a path on HDFS.
    storage:
        What the path is in; chosen by the path if None.
    """

    capabilities = Capabilities(atomic=True, several_owners=False, ordered=True)
    handle_type = FilesHandle

    def __init__(
        self,
        path: str,
        *,
        file_format: FileFormat = "parquet",
        partition_by: str | Sequence[str] = (),
        compression: str | None = None,
        schema_change: SchemaChange = "add",
        header: bool = False,
        retain_epochs: int | None = None,
        hdfs: Mapping[str, str | Secret] | None = None,
        storage: FileStorage | None = None,
    ):
        told = PassThrough(hdfs or {})
        self._table = open_table(path, hdfs=told) if storage is None else FileTable(storage, path)
        self._options = FilesOptions(
            path=self._table.path,
            file_format=file_format,
            partition_by=texts_of(partition_by),
            compression=compression,
            schema_change=schema_change,
            header=header,
            retain_epochs=retain_epochs,
            hdfs=told,
        )
        problems = [
            f"{name} is {value!r}, not one of {', '.join(get_args(choices))}"
            for name, value, choices in (
                ("fileFormat", file_format, FileFormat),
                ("schemaChange", schema_change, SchemaChange),
            )
            if value not in get_args(choices)
        ]
        if retain_epochs is not None and retain_epochs < 1:
            problems.append(f"retainEpochs is {retain_epochs}, below the minimum of 1")
        problems = problems or list(self._options.problems())
        if problems:
            raise OptionError("; ".join(problems), problems=problems)
        if partition_by:  # a task's rows are then in several files, which readers take in the order of the folders
            self.capabilities = replace(type(self).capabilities, ordered=False)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> FilesSink:
        """By options as Spark hands them over: text, with keys in any case."""
        given = parse(FilesOptions, options, ignore=("checkpointLocation", "queryName"))
        return cls(
            given.path,
            file_format=given.file_format,
            partition_by=given.partition_by,
            compression=given.compression,
            schema_change=given.schema_change,
            header=given.header,
            retain_epochs=given.retain_epochs,
            hdfs=given.hdfs,
        )

    def describe(self) -> Description | None:
        options = self._options
        given = {
            "path": options.path,
            "file_format": options.file_format,
            "partition_by": ",".join(options.partition_by),
            "compression": options.compression or "",
            "schema_change": options.schema_change,
            "header": "true" if options.header else "",
            "retain_epochs": "" if options.retain_epochs is None else str(options.retain_epochs),
        }
        described = {key_of(name): text for name, text in given.items() if text}
        for key, value in options.hdfs.items():
            told = value.reference if isinstance(value, Secret) else value
            if told is None:
                return None  # a literal secret must not be kept; without it nobody can connect
            described[f"hdfs.{key}"] = told
        return Description("twophase-files", described)

    @property
    def table(self) -> FileTable:
        return self._table

    @property
    def target(self) -> str:
        return self._table.path

    # ---- driver, before the tasks ----

    def fence(self, owner: Owner, generation: Generation) -> None:
        """Nothing to do: the folders of older generations are swept, and a task without its folder can't write.

        But a table that was moved by a later record of the same ledger knows that the ledger was restored.
        """
        staging.refuse_cut_name(owner)
        newest = self._table.newest()
        refuse_restored("table", None if newest is None else newest.marker, generation)

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        """Check the columns, and make the folder that the tasks write to."""
        newest = self._table.newest()
        known = None if newest is None else newest.form
        form = self._fitting(known, prepared.schema, overwrite=prepared.overwrite)
        staged = self._staged(prepared.owner, prepared.epoch.number, prepared.generation)
        if newest is None:
            self._table.storage.make_folder(self._table.path)
        if self._options.retain_epochs is not None:
            TableReaders(self._table).expect()
        self._make_staged(staged)
        if newest is None:
            self._try_rename(staged)
        return Plan(prepared, {"table": known, "form": form})

    def require_fit(self, schema: pa.Schema | None, *, overwrite: bool) -> None:
        newest = self._table.newest()
        self._fitting(None if newest is None else newest.form, schema, overwrite=overwrite)

    def _fitting(self, known: TableForm | None, schema: pa.Schema | None, *, overwrite: bool) -> TableForm:
        """What this sink is set to, with the schema of the rows, if they may go into a table of the form `known`."""
        if overwrite:
            problem = "a table of files can't be replaced by each epoch (complete mode): use append, or foreachBatch"
            raise OptionError(problem, problems=[problem])
        names = schema.names if schema is not None else () if known is None else known.partition_by
        partition_by = table_schema.spelled(self._options.partition_by, names)
        form = TableForm(self._options.file_format, partition_by, schema)
        table_schema.after(known, form, self._options.schema_change)
        return form

    def _make_staged(self, folder: StagedFolder) -> None:
        storage, parent = self._table.storage, owner_folder(self._table, folder.owner)
        try:
            storage.make_child(folder.path(self._table))
            storage.sync(parent)
        except FileNotFoundError:
            storage.make_folder(folder.path(self._table))
        storage.sweep_temporary(parent, TEMPORARY_LIVES_S)

    def _try_rename(self, folder: StagedFolder) -> None:
        """A new table is refused where no epoch could be committed: better now than after the first decision."""
        storage, source = self._table.storage, folder.as_(PROBE).path(self._table)
        target = f"{self._table.path}/{PROBE_IN_TABLE}-{folder.generation}"
        for entry in storage.list(self._table.path):
            if entry.name.startswith(
                PROBE_IN_TABLE
            ):  # of a driver that died here; one that lives has seen what it wanted to
                storage.delete(f"{self._table.path}/{entry.name}")
        storage.make_child(source)
        try:
            storage.rename(source, target)
        except FileExistsError:
            pass  # by an earlier prepare of this generation
        except OSError as error:
            cause = _NO_RENAME.get(error.errno or 0)
            if cause is None:
                raise
            problem = f"path is {self._table.path}, {cause}"
            raise OptionError(problem, problems=[problem]) from error
        finally:
            storage.delete(source)
            storage.delete(target)

    # ---- executor ----

    def begin(self, plan: Plan, task: Task) -> FilesTransaction:
        prepared = plan.prepared
        folder = self._staged(prepared.owner, prepared.epoch.number, prepared.generation).path(self._table)
        return FilesTransaction(
            self._table.storage,
            folder,
            plan.details["table"],
            plan.details["form"],
            self._options.style,
            self._options.schema_change,
            task,
        )

    # ---- driver, after the votes ----

    def alive(self, order: CommitOrder[FilesHandle]) -> Mapping[int, str]:
        dead: dict[int, str] = {}
        lengths: dict[str, dict[str, int]] = {}
        for share in order.shares:
            staged = self._staged(order.owner, order.epoch.number, share.attempt.generation).path(self._table)
            for name, length in share.handle.bytes.items():
                parent, _, file = f"{staged}/{name}".rpartition("/")
                if parent not in lengths:
                    lengths[parent] = {entry.name: entry.length for entry in self._table.storage.list(parent)}
                found = lengths[parent].get(file)
                if found != length:
                    dead[share.slot] = f"{name} is gone" if found is None else f"{name} has {found} bytes, not {length}"
        return {} if dead and self._shows(order.marker) else dead

    def _shows(self, marker: Marker) -> bool:
        """Whether the epoch is in the table by this decision. Asked after staging: what is visible is not staged any more."""
        try:
            return self._table.manifest(marker.base + marker.epoch.number).marker == marker
        except FileNotFoundError:
            return False

    def commit(self, order: CommitOrder[FilesHandle]) -> Outcome:
        publication = self._publication(order)
        newest = self._table.newest()
        marker = None if newest is None else newest.marker
        if marker != order.origin:
            refusal = elsewhere("table", marker, order)
            # Before the look at its position: an owner that took the line back finds the other's epoch there.
            if isinstance(refusal, NotCommitted):
                raise refusal
            if _is_in_line(newest, publication.manifest) and publication.is_visible():
                return Outcome.ALREADY_COMMITTED
            if marker is None:
                raise Fenced(f"the table {self._table.path} is gone or empty: it was deleted, moved away or replaced")
            raise refusal
        outcome = publication.publish()
        if self._options.retain_epochs is not None:
            retire(self._table, publication.manifest.position, self._options.retain_epochs)
        return outcome

    def _publication(self, order: CommitOrder[FilesHandle]) -> Publication:
        if not order.shares:
            raise NotCommitted("a decision without shares can't be committed")
        kept = _kept(order.shares)
        files = {name: DataFile(name, size, s.handle.rows[name]) for s in kept for name, size in s.handle.bytes.items()}
        first = min(order.shares, key=lambda share: share.slot)
        # By who has rows, if anybody: only these have told their task the session's time zone.
        says_form = next((share for share in kept if share.handle.form), first)
        staged = self._staged(order.owner, order.epoch.number, first.attempt.generation)
        return Publication(
            table=self._table,
            manifest=Manifest(order.marker, says_form.handle.table_form(), _sorted(files), written_ms=_now_ms()),
            staged=staged.path(self._table),
            sealed=staged.as_(SEALED).path(self._table),
            through=owner_folder(self._table, order.owner),
            slots={name: share.slot for share in order.shares for name in share.handle.bytes},
            is_first=order.origin is None,
        )

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[FilesHandle]]) -> None:
        for whose, generation in {(left.owner or owner, left.generation): None for left in leftovers}:
            staging.drop(self._table, whose, generation)

    def mark(self, share: Share[FilesHandle]) -> str:
        return str(share.attempt.generation)

    # ---- recovery ----

    def status(self, owner: Owner, *, settled: bool) -> Status:
        newest = self._table.newest()
        if newest is None:
            return Status()
        self._table.make_durable(newest.marker)
        if newest.marker.owner == owner:
            return Status({WHOLE: newest.marker})
        return Status({WHOLE: newest.marker}, own=self._own(owner))

    def _own(self, owner: Owner) -> Marker | None:
        for position in reversed(self._table.positions()):
            marker = self._table.manifest(position).marker
            if marker.owner == owner:
                return marker
        return None

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> Iterable[Leftover[FilesHandle]]:
        return [
            Leftover(
                generation=staged.generation,
                mark=str(staged.generation),
                what=f"folder {staged.path(self._table)} of epoch {staged.number}",
                owner=staged.owner,
            )
            for staged in staging.staged_folders(self._table)
        ]

    def take_over(self, order: TakeOver) -> None:
        newest = self._table.newest()
        form = TableForm(self._options.file_format, self._options.partition_by)
        marker, owner = order.marker, order.marker.owner
        staged = self._staged(owner, marker.epoch.number, Generation.parse(marker.by)).as_(TAKE_OVER)
        publication = Publication(
            table=self._table,
            manifest=Manifest(marker, newest.form if newest else form, (), order.origin.owner, _now_ms()),
            staged=None,
            sealed=staged.path(self._table),
            through=owner_folder(self._table, owner),
            slots={},
        )
        if newest is None or newest.marker != order.origin:
            if _is_in_line(newest, publication.manifest) and publication.is_visible():
                return
            raise not_taken_over("table", None if newest is None else newest.marker, order)
        self._table.storage.make_folder(staged.path(self._table))
        try:
            publication.publish()
        except NotCommitted as error:
            raise Fenced(f"the take-over was swept by another: {error.message}") from error

    def _staged(self, owner: Owner, number: int, generation: Generation) -> StagedFolder:
        return StagedFolder(owner, number, generation)


def _kept(shares: Sequence[Share[FilesHandle]]) -> list[Share[FilesHandle]]:
    """Whose files go into the epoch: those with rows; if nobody has any, slot 0, whose file says the columns."""
    with_rows = [share for share in shares if share.handle.row_count > 0]
    return with_rows or [share for share in shares if share.slot == 0]


def _sorted(files: Mapping[str, DataFile]) -> tuple[DataFile, ...]:
    return tuple(files[name] for name in sorted(files))


def _is_in_line(newest: Manifest | None, manifest: Manifest) -> bool:
    return newest is not None and newest.position >= manifest.position


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
