"""`twophase-pravega`: streams, as a format of `writeStream`, `readStream` and `read`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql.types import StructType

from twophase.connectors.batch_reader import BatchReader
from twophase.connectors.explained import explained
from twophase.connectors.format import Format
from twophase.connectors.stream_reader import AnySource
from twophase.extras import require
from twophase.query import AnySink

require("grpc", "pravega")


class PravegaFormat(Format):
    """Events in a stream, in one transaction an epoch."""

    @classmethod
    def name(cls) -> str:
        return "twophase-pravega"

    @classmethod
    def make_sink(cls, options: Mapping[str, str]) -> AnySink:
        from twophase.sinks import PravegaSink

        return PravegaSink.from_options(options)

    @classmethod
    def make_source(cls, options: Mapping[str, str], schema: pa.Schema | None) -> AnySource:
        from twophase.sources import PravegaSource

        return PravegaSource.from_options(options)

    def reader(self, schema: StructType) -> BatchReader:
        from twophase.sources import PravegaSource

        with explained():
            source = PravegaSource.from_options(self._given())
            return BatchReader(source, *source.bounded())
