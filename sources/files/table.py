"""A twophase table as an origin of rows: its epochs, in their order.

The offset is the last position taken, with the decision that made it: ``{"by":"…","epoch":7}``, or ``{"epoch":-1}`` before
the first. Epoch folders never change, so the same range is the same files for ever; a pipeline that reads what another
writes takes each committed epoch once and has no gap. An epoch is taken whole.

Noticed and refused, with the range: epochs that retention deleted before they were read; a table that was deleted and
begun again, or restored from an older copy, by the decision in the offset (where that epoch is still there to compare).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import cast, get_args

import pyarrow as pa

from twophase.errors import CheckpointMismatch, DataLost, OptionError, Unreadable
from twophase.file_table import FileTable, Manifest, TableForm, epochs_text, first_gap
from twophase.source import ReadLimit
from twophase.sources.files.admission import Admission, Size
from twophase.sources.files.options import FileFormat
from twophase.sources.files.rows import CsvForm
from twophase.sources.files.split import FilesForm, SplitFile
from twophase.table_readers import TableReaders
from twophase.vote import canonical_json

NOTHING = -1


class TableOrigin:
    """The epochs of a table."""

    def __init__(self, table: FileTable, admission: Admission):
        self.table = table
        self.admission = admission

    def schema(self) -> pa.Schema:
        """Of the newest epoch: it has every column that any epoch has had."""
        newest = self._newest()
        if newest is None or newest.form.schema is None:
            problem = (
                f"the table {self.table.path} has no epoch with a schema yet: give the schema, or start when its first epoch "
                "is there"
            )
            raise OptionError(f"1 problem with the options: {problem}", problems=[problem])
        return newest.form.schema

    def form(self, header: bool | None = None) -> FilesForm:
        """How the files are written: the sink's own dialect of csv. Whether they have a header, and which columns, each epoch's
        manifest says; what is here is for epochs of releases that did not say it."""
        newest = self._newest()
        form = TableForm("parquet") if newest is None else newest.form
        if form.file_format not in get_args(FileFormat):
            raise Unreadable(
                f"the table {self.table.path} has files of the format {form.file_format!r}: use a newer release"
            )
        fields = [] if form.schema is None else list(form.schema)
        return FilesForm(
            file_format=cast(FileFormat, form.file_format),
            csv=CsvForm(
                escape="\\",
                header=header,
                columns=tuple(field.name for field in fields if field.name not in form.partition_by),
                blank_is_row=True,
            ),
            folders_are_columns=True,
        )

    def _newest(self) -> Manifest | None:
        try:
            return self.table.newest()
        except CheckpointMismatch:
            gap = first_gap(self.table.positions_left())
            if gap is not None:
                raise DataLost(
                    f"the table {self.table.path} lacks {epochs_text(*gap)}, and has those around it: deleted or moved by hand, or "
                    "not restored. Put what is missing back: no query can follow the table without it."
                ) from None
            raise

    def enrol(self, start: str, reader: str | None) -> None:
        """Before anything is read: whoever deletes old epochs has to know who still wants them."""
        readers = TableReaders(self.table)
        if reader is not None:
            readers.enrol(reader, self._parsed(start)[0] + 1)
        elif readers.are_expected():
            problem = (
                f"old epochs of the table {self.table.path} are deleted (retainEpochs), and nobody waits for a query without a "
                "name: set the option reader, to a name that no other query has"
            )
            raise OptionError(f"1 problem with the options: {problem}", problems=[problem])

    def acknowledge(self, end: str, reader: str) -> None:
        TableReaders(self.table).acknowledge(reader, self._parsed(end)[0] + 1)

    def earliest(self) -> str:
        positions = self.table.positions()
        return _offset(positions[0] - 1 if positions else NOTHING)

    def newest(self) -> str:
        newest = self._newest()
        return _offset(NOTHING) if newest is None else self._durable(newest)

    def latest(self, start: str, limit: ReadLimit, until: str | None = None) -> str:
        position, by = self._parsed(start)
        newest = self._newest()
        self._require_same_table(position, by, newest)
        if newest is None:
            return start
        end = newest.position if until is None else min(newest.position, self._parsed(until)[0])
        if position >= end:
            self._require_not_ahead(position, newest)
            return start
        waiting = self._manifests(position, end)
        admission = self.admission.within(limit)
        if admission.is_unlimited:
            self._manifest(position + 1)  # the others are read by `files`; this one says if there is a gap
            return self._durable(self._manifest(end))
        count = admission.admitted(Size(manifest.bytes, manifest.rows) for manifest in waiting)
        return self._durable(self._manifest(position + count))

    def _durable(self, last: Manifest) -> str:
        # Whoever committed it may have died before its folder's name was durable, and an offset must not outlive it.
        self.table.storage.sync(self.table.path)
        return _offset(last.position, last.marker.by)

    def _require_not_ahead(self, position: int, newest: Manifest) -> None:
        if position > newest.position:
            raise self._another(position, f"its newest epoch is {newest.position}")

    def files(self, start: str, end: str) -> list[SplitFile]:
        position, by = self._parsed(start)
        last, last_by = self._parsed(end)
        self._require_same_table(position, by, None)
        self._require_same_table(last, last_by, None)
        return [
            SplitFile(
                path=f"{self.table.folder(manifest.position)}/{file.name}",
                name=file.name,
                bytes=file.bytes,
                rows=file.rows,
                epoch=manifest.position,
                csv=manifest.form.csv,
                folder_types=folder_types,
            )
            for manifest in self._manifests(position, last)
            for folder_types in [_folder_types(manifest.form)]
            for file in manifest.files
            if file.rows > 0
        ]

    def _manifests(self, after: int, last: int) -> Iterator[Manifest]:
        return (self._manifest(position) for position in range(after + 1, last + 1))

    def _manifest(self, position: int) -> Manifest:
        try:
            return self.table.manifest(position)
        except FileNotFoundError:
            there = [other for other in self.table.positions_left() if other > position]
            raise self._lost(epochs_text(position, there[0] - 1 if there else position)) from None

    def _lost(self, epochs: str) -> DataLost:
        return DataLost(
            f"{epochs} of the table {self.table.path} can't be read: deleted by retention or by hand before this query read "
            "it, or the table began at a later one, in which case a new query starts there. Restore what is missing, or "
            "start a new query, which begins with the oldest epoch there is."
        )

    def _require_same_table(self, position: int, by: str | None, newest: Manifest | None) -> None:
        if position == NOTHING or by is None:
            return
        if newest is not None:
            self._require_not_ahead(position, newest)
        try:
            found = self.table.manifest(position).marker.by
        except FileNotFoundError:
            if newest is None and not self.table.positions():
                raise self._another(position, "it has no epoch at all") from None
            return  # retention: what was read may go
        if found != by:
            raise self._another(position, f"its epoch {position} was committed by {found}, and not by {by}")

    def _another(self, position: int, what: str) -> DataLost:
        return DataLost(
            f"this query has read the table {self.table.path} up to epoch {position}, but {what}: the table was deleted and "
            "begun again, or restored from an older copy. Start a new query to read it from its beginning."
        )

    def _parsed(self, offset: str) -> tuple[int, str | None]:
        content = json.loads(offset)
        if not isinstance(content, dict) or type(content.get("epoch")) is not int:
            problem = (
                f"the offset {offset} is not one of a table, but {self.table.path} is a table: this query began on a plain "
                "folder. Start a new query, or set sourceKind to folder"
            )
            raise OptionError(f"1 problem with the options: {problem}", problems=[problem])
        by = content.get("by")
        return int(content["epoch"]), None if by is None else str(by)


def _folder_types(form: TableForm) -> dict[str, pa.DataType]:
    """Each epoch's own: instants in folders' names are of the zone that its session had."""
    return {} if form.schema is None else {name: form.schema.field(name).type for name in form.partition_by}


def _offset(position: int, by: str | None = None) -> str:
    return canonical_json({"epoch": position} if by is None else {"epoch": position, "by": by})
