"""FilesSource keeps the contract on a table of a real HDFS, by both clients."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from integration_tests.hdfs_tables import CLIENTS, HdfsUnderTest
from twophase.file_table import open_table
from twophase.sources.files import FilesSource
from twophase.storage_of import storage_of
from twophase.testing.query_steps import QuerySteps
from twophase.testing.servers.hdfs import HdfsEndpoint
from twophase.testing.servers.server import Server
from twophase.testing.source_suite import SourceOrigin, SourceSuite

pytestmark = pytest.mark.servers

SCHEMA = pa.schema([("value", pa.int64())])


class HdfsTableOrigin(SourceOrigin):
    """Epochs of a table, one a unit, committed by a query."""

    many_units = 20  # each is an epoch, and a file
    many_rows = 2_000

    def __init__(self, endpoint: HdfsEndpoint, client: str, folder: Path):
        self.target = HdfsUnderTest(endpoint, client)
        self.query = QuerySteps(folder / f"checkpoint-{uuid.uuid4().hex}", self.target)
        self.count = 0

    def source(self) -> FilesSource:
        return self.split_in(1)

    def split_in(self, tasks: int) -> FilesSource:
        options = {"path": self.target.table, "sourceKind": "table", "parallelism": str(tasks)}
        return FilesSource.from_options(options, SCHEMA)

    def add(self, values: Sequence[int]) -> None:
        self.query.log(self.count)
        self.query.prepare()
        self.query.run(values)
        self.query.commit()
        self.query.log_commit()
        self.count += 1

    def lose(self, unit: int) -> str:
        storage_of(self.target.table).delete(open_table(self.target.table).folder(unit))
        return f"epoch {unit}"


class TestHdfsTable(SourceSuite):
    @pytest.fixture(params=CLIENTS)
    def origin(
        self, request: pytest.FixtureRequest, hdfs_server: Server[HdfsEndpoint], tmp_path: Path
    ) -> HdfsTableOrigin:
        return HdfsTableOrigin(hdfs_server.endpoint, request.param, tmp_path)
