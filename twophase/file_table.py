"""A file table: a folder of epochs that readers of plain files can read, and the manifest that makes each epoch ours.

::

    orders/                                   the table
      epoch=0/  part-00000-….parquet  .manifest
      epoch=1/  part-00000-….parquet  .manifest
    .orders.twophase/                         staging, beside the table: no glob below the table can see it
    visits/                                   a table with partitionBy
      epoch=0/  country=DE/part-00000-….parquet
                country=__HIVE_DEFAULT_PARTITION__/.manifest

An epoch folder appears by one rename with everything that is in it, the manifest too, and never changes. Positions are a line
without gaps; the highest one's manifest is the table's marker: who owns it, and at which epoch it is.

The guarantee: what is below `epoch=<position>` with a manifest was committed, whole. A folder that holds anything else is
refused, with a sentence that says what it is; a manifest that can't be read is never guessed around.

The manifest's name begins with a dot: Spark, pyarrow datasets, Python's glob and shells ignore it, and so does DuckDB when it is
given the folder. But DuckDB (2.0, tried) hides nothing from a pattern that names every file, such as `**` or `*/*`. So the
manifest is a file without rows, or no file but a folder of folders (manifest_file.py); and with partitionBy it lies as deep as
the data, where rows without any partition value would be: DuckDB wants the same folders above every file, and does not count
a null when it looks for a column's type.

Releases before this layout put the bare manifest at `epoch=<position>/.manifest`, whatever the table; it is still found there.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from twophase.errors import CheckpointMismatch, OptionError, TableCorrupt
from twophase.identity import Epoch, Owner
from twophase.manifest_file import unwrapped, wrapped
from twophase.partition_folder import NULL, component
from twophase.secret import Secret
from twophase.sink import Marker
from twophase.spelled_folders import read_from, spelled
from twophase.storage import FileStorage
from twophase.storage_of import storage_of
from twophase.vote import canonical_json

MANIFEST = ".manifest"
MANIFEST_FORMAT = 2
"""2 says how csv files are laid out; what is not csv is still written as 1, so that the release before can read it."""
PROBE_IN_TABLE = ".twophase-probe"
"""What the name of a folder begins with that a sink puts into a new table for a moment, to see whether it can."""
_MAGIC = b"twophase-manifest"
_EPOCH = re.compile(r"epoch=(0|[1-9][0-9]*)")
_STEPS_FROM_HINT = 8


@dataclass(frozen=True)
class DataFile:
    """One file of an epoch."""

    name: str
    """Relative to the epoch folder, with `/` between its parts."""
    bytes: int
    rows: int


@dataclass(frozen=True)
class CsvLayout:
    """How the csv files of one epoch are laid out: no csv file says it of itself."""

    header: bool
    columns: tuple[str, ...]
    """By place."""


@dataclass(frozen=True)
class TableForm:
    """What all epochs of a table have in common; and, of csv, what they need not."""

    file_format: str
    partition_by: tuple[str, ...] = ()
    schema: pa.Schema | None = None
    """Every column that any epoch has had, partition columns included; None while no schema is known."""
    csv: CsvLayout | None = None
    """Of this epoch's files; None if they are not csv, or of a release that did not say it."""

    @property
    def null_partition(self) -> str:
        """The folder of rows without any partition value, relative to the epoch's; "" without partition columns."""
        return "/".join(component(column, None) for column in self.partition_by)

    @property
    def manifest_name(self) -> str:
        """Of each epoch's manifest, relative to its folder."""
        return f"{self.null_partition}/{MANIFEST}".lstrip("/")

    @property
    def stored_columns(self) -> pa.Schema | None:
        """The columns that are in files, and not in folders."""
        if self.schema is None:
            return None
        return pa.schema([field for field in self.schema if field.name not in self.partition_by])

    def to_json(self) -> dict[str, Any]:
        return {
            "fileFormat": self.file_format,
            "partitionBy": list(self.partition_by),
            "schema": None if self.schema is None else base64.b64encode(self.schema.serialize()).decode(),
            # For people: `schema` is what is read back.
            "columns": [] if self.schema is None else [f"{field.name}: {field.type}" for field in self.schema],
        } | ({} if self.csv is None else {"csv": {"header": self.csv.header, "columns": list(self.csv.columns)}})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableForm:
        schema = None
        if data["schema"] is not None:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(data["schema"], validate=True)))
        csv = data.get("csv")
        return cls(
            file_format=str(data["fileFormat"]),
            partition_by=tuple(str(column) for column in data["partitionBy"]),
            schema=schema,
            csv=None if csv is None else CsvLayout(bool(csv["header"]), tuple(str(name) for name in csv["columns"])),
        )


