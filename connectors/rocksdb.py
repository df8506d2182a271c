"""`twophase-rocksdb`: keyed states, as a format of `writeStream`, and of `read` at a committed epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from twophase.clients.rocksdb.read_options import RocksDBReadOptions
from twophase.clients.rocksdb.snapshot import Snapshot, manifest_at, table_at
from twophase.connectors.by_key_group import KEY_GROUPS
from twophase.connectors.explained import explained
from twophase.connectors.format import Format
from twophase.connectors.stream_writer import StreamWriter
from twophase.errors import OptionError
from twophase.options import parse
from twophase.query import AnySink
from twophase.state.key_groups import GroupRange
from twophase.state.manifest import StateManifest


class RocksDBFormat(Format):
    """Rows by key, in files of RocksDB."""

    @classmethod
    def name(cls) -> str:
        return "twophase-rocksdb"

    @classmethod
    def make_sink(cls, options: Mapping[str, str]) -> AnySink:
        from twophase.sinks import RocksDBSink

        return RocksDBSink.from_options(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        with explained():
            given = {key.lower(): value for key, value in self._given().items()}
            if not given.get("tasks"):
                raise _without_tasks(given)
        return super().streamWriter(schema, overwrite)

    def schema(self) -> StructType:
        with explained():
            return from_arrow_schema(_manifest(self._given()).form.known_schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        with explained():
            given = parse(RocksDBReadOptions, self._given())
            return StateReader(given.path, _manifest(self._given()).position)


class StateReader(DataSourceReader):
    """Reads one epoch, a partition for each range of key groups that lies together."""

    def __init__(self, path: str, epoch: int):
        self._path, self._epoch = path, epoch

    def partitions(self) -> Sequence[InputPartition]:
        with explained():
            manifest = manifest_at(table_at(self._path), self._epoch)
        return [InputPartition((each.groups.first, each.groups.end)) for each in manifest.segments]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return  # where there are no partitions, Spark asks for one of its own making
        with explained():
            table = table_at(self._path)
            with Snapshot(table, manifest_at(table, self._epoch), GroupRange(*partition.value)) as state:
                yield from state.batches()


def _manifest(options: Mapping[str, str]) -> StateManifest:
    given = parse(RocksDBReadOptions, options)
    return manifest_at(table_at(given.path), given.as_of_epoch)


def _without_tasks(given: Mapping[str, str]) -> OptionError:
    columns, groups = given.get("keycolumns", ""), given.get("keygroups", str(KEY_GROUPS))
    problem = (
        f"tasks is missing: rows go to tasks by their key group, so write twophase.by_key_group(df, {columns.split(',')}, tasks=N, "
        f"key_groups={groups}) and set tasks to the same N; or use twophase.exactly_once, which sends them there by itself"
    )
    return OptionError(problem, problems=[problem])
