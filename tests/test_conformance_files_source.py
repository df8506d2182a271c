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
        commit(self.table, self.count, {"part-0.parquet": pa.table({"value": pa.array(values, pa.int64())})})
        self.count += 1

    def lose(self) -> str:
        shutil.rmtree(self.table / "epoch=0")
        return "epoch 0"


class FolderOrigin(SourceOrigin):
    """Files of a plain folder, one a unit."""

    def __init__(self, folder: Path):
        self.folder = folder / "in coming=ä%41"
        self.folder.mkdir()
        self.count = 0

    def source(self) -> FilesSource:
        return source(self.folder, SCHEMA)

    def split_in(self, tasks: int) -> FilesSource:
        return source(self.folder, SCHEMA, parallelism=tasks)

    def add(self, values: Sequence[int]) -> None:
        drop(self.folder, f"f{self.count:04}.parquet", pa.table({"value": pa.array(values, pa.int64())}))
        self.count += 1

    def lose(self) -> str:
        (self.folder / "f0000.parquet").unlink()
        return "f0000.parquet"


class TestTable(SourceSuite):
    @pytest.fixture
    def origin(self, tmp_path: Path) -> TableOrigin:
        return TableOrigin(tmp_path)


class TestFolder(SourceSuite):
    @pytest.fixture
    def origin(self, tmp_path: Path) -> FolderOrigin:
        return FolderOrigin(tmp_path)
