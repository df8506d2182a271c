"""A state as readers see it: one row, several, a range, all of it, and what changed."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pytest

import twophase
from tests.files_query import quick
from tests.state_query import StateQuery
from twophase.errors import OptionError
from twophase.sinks.rocksdb.sink import RocksDBSink

DAY = datetime.date(2026, 1, 1)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Totals by customer and day, of three epochs."""
    sink = RocksDBSink(
        str(tmp_path / "totals"),
        ["customer", "day"],
        merge_mode="delete-flag",
        working_dir=str(tmp_path / "working"),
        storage=quick(),
    )
    query = StateQuery(sink)
    query.epoch(0, _rows([(c, d, 1) for c in "abcd" for d in range(3)]), 2)
    query.epoch(1, _rows([("b", 1, 2), ("e", 0, 1)]), 2)
    query.epoch(2, _rows([("a", 0, None), ("b", 1, 3)]), 3)
    return str(tmp_path / "totals")


def _rows(given: list[tuple[str, int, int | None]]) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "customer": pa.array([row[0] for row in given]),
            "day": pa.array([_day(row[1]) for row in given], pa.date32()),
            "total": pa.array([row[2] for row in given], pa.int64()),
            "deleted": pa.array([row[2] is None for row in given]),
        }
    )


def _day(number: int) -> datetime.date:
    return DAY + datetime.timedelta(days=number)


def test_rows_are_found_by_their_keys(path: str) -> None:
    with twophase.state.open(path) as state:
        assert state.epoch == 2
        assert state.get(("b", _day(1))) == {"customer": "b", "day": _day(1), "total": 3}
        assert state.get({"day": _day(0), "customer": "e"}) == {"customer": "e", "day": _day(0), "total": 1}
        assert state.get(("a", _day(0))) is None
        found = state.multi_get([("x", DAY), ("c", DAY), ("a", _day(2))])
        assert [None if row is None else row["customer"] for row in found] == [None, "c", "a"]


def test_a_key_that_can_not_be_one_is_refused(path: str) -> None:
    with twophase.state.open(path) as state:
        for key in ("a", ("a", "no day"), {"customer": "a", "hour": 1}):
            with pytest.raises(OptionError):
                state.get(key)


def test_a_range_of_keys_comes_in_their_order(path: str) -> None:
    with twophase.state.open(path) as state:
        found = [(row["customer"], row["day"]) for row in state.scan("b", "d").to_pylist()]
        assert found == [(c, _day(d)) for c in "bc" for d in range(3)]
        exact = state.scan(("b", _day(1)), ("c", _day(1))).to_pylist()
        assert [(row["customer"], row["day"]) for row in exact] == [("b", _day(1)), ("b", _day(2)), ("c", _day(0))]
        assert state.scan("b", limit=1).to_pylist() == [{"customer": "b", "day": _day(0), "total": 1}]
        assert state.scan("x").num_rows == 0


def test_every_epoch_that_is_kept_can_be_read(path: str) -> None:
    counts = []
    for epoch in range(3):
        with twophase.state.open(path, epoch) as state:
            counts.append(state.to_table().num_rows)
    assert counts == [12, 13, 12]


def test_what_changed_between_two_epochs(path: str) -> None:
    def changes(before: int, after: int | None) -> set[tuple[str, int, str]]:
        found = twophase.state.difference(path, before, after).to_pylist()
        return {(row["customer"], (row["day"] - DAY).days, row["change"]) for row in found}

    assert changes(0, 1) == {("b", 1, "changed"), ("e", 0, "added")}
    assert changes(1, None) == {("b", 1, "changed"), ("a", 0, "removed")}
    assert changes(0, 2) == {("b", 1, "changed"), ("e", 0, "added"), ("a", 0, "removed")}
    assert changes(2, 2) == set()


def test_a_folder_without_a_state_says_so(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no committed epoch"):
        twophase.state.open(str(tmp_path / "nothing"))
