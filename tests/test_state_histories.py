"""RocksDBSink beside HeapStateSink: over random histories both have the same state, at every epoch."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.files_query import quick
from tests.state_query import StateQuery, batch_of
from twophase.clients.rocksdb.snapshot import open_snapshot
from twophase.sinks.heap_state import HeapStateSink
from twophase.sinks.rocksdb.sink import RocksDBSink
from twophase.state.form import MergeMode

_COLUMNS: dict[str, pa.DataType] = {
    "kind": pa.string(),
    "number": pa.int64(),
    "amount": pa.int64(),
    "at": pa.timestamp("us"),
}
SCHEMA = pa.schema(_COLUMNS)
FLAGGED = SCHEMA.append(pa.field("deleted", pa.bool_()))

_texts = st.none() | st.sampled_from(["", "a", "a\x00", "a\x00\x01b", "ä", "b" * 40])
_row = st.fixed_dictionaries(
    {
        "kind": _texts,
        "number": st.none() | st.integers(-3, 3),
        "amount": st.none() | st.integers(-(2**40), 2**40),
        "at": st.none() | st.datetimes().map(lambda moment: moment.replace(fold=0)),
        "deleted": st.none() | st.booleans(),
    }
)


@dataclass(frozen=True)
class Step:
    """One epoch: its rows, in how many tasks, and what happens before it."""

    rows: list[dict[str, Any]]
    tasks: int
    is_tried_before: bool
    """Tasks have voted, and the driver has died: all is written again."""
    loses_working_state: bool
    """The machines were replaced."""


_step = st.builds(Step, st.lists(_row, max_size=25), st.integers(1, 4), st.booleans(), st.booleans())


@pytest.mark.parametrize("mode", ["replace", "sum", "max", "delete-flag"])
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(_step, min_size=1, max_size=6))
def test_the_state_at_every_epoch_is_the_fold_of_all_rows_up_to_it(mode: MergeMode, steps: list[Step]) -> None:
    schema = FLAGGED if mode == "delete-flag" else SCHEMA
    if mode == "sum":
        schema = schema.remove(schema.get_field_index("at"))
    with tempfile.TemporaryDirectory() as folder:
        run = _Run(Path(folder), mode, schema)
        for number, step in enumerate(steps):
            run.take(number, step)
        run.compare(len(steps))


@dataclass
class _Run:
    folder: Path
    mode: MergeMode
    schema: pa.Schema
    rocks: StateQuery = field(init=False)
    heap: StateQuery = field(init=False)

    def __post_init__(self) -> None:
        keys = ["kind", "number"]
        working = str(self.folder / "working")
        self.rocks = StateQuery(
            RocksDBSink(
                str(self.folder / "state"),
                keys,
                key_groups=8,
                merge_mode=self.mode,
                working_dir=working,
                storage=quick(),
            )
        )
        self.heap = StateQuery(HeapStateSink(uuid.uuid4().hex, keys, key_groups=8, merge_mode=self.mode))

    def take(self, number: int, step: Step) -> None:
        rows = batch_of([{name: row[name] for name in self.schema.names} for row in step.rows], self.schema)
        if step.loses_working_state:
            shutil.rmtree(self.folder / "working", ignore_errors=True)
        for query in (self.rocks, self.heap):
            if step.is_tried_before:
                query.decided(number, rows, max(1, step.tasks - 1))
                query.sweep()
            query.epoch(number, rows, step.tasks)

    def compare(self, epochs: int) -> None:
        heap = self.heap.sink
        assert isinstance(heap, HeapStateSink)
        for position in range(epochs):
            expected = heap.state(position)
            with open_snapshot(str(self.folder / "state"), position) as state:
                found = state.to_table().to_pylist()
                assert {(row["kind"], row["number"]): row for row in found} == expected
                assert len(found) == len(expected)
                assert state.multi_get(list(expected)) == list(expected.values())
                ordered = [(row["kind"], row["number"]) for row in state.scan().to_pylist()]
                assert ordered == sorted(expected, key=_order)


def _order(key: tuple[Any, ...]) -> tuple[Any, ...]:
    kind, number = key
    return kind is not None, (kind or "").encode(), number is not None, number or 0
