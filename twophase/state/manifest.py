"""A state on storage: the line of its committed epochs, each a manifest that says which key groups are in which files.

::

    customers/
      manifests/00000000000000000007.manifest     epoch 7: its marker, the form, key group → files. The highest is current
      staged/<query>/<sink>/<attempt>/            what a task has uploaded: 000012.sst, …, and its part file
      files/<query>/<sink>/<attempt>/             the same, once it was decided: never changed, shared by later epochs

A *part* is a RocksDB database as one attempt left it, of a range of key groups: its files, some of which older attempts have
uploaded. A *segment* says from which part a range of groups is read; a part may be cut by later ones, and hold more than is read
of it. Positions are a line without gaps that ends in the newest; what lies below a gap is a stray, and counts for nothing.

A manifest is published exclusively, whole, under a name that is never used twice within the line: that is the commit.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twophase.errors import CheckpointMismatch, TableCorrupt
from twophase.identity import Epoch, Owner
from twophase.sink import Marker
from twophase.state.form import StateForm
from twophase.state.key_groups import GroupRange
from twophase.storage import FileStorage
from twophase.vote import canonical_json

MANIFEST_FORMAT = 1
MANIFESTS, STAGED, FILES = "manifests", "staged", "files"
DROPPED = ".dropped"
_MAGIC = b"twophase-state"
_NAME = re.compile(r"([0-9]{20})\.manifest(\.dropped)?")


@dataclass(frozen=True)
class StoredFile:
    """One file of a part."""

    name: str
    """In the database's folder: 000012.sst."""
    folder: str
    """Whose it is, below `files/`: query/sink/attempt."""
    bytes: int
    sha256: str

    @property
    def place(self) -> str:
        return f"{self.folder}/{self.name}"

    def to_json(self) -> list[Any]:
        return [self.name, self.folder, self.bytes, self.sha256]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> StoredFile:
        name, folder, size, checksum = data
        return cls(str(name), str(folder), int(size), str(checksum))


