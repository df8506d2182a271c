"""The checkers are checked: each flags what it is there for, whatever one row is corrupted, and never a right history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophase.testing import checkers
from twophase.testing.checkers import Exact, History, Read, Slots, violations

pytestmark = pytest.mark.kit

Checker = Callable[[History], list[str]]

WRITTEN: dict[int, Slots] = {0: [[1, 2], [3]], 1: [[4, 5]], 2: [[6]]}


def seen(*rows: int, committed: int | None = None, decided: int | None = 2, under: list[int] | None = None) -> History:
    return History(WRITTEN, [Read(rows, committed, decided, under)])


# ---- hand-written histories ----


@pytest.mark.parametrize(
    ("checker", "history", "sentence"),
    [
        (checkers.no_loss, seen(1, 3, committed=0), "read 0: epoch 0 was committed, and row 2 is missing"),
        (checkers.no_loss, seen(committed=0), "read 0: epoch 0 was committed, and rows 1, 2, 3 are missing"),
        (checkers.no_duplicate, seen(1, 2, 3, 2), "read 0: row 2 is there 2 times"),
        (checkers.no_stranger, seen(1, 99), "read 0: row 99 is there that nobody wrote"),
        (checkers.nothing_early, seen(1, 4, decided=0), "read 0: epoch 1 was not decided, and row 4 is there"),
        (checkers.nothing_early, seen(1, decided=None), "read 0: epoch 0 was not decided, and row 1 is there"),
        (checkers.no_torn_epoch, seen(1, 3), "read 0: epoch 0 is torn: rows 1, 3 are there, and row 2 is missing"),
        (
            checkers.gapless_prefix,
            seen(1, 2, 3, 6),
            "read 0: rows of epoch 2 are there, and epoch 1 before it is not there whole",
        ),
        (checkers.in_order, seen(2, 3, 1), "read 0: epoch 0, slot 0: row 1 comes after 2, and was written before it"),
        (
            checkers.in_its_epoch,
            seen(1, 4, under=[0, 0]),
            "read 0: row 4 of epoch 1 is shown under epoch 0",
        ),
        (
            checkers.nothing_vanishes,
            History(WRITTEN, [Read([1, 2, 3], 0, 0), Read([1, 2], 0, 0)]),
            "read 1: row 3 is not there any more",
        ),
    ],
)
def test_a_violation_is_found_and_said_in_a_sentence(checker: Checker, history: History, sentence: str) -> None:
    assert checker(history) == [sentence]


@pytest.mark.parametrize(
    "history",
    [
        seen(1, 2, 3, 4, 5, 6, committed=2, under=[0, 0, 0, 1, 1, 2]),
        seen(3, 1, 2, committed=0, decided=1),
        seen(1, 2, 3, 4, 5, committed=0, decided=1),
        seen(committed=None, decided=None),
        History({0: [], 1: [[]], 2: [[7]]}, [Read([], 1, 1), Read([7], 2, 2)]),
        History(
            {0: [[float("nan"), 1, 1.0, True, (0.0, -0.0)]]}, [Read([float("nan"), 1, 1.0, True, (0.0, -0.0)], 0, 0)]
        ),
        History(
            {0: [[Decimal("NaN"), Decimal("sNaN"), Decimal("1.0")]]},
            [Read([Decimal("NaN"), Decimal("sNaN"), Decimal("1.00")], 0, 0)],
        ),
    ],
)
def test_a_right_history_has_no_findings(history: History) -> None:
    assert violations(history, atomic=True, ordered=True) == []


def test_part_of_a_decided_epoch_may_be_there_where_slots_commit_one_by_one() -> None:
    history = seen(1, 2, 3, 4, committed=0, decided=1)
    assert violations(history, atomic=False, ordered=True) == []
    assert violations(history, atomic=True, ordered=True) == [
        "read 0: epoch 1 is torn: row 4 is there, and row 5 is missing"
    ]


def test_residue_is_named() -> None:
    assert checkers.no_residue([]) == []
    assert checkers.no_residue(["part-0", "part-1"]) == ["left behind: part-0", "left behind: part-1"]


def test_replays_are_compared_with_the_first() -> None:
    assert checkers.same_rows([[1, 2, 2], [2, 1, 2]]) == []
    assert checkers.same_rows([[1, 2], [2, 1]], ordered=True) == ["replay 1: the rows are in another order"]
    assert checkers.same_rows([[1, 2], [1], [1, 2, 2]]) == [
        "replay 1: row 2 is missing",
        "replay 2: row 2 is there that the first did not give",
    ]


def test_a_history_in_which_a_row_could_be_of_two_epochs_is_refused() -> None:
    with pytest.raises(ValueError, match="1 are written twice"):
        History({0: [[1]], 1: [[1]]})


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        (("a", 1), ("a", 1.0)),
        ((1, (2,)), (1, (True,))),
        ("1", 1),
        (b"1", "1"),
        (Decimal(1), 1),
        (1.0, Decimal(1)),
        (Decimal("NaN"), float("nan")),
        (Decimal("0"), Decimal("-0")),
        (frozenset({1}), frozenset({1.0})),
        (0, None),
    ],
    ids=repr,
)
def test_a_value_that_only_equals_the_written_one_is_a_stranger(written: Any, read: Any) -> None:
    history = History({0: [[written]]}, [Read([read], 0, 0)])
    assert violations(history, atomic=True, ordered=True) == [
        f"read 0: epoch 0 was committed, and row {written!r} is missing",
        f"read 0: row {read!r} is there that nobody wrote",
    ]
    assert len(checkers.same_rows([[written], [read]])) == 2


@pytest.mark.parametrize("decided", [None, 0])
def test_what_is_committed_and_was_not_decided_is_found(decided: int | None) -> None:
    history = History(WRITTEN, [Read([], None, 1), Read([], 1, decided)])
    assert checkers.nothing_early(history) == ["read 1: epoch 1 was committed, and nobody has decided it"]


def test_what_was_committed_once_is_so_for_later_reads_that_do_not_know_it() -> None:
    history = History(WRITTEN, [Read([1, 2, 3], 0, 0), Read([], None, 0)])
    assert checkers.no_loss(history) == ["read 1: epoch 0 was committed, and rows 1, 2, 3 are missing"]


def test_numbers_of_data_frames_are_numbers() -> None:
    read = Read([np.int64(1), np.float64(0.5), (np.int32(2), np.bool_(True))], 0, 0)
    assert violations(History({0: [[1, 0.5, (2, True)]]}, [read]), atomic=True, ordered=True) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([0, 1, 2], ""),
        ([0, 2, 2], "row 1 of 3 is 2, and 1 was expected, of 3"),
        ([0, 1], "row 2 of 2 is nothing, and 2 was expected, of 3"),
        ([0, 1, 2, 3], "row 3 of 4 is 3, and nothing was expected, of 3"),
    ],
)
def test_a_difference_is_where_two_lists_differ_first(found: list[int], said: str) -> None:
    assert checkers.difference(found, range(3)) == said


def test_what_was_never_read_is_not_called_right() -> None:
    with pytest.raises(ValueError, match="without a read"):
        violations(History(WRITTEN, []), atomic=True, ordered=True)
    with pytest.raises(ValueError, match="nothing to compare"):
        checkers.same_rows([[1]])


# ---- random histories, and one row corrupted ----


@st.composite
def right_histories(draw: st.DrawFn) -> History:
    """A query's epochs, and reads between and after their commits; the last one sees everything."""
    sizes = draw(st.lists(st.lists(st.integers(0, 3), max_size=3), min_size=1, max_size=4))
    number = iter(range(1000))
    written = {epoch: [[next(number) for _ in range(size)] for size in slots] for epoch, slots in enumerate(sizes)}
    reads = []
    for upto in sorted([*draw(st.lists(st.integers(-1, len(written) - 1), max_size=3)), len(written) - 1]):
        reads.append(_read(draw, written, upto))
    return History(written, reads)


