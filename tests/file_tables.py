"""Folders and tables of files to read from, made by hand: what a source sees is then known to the row."""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from twophase.file_table import DataFile, FileTable, Manifest, TableForm
from twophase.identity import Epoch, Owner
from twophase.local_storage import LocalStorage
from twophase.sink import Marker
from twophase.source import NO_LIMIT, ReadLimit
from twophase.sources.files import FilesSource, FilesSplit

Rows = list[dict[str, Any]]

_times_ns = itertools.count(1_700_000_000_000_000_000, 1_000_000_000)


def drop(folder: Path, name: str, data: pa.Table | bytes, *, modified_ns: int | None = None) -> Path:
    """Move a file into a folder as it should be done: written under a hidden name, renamed when it is whole."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    hidden = file.parent / ".being-written"
    if isinstance(data, bytes):
        hidden.write_bytes(data)
    else:
        with hidden.open("wb") as opened:
            pq.write_table(data, opened)
    changed_ns = next(_times_ns) if modified_ns is None else modified_ns
    os.utime(hidden, ns=(changed_ns, changed_ns))
    return hidden.rename(file)


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def commit(
    table: Path,
    position: int,
    files: Mapping[str, pa.Table],
    *,
    schema: pa.Schema | None = None,
    file_format: str = "parquet",
    by: str | None = None,
) -> None:
    """Commit an epoch of a table: its files by name, and its manifest."""
    folder = table / f"epoch={position}"
    staged = table.parent / f".staged-{table.name}-{position}"
    described = []
    for name, rows in files.items():
        file = staged / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if file_format == "csv":
            pyarrow.csv.write_csv(rows, file)
        else:
            pq.write_table(rows, file)
        described.append(DataFile(name, file.stat().st_size, rows.num_rows))
    staged.mkdir(exist_ok=True)
    known = schema if schema is not None else next(iter(files.values())).schema
    manifest = Manifest(
        Marker(Owner("q", "s"), Epoch(position, "hash"), by or f"ledger.{2 * position}"),
        TableForm(file_format, (), known),
        tuple(described),
    )
    manifest.publish(LocalStorage(), f"{staged}/{manifest.form.manifest_name}", columns=None, through=str(table.parent))
    table.mkdir(exist_ok=True)
    staged.rename(folder)
    assert FileTable(LocalStorage(), str(table)).manifest(position) == manifest


def source(path: Path, schema: pa.Schema | None = None, **options: object) -> FilesSource:
    """A source as Spark makes it: options as text, the source pickled."""
    texts = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in options.items()}
    made: FilesSource = pickle.loads(pickle.dumps(FilesSource.from_options({"path": str(path), **texts}, schema)))
    return made


def batches_of(files: FilesSource, start: str, end: str) -> list[pa.RecordBatch]:
    splits: Sequence[FilesSplit] = pickle.loads(pickle.dumps(files.plan(start, end)))
    batches = [batch for split in splits for batch in files.read(split)]
    assert all(batch.schema == files.schema() for batch in batches)
    return batches


def rows(files: FilesSource, start: str, end: str) -> Rows:
    return [row for batch in batches_of(files, start, end) for row in batch.to_pylist()]


def all_rows(files: FilesSource) -> Rows:
    start = files.earliest()
    return rows(files, start, files.latest(start))


def taken(files: FilesSource, start: str, end: str) -> list[int]:
    """The column n of a range, sorted: splits have no order among each other."""
    return sorted(row["n"] for row in rows(files, start, end))


def follow(files: FilesSource, start: str | None = None, limit: ReadLimit = NO_LIMIT) -> list[list[int]]:
    """What each epoch takes until there is nothing more."""
    at = files.earliest() if start is None else start
    epochs = []
    while (end := files.latest(at, limit)) != at:
        epochs.append(taken(files, at, end))
        at = end
    return epochs


def escaped(value: str) -> str:
    return quote(value, safe="")
