"""The contract of a source, driven by a small one in memory."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophase.source import NO_LIMIT, ReadLimit, Source

ROW_BYTES = 8


@dataclass(frozen=True)
class Split:
    start: int
    end: int


@dataclass
class Journal(Source[Split]):
    """Numbers in the order of their arrival; an offset is how many came before."""

    split_rows: int = 3
    rows: list[int] = field(default_factory=list)
    forgotten: int = 0

    def schema(self) -> pa.Schema:
        return pa.schema([("value", pa.int64())])

    def earliest(self) -> str:
        return json.dumps(self.forgotten)

    def newest(self) -> str:
        return json.dumps(len(self.rows))

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        first, end = int(json.loads(start)), int(json.loads(until or self.newest()))
        limits = [limit.rows, None if limit.bytes is None else limit.bytes // ROW_BYTES]
        for most in (most for most in limits if most is not None):
            end = min(end, first + max(1, most))
        return json.dumps(max(first, end))

    def plan(self, start: str, end: str) -> Sequence[Split]:
        first, last = int(json.loads(start)), int(json.loads(end))
        if first < self.forgotten:
            raise LookupError(f"rows {first} to {self.forgotten} are gone")
        cuts = [*range(first, last, self.split_rows), last]
        return [Split(a, b) for a, b in itertools.pairwise(cuts)]

    def read(self, split: Split) -> Iterator[pa.RecordBatch]:
        for row in self.rows[split.start : split.end]:
            yield pa.record_batch([pa.array([row], pa.int64())], schema=self.schema())

    def acknowledge(self, end: str) -> None:
        self.forgotten = max(self.forgotten, int(json.loads(end)))


def rows_of(source: Journal, start: str, end: str) -> list[int]:
    splits: Sequence[Split] = pickle.loads(pickle.dumps(source.plan(start, end)))
    batches = [batch for split in splits for batch in source.read(split)]
    assert all(batch.schema == source.schema() for batch in batches)
    return [value for batch in batches for value in batch.column("value").to_numpy()]


@pytest.fixture
def journal() -> Journal:
    return Journal(rows=list(range(10)))


def test_the_same_range_always_gives_the_same_rows(journal: Journal) -> None:
    end = journal.latest(journal.earliest())
    assert rows_of(journal, "2", end) == rows_of(journal, "2", end) == list(range(2, 10))


def test_a_range_gives_the_same_rows_however_it_is_split(journal: Journal) -> None:
    read = []
    for split_rows in (1, 2, 4, 100):
        journal.split_rows = split_rows
        read.append(rows_of(journal, "0", "10"))
    assert read == [list(range(10))] * 4
    journal.split_rows = 4
    assert len(journal.plan("0", "10")) == 3


def test_a_range_gives_the_same_rows_after_a_restart_and_while_new_rows_arrive(journal: Journal) -> None:
    end = journal.latest("0")
    restarted: Journal = pickle.loads(pickle.dumps(journal))
    restarted.rows.extend([10, 11])
    assert rows_of(restarted, "0", end) == rows_of(journal, "0", end) == list(range(10))
    assert restarted.latest(end) == "12"


@given(limits=st.lists(st.builds(ReadLimit, st.none() | st.integers(0, 4), st.none() | st.integers(0, 40)), min_size=1))
def test_ranges_follow_each_other_without_gap_or_overlap_whatever_the_limits(limits: list[ReadLimit]) -> None:
    journal = Journal(rows=list(range(10)))
    start, read = journal.earliest(), list[int]()
    for limit in limits:
        end = journal.latest(start, limit)
        taken = rows_of(journal, start, end)
        read.extend(taken)
        assert (end != start) == (len(taken) > 0) == (start != "10"), "progress, as long as there is any to make"
        if limit.rows is not None:
            assert len(taken) <= max(1, limit.rows)
        start = end
    assert read == list(range(len(read)))


def test_an_empty_range_is_ordinary(journal: Journal) -> None:
    end = journal.latest("0")
    assert journal.latest(end) == end
    assert rows_of(journal, end, end) == []
    assert Journal().latest("0") == "0"


def test_acknowledged_rows_may_be_forgotten_and_an_older_acknowledgement_changes_nothing(journal: Journal) -> None:
    journal.acknowledge("6")
    journal.acknowledge("4")
    assert journal.earliest() == "6"
    assert rows_of(journal, "6", "10") == [6, 7, 8, 9]


def test_rows_that_are_gone_are_an_error_that_names_them(journal: Journal) -> None:
    journal.acknowledge("6")
    with pytest.raises(LookupError, match="rows 4 to 6 are gone"):
        journal.plan("4", "10")


def test_no_limit_is_no_limit() -> None:
    assert ReadLimit() == NO_LIMIT == ReadLimit(rows=None, bytes=None)
    assert ReadLimit(rows=0) != NO_LIMIT


@pytest.mark.parametrize("left_out", ["schema", "earliest", "latest", "plan", "read", "acknowledge"])
def test_a_source_that_leaves_a_verb_out_can_not_be_made(left_out: str) -> None:
    verbs = {name: getattr(Journal, name) for name in Source.__abstractmethods__ if name != left_out}
    incomplete: type[Source[Split]] = type("Incomplete", (Source,), verbs)
    with pytest.raises(TypeError, match=left_out):
        incomplete()
