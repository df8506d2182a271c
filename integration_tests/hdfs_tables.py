"""Tables on HDFS as readers see them that know nothing of twophase; and as a target of the suites and of the crash matrix."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import hdfs_native
import pyarrow as pa
import pyarrow.parquet as pq

from twophase.file_table import open_table
from twophase.identity import Owner
from twophase.sink import Description, Share
from twophase.sinks import FilesSink
from twophase.storage import FileStorage
from twophase.storage_of import storage_of
from twophase.testing.arrow_columns import ARROW_COLUMNS
from twophase.testing.crash.orders import Order
from twophase.testing.crash.target import CrashTarget, Killable, Surroundings
from twophase.testing.servers import hdfs
from twophase.testing.servers.hdfs import HdfsEndpoint
from twophase.testing.servers.server import Server
from twophase.testing.sink_target import SinkTarget

NOT_IN_PARQUET = {"duration[us]", "null"}
CLIENTS = ("native", "web")
WITHIN_S = 120.0


def url_of(endpoint: HdfsEndpoint, client: str) -> str:
    """The top of the file system, by one of its doors."""
    return endpoint.url if client == "native" else endpoint.webhdfs_url.replace("http://", "webhdfs://")


@dataclass(frozen=True)
class PlainReader:
    """Reads what lies in a table's folder as any reader of parquet files does: everything but hidden names."""

    rpc_url: str

    def files(self, folder: str) -> list[str]:
        client = hdfs_native.Client(self.rpc_url)
        try:
            found = [status.path for status in client.list_status(folder, recursive=True) if not status.isdir]
        except FileNotFoundError:
            return []
        return sorted(path for path in found if not _is_hidden(path.removeprefix(folder)))

    def tables(self, folder: str) -> Iterator[pa.Table]:
        client = hdfs_native.Client(self.rpc_url)
        for path in self.files(folder):
            yield pq.read_table(pa.BufferReader(client.read(path).read()), partitioning=None)

    def ids(self, folder: str) -> list[int]:
        return sorted(int(str(id_)) for table in self.tables(folder) for id_ in table.column("id").to_pylist())


def _is_hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in relative.split("/"))


def staged(storage: FileStorage, table: str) -> list[str]:
    """What is staged beside a table, below its owners' folders, temporary things included."""
    staging = open_table(table).staging
    found = []
    for query in storage.list(staging):
        for sink in storage.list(f"{staging}/{query.name}"):
            folder = f"{staging}/{query.name}/{sink.name}"
            found += [f"{query.name}/{sink.name}/{entry.name}" for entry in storage.list(folder)]
    return found


class HdfsUnderTest(SinkTarget):
    """A new table, by one of the clients."""

    arrow_types = frozenset(ARROW_COLUMNS) - NOT_IN_PARQUET
    failpoints = ("files.sealed", "files.manifest_published", "files.renamed")
    many_slots = 12  # each is a file, and a small one costs up to half a second
    many_rows = 20_000
    many_batches = 50
    many_failures = 4

    def __init__(self, endpoint: HdfsEndpoint, client: str):
        self.endpoint = endpoint
        self.folder = f"/suite-{uuid.uuid4().hex}/table"
        self.table = url_of(endpoint, client) + self.folder

    def sink(self) -> FilesSink:
        return FilesSink(self.table)

    def rebuilt(self, description: Description) -> FilesSink:
        return FilesSink.from_options(description.options)

    def read(self) -> Sequence[dict[str, Any]]:
        return [row for table in PlainReader(self.endpoint.url).tables(self.folder) for row in table.to_pylist()]

    def residue(self) -> list[str]:
        return staged(storage_of(self.table), self.table)

    def _staged_files(self, owner: Owner, share: Share[Any]) -> Iterator[str]:
        storage, parent = storage_of(self.table), f"{open_table(self.table).staging}/{owner}"
        for entry in storage.list(parent):
            if f".{share.attempt.generation}" in entry.name:
                yield from (f"{parent}/{entry.name}/{name}" for name in share.handle.bytes)

    def lose(self, owner: Owner, share: Share[Any]) -> None:
        for path in self._staged_files(owner, share):
            storage_of(self.table).delete(path)

    def lose_a_row(self, owner: Owner, share: Share[Any]) -> bool:
        """A file that looks complete and is short: what a killed writer leaves."""
        storage = storage_of(self.table)
        path = next(self._staged_files(owner, share))
        data = storage.read(path)
        storage.delete(path)
        with storage.create(path) as file:
            file.write(data[:-1])
        return True


@dataclass(frozen=True)
class PartOfServer(Killable):
    """The NameNode or the DataNode alone."""

    server: Server[HdfsEndpoint]
    part: str

    def kill(self) -> None:
        self.server.kill(self.part)

    def restart(self) -> None:
        self.server.start(self.part)

    def ended(self) -> Sequence[str]:
        return self.server.ended()


class HdfsTarget(CrashTarget):
    """A table of the crash matrix, by native RPC; the checkpoint, and so the ledger, is on the same HDFS."""

    title = "hdfs"
    format = "twophase-hdfs"
    points: ClassVar[Sequence[str]] = ("files.sealed", "files.manifest_published", "files.renamed")
    one_owner = True
    client: ClassVar[str] = "native"

    @property
    def path(self) -> str:
        return f"/{self.folder.name}/{self.name}"

    @property
    def url(self) -> str:
        return self.settings[self.client] + self.path

    def checkpoint(self, name: str) -> str:
        return f"{self.settings['native']}/{self.folder.name}/{name}"

    def options(self) -> Mapping[str, str]:
        return {"path": self.url}

    def sink(self) -> FilesSink:
        return FilesSink(self.url)

    def read(self) -> Sequence[Order]:
        """A reader waits, too, for a node that was killed and comes back."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                return self._read()
            except (OSError, RuntimeError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def _read(self) -> list[Order]:
        rows: list[Order] = []
        for table in PlainReader(self.settings["native"]).tables(self.path):
            if "id" in table.column_names:
                columns = [table.column(name).to_pylist() for name in ("id", "name", "amount")]
                rows += zip(*columns, strict=True)
        return rows

    def residue(self) -> Sequence[str]:
        return staged(storage_of(self.url), self.url)

    @classmethod
    @contextmanager
    def surroundings(cls) -> Iterator[Surroundings]:
        with (
            tempfile.TemporaryDirectory(prefix="twophase-hdfs-") as folder,
            hdfs.on_this_machine(Path(folder)) as server,
        ):
            yield Surroundings(
                {client: url_of(server.endpoint, client) for client in CLIENTS},
                {part: PartOfServer(server, part) for part in server.parts},
            )


class WebHdfsTarget(HdfsTarget):
    """The same by WebHDFS."""

    title = "webhdfs"
    client = "web"