@dataclass(frozen=True)
class Manifest:
    """What an epoch folder says about itself, as two lines, a header with a checksum and one JSON object; stored so that
    readers of the table take it for no rows."""

    marker: Marker
    form: TableForm
    files: tuple[DataFile, ...]
    replaced: Owner | None = None
    """The owner that a take-over's empty epoch replaced."""
    written_ms: int = 0

    @property
    def position(self) -> int:
        return self.marker.base + self.marker.epoch.number

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def encode(self, columns: pa.Schema | None = None) -> bytes | None:
        """The file's bytes; None if it is stored as folders. `columns` are those of the epoch's files; if they are not known, the
        table's."""
        return wrapped(self.text(), self.form.file_format, columns or self.form.stored_columns)

    def publish(self, storage: FileStorage, path: str, *, columns: pa.Schema | None, through: str) -> None:
        """Put it at `path`, whole, if and only if the name is free; what is needed on the way lies in the folder `through`."""
        if storage.spells_small_files:
            storage.publish_through(path, self.text(), through=through)
            return
        data = self.encode(columns)
        if data is None:
            storage.publish_folders(path, list(spelled(self.text())), through=through)
        else:
            storage.publish_through(path, data, through=through)

    @classmethod
    def read(cls, storage: FileStorage, path: str) -> Manifest:
        """The manifest at `path`; FileNotFoundError if there is none, TableCorrupt if it can't be read."""
        try:
            return cls.decode(storage.read(path), path)
        except IsADirectoryError:
            names = [entry.name for entry in storage.list(path)]
        if not names:
            raise FileNotFoundError(f"{path} was moved away while it was read, or is empty")
        try:
            text = read_from(names)
        except ValueError as error:
            raise _corrupt(path, str(error)) from error
        return cls.decode(text, path)

    def text(self) -> bytes:
        body = canonical_json(self._to_json()).encode("utf-8", "surrogatepass") + b"\n"
        written_as = 1 if self.form.csv is None else MANIFEST_FORMAT
        return b"%s %d sha256=%s\n" % (_MAGIC, written_as, hashlib.sha256(body).hexdigest().encode()) + body

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """Read a manifest from a file's bytes; raises TableCorrupt that says in what way it can't be read."""
        try:
            data = unwrapped(data)
        except ValueError as error:
            raise _corrupt(path, str(error)) from error
        header, _, body = data.partition(b"\n")
        words = header.split(b" ")
        if words[0] != _MAGIC:
            raise _corrupt(path, "is not a manifest" if data else "is empty")
        if len(words) != 3 or not words[1].isdigit() or len(words[1]) > 9 or not words[2].startswith(b"sha256="):
            raise _corrupt(path, "is torn: its header is not whole")
        if int(words[1]) == 0:
            raise _corrupt(path, "has format 0, which no release has written: it was altered, or is another program's")
        if int(words[1]) > MANIFEST_FORMAT:
            raise _corrupt(path, f"has format {int(words[1])}, and this release reads 1 to {MANIFEST_FORMAT}")
        if hashlib.sha256(body).hexdigest().encode() != words[2].removeprefix(b"sha256="):
            raise _corrupt(path, "is torn or was altered: its checksum does not match")
        try:
            return cls._from_json(json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, pa.ArrowException) as error:
            raise _corrupt(path, f"is whole but makes no sense to this release: {error!r:.200}") from error

    def _to_json(self) -> dict[str, Any]:
        marker = self.marker
        return {
            "owner": str(marker.owner),
            "epoch": str(marker.epoch),
            "by": marker.by,
            "base": marker.base,
            "replaced": None if self.replaced is None else str(self.replaced),
            "form": self.form.to_json(),
            "files": [{"name": file.name, "bytes": file.bytes, "rows": file.rows} for file in self.files],
            "rows": self.rows,
            "bytes": self.bytes,
            "written_ms": self.written_ms,
        }

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> Manifest:
        return cls(
            marker=Marker(Owner.parse(data["owner"]), Epoch.parse(data["epoch"]), str(data["by"]), int(data["base"])),
            form=TableForm.from_json(data["form"]),
            files=tuple(DataFile(str(f["name"]), int(f["bytes"]), int(f["rows"])) for f in data["files"]),
            replaced=None if data["replaced"] is None else Owner.parse(data["replaced"]),
            written_ms=int(data["written_ms"]),
        )

    # Last, because it hides the type of the same name in what follows.
    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


