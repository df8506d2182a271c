"""`twophase-kafka`: topics, as a format of `writeStream`, `readStream` and `read`."""

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

for _module in ("confluent_kafka", "kafka"):
    require(_module, "kafka")


class KafkaFormat(Format):
    """Records in topics, in transactions that end with the epoch."""

    @classmethod
    def name(cls) -> str:
        return "twophase-kafka"

    @classmethod
    def make_sink(cls, options: Mapping[str, str]) -> AnySink:
        from twophase.sinks import KafkaSink

        return KafkaSink.from_options(options)

    @classmethod
    def make_source(cls, options: Mapping[str, str], schema: pa.Schema | None) -> AnySource:
        from twophase.sources import KafkaSource

        return KafkaSource.from_options(options)

    def reader(self, schema: StructType) -> BatchReader:
        from twophase.sources import KafkaSource

        with explained():
            source = KafkaSource.from_options(self._given())
            return BatchReader(source, *source.bounded())
