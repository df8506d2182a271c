"""A source as a format of `readStream`.

Spark keeps an offset as a JSON object, a source as JSON text; they are the same thing. What a source promises between `latest`
and `acknowledge` is what makes a replay of an epoch read the same rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from twophase.connectors.explained import explained
from twophase.source import NO_LIMIT, Source
from twophase.source import ReadLimit as SourceLimit

AnySource = Source[Any]
_NOT_BEGUN: dict[str, Any] = {}


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a source, epoch by epoch."""

    def __init__(self, source: AnySource):
        self._source = source
        self._until: str | None = None

    def initialOffset(self) -> dict[str, Any]:
        if self._source.start_moves:
            # Spark does not log where the first epoch begins, and would ask again after a crash. So the first epoch is empty: its
            # end, which is logged, is where the source begins.
            return _NOT_BEGUN
        with explained():
            return _object(self._source.earliest())

    def prepareForTriggerAvailableNow(self) -> None:
        with explained():
            self._until = self._source.newest()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        with explained():
            if self._has_not_begun(start):
                return _object(self._source.earliest())
            return _object(self._source.latest(_text(start), _source_limit(limit), until=self._until))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()  # limits are the source's own options

    def reportLatestOffset(self) -> dict[str, Any] | None:
        with explained():
            return _object(self._source.newest())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._has_not_begun(start):
            return []
        with explained():
            return [InputPartition(split) for split in self._source.plan(_text(start), _text(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with explained():
            yield from self._source.read(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        with explained():
            self._source.acknowledge(_text(end))

    def stop(self) -> None:
        with explained():
            self._source.stop()

    def _has_not_begun(self, start: dict[str, Any]) -> bool:
        return self._source.start_moves and start == _NOT_BEGUN


def _source_limit(limit: ReadLimit) -> SourceLimit:
    match limit:
        case ReadMaxRows(rows):
            return SourceLimit(rows=rows)
        case ReadMaxBytes(size):
            return SourceLimit(bytes=size)
        case _:
            return NO_LIMIT


def _text(offset: dict[str, Any]) -> str:
    return json.dumps(offset, sort_keys=True)


def _object(offset: str) -> dict[str, Any]:
    data = json.loads(offset)
    assert isinstance(data, dict), "an offset is a JSON object"
    return data
