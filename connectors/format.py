"""A format: what a connector is to Spark. Each target's subclass says how its sink and its source are made from options."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, ClassVar, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from twophase.connectors.arrow_schema import arrow_schema
from twophase.connectors.explained import explained
from twophase.connectors.partition_by import with_partition_by
from twophase.connectors.stream_reader import AnySource, StreamReader
from twophase.connectors.stream_writer import StreamWriter, prepared_writer, target_of
from twophase.errors import OptionError
from twophase.query import AnySink


class Format(DataSource):
    in_storage: ClassVar[bool] = False
    """Whether the target lies in storage, as checkpoints do: on a local disk, or on HDFS."""

    def __init__(self, options: MutableMapping[str, str]):
        super().__init__(options)
        self._was_pickled = False

    def __getstate__(self) -> dict[str, Any]:
        # Spark unpickles it in the commit worker, and constructs it in the planner: only there is an epoch prepared.
        return {**self.__dict__, "_was_pickled": True}

    # ---- what a target says ----

    @classmethod
    def make_sink(cls, options: Mapping[str, str]) -> AnySink:
        raise _cannot(cls.name(), "written to")

    @classmethod
    def make_source(cls, options: Mapping[str, str], schema: pa.Schema | None) -> AnySource:
        raise _cannot(cls.name(), "read from")

    # ---- what Spark calls ----

    def schema(self) -> StructType:
        with explained():
            return from_arrow_schema(self.make_source(self._given(), None).schema())

    def streamReader(self, schema: StructType) -> StreamReader:
        with explained():
            return StreamReader(self.make_source(self._given(), arrow_schema(schema)))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        with explained():
            target = target_of(with_partition_by(self._given()), self.make_sink, in_storage=self.in_storage)
        if self._was_pickled:
            return StreamWriter(target, None)
        with explained(where=target.where):
            return prepared_writer(target, schema, overwrite=overwrite)

    def reader(self, schema: StructType) -> DataSourceReader:
        raise self._only_streams("spark.readStream")

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:
        raise self._only_streams("df.writeStream")

    def _given(self) -> dict[str, str]:
        return dict(self.options)

    def _only_streams(self, instead: str) -> OptionError:
        problem = f"the format {self.name()} is for streams: use {instead}"
        return OptionError(problem, problems=[problem])


def _cannot(name: str, what: str) -> OptionError:
    problem = f"the format {name} can't be {what}"
    return OptionError(problem, problems=[problem])