class FileTable:
    """The committed epochs of the table at `path`, in this storage. Opens nothing until it is asked."""

    # Where the newest position was last time: only where to look first, since every answer is read from storage. Shared in
    # the process, because Spark builds sinks and sources anew for every call.
    _hints: ClassVar[dict[str, int]] = {}
    # Where in its epoch's folder a manifest was last time: again only where to look first.
    _names: ClassVar[dict[str, str]] = {}
    # Markers that this process knows to be durable: such a fact stays true, and an fsync an epoch is worth saving.
    _durable: ClassVar[dict[str, Marker]] = {}

    def __init__(self, storage: FileStorage, path: str):
        self.storage = storage
        self.path = storage.normalise(path)
        self._parent, _, self.name = self.path.rpartition("/")

    @property
    def staging(self) -> str:
        """Beside the table, and so in the same file system: what is staged becomes visible by a rename."""
        return f"{self._parent}/.{self.name}.twophase"

    def folder(self, position: int) -> str:
        return f"{self.path}/epoch={position}"

    def manifest(self, position: int) -> Manifest:
        """Of a committed epoch; FileNotFoundError if there is no folder at this position, TableCorrupt if it has none."""
        try:
            return self._read(position, self._names.get(self.path, MANIFEST))
        except FileNotFoundError:
            name = self._found(position)
        try:
            manifest = self._read(position, name)
        except FileNotFoundError:
            if self._is_folder(path := f"{self.folder(position)}/{name}"):
                raise _corrupt(path, "is empty: the folders in it, which spell the manifest, were removed") from None
            raise  # moved away since it was found
        self._names[self.path] = name
        return manifest

    def has_manifest(self, position: int) -> bool:
        return self._looked_for(position) is not None

    def _found(self, position: int) -> str:
        """The manifest's name in its epoch, by looking: nothing but the folder says how the table is partitioned."""
        # An epoch appears with its manifest and goes with it. So only if the folder was there before the look, and still is
        # after it, a manifest that is not found is none.
        for _ in range(2):
            name = self._looked_for(position)
            if name is not None:
                return name
            if not self._is_folder(self.folder(position)):
                raise FileNotFoundError(f"{self.folder(position)} is not there")
        raise lost_manifest(self.folder(position))

    def _looked_for(self, position: int) -> str | None:
        inside = ""
        while True:
            entries = self.storage.list(f"{self.folder(position)}/{inside}".rstrip("/"))
            if any(entry.name == MANIFEST for entry in entries):
                return inside + MANIFEST
            null = next((entry.name for entry in entries if entry.is_folder and entry.name.endswith(f"={NULL}")), None)
            if null is None:
                return None
            inside += f"{null}/"

    def _is_folder(self, path: str) -> bool:
        try:
            self.storage.read(path)
        except IsADirectoryError:
            return True
        except FileNotFoundError:
            pass
        return False

    def _read(self, position: int, name: str) -> Manifest:
        path = f"{self.folder(position)}/{name}"
        manifest = Manifest.read(self.storage, path)
        if manifest.position != position:
            raise _corrupt(path, f"says that it is of position {manifest.position}: the folder was renamed or copied")
        return manifest

    def make_durable(self, marker: Marker) -> None:
        """Whoever renamed this epoch into the table may have died before it was certain to stay. Call it before acting on it."""
        if self._durable.get(self.path) != marker:
            self.storage.sync(self.path)
            self._durable[self.path] = marker

    def positions(self) -> list[int]:
        """All committed positions, in order; [] if there is no table yet.

        Raises CheckpointMismatch if the folder holds anything that twophase did not put there, or if an epoch is missing.
        """
        found = self.positions_left()
        gap = first_gap(found)
        if gap is not None:
            raise CheckpointMismatch(
                f"{self.path} lacks {epochs_text(*gap)}, and has those around it: deleted or moved by hand, or not restored. "
                "Nothing was changed. Put what is missing back; what is gone for good, only a new table can go on without."
            )
        return found

    def positions_left(self) -> list[int]:
        """The same of a table from which somebody may have deleted epochs."""
        try:
            entries = self.storage.list(self.path)
        except NotADirectoryError as error:
            raise _foreign(self.path, "is a file and not a folder") from error
        found = []
        for entry in entries:
            match = _EPOCH.fullmatch(entry.name)
            if match is not None and entry.is_folder:
                found.append(int(match[1]))
            elif entry.name == "_spark_metadata":
                raise _foreign(self.path, "is a table of Spark's own file sink (it has _spark_metadata)")
            elif not entry.name.startswith(PROBE_IN_TABLE if entry.is_folder else (".", "_")):
                # Readers ignore hidden files; hidden folders are other table formats' logs, or Spark's _temporary.
                mend = "If it is one, move that away. Otherwise: "
                raise _foreign(self.path, f"holds {entry.name!r}, which twophase did not put there", mend=mend)
        return sorted(found)

    def newest(self) -> Manifest | None:
        """The manifest of the highest position, which is the table's marker; None if nothing is committed.

        Positions have no gap, so h is the highest if it is there and h+1 is not: two reads, however long the table is.
        """
        hint = self._hints.get(self.path)
        manifest = None if hint is None else self._last_from(hint)
        if manifest is None:
            manifest = self._listed_newest()
        if manifest is None:
            self._hints.pop(self.path, None)
        else:
            self._hints[self.path] = manifest.position
        return manifest

    def _last_from(self, hint: int) -> Manifest | None:
        """The end of the line, if it is at the hint or a few steps after it."""
        try:
            last = self.manifest(hint)
            for _ in range(_STEPS_FROM_HINT):
                if not self._is_folder(self.folder(last.position + 1)):
                    return last
                last = self._following(last)
        except FileNotFoundError:
            return None  # moved away, or without a manifest: the listing will tell
        return None

    def _following(self, last: Manifest) -> Manifest:
        """The next one; FileNotFoundError if it is not where it should be. Without a look at the folder: how a table is
        partitioned never changes, so the last one says where the next one is."""
        position, name = last.position + 1, last.form.manifest_name
        if self._names.get(self.path, MANIFEST) == name:
            return self._read(position, name)
        try:
            manifest = self._read(position, name)
        except FileNotFoundError:
            return self._read(position, MANIFEST)  # as the last one: of a release before this layout
        self._names[self.path] = name
        return manifest

    def _listed_newest(self) -> Manifest | None:
        while positions := self.positions():
            try:
                return self.manifest(positions[-1])
            except FileNotFoundError:
                continue  # moved away since it was listed
        return None


