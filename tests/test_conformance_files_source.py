"""FilesSource keeps the contract, on a table and on a plain folder."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.file_tables import commit, drop, source
from twophase.sources.files import FilesSource
from twophase.testing.source_suite import SourceOrigin, SourceSuite

SCHEMA = pa.schema([("value", pa.int64())])


def rows_of(values: Sequence[int]) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.int64())})


def changed(values: Sequence[int]) -> pa.Table:
    return rows_of(values).add_column(0, "added", pa.array([-value for value in values], pa.int64()))


class TableOrigin(SourceOrigin):
    """Epochs of a table, one a unit."""

    def __init__(self, folder: Path):
        self.table = folder / "in coming=ä%41"
        self.table.mkdir()
        self.count = 0

    def source(self) -> FilesSource:
        return source(self.table, SCHEMA, sourceKind="table")

    def split_in(self, tasks: int) -> FilesSource:
        return source(self.table, SCHEMA, sourceKind="table", parallelism=tasks)

    def add(self, values: Sequence[int]) -> None:
        self._add(rows_of(values))

    def add_changed(self, values: Sequence[int]) -> bool:
        self._add(changed(values))
        return True

    def _add(self, rows: pa.Table) -> None:
        commit(self.table, self.count, {"part-0.parquet": rows})
        self.count += 1

    def lose(self, unit: int) -> str:
        shutil.rmtree(self.table / f"epoch={unit}")
        return f"epoch {unit}"


class FolderOrigin(SourceOrigin):
    """Files of a plain folder, one a unit."""

    notices_unseen = False

    def __init__(self, folder: Path):
        self.folder = folder / "in coming=ä%41"
        self.folder.mkdir()
        self.count = 0

    def source(self) -> FilesSource:
        return source(self.folder, SCHEMA)

    def split_in(self, tasks: int) -> FilesSource:
        return source(self.folder, SCHEMA, parallelism=tasks)

    def add(self, values: Sequence[int]) -> None:
        self._add(rows_of(values))

    def add_changed(self, values: Sequence[int]) -> bool:
        self._add(changed(values))
        return True

    def _add(self, rows: pa.Table) -> None:
        drop(self.folder, f"f{self.count:04}.parquet", rows)
        self.count += 1

    def lose(self, unit: int) -> str:
        (self.folder / f"f{unit:04}.parquet").unlink()
        return f"f{unit:04}.parquet"

    def change(self, unit: int) -> bool:
        drop(self.folder, f"f{unit:04}.parquet", rows_of([-1, -2]))
        return True


class TestTable(SourceSuite):
    @pytest.fixture
    def origin(self, tmp_path: Path) -> TableOrigin:
        return TableOrigin(tmp_path)


class TestFolder(SourceSuite):
    @pytest.fixture
    def origin(self, tmp_path: Path) -> FolderOrigin:
        return FolderOrigin(tmp_path)
