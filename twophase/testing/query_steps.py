"""A whole query on a target, with the real coordinator and a real checkpoint folder, one step of Spark at a time.

::

    query.log(0)               offsets/0 is on disk
    query.prepare()            recovery, then the plan; pickled, as Spark does
    query.run([1, 2], [3])     a task a slot; votes travel as text
    query.commit()             or abort()
    query.log_commit()         commits/0 is on disk
    query.restart()            a new driver; the old one can go on as a zombie

A crash is a step that is not called, or one that `dies_at` interrupts: every step makes its coordinator, ledger and sink anew, so
nothing is shared but what is on disk and in the target. What is written and what readers see goes into a history.
"""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from twophase import failpoints
from twophase.checkpoint import Checkpoint
from twophase.coordinator import Coordinator
from twophase.failpoints import Fault, InjectedFault
from twophase.identity import Attempt, Owner
from twophase.ledger import Ledger, Tail
from twophase.local_storage import LocalStorage, Posix
from twophase.plan import EpochPlan
from twophase.query import Query
from twophase.sink import CommitOrder, Task
from twophase.task import run_task
from twophase.testing.checkers import History, Read, no_residue, violations
from twophase.testing.sink_target import SinkTarget
from twophase.vote import Vote

SINK = "sink"
_NOW_MS = 1_700_000_000_000


class _Unsynced(Posix):
    """The power is not cut here, and an epoch's ledger has several fsyncs."""

    def fsync(self, descriptor: int) -> None: ...


@dataclass
class Observed:
    """What was written and seen in all runs of a query."""

    written: dict[int, list[list[int]]] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    committed: int | None = None


