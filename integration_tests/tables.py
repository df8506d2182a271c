"""Tables of files as readers see them that know nothing of twophase; and as a target of the crash matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow.dataset as ds

from twophase.sinks import FilesSink
from twophase.testing.crash import orders
from twophase.testing.crash.orders import Difference, Order
from twophase.testing.crash.target import CrashTarget, path_of


class FilesTarget(CrashTarget):
    title = "files"
    format = "twophase-files"
    points: ClassVar[Sequence[str]] = ("files.sealed", "files.manifest_published", "files.renamed")
    one_owner = True

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def options(self) -> Mapping[str, str]:
        return {"path": str(self.path)}

    def sink(self) -> FilesSink:
        return FilesSink(str(self.path))

    def read(self) -> Sequence[Order]:
        return rows_of(self.path)

    def residue(self) -> Sequence[str]:
        return residue_of(self.path)


FILES = path_of(FilesTarget)


def rows_of(table: Path) -> list[Order]:
    if not table.exists():
        return []
    data = ds.dataset(table, format="parquet", partitioning="hive")
    if "id" not in data.schema.names:
        return []
    read = data.to_table(columns=["id", "name", "amount"])
    return list(zip(*(column.to_pylist() for column in read.columns), strict=True))


def compare(expected: Sequence[int], table: Path) -> Difference:
    return orders.compare(expected, rows_of(table))


def residue_of(table: Path) -> list[str]:
    """What is staged beside a table, below its owners' folders."""
    staging = table.parent / f".{table.name}.twophase"
    return [str(path.relative_to(staging)) for path in staging.glob("*/*/*")]
