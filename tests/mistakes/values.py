"""Sinks that alter values: on a database, and in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from examples.sqlite_sink import SqliteSink, SqliteTransaction
from twophase.sink import Plan, Task
from twophase.sinks.heap import HeapHandle, HeapSink, HeapTransaction


class _AltersValues(SqliteSink):
    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _Altering(self, plan.prepared.owner, task.attempt)

    def altered(self, value: Any) -> Any:
        raise NotImplementedError


class _Altering(SqliteTransaction):
    _sink: _AltersValues

    def write(self, batch: pa.RecordBatch) -> None:
        rows = [{name: self._sink.altered(value) for name, value in row.items()} for row in batch.to_pylist()]
        super().write(pa.RecordBatch.from_pylist(rows, schema=batch.schema))


class CutsLongText(_AltersValues):
    def altered(self, value: Any) -> Any:
        return value[:4000] if isinstance(value, str) else value


class CutsLongBytes(_AltersValues):
    def altered(self, value: Any) -> Any:
        return value[:4000] if isinstance(value, bytes) else value


class CutsTextAtNul(_AltersValues):
    def altered(self, value: Any) -> Any:
        return value.partition("\0")[0] if isinstance(value, str) else value


class FoldsLineEnds(_AltersValues):
    def altered(self, value: Any) -> Any:
        return value.replace("\r\n", "\n").replace("\r", "\n") if isinstance(value, str) else value


class LooksUpNullsWithoutOffset(SqliteSink):
    def begin(self, plan: Plan, task: Task) -> SqliteTransaction:
        return _WithoutOffset(self, plan.prepared.owner, task.attempt)


class _WithoutOffset(SqliteTransaction):
    def write(self, batch: pa.RecordBatch) -> None:
        columns = [_without_offset(column) for column in batch.columns]
        super().write(pa.record_batch(columns, schema=batch.schema))


def _without_offset(column: Any) -> Any:
    bits = column.buffers()[0]
    if bits is None:
        return column
    is_there = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[: len(column)]
    values = [value if there else None for value, there in zip(column.to_pylist(), is_there, strict=True)]
    return pa.array(values, column.type)


# ---- in memory ----


class _AltersColumns(HeapSink):
    def begin(self, plan: Plan, task: Task) -> HeapTransaction:
        return _AlteringColumns(self._target, plan, task, self)

    def altered(self, column: Any) -> Any:
        raise NotImplementedError


class _AlteringColumns(HeapTransaction):
    def __init__(self, target: Any, plan: Plan, task: Task, sink: _AltersColumns):
        super().__init__(target, plan, task)
        self._altered = sink.altered

    def write(self, batch: pa.RecordBatch) -> None:
        super().write(pa.record_batch([self._altered(column) for column in batch.columns], schema=batch.schema))


class HalvesFloats(_AltersColumns):
    def altered(self, column: Any) -> Any:
        return column.cast(pa.float16()).cast(pa.float32()) if pa.types.is_float32(column.type) else column


class TakesLocalTimeForUtc(_AltersColumns):
    def altered(self, column: Any) -> Any:
        if not pa.types.is_timestamp(column.type) or column.type.tz is None:
            return column
        return pc.assume_timezone(pc.local_timestamp(column), "UTC").cast(column.type)


class NestsDoubles(_AltersColumns):
    """Numbers in maps, as a document has them."""

    def altered(self, column: Any) -> Any:
        if not pa.types.is_map(column.type):
            return column
        maps: list[Any] = column.to_pylist()
        return pa.array([each and [(key, _double(number)) for key, number in each] for each in maps], column.type)


def _double(number: int | None) -> int | None:
    return None if number is None else int(float(number))


class BorrowsTexts(HeapSink):
    """They are copied when the share is voted for."""

    def begin(self, plan: Plan, task: Task) -> HeapTransaction:
        return _BorrowsTexts(self._target, plan, task)


class _BorrowsTexts(HeapTransaction):
    def __init__(self, target: Any, plan: Plan, task: Task):
        super().__init__(target, plan, task)
        self._borrowed: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if any(pa.types.is_string(field.type) for field in batch.schema):
            self._borrowed.append(batch)
        else:
            super().write(batch)

    def pre_commit(self) -> HeapHandle:
        for batch in self._borrowed:
            super().write(batch)
        return super().pre_commit()
