"""Splits: which files one task reads, and how an epoch's files are shared out.

A split says all that its task needs, the schema too: an executor looks at nothing but its files. A file is never cut, so a
file that is larger than the others is a task of its own. Files are heaviest first given to the task that has least, which
keeps the largest within 4/3 of the best possible.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from twophase.file_table import CsvLayout
from twophase.sources.files.options import FileFormat
from twophase.sources.files.rows import CsvForm

OPEN_COST_BYTES = 1024 * 1024
"""What opening a file counts for, so that a thousand tiny files are not one task's."""


@dataclass(frozen=True)
class SplitFile:
    """One file, and what it must still be when it is read."""

    path: str
    name: str
    """Relative to the folder, or to the folder of its epoch: the folders in it may be columns."""
    bytes: int
    modified_ns: int | None = None
    """None if nobody can change it: an epoch of a table."""
    rows: int | None = None
    """None if that is not known."""
    epoch: int | None = None
    csv: CsvLayout | None = None
    """How it is laid out, where its manifest says so."""
    folder_types: Mapping[str, pa.DataType] = field(default_factory=dict)
    """The types of the columns that are folders, when these were named, where its manifest says so."""


@dataclass(frozen=True)
class FilesForm:
    """What all files of a range have in common."""

    file_format: FileFormat
    csv: CsvForm
    folders_are_columns: bool
    """Whether folders called `column=value` are columns."""


@dataclass(frozen=True)
class FilesSplit:
    """One task's part of a range."""

    files: tuple[SplitFile, ...]
    schema: pa.Schema
    form: FilesForm
    epoch_column: str | None = None


@dataclass(order=True)
class _Share:
    weight: int
    index: int
    places: list[int] = field(compare=False, default_factory=list)


def shared_out(files: Sequence[SplitFile], *, split_bytes: int, parallelism: int) -> list[tuple[SplitFile, ...]]:
    """The files in groups of about `split_bytes`, at least `parallelism` of them if there are as many files."""
    if not files:
        return []
    weights = [file.bytes + OPEN_COST_BYTES for file in files]
    count = min(len(files), max(parallelism, math.ceil(sum(weights) / max(split_bytes, OPEN_COST_BYTES))))
    shares = [_Share(0, index) for index in range(count)]
    for place in sorted(range(len(files)), key=lambda place: -weights[place]):
        share = shares[0]
        share.places.append(place)
        share.weight += weights[place]
        heapq.heapreplace(shares, share)
    return [tuple(files[place] for place in sorted(share.places)) for share in sorted(shares, key=lambda s: s.index)]