def _read(draw: st.DrawFn, written: dict[int, list[list[int]]], upto: int) -> Read:
    """All epochs up to this one; slots in any order, which nobody promises."""
    rows: list[int] = []
    under: list[int] = []
    for epoch in range(upto + 1):
        for slot in draw(st.permutations(written[epoch])):
            rows += slot
            under += [epoch] * len(slot)
    newest = None if upto < 0 else upto
    late = draw(st.integers(0, upto + 1)) if upto >= 0 else 0
    return Read(tuple(rows), None if upto - late < 0 else upto - late, newest, tuple(under))


@given(right_histories(), st.booleans(), st.booleans())
def test_no_right_history_is_ever_flagged(history: History, atomic: bool, ordered: bool) -> None:
    assert violations(history, atomic=atomic, ordered=ordered) == []


def corrupted(history: History, rows: list[Any], under: list[Any]) -> History:
    """The same, with the last read seeing this; everything is committed by then."""
    newest = max(history.written)
    last = Read(tuple(rows), newest, newest, tuple(under))
    return replace(history, reads=[*history.reads[:-1], last])


@st.composite
def corruptions(draw: st.DrawFn, kind: str) -> tuple[History, int]:
    """A right history with one row of its last read corrupted in this way, and the row."""
    history = draw(right_histories().filter(lambda h: len(h.reads[-1].rows) > 0))
    rows, under = list(history.reads[-1].rows), list(history.reads[-1].under or ())
    at = draw(st.integers(0, len(rows) - 1))
    row: Any = rows[at]
    if kind == "drop":
        del rows[at], under[at]
    elif kind == "duplicate":
        to = draw(st.integers(0, len(rows)))
        rows.insert(to, row)
        under.insert(to, under[at])
    elif kind == "alter":
        rows[at] = draw(st.integers(1000, 2000))
    elif kind == "move":
        under[at] += draw(st.sampled_from([-1, 1, 2]))
    return corrupted(history, rows, under), row


