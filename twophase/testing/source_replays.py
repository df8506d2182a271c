"""What a source promises: the same range gives the same rows until it is acknowledged, and nothing vanishes silently."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from twophase.errors import DataLost
from twophase.source import NO_LIMIT, ReadLimit
from twophase.testing.checkers import difference, same_rows
from twophase.testing.other_process import answer_of
from twophase.testing.source_origin import AnySource, SourceOrigin

UNITS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
ALL = list(range(10))


class SourceReplays:
    # ---- replay ----

    def test_the_same_range_read_twice_gives_the_same_rows(self, full: SourceOrigin) -> None:
        """By one object, by a new one, and by one that was pickled; splits travel too."""
        source = full.source()
        start = source.earliest()
        end = source.latest(start)
        sources = [source, source, full.source(), pickle.loads(pickle.dumps(source))]
        replays = [rows_of(full, each, start, end) for each in sources]
        assert sorted(replays[0]) == ALL
        assert same_rows(replays, ordered=full.ordered) == []
        whole = [[repr(row) for row in rows_in_range(each, start, end)] for each in sources]
        assert same_rows(whole) == [], "columns besides the number differ"

    def test_numbers_come_as_they_are(self, origin: SourceOrigin) -> None:
        """Negative ones, and those that no float and no smaller integer can hold."""
        values = [-(2**63), -1, 0, 2**31, 2**53 + 1, 2**63 - 1]
        origin.add(values)
        source = origin.source()
        start = source.earliest()
        assert sorted(rows_of(origin, source, start, source.latest(start))) == values

    def test_the_same_range_gives_the_same_rows_however_it_is_split(self, full: SourceOrigin) -> None:
        """Into one, two, or many tasks: no row is in two splits, and none is in no split."""
        start = full.source().earliest()
        end = full.source().latest(start)
        replays = [rows_of(full, full.split_in(tasks), start, end) for tasks in (1, 2, 3, 50)]
        assert sorted(replays[0]) == ALL
        assert same_rows(replays) == []

    def test_the_same_range_gives_the_same_rows_in_another_process(self, full: SourceOrigin) -> None:
        """After a restart: the source comes out of a pickle in a process that knows nothing else."""
        if not full.outlives_process:
            pytest.skip("by claim: this is for sources with outlives_process=True")
        source = full.source()
        start = source.earliest()
        middle = source.latest(start, ReadLimit(rows=4))
        end = source.latest(middle)
        again = [full.value(row) for row in answer_of(rows_in_range, full.source(), middle, end)]
        assert same_rows([rows_of(full, source, middle, end), again]) == []

    def test_the_same_range_gives_the_same_rows_while_data_arrive(self, full: SourceOrigin) -> None:
        """New units between latest and plan, between plan and read, and in the middle of a read: none is in the range."""
        source = full.source()
        start = source.earliest()
        end = source.latest(start)
        full.add([100])
        splits = source.plan(start, end)
        full.add([101])
        rows = []
        for split in splits:
            for batch in source.read(split):
                rows += [full.value(row) for row in batch.to_pylist()]
                full.add([102 + len(rows)])
        assert sorted(rows) == ALL
        assert sorted(rows_of(full, full.source(), start, end)) == ALL
        later = rows_of(full, source, end, source.latest(end))
        assert {100, 101} <= set(later)
        assert not set(later) & set(ALL)

    def test_a_read_that_was_given_up_can_be_begun_again(self, full: SourceOrigin) -> None:
        """A task dies after its first batch, and is run again, while another reads the same split."""
        source = full.source()
        start = source.earliest()
        end = source.latest(start)
        for split in source.plan(start, end):
            given_up = iter(source.read(split))
            next(given_up, None)
            del given_up
            one, other = iter(source.read(split)), iter(full.source().read(split))
            assert all(a.equals(b) for a, b in zip(one, other, strict=True))
        assert sorted(rows_of(full, source, start, end)) == ALL

    def test_rows_that_are_equal_are_all_given(self, origin: SourceOrigin) -> None:
        """In one unit, in the next one, and in the next range: a row has no identity but what it holds."""
        for values in ([7, 7], [7], [7]):
            origin.add(values)
        assert [len(rows) for rows in self._followed(origin, NO_LIMIT)] == [4]
        assert [row for rows in self._followed(origin, ReadLimit(rows=1)) for row in rows] == [7, 7, 7, 7]

    # ---- offsets and schema ----

    def test_offsets_are_json_objects_as_text(self, full: SourceOrigin) -> None:
        """Spark stores them in offsets/N, and hands them back as they were."""
        source = full.source()
        start = source.earliest()
        for offset in (start, source.latest(start), source.latest(start, ReadLimit(rows=1)), source.newest()):
            assert isinstance(offset, str)
            assert isinstance(json.loads(offset), dict)
            assert "\n" not in offset, "offsets/N has an offset a line"

    def test_every_batch_has_the_schema_of_the_source(self, full: SourceOrigin) -> None:
        """All batches of all splits, also when a source that came out of a pickle reads them."""
        source = full.source()
        start = source.earliest()
        for split in source.plan(start, source.latest(start)):
            for batch in pickle.loads(pickle.dumps(source)).read(pickle.loads(pickle.dumps(split))):
                assert isinstance(batch, pa.RecordBatch)
                assert batch.schema.equals(source.schema())

    def test_each_unit_is_read_by_its_own_columns(self, origin: SourceOrigin) -> None:
        """The writer got another column, lost it, and got it again: older and newer units are read as before, in one range and
        in several, by a source from before the change and by a new one."""
        before, start = origin.source(), origin.source().earliest()
        origin.add([0, 1])
        if not origin.add_changed([2, 3]):
            pytest.skip("by claim: all units of this origin have the same columns")
        for values in ([4, 5], None):
            if values is None:
                assert origin.add_changed([6, 7])
            else:
                origin.add(values)
            expected = list(range(6 if values else 8))
            for source in (before, origin.source()):
                assert sorted(rows_of(origin, source, start, source.latest(start))) == expected
            assert [row for rows in self._followed(origin, ReadLimit(rows=2)) for row in sorted(rows)] == expected

    # ---- from range to range ----

    @pytest.mark.parametrize(
        "limit",
        [NO_LIMIT, ReadLimit(rows=0), ReadLimit(rows=1), ReadLimit(rows=5), ReadLimit(bytes=0), ReadLimit(1, 1)],
        ids=str,
    )
    def test_ranges_follow_each_other_without_gap_or_overlap(self, full: SourceOrigin, limit: ReadLimit) -> None:
        """Whatever the limit, each range makes progress, and all of them together are all rows, once."""
        ranges = list(self._followed(full, limit))
        assert sorted(row for rows in ranges for row in rows) == ALL
        assert [row for rows in ranges for row in sorted(rows)] == ALL, "ranges are in the order of arrival"

    def test_a_limit_of_rows_is_kept(self, full: SourceOrigin) -> None:
        """Units of two rows, and a limit of five: no range has more, and none less than it could have."""
        if "rows" not in full.limits:
            pytest.skip("by claim: this is for sources with limits of rows")
        for limit in (ReadLimit(rows=5), ReadLimit(rows=5, bytes=10**9)):
            assert [len(rows) for rows in self._followed(full, limit)] in ([4, 4, 2], [5, 5])

    def test_a_limit_of_bytes_is_kept(self, full: SourceOrigin) -> None:
        """A limit of one byte: a unit at a time, whatever the limit of rows is."""
        if "bytes" not in full.limits:
            pytest.skip("by claim: this is for sources with limits of bytes")
        for limit in (ReadLimit(bytes=1), ReadLimit(rows=1000, bytes=1)):
            assert len(list(self._followed(full, limit))) == len(UNITS)

    def test_many_units_and_many_rows_are_all_given(self, origin: SourceOrigin) -> None:
        """A thousand units and more (or `many_units`), one of them with ten thousand rows (or `many_rows`): in one range, in a
        few, and in their order from range to range."""
        count, many = origin.many_units, origin.many_rows
        for value in range(count):
            origin.add([value] if value != 11 else [value, *range(count, count + many)])
        for limit in (NO_LIMIT, ReadLimit(rows=many)):
            rows = sorted(row for rows in self._followed(origin, limit) for row in rows)
            assert difference(rows, range(count + many)) == ""
        firsts = [min(rows) for rows in self._followed(origin, ReadLimit(rows=many))]
        assert firsts == sorted(firsts), "ranges are in the order of arrival"

    def test_nothing_new_is_the_same_offset_and_no_rows(self, full: SourceOrigin) -> None:
        """At the end of what is there: latest gives back where it began, under any limit, and the range is empty."""
        source = full.source()
        end = source.latest(source.earliest())
        assert source.latest(end) == source.latest(end, ReadLimit(rows=1)) == end
        assert rows_of(full, source, end, end) == []

    def test_an_empty_source_has_nothing_and_then_its_first_rows(self, origin: SourceOrigin) -> None:
        """From the earliest offset to the latest there is nothing; what comes then is after it, and is not missed."""
        source = origin.source()
        start = source.earliest()
        assert source.latest(start) == start
        assert rows_of(origin, source, start, source.newest()) == []
        origin.add([1])
        assert rows_of(origin, origin.source(), start, origin.source().latest(start)) == [1]

    def test_a_unit_without_rows_is_ordinary(self, origin: SourceOrigin) -> None:
        """Empty units before, between and after others: progress without rows."""
        for values in ([], [1], [], [2], []):
            origin.add(values)
        assert [row for rows in self._followed(origin, ReadLimit(rows=1)) for row in rows] == [1, 2]

    # ---- bounded runs ----

    def test_newest_is_after_everything_whatever_the_limits(self, full: SourceOrigin) -> None:
        """From the earliest offset to the newest lie all rows; and it can be asked again without effect."""
        source = full.source()
        assert sorted(rows_of(full, full.source(), source.earliest(), source.newest())) == ALL
        assert source.newest() == full.source().newest()

    @pytest.mark.parametrize("limit", [ReadLimit(rows=4), ReadLimit(bytes=1), ReadLimit(rows=4, bytes=1000)], ids=str)
    def test_a_bounded_run_takes_what_was_there_when_it_began(self, full: SourceOrigin, limit: ReadLimit) -> None:
        """Trigger availableNow: units that arrive later are not taken, in however many ranges it is done."""
        until = full.source().newest()
        full.add([100])
        source = full.source()
        at, taken = source.earliest(), list[int]()
        for _ in range(100):
            end = full.source().latest(at, limit, until=until)
            if end == at:
                break
            taken += rows_of(full, source, at, end)
            at = end
        assert sorted(taken) == ALL
        assert source.latest(at, until=until) == at
        assert rows_of(full, source, at, source.latest(at)) == [100]

    def test_an_offset_never_goes_back(self, full: SourceOrigin) -> None:
        """A bound that is behind where the range begins: the range is empty, not negative."""
        source = full.source()
        until = source.latest(source.earliest(), ReadLimit(rows=2))
        end = source.latest(until)
        assert source.latest(end, until=until) == end

    # ---- forgetting and losing ----

    def test_acknowledging_again_or_late_changes_nothing(self, full: SourceOrigin) -> None:
        """An end, the same again, an older one, by other objects: what is after the end can be read as before."""
        source = full.source()
        start = source.earliest()
        middle = source.latest(start, ReadLimit(rows=4))
        end = source.latest(middle)
        rest = rows_of(full, source, middle, end)
        for offset in (start, middle, middle, start):
            full.source().acknowledge(offset)
            assert sorted(rows_of(full, full.source(), middle, end)) == sorted(rest)
        full.source().acknowledge(end)
        full.add([100])
        assert rows_of(full, source, end, source.latest(end)) == [100]
        with suppress(DataLost):  # what may be forgotten is there, or is called gone; it is never less
            assert sorted(rows_of(full, full.source(), start, end)) == ALL

    def test_nothing_is_forgotten_before_it_is_acknowledged(self, full: SourceOrigin) -> None:
        """Ranges are offered one after the other, and read, to the end; then all of them are read again, oldest last."""
        ends = [full.source().earliest()]
        for _ in UNITS:
            ends.append(full.source().latest(ends[-1], ReadLimit(rows=2)))
            assert full.source().newest() == full.source().newest()
            rows_of(full, full.source(), ends[-2], ends[-1])
        ranges = list(itertools.pairwise(ends))
        again = [sorted(rows_of(full, full.source(), *ends_of)) for ends_of in reversed(ranges)]
        assert [row for rows in reversed(again) for row in rows] == ALL[: sum(map(len, again))]
        assert sorted(rows_of(full, full.source(), ends[0], full.source().latest(ends[0]))) == ALL

    @pytest.mark.parametrize("unit", [0, 2, 4], ids=["oldest", "middle", "newest"])
    def test_what_vanished_is_named_and_never_jumped_over(self, full: SourceOrigin, unit: int) -> None:
        """A unit of a range is destroyed before it is read: DataLost names it, in plan or in read, again and again."""
        if unit and not full.loses_any_unit:
            pytest.skip("by claim: this is for origins with loses_any_unit=True")
        source = full.source()
        start = source.earliest()
        end = source.latest(start)
        splits = source.plan(start, end)
        name = full.lose(unit)
        for each in (source, full.source()):
            with pytest.raises(DataLost) as caught:
                rows_of(full, each, start, end)
            assert name in str(caught.value)
        with pytest.raises(DataLost):
            list(itertools.chain.from_iterable(map(source.read, splits)))

    @pytest.mark.parametrize("unit", [0, 2], ids=["oldest", "middle"])
    def test_what_vanished_before_it_was_offered_is_not_jumped_over(self, full: SourceOrigin, unit: int) -> None:
        """The query knows where it is, and is not running: what it finds gone when it asks for more is lost all the same."""
        if unit and not full.loses_any_unit:
            pytest.skip("by claim: this is for origins with loses_any_unit=True")
        if not full.notices_unseen:
            pytest.skip("by claim: this is for origins with notices_unseen=True")
        start = full.source().earliest()
        name = full.lose(unit)
        taken = list[int]()

        def go_on(at: str = start) -> None:
            for _ in UNITS:
                end = full.source().latest(at, ReadLimit(rows=2))
                taken.extend(rows_of(full, full.source(), at, end))
                at = end

        with pytest.raises(DataLost) as caught:
            go_on()
        assert name in str(caught.value)
        assert taken == ALL[: len(taken)]

    def test_what_was_changed_where_it_lies_is_refused_or_read_as_it_was(self, full: SourceOrigin) -> None:
        """A range is read, and then one of its units is edited: a replay gives the same rows, or DataLost; never other rows."""
        source = full.source()
        start = source.earliest()
        end = source.latest(start)
        assert sorted(rows_of(full, source, start, end)) == ALL
        if not full.change(2):
            pytest.skip("by claim: this is for origins whose units can be changed")
        for each in (source, full.source()):
            with suppress(DataLost):
                assert sorted(rows_of(full, each, start, end)) == ALL

    def _followed(self, origin: SourceOrigin, limit: ReadLimit) -> Iterator[list[int]]:
        """What each range takes until there is nothing more; each by a source of its own."""
        at = origin.source().earliest()
        for _ in range(100 + origin.many_units):
            end = origin.source().latest(at, limit)
            if end == at:
                return
            yield rows_of(origin, origin.source(), at, end)
            at = end
        pytest.fail("a source without an end")


def rows_of(origin: SourceOrigin, source: AnySource, start: str, end: str) -> list[int]:
    """The numbers of a range's rows; its splits have travelled."""
    return [origin.value(row) for row in rows_in_range(source, start, end)]


def rows_in_range(source: AnySource, start: str, end: str) -> list[dict[str, Any]]:
    splits: Sequence[Any] = pickle.loads(pickle.dumps(list(source.plan(start, end))))
    return [row for split in splits for batch in source.read(split) for row in batch.to_pylist()]