def open_table(path: str, *, hdfs: Mapping[str, str | Secret] | None = None) -> FileTable:
    """The table at a path or URL; OptionError if it can't be one. A relative path is taken from the current folder, once."""
    absolute = path if path.startswith("/") or re.match("[A-Za-z][A-Za-z0-9+.-]*:", path) else os.path.abspath(path)
    table = FileTable(storage_of(absolute, hdfs=hdfs), absolute)
    if not table.name:
        problem = f"path is {path!r}, which does not name a folder of its own"
        raise OptionError(f"1 problem with the options: {problem}", problems=[problem])
    return table


def _corrupt(path: str, what: str) -> TableCorrupt:
    return TableCorrupt(
        f"{path} {what}. Nothing was changed. Restore that epoch's folder from a backup, or use the release that wrote it."
    )


def lost_manifest(folder: str, *, more: str = "") -> TableCorrupt:
    """For an epoch's folder that is there without what makes it one."""
    return TableCorrupt(
        f"{folder} has no manifest: it was removed, by a tool that deletes empty folders or leaves hidden files out of a copy, or "
        "the folder was made by hand. Nothing was changed. Restore that epoch's folder from a backup with its hidden files "
        f"(cp -a), or move it away if it was made by hand{more}."
    )


def first_gap(positions: Sequence[int]) -> tuple[int, int] | None:
    """The first and the last of those that are missing between two of these."""
    for before, after in itertools.pairwise(positions):
        if after != before + 1:
            return before + 1, after - 1
    return None


def epochs_text(first: int, last: int) -> str:
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


def _foreign(path: str, what: str, *, mend: str = "") -> CheckpointMismatch:
    return CheckpointMismatch(
        f"{path} {what}, so it is not a table that twophase can write or follow. Nothing was changed. {mend}Choose an empty "
        "or a new folder; docs/migrating.md says how to go on from a table of Spark's own file sink."
    )