@given(corruptions("drop"))
def test_a_dropped_row_is_always_a_loss(corruption: tuple[History, int]) -> None:
    history, row = corruption
    assert any(f"row {row} is missing" in finding for finding in checkers.no_loss(history))


@given(corruptions("drop"))
def test_a_dropped_row_is_torn_or_a_gap_even_if_nothing_is_known_to_be_committed(
    corruption: tuple[History, int],
) -> None:
    """Unless its epoch was the newest that shows, and had no other row."""
    history, row = corruption
    history = replace(history, reads=[replace(history.reads[-1], committed=None)])
    epoch = history.origin[Exact(row)][0]
    alone = history.rows_of(epoch) == {Exact(row)}
    later = any(history.rows_of(other) for other in history.written if other > epoch)
    assert bool(checkers.no_torn_epoch(history)) == (not alone)
    assert bool(checkers.gapless_prefix(history)) == later


@given(corruptions("duplicate"))
def test_a_duplicated_row_is_always_a_duplicate(corruption: tuple[History, int]) -> None:
    history, row = corruption
    assert checkers.no_duplicate(history) == [f"read {len(history.reads) - 1}: row {row} is there 2 times"]


@given(corruptions("alter"))
def test_an_altered_row_is_always_a_stranger_and_a_loss(corruption: tuple[History, int]) -> None:
    history, _ = corruption
    assert len(checkers.no_stranger(history)) == 1
    assert len(checkers.no_loss(history)) == 1


@given(corruptions("move"))
def test_a_row_moved_to_another_epoch_is_always_found(corruption: tuple[History, int]) -> None:
    history, row = corruption
    (finding,) = checkers.in_its_epoch(history)
    assert f"row {row} of epoch" in finding


@given(right_histories(), st.data())
def test_two_rows_of_a_slot_that_changed_places_are_always_found(history: History, data: st.DataObject) -> None:
    slots = [slot for slots in history.written.values() for slot in slots if len(slot) > 1]
    if not slots:
        return
    one, other = data.draw(st.permutations(data.draw(st.sampled_from(slots))))[:2]
    exchanged = {one: other, other: one}
    rows = [exchanged.get(row, row) for row in history.reads[-1].rows]
    swapped = corrupted(history, rows, list(history.reads[-1].under or ()))
    assert checkers.in_order(swapped)
    assert violations(swapped, atomic=True, ordered=False) == []


@given(right_histories().filter(lambda h: bool(h.reads[-1].rows)), st.data())
def test_a_row_that_a_later_read_does_not_see_any_more_is_always_found(history: History, data: st.DataObject) -> None:
    last = history.reads[-1]
    row = data.draw(st.sampled_from(list(last.rows)))
    fewer = Read(tuple(r for r in last.rows if r != row), last.committed, last.decided)
    assert checkers.nothing_vanishes(replace(history, reads=[*history.reads, fewer])) == [
        f"read {len(history.reads)}: row {row} is not there any more"
    ]


@given(right_histories().filter(lambda h: bool(h.reads[-1].rows)))
def test_a_row_before_its_decision_is_always_found(history: History) -> None:
    last = history.reads[-1]
    newest = max(history.origin[Exact(row)][0] for row in last.rows)
    early = replace(history, reads=[replace(last, committed=None, decided=newest - 1 if newest else None)])
    assert any(f"epoch {newest} was not decided" in finding for finding in checkers.nothing_early(early))


@given(st.lists(st.integers(), min_size=1), st.data())
def test_a_replay_with_one_row_more_less_or_other_is_always_found(rows: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    less, more = [*rows[:at], *rows[at + 1 :]], [*rows, rows[at]]
    other = [*rows[:at], max(rows) + 1, *rows[at + 1 :]]
    assert checkers.same_rows([rows, data.draw(st.permutations(rows))]) == []
    for replay in (less, more, other):
        assert checkers.same_rows([rows, replay])