@dataclass(frozen=True)
class Part:
    """A database as one attempt left it."""

    snapshot: str
    """Its id: query/sink/attempt, unique for ever."""
    groups: GroupRange
    """It has all of these, and nothing else."""
    files: tuple[StoredFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        groups, files = [self.groups.first, self.groups.end], [file.to_json() for file in self.files]
        return {"snapshot": self.snapshot, "groups": groups, "files": files}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Part:
        first, end = data["groups"]
        files = tuple(map(StoredFile.from_json, data["files"]))
        return cls(str(data["snapshot"]), GroupRange(int(first), int(end)), files)


@dataclass(frozen=True)
class Segment:
    """A range of groups, and the part that it is read from."""

    groups: GroupRange
    part: Part


@dataclass(frozen=True)
class StateManifest:
    """One committed epoch."""

    marker: Marker
    form: StateForm
    segments: tuple[Segment, ...] = ()
    replaced: Owner | None = None
    """The owner that a take-over's empty epoch replaced."""
    former: Mapping[Owner, Marker] = field(default_factory=dict)
    """The newest marker of every owner that had the line before, whatever manifests are still kept."""
    written_ms: int = 0

    @property
    def position(self) -> int:
        return self.marker.base + self.marker.epoch.number

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple({segment.part.snapshot: segment.part for segment in self.segments}.values())

    @property
    def files(self) -> set[StoredFile]:
        return {file for part in self.parts for file in part.files}

    def after(self, parts: Iterable[Part]) -> tuple[Segment, ...]:
        """The segments when these parts have taken the place of what was in their groups."""
        segments = list(self.segments)
        for part in parts:
            kept = [Segment(rest, each.part) for each in segments for rest in each.groups.without(part.groups)]
            segments = [*kept, Segment(part.groups, part)]
        return tuple(sorted(segments, key=lambda segment: segment.groups))

    def encode(self) -> bytes:
        body = canonical_json(self._to_json()).encode("utf-8", "surrogatepass") + b"\n"
        checksum = hashlib.sha256(body).hexdigest().encode()
        return b"%s %d sha256=%s\n" % (_MAGIC, MANIFEST_FORMAT, checksum) + body

    @classmethod
    def decode(cls, data: bytes, path: str) -> StateManifest:
        """Read a manifest; raises TableCorrupt that says in what way it can't be read."""
        header, _, body = data.partition(b"\n")
        words = header.split(b" ")
        if words[0] != _MAGIC:
            raise corrupt(path, "is not the manifest of a state" if data else "is empty")
        if len(words) != 3 or not words[1].isdigit() or len(words[1]) > 9 or not words[2].startswith(b"sha256="):
            raise corrupt(path, "is torn: its header is not whole")
        if int(words[1]) != MANIFEST_FORMAT:
            raise corrupt(path, f"has format {int(words[1])}, and this release reads {MANIFEST_FORMAT}")
        if hashlib.sha256(body).hexdigest().encode() != words[2].removeprefix(b"sha256="):
            raise corrupt(path, "is torn or was altered: its checksum does not match")
        try:
            return cls._from_json(json.loads(body))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise corrupt(path, f"is whole but makes no sense to this release: {error!r:.200}") from error

    def _to_json(self) -> dict[str, Any]:
        parts = self.parts
        numbers = {part.snapshot: number for number, part in enumerate(parts)}
        return {
            "marker": _marker_to_json(self.marker),
            "form": self.form.to_json(),
            "parts": [part.to_json() for part in parts],
            "segments": [[s.groups.first, s.groups.end, numbers[s.part.snapshot]] for s in self.segments],
            "replaced": None if self.replaced is None else str(self.replaced),
            "former": [_marker_to_json(marker) for marker in self.former.values()],
            "written_ms": self.written_ms,
        }

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> StateManifest:
        parts = list(map(Part.from_json, data["parts"]))
        former = list(map(_marker_from_json, data["former"]))
        return cls(
            marker=_marker_from_json(data["marker"]),
            form=StateForm.from_json(data["form"]),
            segments=tuple(Segment(GroupRange(int(a), int(b)), parts[part]) for a, b, part in data["segments"]),
            replaced=None if data["replaced"] is None else Owner.parse(data["replaced"]),
            former={marker.owner: marker for marker in former},
            written_ms=int(data["written_ms"]),
        )


class StateTable:
    """The state at `path`, in this storage. Opens nothing until it is asked."""

    def __init__(self, storage: FileStorage, path: str):
        self.storage = storage
        self.path = storage.normalise(path)

    @property
    def manifests(self) -> str:
        return f"{self.path}/{MANIFESTS}"

    def manifest_path(self, position: int) -> str:
        return f"{self.manifests}/{position:020d}.manifest"

    def manifest(self, position: int) -> StateManifest:
        """Of a committed epoch; FileNotFoundError if there is none."""
        path = self.manifest_path(position)
        found = StateManifest.decode(self.storage.read(path), path)
        if found.position != position:
            raise corrupt(path, f"says that it is of position {found.position}: it was renamed or copied")
        return found

    def positions(self) -> list[int]:
        """Those that are kept, in order."""
        found = [position for position, is_dropped in self.listed() if not is_dropped]
        line: list[int] = []
        for position in reversed(found):
            if line and position != line[-1] - 1:
                break
            line.append(position)
        return line[::-1]

    def listed(self) -> list[tuple[int, bool]]:
        """Every manifest that is there, strays too, and whether it is being dropped."""
        entries = self.storage.list(self.manifests)
        matches = [match for entry in entries if (match := _NAME.fullmatch(entry.name)) is not None]
        return [(int(match[1]), match[2] is not None) for match in matches]

    def newest(self) -> StateManifest | None:
        """The current epoch: the one with the highest position; None if nothing is committed."""
        while positions := self.positions():
            try:
                return self.manifest(positions[-1])
            except FileNotFoundError:
                if self.positions()[-1:] == positions[-1:]:
                    raise
        return None

    def kept(self) -> list[StateManifest]:
        """The manifests of all positions that are kept."""
        found = []
        for position in self.positions():
            try:
                found.append(self.manifest(position))
            except FileNotFoundError:
                continue  # dropped since it was listed: only the oldest are
        return found

    def require_own_folder(self) -> None:
        """Raise if what is at the path is none of ours."""
        for entry in self.storage.list(self.path):
            if entry.name not in (MANIFESTS, STAGED, FILES) and not entry.name.startswith("."):
                raise CheckpointMismatch(
                    f"{self.path} holds {entry.name!r}, which twophase did not put there. Nothing was changed: choose an empty or "
                    "a new folder for the state."
                )


def corrupt(path: str, what: str) -> TableCorrupt:
    return TableCorrupt(
        f"{path} {what}. Nothing was changed. Restore it from a backup, read an older epoch, or use the release that wrote it."
    )


def _marker_to_json(marker: Marker) -> dict[str, Any]:
    return {"owner": str(marker.owner), "epoch": str(marker.epoch), "by": marker.by, "base": marker.base}


def _marker_from_json(data: Mapping[str, Any]) -> Marker:
    return Marker(Owner.parse(data["owner"]), Epoch.parse(data["epoch"]), str(data["by"]), int(data["base"]))
