"""A plain folder as an origin of rows: the files that others move into it, in the order of the journal.

The offset is an index into the journal of taken files, with the journal's id: ``{"file":12,"journal":"…"}``, or
``{"file":0}`` before there is one. `latest` lists the folder, appends what is new to the journal, durably, and only then
offers it; a range is the files between two indices, whatever lies in the folder by then. So a late file with an old time
of change is not lost, and no file is read twice.

Files must be moved in whole (written elsewhere, or under a hidden name, and renamed), as for Spark's own file source: a
file that is still being written when it is found is taken as it is. On every read its size and time of change must be
those in the journal: else the read fails and names it. A file that is replaced *after* its epoch is not read again; that
is logged.
"""

from __future__ import annotations

import json

import pyarrow as pa

from twophase.errors import DataLost, OptionError
from twophase.log import Log
from twophase.source import ReadLimit
from twophase.sources.files.admission import Admission, Size
from twophase.sources.files.journal import History, Journal, TakenFile
from twophase.sources.files.listing import NameFilter, found_below, look
from twophase.sources.files.options import FileFormat
from twophase.sources.files.rows import parquet_rows, parquet_schema, partition_of
from twophase.sources.files.split import SplitFile
from twophase.storage import FileStorage
from twophase.vote import canonical_json

log = Log("twophase.sources.files")