@dataclass
class QuerySteps:
    """One driver of a query with one sink."""

    root: Path
    target: SinkTarget
    name: str = "query"
    take_over: Mapping[str, str] = field(default_factory=dict)
    observed: Observed = field(default_factory=Observed)

    number: int = field(default=-1, init=False)
    votes: list[Vote | None] = field(default_factory=list, init=False)
    plan: EpochPlan | None = field(default=None, init=False)
    _storage: LocalStorage = field(default_factory=lambda: LocalStorage(_Unsynced()), init=False)
    _task_ids: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __post_init__(self) -> None:
        for folder in ("offsets", "commits"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)

    @property
    def owner(self) -> Owner:
        return Owner(self.name, SINK)

    # ---- the steps of Spark ----

    def log(self, number: int) -> None:
        (self.root / "offsets" / str(number)).write_text(f"offsets of {number}")

    def prepare(self, *, overwrite: bool = False) -> EpochPlan:
        number = Checkpoint(self._storage, str(self.root)).newest()
        assert number is not None, "nothing is logged"
        self.number, self.votes = number, []
        schemas = {SINK: self.target.batch([]).schema}
        plan: EpochPlan = pickle.loads(
            pickle.dumps(self.coordinator().prepare(number, schemas=schemas, overwrite=overwrite))
        )
        self.plan = plan
        return plan

    def task(self, slot: int, *batches: pa.RecordBatch) -> Vote:
        """Run one task; its vote is returned, and not counted."""
        assert self.plan is not None
        vote = run_task(
            self.target.sink(),
            SINK,
            self.plan,
            batches,
            number=self.number,
            slot=slot,
            task_id=next(self._task_ids),
            now_ms=_now_ms,
        )
        return Vote.from_text(vote.to_text())

    def killed_task(self, slot: int, values: Sequence[int], when: str) -> None:
        """A task whose process is killed when it has `begun`, `written` or `pre-committed`: nobody calls its abort."""
        assert self.plan is not None
        plan = self.plan.sinks[SINK].plan
        assert plan is not None
        attempt = Attempt(self.plan.generation, next(self._task_ids), self.plan.nonce)
        transaction = self.target.sink().begin(plan, Task(slot, attempt))
        if when != "begun":
            transaction.write(self.target.batch(values))
        if when == "pre-committed":
            transaction.pre_commit()

    def run(self, *slots: Sequence[int]) -> list[Vote | None]:
        """A task for each slot; its rows are what this epoch is expected to have from here on."""
        self.observed.written[self.number] = [list(values) for values in slots]
        self.votes = []  # until all are in: Spark commits nothing less
        self.votes = [self.task(slot, self.target.batch(values)) for slot, values in enumerate(slots)]
        return self.votes

    def commit(self, votes: Sequence[Vote | None] | None = None) -> None:
        self.coordinator().commit(self.number, self.votes if votes is None else votes, plan=self.plan)
        self.observed.committed = max(self.number, -1 if self.observed.committed is None else self.observed.committed)

    def abort(self) -> None:
        self.coordinator().abort(self.number, self.votes)

    def log_commit(self) -> None:
        (self.root / "commits" / str(self.number)).write_text("v1\n{}")

    def forget_commit(self) -> None:
        """Spark died before it could log what was committed."""
        (self.root / "commits" / str(self.number)).unlink()

    # ---- several steps ----

    def finish(self, *slots: Sequence[int]) -> None:
        """Everything after the log: what Spark does with an epoch that it finds logged and not committed."""
        self.prepare()
        self.run(*slots)
        self.look()
        self.commit()
        self.look()
        self.log_commit()

    def epoch(self, number: int, *slots: Sequence[int]) -> None:
        self.log(number)
        self.finish(*slots)

    def decided(self, folder: Path, *slots: Sequence[int]) -> CommitOrder[Any]:
        """Everything up to the commit point, where the driver dies."""
        self.prepare()
        self.run(*slots)
        with dies_at(folder, "decide.published"):
            self.commit()
        return self.newest_order()

    def restart(self, **changes: Any) -> QuerySteps:
        """A new driver on the same checkpoint. Spark's task ids begin again."""
        return dataclasses.replace(self, **changes)

    def recover(self) -> None:
        self.coordinator().recover()

    # ---- what is known ----

    def coordinator(self) -> Coordinator:
        checkpoint = Checkpoint(self._storage, str(self.root))
        sinks = {SINK: self.target.sink()}
        return Coordinator(Query(self.name, checkpoint, self._ledger(), sinks, _now_ms, take_over=self.take_over))

    def _ledger(self) -> Ledger:
        return Ledger(self._storage, f"{self.root}/twophase", new_id=lambda: uuid.uuid4().hex, now_ms=_now_ms)

    def tail(self) -> Tail | None:
        return self._ledger().read()

    def newest_order(self) -> CommitOrder[Any]:
        """The newest decision, as the sink gets it."""
        tail = self.tail()
        assert tail is not None
        assert tail.decision is not None
        return tail.decision.sinks[SINK].order(self.owner, tail.decision.epoch, self.target.sink().handle_type)

    def lose(self, slot: int) -> None:
        """The target loses this slot's share of the newest decision."""
        self.target.lose(self.owner, self.newest_order().shares[slot])

    # ---- what must hold ----

    def look(self) -> None:
        """A reader looks now; what it must see depends on what is decided and committed by now."""
        observed, tail = self.observed, self.tail()
        decision = None if tail is None else tail.decision
        decided = None if decision is None else decision.epoch.number
        observed.reads.append(Read(self.target.values(), observed.committed, decided))

    def findings(self) -> list[str]:
        """What is wrong with all reads so far, and one more now."""
        self.look()
        capabilities = self.target.sink().capabilities
        history = History(self.observed.written, self.observed.reads)
        return violations(history, atomic=capabilities.atomic, ordered=capabilities.ordered)

    def residue(self) -> list[str]:
        return no_residue(self.target.residue())


@contextmanager
def dies_at(folder: Path, point: str, hit: int = 1, *, must_fire: bool = True) -> Iterator[None]:
    """What runs inside dies when it comes to this failpoint. A test whose fault did not fire fails, unless it need not."""
    file = folder / f"failpoints-{uuid.uuid4().hex}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(failpoints.VARIABLE, str(file))
        failpoints.reload()
        failpoints.arm(file, Fault(point, "raise", hit))
        fired = False
        try:
            yield
        except InjectedFault:
            fired = True
        finally:
            patch.undo()
            failpoints.reload()
        if must_fire and not fired:
            pytest.fail(f"the query did not come to {point}, so nothing was tested")


def _now_ms() -> int:
    return _NOW_MS
