"""A query to a keyed state, driven by hand: rows go to the tasks that own their key groups, as Spark would send them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from twophase.identity import Attempt, DecisionId, Generation, Owner
from twophase.query import AnySink
from twophase.sink import CommitOrder, Outcome, Plan, PreparedEpoch, Share, Task
from twophase.sinks.heap_state import HeapStateSink
from twophase.sinks.rocksdb.sink import RocksDBSink
from twophase.standing import newest_marker
from twophase.testing.sink_steps import epoch_of, travelled, voted

OWNER = Owner("query", "sink")


@dataclass
class StateQuery:
    """One owner's query. The same rows give the same epochs, in any sink."""

    sink: RocksDBSink | HeapStateSink
    owner: Owner = OWNER
    ledger: str = field(default_factory=lambda: uuid.uuid4().hex)
    _records: int = 0
    _tasks: Iterator[int] = field(default_factory=itertools.count)

    def prepare(self, number: int, schema: pa.Schema | None) -> Plan:
        self._records += 1
        generation = Generation(self.ledger, self._records)
        self.sink.fence(self.owner, generation)
        origin = newest_marker(self.sink.status(self.owner, settled=True))
        base = 0 if origin is None else origin.base
        prepared = PreparedEpoch(self.owner, generation, epoch_of(number), origin, base, schema)
        return travelled(self.sink.prepare(prepared))

    def share(self, plan: Plan, rows: pa.RecordBatch, slot: int, tasks: int) -> Share[Any]:
        """A task, with the rows of all that are its own."""
        sink, task = self.sink.placed(tasks), Task(slot, Attempt(plan.prepared.generation, next(self._tasks)))
        own = of_slot(self.sink, rows, slot, tasks)
        transaction = sink.begin(plan, task)
        if own.num_rows:
            half = own.num_rows // 2
            transaction.write(own.slice(0, half))
            transaction.write(own.slice(half))
        return voted(sink, transaction, task, own)

    def decided(self, number: int, rows: pa.RecordBatch, tasks: int) -> CommitOrder[Any]:
        plan = self.prepare(number, rows.schema)
        shares = tuple(self.share(plan, rows, slot, tasks) for slot in range(tasks))
        self._records += 1
        decision = DecisionId(self.ledger, self._records)
        return CommitOrder(self.owner, plan.prepared.epoch, decision, plan.prepared.origin, plan.prepared.base, shares)

    def epoch(self, number: int, rows: pa.RecordBatch, tasks: int) -> CommitOrder[Any]:
        order = self.decided(number, rows, tasks)
        assert self.sink.alive(order) == {}
        assert self.sink.commit(order) is Outcome.COMMITTED
        return order

    def sweep(self) -> None:
        sink: AnySink = self.sink
        sink.abort(self.owner, list(sink.leftovers(self.owner)))


def of_slot(sink: RocksDBSink | HeapStateSink, rows: pa.RecordBatch, slot: int, tasks: int) -> pa.RecordBatch:
    groups = sink.key_groups
    found = groups.of([rows.column(name) for name in sink.key_columns], rows.num_rows)
    return rows.filter(pa.array([groups.slot_of(group, tasks) == slot for group in found.tolist()], pa.bool_()))


def batch_of(rows: Sequence[dict[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=schema)
