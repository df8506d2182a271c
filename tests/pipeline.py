"""Spark's side of a query, one step at a time, on a real checkpoint folder; and two targets that can fail.

::

    pipeline.log(0)            offsets/0 is on disk
    pipeline.prepare()         the plan; pickled, as Spark does
    pipeline.run([1, 2], [3])  a task a slot in every sink, with these rows; votes travel as text
    pipeline.commit()          or abort()
    pipeline.log_commit()      commits/0 is on disk
    pipeline.restart()         a new driver; the old one can go on as a zombie

A crash is a step that is not called, or one that `crash_at` interrupts. Every step makes its own coordinator and
ledger: nothing is shared but what is on disk and in the targets.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa
import pytest

from tests.model.slot_sink import SlotSink, SlotState
from twophase import failpoints
from twophase.checkpoint import Checkpoint
from twophase.coordinator import Coordinator
from twophase.errors import CheckpointMismatch
from twophase.failpoints import Fault, InjectedFault
from twophase.identity import Attempt, Owner
from twophase.ledger import KEPT_RECORDS, Ledger, Tail
from twophase.local_storage import LocalStorage
from twophase.plan import EpochPlan
from twophase.query import AnySink, Query
from twophase.sinks import heap
from twophase.sinks.heap import HeapSink, HeapState, HeapTarget
from twophase.storage import Storage
from twophase.task import run_task
from twophase.vote import Vote

R = TypeVar("R")
Transition = Callable[..., tuple[Any, Any]]
Lost = Literal["request", "reply"]
Epochs = list[tuple[int, list[int]]]
"""What readers see: epoch and sorted values, in the order in which they became visible."""


# ---- targets ----


class Table(HeapTarget):
    """An atomic target with one owner, for HeapSink."""

    def __init__(self, name: str = "table"):
        super().__init__(name)
        self.lost: dict[Transition, Lost] = {}

    def lose(self, what: Lost, transition: Transition) -> None:
        """The next such request never arrives, or is performed and never answered."""
        self.lost[transition] = what

    def apply(self, transition: Callable[..., tuple[HeapState, R]], *arguments: Any) -> R:
        lost = self.lost.pop(transition, None)
        if lost == "request":
            raise TimeoutError("the request was lost")
        result = super().apply(transition, *arguments)
        if lost == "reply":
            raise TimeoutError("the reply was lost")
        return result

    def sink(self) -> HeapSink:
        return HeapSink(self)

    @property
    def state(self) -> HeapState:
        return self.apply(heap.look)

    def visible(self, query: str | None = None) -> Epochs:
        line = [committed for committed in self.state.line if query in (None, committed.marker.owner.query)]
        return [
            (c.marker.epoch.number, sorted(_values(batch for share in c.shares for batch in share.batches())))
            for c in line
        ]

    def line(self) -> list[tuple[str, int, int]]:
        """Who has each position: query, epoch and target epoch."""
        markers = [committed.marker for committed in self.state.line]
        return [(m.owner.query, m.epoch.number, m.base + m.epoch.number) for m in markers]

    def staged(self) -> list[tuple[int, int]]:
        """Epoch and slot of every share that is not visible."""
        return sorted((share.epoch.number, share.slot) for share in self.state.staged)

    def expire(self, slot: int) -> None:
        """The staged shares of this slot die."""
        doomed = frozenset((share.owner, str(share.attempt)) for share in self.state.staged if share.slot == slot)
        assert doomed, "nothing to expire"
        self.apply(heap.abort, doomed)


class Topic:
    """A target by slot with any number of owners, for SlotSink."""

    def __init__(self) -> None:
        self.state = SlotState()
        self.lost: dict[Transition, Lost] = {}

    def lose(self, what: Lost, transition: Transition) -> None:
        """The next such request never arrives, or is performed and never answered."""
        self.lost[transition] = what

    def apply(self, transition: Callable[..., tuple[Any, R]], *arguments: Any) -> R:
        lost = self.lost.pop(transition, None)
        if lost == "request":
            raise TimeoutError("the request was lost")
        self.state, result = transition(self.state, *arguments)
        if lost == "reply":
            raise TimeoutError("the reply was lost")
        return result

    def sink(self) -> SlotSink:
        return SlotSink(self)

    def visible(self, query: str | None = None) -> Epochs:
        shown = [t for t in self.state.visible if query in (None, t.owner.query)]
        # Neighbours only: an epoch that goes on after a later one began shows as a second entry.
        epochs = itertools.groupby(shown, key=lambda t: t.epoch.number)
        return [(number, sorted(value for t in group for value in t.values)) for number, group in epochs]

    def attempts(self) -> list[tuple[int, int, Attempt]]:
        """Epoch, slot and attempt of every share that is visible."""
        return [(t.epoch.number, t.slot, t.attempt) for t in self.state.visible]

    def staged(self) -> list[tuple[int, int]]:
        """Epoch and slot of every share that is not visible."""
        return sorted((t.epoch.number, t.slot) for t in self.state.pending)

    def expire(self, slot: int) -> None:
        """The staged shares of this slot die."""
        living = frozenset(t for t in self.state.pending if t.slot != slot)
        assert living != self.state.pending, "nothing to expire"
        self.state = dataclasses.replace(self.state, pending=living)


Target = Table | Topic


# ---- the query ----


@dataclass
class Pipeline:
    """One driver of a query. `sinks` and the options are what it is started with."""

    root: Path
    sinks: Mapping[str, AnySink]
    owner: str | None = None
    take_over: Mapping[str, Owner] = field(default_factory=dict)
    moved_from: str | None = None
    storage: Storage = field(default_factory=LocalStorage)
    kept_records: int = KEPT_RECORDS
    clock_ms: int = 1_700_000_000_000

    number: int = field(default=-1, init=False)
    votes: list[Vote | None] = field(default_factory=list, init=False)
    _plan: bytes = field(default=b"", init=False)
    _task_ids: Iterator[int] = field(default_factory=itertools.count, init=False)

    def __post_init__(self) -> None:
        for folder in ("offsets", "commits"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        metadata = self.root / "metadata"
        if not metadata.exists():
            metadata.write_text(json.dumps({"id": str(uuid.uuid4())}))

    @property
    def name(self) -> str:
        return self.owner or Checkpoint(self.storage, str(self.root)).query_id()

    @property
    def plan(self) -> EpochPlan:
        plan = pickle.loads(self._plan)
        assert isinstance(plan, EpochPlan)
        return plan

    def ledger(self) -> Ledger:
        return Ledger(
            self.storage,
            f"{self.root}/twophase",
            new_id=lambda: uuid.uuid4().hex,
            now_ms=lambda: self.clock_ms,
            kept_records=self.kept_records,
        )

    def tail(self) -> Tail:
        tail = self.ledger().read()
        assert tail is not None
        return tail

    def coordinator(self) -> Coordinator:
        checkpoint = Checkpoint(self.storage, str(self.root))
        return Coordinator(
            Query(
                self.name,
                checkpoint,
                self.ledger(),
                self.sinks,
                lambda: self.clock_ms,
                take_over={sink: str(owner) for sink, owner in self.take_over.items()},
                moved_from=self.moved_from,
            )
        )

    # ---- steps ----

    def log(self, number: int, offsets: str | None = None) -> None:
        (self.root / "offsets" / str(number)).write_text(f"v1\n{number}" if offsets is None else offsets)

    def prepare(self, *, overwrite: bool = False) -> EpochPlan:
        number = Checkpoint(self.storage, str(self.root)).newest()
        assert number is not None, "nothing is logged"
        self.number, self.votes = number, []
        self._plan = pickle.dumps(self.coordinator().prepare(number, overwrite=overwrite))
        return self.plan

    def task(
        self, sink: str, slot: int, values: Sequence[int], *, number: int | None = None, task_id: int | None = None
    ) -> Vote:
        """Run one task; its vote is returned, and not counted."""
        vote = run_task(
            self.sinks[sink],
            sink,
            self.plan,
            [batch_of(values)],
            number=self.number if number is None else number,
            slot=slot,
            task_id=next(self._task_ids) if task_id is None else task_id,
            now_ms=lambda: self.clock_ms,
        )
        return Vote.from_text(vote.to_text())

    def run(self, *rows: Sequence[int]) -> list[Vote | None]:
        """Run a task for each slot of each sink; the votes are kept for commit and abort."""
        self.votes = []
        for sink, (slot, values) in itertools.product(self.sinks, enumerate(rows)):
            self.votes.append(self.task(sink, slot, values))
        return self.votes

    def commit(self, votes: Sequence[Vote | None] | None = None, *, number: int | None = None) -> None:
        number = self.number if number is None else number
        self.coordinator().commit(number, self.votes if votes is None else votes, plan=self.plan)

    def abort(self, votes: Sequence[Vote | None] | None = None, *, number: int | None = None) -> None:
        number = self.number if number is None else number
        self.coordinator().abort(number, self.votes if votes is None else votes)

    def log_commit(self) -> None:
        (self.root / "commits" / str(self.number)).write_text("v1\n{}")

    # ---- several steps ----

    def finish(self, *rows: Sequence[int]) -> None:
        """Everything after the log: what Spark does with an epoch that it finds logged and not committed."""
        self.prepare()
        self.run(*rows)
        self.commit()
        self.log_commit()

    def epoch(self, number: int, *rows: Sequence[int]) -> None:
        self.log(number)
        self.finish(*rows)

    def restart(self, **changes: Any) -> Pipeline:
        """A new driver on the same checkpoint."""
        return dataclasses.replace(self, **changes)


def batch_of(values: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], names=["value"])


def _values(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [int(value) for batch in batches for value in batch.column("value").to_numpy()]


@contextmanager
def crash_at(folder: Path, point: str, hit: int = 1) -> Iterator[None]:
    """What runs inside dies at this failpoint, and a test whose fault did not fire fails."""
    file = folder / f"failpoints-{uuid.uuid4().hex}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(failpoints.VARIABLE, str(file))
        failpoints.reload()
        try:
            failpoints.arm(file, Fault(point, "raise", hit))
            with pytest.raises(InjectedFault):
                yield
            assert [reached.point for reached in failpoints.trace(file) if reached.action] == [point]
        finally:
            patch.undo()
            failpoints.reload()


def decided(pipeline: Pipeline, tmp_path: Path, *rows: list[int]) -> None:
    """Run the newest logged epoch up to its decision, and crash: no sink knows it."""
    pipeline.prepare()
    pipeline.run(*rows)
    with crash_at(tmp_path, "decide.published"):
        pipeline.commit()


def refused(pipeline: Pipeline, target: Target, *sides: str) -> None:
    """Prepare raises CheckpointMismatch, its message has all of `sides`, and the target is as before."""
    before = target.visible(), target.staged()
    with pytest.raises(CheckpointMismatch) as caught:
        pipeline.prepare()
    assert [side for side in sides if side not in str(caught.value)] == []
    assert (target.visible(), target.staged()) == before
