"""The Kafka sink without its transaction, ledger and checksums: what is left is the way of the rows. The difference to
`twophase-kafka` is the price of exactly-once.

Records are there when their task has flushed them, and twice if it runs again, or if the library sends them again: without a
transaction it has no numbers by which a broker would know them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from twophase.clients.kafka import settings
from twophase.clients.kafka.connections import control_of
from twophase.clients.kafka.record_batches import BatchForm
from twophase.options import PassThrough
from twophase.sinks.kafka import records
from twophase.sinks.kafka.direct_producer import DirectProducer
from twophase.sinks.kafka.producer import Producer

_PREFIX = "kafka."
_PATIENCE_S = 60.0


class PlainKafka(DataSource):
    @classmethod
    def name(cls) -> str:
        return "plain-kafka"

    def streamWriter(self, schema: StructType, overwrite: bool) -> PlainWriter:  # noqa: N802 - pyspark's name
        given = {key.removeprefix(_PREFIX): value for key, value in self.options.items() if key.startswith(_PREFIX)}
        return PlainWriter(given, self.options["topic"])


class PlainWriter(DataSourceStreamArrowWriter):
    def __init__(self, told: dict[str, str], topic: str):
        self._told = told
        self._topic = topic

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        producer = self._new_producer()
        try:
            for batch in iterator:
                for topic, rows in records.rows_by_topic(batch, self._topic):
                    producer.produce(topic, rows)
            producer.flush()
        finally:
            producer.drop()
        return WriterCommitMessage()

    def _new_producer(self) -> Producer | DirectProducer:
        """As the sink's."""
        form = BatchForm.of(settings.for_librdkafka(self._told))
        if form is not None:
            return DirectProducer(control_of(PassThrough(self._told), patience_s=_PATIENCE_S), form)
        producer = Producer(settings.for_librdkafka(self._told), patience_s=_PATIENCE_S)
        producer.look_up(self._topic)
        return producer
