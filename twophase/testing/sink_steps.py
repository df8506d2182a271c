"""The verbs of a sink, one at a time, as the coordinator calls them: what a test of a single promise is written with.

::

    steps = SinkSteps(target)
    plan = steps.prepare(0)                  a new generation: fence, prepare
    share = steps.share(plan, 0, [1, 2])     begin, write, pre_commit; the handle has travelled as JSON
    order = steps.order(plan, share)         a decision
    steps.commit(order)

Every call is made by a sink object of its own, and plans are pickled, as between the processes of a query. Records are numbered
as a ledger numbers them: generations and decisions by turns.
"""

from __future__ import annotations

import itertools
import json
import pickle
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from twophase.checksum import Checksum
from twophase.identity import Attempt, DecisionId, Epoch, Generation, Owner, offsets_hash
from twophase.query import AnySink
from twophase.sink import CommitOrder, Leftover, Marker, Outcome, Plan, PreparedEpoch, Share, Task, Transaction
from twophase.standing import newest_marker
from twophase.testing.sink_target import SinkTarget
from twophase.vote import VotedShare


def epoch_of(number: int) -> Epoch:
    return Epoch(number, offsets_hash(f"offsets of {number}".encode()))


@dataclass
class SinkSteps:
    """One owner's query, driven by hand."""

    target: SinkTarget
    owner: Owner = Owner("query", "sink")  # noqa: RUF009 - frozen
    ledger: str = field(default_factory=lambda: uuid.uuid4().hex)
    _records: int = 0
    _tasks: Iterator[int] = field(default_factory=itertools.count)

    def sink(self) -> AnySink:
        return self.target.sink()

    # ---- an epoch ----

    def generation(self) -> Generation:
        """The next prepare record."""
        self._records += 1
        return Generation(self.ledger, self._records)

    def prepare(self, number: int, *, overwrite: bool = False, schema: pa.Schema | None = None) -> Plan:
        """A new generation, which knows the columns as a format of Spark does."""
        generation, origin = self.generation(), self.marker()
        self.sink().fence(self.owner, generation)
        prepared = PreparedEpoch(
            owner=self.owner,
            generation=generation,
            epoch=epoch_of(number),
            origin=origin,
            base=0 if origin is None else origin.base,
            schema=self.target.batch([]).schema if schema is None else schema,
            overwrite=overwrite,
        )
        return travelled(self.sink().prepare(prepared))

    def task(self, plan: Plan, slot: int) -> Task:
        return Task(slot, Attempt(plan.prepared.generation, next(self._tasks)))

    def share(self, plan: Plan, slot: int, values: Sequence[int] = (), *, task: Task | None = None) -> Share[Any]:
        """One task, from begin to its vote; without rows it gets no batch at all."""
        return self.write(plan, slot, *([self.target.batch(values)] if values else []), task=task)

    def write(self, plan: Plan, slot: int, *batches: pa.RecordBatch, task: Task | None = None) -> Share[Any]:
        task = task or self.task(plan, slot)
        transaction: Transaction[Any] = self.sink().begin(plan, task)
        try:
            for batch in batches:
                transaction.write(batch)
            return self.vote(transaction, task, *batches)
        except Exception:
            transaction.abort()  # as a task does
            raise

    def vote(self, transaction: Transaction[Any], task: Task, *batches: pa.RecordBatch) -> Share[Any]:
        """Pre-commit; the share as a driver reads it."""
        return voted(self.sink(), transaction, task, *batches)

    def order(self, plan: Plan, *shares: Share[Any]) -> CommitOrder[Any]:
        """A decision of that plan's generation, in the name of the next record."""
        self._records += 1
        prepared = plan.prepared
        decision = DecisionId(self.ledger, self._records)
        return CommitOrder(self.owner, prepared.epoch, decision, prepared.origin, prepared.base, shares)

    def commit(self, order: CommitOrder[Any]) -> Outcome:
        return self.sink().commit(order)

    # ---- several steps ----

    def decided(self, number: int, *slots: Sequence[int]) -> CommitOrder[Any]:
        """Everything before the commit: a slot for each of the given rows."""
        plan = self.prepare(number)
        return self.order(plan, *(self.share(plan, slot, values) for slot, values in enumerate(slots)))

    def epoch(self, number: int, *slots: Sequence[int]) -> CommitOrder[Any]:
        order = self.decided(number, *slots)
        outcome = self.commit(order)
        assert outcome is Outcome.COMMITTED, f"the first commit of a decision says {outcome}"
        return order

    def leftovers(self) -> list[Leftover[Any]]:
        """What is staged by this owner, whatever else the target lists."""
        listed = self.sink().leftovers(self.owner, seen_from=Generation(self.ledger, self._records + 1))
        return [left for left in listed if left.owner in (None, self.owner)]

    def marks(self) -> set[str]:
        return {left.mark for left in self.leftovers()}

    def sweep(self) -> None:
        """Delete everything of this owner that is staged, as the next generation would."""
        self.sink().abort(self.owner, self.leftovers())

    # ---- what is there ----

    def marker(self, *, settled: bool = False) -> Marker | None:
        """The newest of the target's markers."""
        return newest_marker(self.sink().status(self.owner, settled=settled))

    def visible(self) -> list[int]:
        return sorted(self.target.values())

    def as_(self, owner: Owner) -> SinkSteps:
        """Another owner on the same target, whose query is another one too."""
        return replace(self, owner=owner, ledger=uuid.uuid4().hex, _records=0, _tasks=itertools.count())


def travelled(plan: Plan) -> Plan:
    """As it arrives at an executor."""
    arrived = pickle.loads(pickle.dumps(plan))
    assert isinstance(arrived, Plan)
    return arrived


def voted(sink: AnySink, transaction: Transaction[Any], task: Task, *batches: pa.RecordBatch) -> Share[Any]:
    """Pre-commit; what is left of these batches is the share, and its handle has travelled as JSON."""
    checksum = Checksum()
    for batch in batches:
        checksum.add(batch)
    share = VotedShare.of(task.slot, task.attempt, checksum.rows, checksum.value, transaction.pre_commit())
    return VotedShare.from_json(json.loads(json.dumps(share.to_json()))).read(sink.handle_type)
