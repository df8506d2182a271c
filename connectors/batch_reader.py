"""One range of a source, as a format of `spark.read`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from twophase.connectors.explained import explained
from twophase.connectors.stream_reader import AnySource


class BatchReader(DataSourceReader):
    """Reads what is between two offsets, which were looked up when the query was planned."""

    def __init__(self, source: AnySource, start: str, end: str):
        self._source, self._start, self._end = source, start, end

    def partitions(self) -> Sequence[InputPartition]:
        with explained():
            return [InputPartition(split) for split in self._source.plan(self._start, self._end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return  # where there are no partitions, Spark asks for one of its own making
        with explained():
            yield from self._source.read(partition.value)