class FolderOrigin:
    """The files of a folder."""

    def __init__(
        self,
        storage: FileStorage,
        folder: str,
        *,
        file_format: FileFormat,
        names: NameFilter,
        journal: Journal,
        admission: Admission,
    ):
        self.storage = storage
        self.folder = folder
        self.file_format = file_format
        self.names = names
        self.journal = journal
        self.admission = admission

    def schema(self) -> pa.Schema:
        """Of text, its one column; of parquet, the schema of the first file, and its folders' columns as text."""
        if self.file_format == "text":
            return pa.schema([("value", pa.string())])
        first = self._first_file() if self.file_format == "parquet" else None
        if first is None:
            why = (
                "is empty"
                if self.file_format == "parquet"
                else f"holds {self.file_format}, which does not say its columns"
            )
            problem = f"the folder {self.folder} {why}: give the schema"
            raise OptionError(f"1 problem with the options: {problem}", problems=[problem])
        with self.storage.open(self._path(first)) as file:
            found = parquet_schema(file, first)
        columns = [] if self.names.recursive else [column for column, _ in partition_of(first)]
        for column in columns:
            if column not in found.names:
                found = found.append(pa.field(column, pa.string()))
        return found

    def earliest(self) -> str:
        """Files that are gone from the front were never promised to a query that starts now."""
        history = self.journal.read()
        index = 0
        while index < len(history.files) and self._status(history.files[index]) is None:
            index += 1
        return _offset(index, history.journal)

    def newest(self) -> str:
        history = self._listed()
        return _offset(len(history.files), history.journal)

    def latest(self, start: str, limit: ReadLimit, until: str | None = None) -> str:
        admission = self.admission.within(limit)
        # As long as the journal has more than an epoch may take, or all that it may, the folder need not be listed.
        end, more = self._admitted(self.journal.read(), start, admission, until)
        if more or until is not None:
            return end
        return self._admitted(self._listed(), start, admission, until)[0]

    def files(self, start: str, end: str) -> list[SplitFile]:
        history = self.journal.read()
        first, last = self._index(history, start), self._index(history, end)
        taken = [file for file in history.files[first:last] if self.names.takes(file.name)]
        for file in taken:
            self._require_unchanged(file)
        return [
            SplitFile(path=self._path(file.name), name=file.name, bytes=file.bytes, modified_ns=file.modified_ns)
            for file in taken
        ]

    def _admitted(self, history: History, start: str, admission: Admission, until: str | None) -> tuple[str, bool]:
        """The end of a range that begins at `start`, and whether more is waiting after it."""
        first = self._index(history, start)
        last = len(history.files) if until is None else self._index(history, until)
        # Another reader may take other names than this one does.
        waiting = [at for at in range(first, last) if self.names.takes(history.files[at].name)]
        if not waiting:
            return start, False
        count = admission.admitted(self._size(history.files[at], admission) for at in waiting)
        return _offset(waiting[count - 1] + 1, history.journal), count < len(waiting)

    def _size(self, file: TakenFile, admission: Admission) -> Size:
        if admission.rows is None or self.file_format != "parquet" or file.bytes == 0:
            return Size(file.bytes, 0 if file.bytes == 0 else None)
        self._require_unchanged(file)
        with self.storage.open(self._path(file.name)) as opened:
            return Size(file.bytes, parquet_rows(opened, file.name))

    def _listed(self) -> History:
        found = self._found()
        history = self.journal.read()
        for file in found:
            at = history.names.get(file.name)
            if at is not None and history.files[at] != file and (self.folder, file) not in _told:
                _told.add((self.folder, file))
                log.warning("a file was replaced after it was taken, and is not read again", file=self._path(file.name))
        return self.journal.extend(found)

    def _found(self) -> list[TakenFile]:
        try:
            return found_below(self.storage, self.folder, self.names)
        except FileNotFoundError:
            raise DataLost(
                f"the folder {self.folder} is not there: create it, mend the option path, or set sourceKind to table if "
                "another query is yet to write it"
            ) from None

    def _first_file(self) -> str | None:
        """The oldest that is still there: by the journal, so that files that arrive later don't change the schema."""
        history = self.journal.read()
        for file in history.files:
            if file.bytes > 0 and self.names.takes(file.name) and self._status(file) == file:
                return file.name
        return next((file.name for file in self._found() if file.bytes > 0), None)

    def _status(self, file: TakenFile) -> TakenFile | None:
        """The file as it is now; None if it is gone."""
        try:
            return look(self.storage, self._path(file.name), file.name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _require_unchanged(self, file: TakenFile) -> None:
        require_unchanged(self.storage, self._path(file.name), file)

    def _path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _index(self, history: History, offset: str) -> int:
        content = json.loads(offset)
        if not isinstance(content, dict) or type(content.get("file")) is not int:
            problem = (
                f"the offset {offset} is not one of a plain folder, but {self.folder} is read as one: this query began on a "
                "table. Start a new query, or set sourceKind to table"
            )
            raise OptionError(f"1 problem with the options: {problem}", problems=[problem])
        index, journal = int(content["file"]), content.get("journal")
        if index > len(history.files) or (index > 0 and journal != history.journal):
            raise DataLost(
                f"this query has read the folder {self.folder} up to file {index} of the journal {journal}, but the journal of "
                f"taken files there is {history.journal} and has {len(history.files)} files: it was deleted, restored from an "
                "older copy, or the option ledger was changed. Restore it, or start a new query, which reads all files."
            )
        return index


def require_unchanged(storage: FileStorage, path: str, taken: TakenFile) -> None:
    """Raise DataLost unless the file is what it was when it was taken."""
    try:
        now = look(storage, path, taken.name)
    except (FileNotFoundError, NotADirectoryError):
        raise DataLost(
            f"the file {path} was taken and is gone: put it back as it was ({_told_of(taken)}). A new query that shall do "
            "without it takes another `ledger`."
        ) from None
    if now != taken:
        raise DataLost(
            f"the file {path} was changed after it was taken: it has {_told_of(now)}, and had {_told_of(taken)}. Put it back "
            "as it was, and move changed rows in under a new name."
        )


def _told_of(file: TakenFile) -> str:
    return f"{file.bytes} bytes, changed at {file.modified_ns} ns"


def _offset(index: int, journal: str | None) -> str:
    return canonical_json({"file": index} if journal is None else {"file": index, "journal": journal})


_told: set[tuple[str, TakenFile]] = set()
