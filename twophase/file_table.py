"""A file table: a folder of epochs that readers of plain files can read, and the manifest that makes each epoch ours.

::

    orders/                                   the table
      epoch=0/  part-00000-….parquet  .manifest
      epoch=1/  country=DE/part-00000-….parquet  .manifest
    .orders.twophase/                         staging, beside the table: no glob below the table can see it

An epoch folder appears by one rename with everything that is in it, the manifest too, and never changes. Positions are a line
without gaps; the highest one's manifest is the table's marker: who owns it, and at which epoch it is.

The guarantee: what is below `epoch=<position>` with a manifest was committed, whole. A folder that holds anything else is
refused, with a sentence that says what it is; a manifest that can't be read is never guessed around.

The manifest's name begins with a dot: Spark, pyarrow datasets, Python's glob and shells ignore it, and so does DuckDB
when it is given the folder, `**/*.parquet` or `*/*.parquet`. What no name can do: DuckDB (2.0, tried) hides nothing from a
pattern that names every file, such as `**` or `*/*`. There it reads the manifest too, and stops at it with an error for
parquet and json; give such a reader the ending.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from twophase.errors import CheckpointMismatch, OptionError, TableCorrupt
from twophase.identity import Epoch, Owner
from twophase.sink import Marker
from twophase.storage import FileStorage
from twophase.storage_of import storage_of
from twophase.vote import canonical_json

MANIFEST = ".manifest"
MANIFEST_FORMAT = 1
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
class TableForm:
    """What all epochs of a table have in common."""

    file_format: str
    partition_by: tuple[str, ...] = ()
    schema: pa.Schema | None = None
    """Every column that any epoch has had, partition columns included; None while no schema is known."""

    def to_json(self) -> dict[str, Any]:
        return {
            "fileFormat": self.file_format,
            "partitionBy": list(self.partition_by),
            "schema": None if self.schema is None else base64.b64encode(self.schema.serialize()).decode(),
            # For people: `schema` is what is read back.
            "columns": [] if self.schema is None else [f"{field.name}: {field.type}" for field in self.schema],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableForm:
        schema = None
        if data["schema"] is not None:
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(data["schema"], validate=True)))
        return cls(str(data["fileFormat"]), tuple(str(column) for column in data["partitionBy"]), schema)


@dataclass(frozen=True)
class Manifest:
    """What an epoch folder says about itself, as two lines: a header with a checksum, and one JSON object."""

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

    def encode(self) -> bytes:
        body = canonical_json(self._to_json()).encode("utf-8", "surrogatepass") + b"\n"
        return b"%s %d sha256=%s\n" % (_MAGIC, MANIFEST_FORMAT, hashlib.sha256(body).hexdigest().encode()) + body

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """Read a manifest; raises TableCorrupt that says in what way it can't be read."""
        header, _, body = data.partition(b"\n")
        words = header.split(b" ")
        if words[0] != _MAGIC:
            raise _corrupt(path, "is not a manifest" if data else "is empty")
        if len(words) != 3 or not words[1].isdigit() or not words[2].startswith(b"sha256="):
            raise _corrupt(path, "is torn: its header is not whole")
        if not 1 <= int(words[1]) <= MANIFEST_FORMAT:
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
        """Of a committed epoch; FileNotFoundError if there is none at this position."""
        path = f"{self.folder(position)}/{MANIFEST}"
        manifest = Manifest.decode(self.storage.read(path), path)
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

        Raises CheckpointMismatch if the folder holds anything that twophase did not put there.
        """
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
                raise _foreign(self.path, f"holds {entry.name!r}, which twophase did not put there")
        found.sort()
        for before, after in itertools.pairwise(found):
            if after != before + 1:
                raise _foreign(self.path, f"has epoch={before} and epoch={after} and nothing in between")
        return found

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
        last = None
        try:
            for position in range(hint, hint + _STEPS_FROM_HINT):
                last = self.manifest(position)
        except FileNotFoundError:
            return last
        return None

    def _listed_newest(self) -> Manifest | None:
        positions = self.positions()
        if not positions:
            return None
        try:
            return self.manifest(positions[-1])
        except FileNotFoundError as error:
            raise _foreign(
                self.path, f"has a folder epoch={positions[-1]} without a manifest: it was copied, or made by hand"
            ) from error


def open_table(path: str) -> FileTable:
    """The table at a path or URL; OptionError if it can't be one. A relative path is taken from the current folder, once."""
    absolute = path if path.startswith("/") or re.match("[A-Za-z][A-Za-z0-9+.-]*:", path) else os.path.abspath(path)
    table = FileTable(storage_of(absolute), absolute)
    if not table.name:
        problem = f"path is {path!r}, which does not name a folder of its own"
        raise OptionError(f"1 problem with the options: {problem}", problems=[problem])
    return table


def _corrupt(path: str, what: str) -> TableCorrupt:
    return TableCorrupt(
        f"{path} {what}. Nothing was changed. Restore that epoch's folder from a backup, or use the release that wrote it."
    )


def _foreign(path: str, what: str) -> CheckpointMismatch:
    return CheckpointMismatch(
        f"{path} {what}, so it is not a table that twophase can write or follow. Nothing was changed. Choose an empty or a new "
        "folder; docs/migrating.md says how to go on from a table of Spark's own file sink."
    )
