"""HeapSink alone: its deep copy, its readers, and how it travels."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.pipeline import Pipeline, Table
from twophase.errors import Fenced, NotCommitted
from twophase.identity import Attempt, DecisionId, Epoch, Generation, Owner
from twophase.sink import (
    WHOLE,
    CommitOrder,
    Leftover,
    Marker,
    Outcome,
    Plan,
    PreparedEpoch,
    Share,
    TakeOver,
    Task,
    Transaction,
)
from twophase.sinks.heap import HeapHandle, HeapSink, HeapTarget

OWNER = Owner("orders", "heap")
OTHER = Owner("returns", "heap")


@pytest.fixture
def sink() -> HeapSink:
    return HeapSink(HeapTarget("target"))


def begin(
    sink: HeapSink, number: int = 0, *, slot: int = 0, task: int = 0, overwrite: bool = False, ledger: str = "l"
) -> Transaction[HeapHandle]:
    generation = Generation(ledger, 2 * number + 1)
    prepared = PreparedEpoch(OWNER, generation, Epoch(number, f"h{number}"), None, overwrite=overwrite)
    return sink.begin(Plan(prepared), Task(slot, Attempt(generation, task)))


def order(
    number: int,
    handles: Sequence[HeapHandle],
    origin: Marker | None,
    *,
    owner: Owner = OWNER,
    ledger: str = "l",
) -> CommitOrder[HeapHandle]:
    generation = Generation(ledger, 2 * number + 1)
    shares = tuple(
        Share(slot, Attempt(generation, slot), handle.rows, "", handle) for slot, handle in enumerate(handles)
    )
    decision = DecisionId(ledger, 2 * number + 2)
    return CommitOrder(owner, Epoch(number, f"h{number}"), decision, origin, 0, shares)


def marker(sink: HeapSink) -> Marker | None:
    return sink.status(OWNER, settled=True).markers.get(WHOLE)


def commit(sink: HeapSink, number: int, *batches: pa.RecordBatch, overwrite: bool = False) -> None:
    transaction = begin(sink, number, overwrite=overwrite)
    for batch in batches:
        transaction.write(batch)
    assert sink.commit(order(number, [transaction.pre_commit()], marker(sink))) is Outcome.COMMITTED


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], names=["value"])


def read(sink: HeapSink, position: int | None = None) -> list[Any]:
    return [value for batch in sink.batches(position) for value in batch.column(0).to_pylist()]


def borrowed(memory: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
    """A batch whose rows lie in memory that somebody else may write to."""
    column = pa.Array.from_buffers(pa.int64(), len(memory), [None, pa.py_buffer(memory.data)])
    return pa.record_batch([column], names=["value"])


# ---- the deep copy ----


def test_writing_to_the_source_buffer_after_pre_commit_changes_nothing(sink: HeapSink) -> None:
    memory = np.array([1, 2, 3], np.int64)
    transaction = begin(sink)
    transaction.write(borrowed(memory))
    handle = transaction.pre_commit()
    memory[:] = 99
    sink.commit(order(0, [handle], None))
    assert read(sink) == [1, 2, 3]
    memory[:] = 77
    assert read(sink) == [1, 2, 3]


def test_a_buffer_that_is_used_again_for_the_next_batch_spoils_nothing(sink: HeapSink) -> None:
    memory = np.array([1, 2, 3], np.int64)
    transaction = begin(sink)
    transaction.write(borrowed(memory))
    memory[:] = [4, 5, 6]
    transaction.write(borrowed(memory))
    sink.commit(order(0, [transaction.pre_commit()], None))
    assert read(sink) == [1, 2, 3, 4, 5, 6]


def test_a_reader_can_not_change_what_the_next_reader_sees(sink: HeapSink) -> None:
    commit(sink, 0, batch(1, 2, 3))
    buffer = sink.batches()[0].column(0).buffers()[1]
    assert buffer is not None
    assert not buffer.is_mutable
    assert read(sink) == [1, 2, 3]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x", None, "y"]),
        pa.array(["x", "y", "x"]).dictionary_encode(),
        pa.array([[1], None, [2, 3]]),
        pa.array([{"a": 1}, {"a": None}, None]),
        pa.array([0, 1, 2, 3, 4]).slice(1, 3),
        pa.array([b"", b"\0", None], pa.large_binary()),
        pa.nulls(3),
    ],
    ids=lambda column: str(column.type).replace(" ", ""),
)
def test_rows_of_any_type_come_back_as_they_were(sink: HeapSink, column: pa.Array[Any]) -> None:
    commit(sink, 0, pa.record_batch([column], names=["value"]))
    assert read(sink) == column.to_pylist()
    assert [b.schema.field(0).type for b in sink.batches()] == [column.type]


def test_batches_with_different_dictionaries_are_one_share(sink: HeapSink) -> None:
    parts = [pa.record_batch([pa.array(v).dictionary_encode()], names=["value"]) for v in (["x", "y"], ["z"], ["y"])]
    commit(sink, 0, *parts)
    assert read(sink) == ["x", "y", "z", "y"]


# ---- staged and visible ----


def test_nothing_is_staged_before_pre_commit_and_nothing_visible_before_commit(sink: HeapSink) -> None:
    transaction = begin(sink)
    transaction.write(batch(1))
    assert list(sink.leftovers(OWNER)) == []
    handle = transaction.pre_commit()
    assert [leftover.mark for leftover in sink.leftovers(OWNER)] == ["l.1.0"]
    assert read(sink) == []
    sink.commit(order(0, [handle], None))
    assert read(sink) == [1]
    assert list(sink.leftovers(OWNER)) == []


def test_commit_is_all_or_nothing(sink: HeapSink) -> None:
    handle = begin(sink).pre_commit()
    two = order(0, [handle, HeapHandle(1, False)], None)
    assert sink.alive(two) == {1: "its staged rows are gone"}
    with pytest.raises(NotCommitted) as caught:
        sink.commit(two)
    assert caught.value.dead_slots == (1,)
    assert (read(sink), marker(sink)) == ([], None)


def test_a_staged_share_with_another_number_of_rows_is_dead(sink: HeapSink) -> None:
    begin(sink).pre_commit()
    with pytest.raises(NotCommitted):
        sink.commit(order(0, [HeapHandle(5, False)], None))
    assert marker(sink) is None


def test_commit_moves_the_marker_only_from_where_the_order_says(sink: HeapSink) -> None:
    commit(sink, 0, batch(1))
    handle = begin(sink, 1).pre_commit()
    for origin in (None, Marker(OWNER, Epoch(0, "other"), "l.2"), Marker(OWNER, Epoch(0, "h0"), "other.2")):
        with pytest.raises((Fenced, NotCommitted)):
            sink.commit(order(1, [handle], origin))
        assert sink.epochs() == [Epoch(0, "h0")]
    sink.commit(order(1, [handle], marker(sink)))
    assert sink.epochs() == [Epoch(0, "h0"), Epoch(1, "h1")]


def test_abort_deletes_these_leftovers_and_only_these(sink: HeapSink) -> None:
    begin(sink, task=0).pre_commit()
    begin(sink, task=1, slot=1).pre_commit()
    sink.abort(OWNER, [Leftover(Generation("l", 1), "l.1.0", ""), Leftover(Generation("l", 1), "l.1.9", "")])
    assert [leftover.mark for leftover in sink.leftovers(OWNER)] == ["l.1.1"]


def test_abort_of_a_transaction_forgets_its_own_share_only(sink: HeapSink) -> None:
    begin(sink, task=1).pre_commit()
    transaction = begin(sink, task=2)
    transaction.write(batch(2))
    transaction.pre_commit()
    transaction.abort()
    transaction.abort()
    assert [leftover.mark for leftover in sink.leftovers(OWNER)] == ["l.1.1"]


def test_a_fence_keeps_older_generations_of_its_ledger_out_and_no_others(sink: HeapSink) -> None:
    sink.fence(OWNER, Generation("l", 5))
    with pytest.raises(Fenced):
        begin(sink, 0).pre_commit()
    begin(sink, 2).pre_commit()
    begin(sink, 0, ledger="other").pre_commit()
    with pytest.raises(Fenced):
        sink.fence(OWNER, Generation("l", 4))
    sink.fence(OWNER, Generation("l", 5))
    assert sorted(leftover.mark for leftover in sink.leftovers(OWNER)) == ["l.5.0", "other.1.0"]


def test_a_fence_does_not_hinder_the_commit_of_what_an_older_generation_decided(sink: HeapSink) -> None:
    handle = begin(sink).pre_commit()
    sink.fence(OWNER, Generation("l", 9))
    assert sink.commit(order(0, [handle], None)) is Outcome.COMMITTED
    assert sink.epochs() == [Epoch(0, "h0")]


# ---- reading ----


def test_a_reader_sees_the_rows_as_they_were_at_a_position(sink: HeapSink) -> None:
    commit(sink, 0, batch(1))
    commit(sink, 1)
    commit(sink, 2, batch(2, 3), batch(4))
    assert [read(sink, position) for position in range(3)] == [[1], [1], [1, 2, 3, 4]]
    assert read(sink) == read(sink, 2) == read(sink, 99)
    assert sink.epochs() == [Epoch(number, f"h{number}") for number in range(3)]


def test_an_overwriting_epoch_replaces_all_before_it_and_history_stays_readable(sink: HeapSink) -> None:
    commit(sink, 0, batch(1))
    commit(sink, 1, batch(2), overwrite=True)
    commit(sink, 2, batch(3))
    commit(sink, 3, overwrite=True)
    assert [read(sink, position) for position in range(4)] == [[1], [2], [2, 3], []]
    assert read(sink) == []


# ---- owners ----


def test_a_target_reports_its_newest_marker_whoever_asks(sink: HeapSink) -> None:
    commit(sink, 0, batch(1))
    assert sink.status(OTHER, settled=True).markers == sink.status(OWNER, settled=False).markers
    newest = marker(sink)
    assert newest is not None
    assert (newest.owner, newest.epoch) == (OWNER, Epoch(0, "h0"))


def test_a_take_over_appends_an_empty_epoch_once_and_fences_the_old_owner(sink: HeapSink) -> None:
    commit(sink, 0, batch(1))
    origin = marker(sink)
    assert origin is not None
    handle = begin(sink, 1).pre_commit()
    taken = Marker(OTHER, Epoch(-1, ""), "m.1", base=2)
    for _ in range(2):
        sink.take_over(TakeOver(origin, taken))
        assert sink.epochs() == [Epoch(0, "h0"), Epoch(-1, "")]
    with pytest.raises(Fenced):
        sink.commit(order(1, [handle], origin))
    with pytest.raises(Fenced):
        sink.take_over(TakeOver(origin, Marker(OTHER, Epoch(4, "x"), "m.9")))
    assert read(sink) == [1]
    assert marker(sink) == taken


def test_two_queries_share_one_line_by_turns(tmp_path: Path) -> None:
    table = Table()
    first = Pipeline(tmp_path / "first", {"a": table.sink()}, owner="first")
    second = Pipeline(tmp_path / "second", {"a": table.sink()}, owner="second")
    first.epoch(0, [1])
    second.restart(take_over={"a": Owner("first", "a")}).epoch(0, [2])
    first.restart(take_over={"a": Owner("second", "a")}).epoch(1, [3])
    assert [read(table.sink(), position) for position in range(5)] == [[1], [1], [1, 2], [1, 2], [1, 2, 3]]


# ---- travelling ----


def test_a_pickled_sink_writes_to_the_same_target_or_can_not_be_pickled(sink: HeapSink) -> None:
    commit(sink, 0, batch(1))
    try:
        data = pickle.dumps(sink)
    except (TypeError, pickle.PicklingError):
        return
    copy = pickle.loads(data)
    assert read(copy) == [1]
    commit(copy, 1, batch(2))
    assert read(sink) == [1, 2]


def test_a_sink_by_name_writes_to_the_target_of_that_name() -> None:
    name = uuid.uuid4().hex
    commit(HeapSink(name), 0, batch(1))
    assert read(HeapSink(HeapTarget.named(name))) == [1]
    assert read(pickle.loads(pickle.dumps(HeapSink(name)))) == [1]
    assert read(HeapSink(uuid.uuid4().hex)) == []
