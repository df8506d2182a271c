"""What a sink promises about rows: none, many, of every type, in batches of any size, and in memory that is not its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from twophase.errors import NotCommitted, TwophaseError
from twophase.sink import Outcome
from twophase.testing.arrow_columns import ARROW_COLUMNS, same_values
from twophase.testing.checkers import difference
from twophase.testing.sink_capabilities import batch_of_texts, only_if, only_if_target
from twophase.testing.sink_steps import SinkSteps

ADDED = "added"


class SinkRows:
    # ---- none ----

    def test_shares_and_epochs_without_rows_are_ordinary(self, steps: SinkSteps) -> None:
        """No batch at all, a batch without rows, one empty slot beside a full one, and whole epochs of nothing."""
        empty = steps.target.batch([])
        plan = steps.prepare(0)
        steps.commit(steps.order(plan, steps.write(plan, 0), steps.write(plan, 1, empty, empty)))
        assert (steps.visible(), steps.marker() is None) == ([], False)
        steps.epoch(1, [])
        plan = steps.prepare(2)
        steps.commit(steps.order(plan, steps.write(plan, 0, empty), steps.share(plan, 1, [1]), steps.write(plan, 2)))
        order = steps.epoch(3, [], [], [])
        assert steps.commit(order) is Outcome.ALREADY_COMMITTED
        steps.epoch(4, [2])
        assert (steps.visible(), list(steps.target.residue())) == ([1, 2], [])

    # ---- many ----

    def test_thousands_of_slots(self, steps: SinkSteps) -> None:
        """A tiny share for each of two thousand slots (or `many_slots`), then an epoch with a few."""
        slots = [[value] for value in range(steps.target.many_slots)]
        order = steps.epoch(0, *slots)
        assert difference(steps.visible(), range(len(slots))) == ""
        assert steps.commit(order) is Outcome.ALREADY_COMMITTED
        steps.epoch(1, [len(slots)], [len(slots) + 1])
        assert difference(steps.visible(), range(len(slots) + 2)) == ""
        assert list(steps.target.residue()) == []

    def test_the_last_of_a_thousand_shares_is_looked_at_as_the_first_is(self, steps: SinkSteps) -> None:
        """As many again are staged: all are listed; the last is lost, which alive and commit say; nothing is left."""
        steps.epoch(0, [0])
        order = steps.decided(1, *([value] for value in range(1, 1 + steps.target.many_slots)))
        assert steps.marks() >= {steps.sink().mark(share) for share in order.shares}
        last = order.shares[-1]
        steps.target.lose(steps.owner, last)
        assert last.slot in steps.sink().alive(order)
        with pytest.raises(NotCommitted) as caught:
            steps.commit(order)
        assert last.slot in caught.value.dead_slots
        kept = [0] if steps.sink().capabilities.atomic else list(range(last.slot + 1))
        assert difference(steps.visible(), kept) == ""
        steps.sweep()
        assert (difference(steps.visible(), kept), list(steps.target.residue())) == ("", [])

    def test_the_number_of_slots_may_change_from_epoch_to_epoch(self, steps: SinkSteps) -> None:
        """One slot, then four, then two: the newest markers are of the newest epoch, and nothing is lost."""
        value = iter(range(100))
        for number, count in enumerate((1, 4, 2, 3)):
            order = steps.epoch(number, *([next(value)] for _ in range(count)))
            marker = steps.marker()
            assert marker is not None
            assert marker.epoch == order.epoch
        assert steps.visible() == list(range(10))

    def test_one_huge_batch_and_very_many_tiny_ones(self, steps: SinkSteps) -> None:
        """A hundred thousand rows (or `many_rows`) in one batch; a thousand (or `many_batches`) of a row, some without any."""
        # No round number: what gathers rows must not forget the last of them.
        count, batches = steps.target.many_rows + 7, steps.target.many_batches
        plan = steps.prepare(0)
        huge = steps.write(plan, 0, steps.target.batch(range(count)))
        tiny = [steps.target.batch([value] if (value - count) % 10 else []) for value in range(count, count + batches)]
        steps.commit(steps.order(plan, huge, steps.write(plan, 1, *tiny)))
        expected = [*range(count), *(value for value in range(count, count + batches) if (value - count) % 10)]
        assert difference(steps.visible(), expected) == ""

    # ---- memory and order ----

    def test_a_batch_may_be_a_slice_of_a_larger_one(self, steps: SinkSteps) -> None:
        """Arrow's arrays have offsets: only the rows of the slice are written."""
        batch = steps.target.batch(range(100))
        plan = steps.prepare(0)
        steps.commit(steps.order(plan, steps.write(plan, 0, batch.slice(10, 5), batch.slice(50), batch.slice(0, 0))))
        assert steps.visible() == [*range(10, 15), *range(50, 100)]

    def test_a_slice_has_its_own_nulls(self, steps: SinkSteps) -> None:
        """Which values are null is kept by bits, which have the slice's offset too."""
        texts = [None if number % 3 == 0 else f"text {number}" for number in range(50)]
        batch = batch_of_texts(steps, texts)
        plan = steps.prepare(0, schema=batch.schema)
        steps.commit(steps.order(plan, steps.write(plan, 0, batch.slice(11, 20), batch.slice(40))))
        assert steps.target.typed_values() == [*texts[11:31], *texts[40:]]

    def test_memory_that_is_used_again_spoils_nothing(self, steps: SinkSteps) -> None:
        """Spark writes its next batch where the last one lay: what was handed over must have been copied."""
        batch = steps.target.batch([0, 1, 2])
        borrowed, memory = _borrowed(batch)
        plan = steps.prepare(0)
        task = steps.task(plan, 0)
        transaction = steps.sink().begin(plan, task)
        transaction.write(borrowed)
        memory[:] = 0
        share = steps.vote(transaction, task, batch)
        steps.commit(steps.order(plan, share))
        assert steps.visible() == [0, 1, 2]

    def test_memory_of_texts_that_is_used_again_spoils_nothing(self, steps: SinkSteps) -> None:
        """The same for what is of no fixed length, over two batches in the same place."""
        texts = ["first", "", None, "the second"]
        batch = batch_of_texts(steps, texts)
        borrowed, memory = _borrowed(batch)
        plan = steps.prepare(0, schema=batch.schema)
        task = steps.task(plan, 0)
        transaction = steps.sink().begin(plan, task)
        transaction.write(borrowed)
        memory[:] = ord("?")
        share = steps.vote(transaction, task, batch)
        steps.commit(steps.order(plan, share))
        assert steps.target.typed_values() == texts

    def test_two_shares_may_be_written_by_one_object_by_turns(self, steps: SinkSteps) -> None:
        """Each transaction knows its own rows, and nothing of them is in the sink."""
        plan, sink = steps.prepare(0), steps.sink()
        tasks = [steps.task(plan, slot) for slot in (0, 1)]
        first, second = (sink.begin(plan, task) for task in tasks)
        batches = [steps.target.batch(values) for values in ([1, 2], [3], [4], [5, 6, 7])]
        first.write(batches[0])
        second.write(batches[1])
        first.write(batches[2])
        one = steps.vote(first, tasks[0], batches[0], batches[2])
        second.write(batches[3])
        order = steps.order(plan, one, steps.vote(second, tasks[1], batches[1], batches[3]))
        assert (sink.alive(order), sink.commit(order)) == ({}, Outcome.COMMITTED)
        assert (steps.visible(), list(steps.target.residue())) == ([1, 2, 3, 4, 5, 6, 7], [])

    def test_rows_of_a_slot_keep_their_order(self, steps: SinkSteps) -> None:
        """Where the sink declares it: over several batches, each slot's rows are read in the order of their writing."""
        only_if(steps, ordered=True)
        rows = [[5, 3, 9], [1], [], [8, 2]]
        plan = steps.prepare(0)
        one = steps.write(plan, 0, *(steps.target.batch(part) for part in rows))
        steps.commit(steps.order(plan, one, steps.share(plan, 1, [104, 102, 103])))
        values = steps.target.values()
        assert [value for value in values if value < 100] == [5, 3, 9, 1, 8, 2]
        assert [value for value in values if value >= 100] == [104, 102, 103]
        many = [1000 + (value * 7919) % 5003 for value in range(5003)]
        plan = steps.prepare(1)
        steps.commit(
            steps.order(plan, steps.write(plan, 0, steps.target.batch(many[:4001]), steps.target.batch(many[4001:])))
        )
        assert difference([value for value in steps.target.values() if value >= 1000], many) == ""

    def test_an_overwriting_epoch_replaces_all_before_it(self, steps: SinkSteps) -> None:
        """Where the sink declares it: Spark's complete mode, also with an epoch without rows, and repeated."""
        only_if(steps, overwrites=True)
        steps.epoch(0, [1, 2])
        for number, values in ((1, [3]), (2, []), (3, [4, 5])):
            before = steps.visible()
            abandoned = steps.prepare(number, overwrite=True)
            steps.share(abandoned, 0, [99])
            steps.sweep()
            plan = steps.prepare(number, overwrite=True)
            order = steps.order(plan, steps.share(plan, 0, values))
            assert steps.visible() == before, "nothing is replaced before the commit"
            steps.commit(order)
            assert steps.visible() == values
            assert steps.commit(order) is Outcome.ALREADY_COMMITTED
            assert steps.visible() == values

    # ---- nulls and columns ----

    def test_a_row_takes_the_place_of_the_one_with_its_key(self, steps: SinkSteps) -> None:
        """Where the sink upserts, by the number: one of an earlier epoch, of the same share, of the same batch; the last counts.
        Before the commit nothing is replaced, nor by a share that is dropped."""
        only_if(steps, upserts=True)
        first, second, third = (batch_of_texts(steps, texts) for texts in (["a", "b", "c", "d"], ["x", None], ["y"]))
        both = pa.Table.from_batches([second, third]).combine_chunks().to_batches()[0]
        before: list[str | None] = []
        for number, (batches, after) in enumerate(
            (
                ([first], ["a", "b", "c", "d"]),
                ([second, third], ["y", None, "c", "d"]),
                ([first, both], ["y", None, "c", "d"]),
                ([third, second], ["x", None, "c", "d"]),
                ([], ["x", None, "c", "d"]),
            )
        ):
            steps.write(steps.prepare(number, schema=first.schema), 0, batch_of_texts(steps, ["never"]))
            plan = steps.prepare(number, schema=first.schema)
            order = steps.order(plan, steps.write(plan, 0, *batches), steps.write(plan, 1))
            assert steps.target.typed_values() == before, "something was replaced before the commit"
            for outcome in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED):
                assert steps.commit(order) is outcome
                assert steps.target.typed_values() == after
            steps.sweep()
            assert steps.target.typed_values() == after, "something went with what was dropped"
            before = list(after)
        assert (steps.visible(), list(steps.target.residue())) == ([0, 1, 2, 3], [])

    def test_rows_of_nulls_alone_are_rows(self, steps: SinkSteps) -> None:
        """All columns are null, in a row between two others and in all rows of a share: shown, or refused before the vote."""
        rows = steps.target.batch([1, 2])
        nulls = pa.record_batch([pa.nulls(1, field.type) for field in rows.schema], schema=rows.schema)
        plan = steps.prepare(0)
        try:
            shares = steps.write(plan, 0, rows.slice(0, 1), nulls, rows.slice(1)), steps.write(plan, 1, nulls)
        except TwophaseError:
            steps.sweep()
            assert (list(steps.target.read()), list(steps.target.residue())) == ([], [])
            return
        assert steps.commit(steps.order(plan, *shares)) is Outcome.COMMITTED
        assert len(steps.target.read()) == 4

    def test_a_column_that_a_later_epoch_adds_is_shown_or_refused(self, steps: SinkSteps) -> None:
        """The query got another column and was restarted: its values are shown, or the rows are refused before the vote."""
        only_if_target(steps, leaves_out_columns=False)
        steps.epoch(0, [1])
        rows = steps.target.batch([2, 3])
        more = rows.append_column(ADDED, pa.array(["x", "y"]))
        try:
            plan = steps.prepare(1, schema=more.schema)
            share = steps.write(plan, 0, more)
        except TwophaseError:
            steps.sweep()
            assert (steps.visible(), list(steps.target.residue())) == ([1], [])
            return
        assert steps.commit(steps.order(plan, share)) is Outcome.COMMITTED
        assert steps.visible() == [1, 2, 3]
        shown = [row.get(ADDED) for row in steps.target.read()]
        assert sorted(filter(None, shown)) == ["x", "y"], f"the column {ADDED} was written, and is not shown"

    @pytest.mark.parametrize(
        ("kind", "values"),
        [(pa.int64(), [2**40, None, -1]), (pa.string(), ["x", None, "2"]), (pa.int8(), [100, None, -1])],
        ids=str,
    )
    def test_a_column_that_gets_another_type_is_shown_as_it_is_or_refused(
        self, steps: SinkSteps, kind: pa.DataType, values: list[Any]
    ) -> None:
        """Small numbers first; the query is changed, and restarted: its values come back as they are, or are refused."""
        first, later = (steps.target.typed_batch(each) for each in (pa.array([7], pa.int16()), pa.array(values, kind)))
        if first is None or later is None or "int16" not in steps.target.arrow_types:
            pytest.skip("by claim: this target has no room for a column of numbers")
        plan = steps.prepare(0, schema=first.schema)
        steps.commit(steps.order(plan, steps.write(plan, 0, first)))
        try:
            plan = steps.prepare(1, schema=later.schema)
            share = steps.write(plan, 0, later)
        except TwophaseError:
            steps.sweep()
            assert (steps.target.typed_values(), list(steps.target.residue())) == ([7], [])
            return
        assert steps.commit(steps.order(plan, share)) is Outcome.COMMITTED
        kept = [] if steps.sink().capabilities.upserts else [7]  # its number is that of the first of the others
        assert sorted(map(str, steps.target.typed_values())) == sorted(map(str, [*kept, *values]))

    # ---- types ----

    @pytest.mark.parametrize("kind", ARROW_COLUMNS)
    def test_values_of_any_type_come_back_as_they_were_or_are_refused(self, steps: SinkSteps, kind: str) -> None:
        """Edge values and a null of one Arrow type. What the target claims comes back; nothing comes back altered."""
        column = ARROW_COLUMNS[kind]
        batch = steps.target.typed_batch(column)
        if batch is None:
            pytest.skip("by claim: this target has no room for a column of another type")
        claimed = kind in steps.target.arrow_types
        try:
            plan = steps.prepare(0, schema=batch.schema)
            order = steps.order(plan, steps.write(plan, 0, batch), steps.write(plan, 1))
        except TwophaseError:
            if claimed:
                raise
            steps.sweep()
            assert (list(steps.target.read()), list(steps.target.residue())) == ([], [])
            return
        assert steps.commit(order) is Outcome.COMMITTED
        expected, found = column.to_pylist(), steps.target.typed_values()
        if pa.types.is_float32(column.type):  # readers give 0.1 for the float next to it
            found = [float(np.float32(value)) if isinstance(value, float) else value for value in found]
        assert _different(expected, found) == [], f"values of {kind} came back altered"


def _borrowed(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, np.ndarray[Any, np.dtype[np.uint8]]]:
    """The same rows, lying in memory that somebody else can write to; and that memory."""
    copy = pa.BufferOutputStream()
    with pa.ipc.new_stream(copy, batch.schema) as stream:
        stream.write_batch(batch)
    memory = np.frombuffer(copy.getvalue().to_pybytes(), np.uint8).copy()
    return pa.ipc.open_stream(pa.py_buffer(memory.data)).read_next_batch(), memory


def _different(expected: list[Any], found: list[Any]) -> list[tuple[Any, Any]]:
    if len(expected) != len(found):
        return [(expected, found)]
    return [(one, other) for one, other in zip(expected, found, strict=True) if not same_values(one, other)]
