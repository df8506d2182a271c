"""A ledger that was moved, copied or taken over, or that belongs to another query."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ledger.ledger_folder import QUERY, contents, copied, ledger_in, prepare, read, records, run_epoch
from twophase.errors import CheckpointMismatch
from twophase.ledger import Tail


def test_a_taken_over_ledger_gets_a_new_id_and_remembers_every_replaced_one_once(folder: Path) -> None:
    ledger = ledger_in(folder)
    first = prepare(ledger, 0)
    second = prepare(ledger, 0, replaces=("other",))
    third = prepare(ledger, 0, replaces=("other", "third", first.ledger))
    fourth = prepare(ledger, 0)

    assert len({first.ledger, second.ledger, third.ledger, "other"}) == 4
    assert second.replaces == (first.ledger, "other")
    assert third.replaces == (first.ledger, "other", second.ledger, "third")
    assert (fourth.ledger, fourth.replaces) == (third.ledger, third.replaces)
    assert list(records(folder).values()) == [first, second, third, fourth]


@pytest.mark.parametrize("moved_from", [None, "/somewhere/else"])
def test_a_copied_ledger_is_refused_with_both_places_and_the_option_that_helps(
    folder: Path, moved_from: str | None
) -> None:
    run_epoch(ledger_in(folder), 0)
    copy = copied(folder, "copy")
    ledger, before = ledger_in(copy), contents(copy)

    with pytest.raises(CheckpointMismatch) as caught:
        ledger.refuse_if_foreign(ledger.read(), query=QUERY, moved_from=moved_from)

    for part in (f"file://{folder.resolve()}", f"file://{copy.resolve()}", "movedFrom", moved_from or "movedFrom"):
        assert part in str(caught.value)
    assert contents(copy) == before == contents(folder)


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}/"])
def test_a_moved_ledger_goes_on_under_a_new_id_that_records_the_replaced_one(folder: Path, spelling: str) -> None:
    run_epoch(ledger_in(folder), 0)
    there = read(ledger_in(folder))
    copy, moved_from = copied(folder, "copy"), spelling.format(folder)
    before = contents(folder)
    ledger = ledger_in(copy)
    ledger.refuse_if_foreign(ledger.read(), query=QUERY, moved_from=moved_from)

    moved = prepare(ledger, 1)
    assert moved.ledger != there.prepare.ledger
    assert moved.replaces == (there.prepare.ledger,)
    assert moved.location == f"file://{copy.resolve()}"
    assert (moved.number, moved.decision) == (3, there.decision)
    assert read(ledger_in(copy)) == Tail(moved, None)

    # The option left in place, or taken away: it has done its work, and does nothing more.
    for option in (moved_from, None):
        ledger.refuse_if_foreign(ledger.read(), query=QUERY, moved_from=option)
        again = prepare(ledger, 1)
        assert (again.ledger, again.replaces) == (moved.ledger, moved.replaces)
    assert list(records(copy)) == [1, 2, 3, 4, 5]
    assert contents(folder) == before, "the old place is not touched"


def test_the_former_place_opens_a_moved_ledger_once_and_not_a_later_copy_of_it(folder: Path) -> None:
    first = prepare(ledger_in(folder), 0)
    second_place = copied(folder, "second")
    second = prepare(ledger_in(second_place), 0)
    third_place = copied(second_place, "third")
    ledger = ledger_in(third_place)
    before = contents(third_place)

    with pytest.raises(CheckpointMismatch, match="movedFrom"):
        ledger.refuse_if_foreign(ledger.read(), query=QUERY, moved_from=str(folder))
    assert contents(third_place) == before

    ledger.refuse_if_foreign(ledger.read(), query=QUERY, moved_from=str(second_place))
    third = prepare(ledger, 0)
    assert third.replaces == (first.ledger, second.ledger)
    assert list(records(third_place).values()) == [first, second, third]


def test_a_ledger_reached_by_a_link_or_another_spelling_is_not_moved(folder: Path) -> None:
    first = prepare(ledger_in(folder), 0)
    link = folder.parent.parent / "link"
    link.symlink_to(folder.parent)

    for spelling in (f"{link}/twophase", f"file:{folder}", f"{folder}/"):
        ledger = ledger_in(spelling)
        ledger.refuse_if_foreign(ledger.read(), query=QUERY, moved_from=None)
        assert prepare(ledger, 0).ledger == first.ledger
    assert list(records(folder)) == [1, 2, 3, 4]


@pytest.mark.parametrize("is_moved", [False, True])
def test_the_ledger_of_another_query_is_refused_with_both_queries(folder: Path, is_moved: bool) -> None:
    run_epoch(ledger_in(folder), 0)
    place = copied(folder, "copy") if is_moved else folder
    ledger, before = ledger_in(place), contents(place)

    with pytest.raises(CheckpointMismatch) as caught:
        ledger.refuse_if_foreign(ledger.read(), query="other-query", moved_from=str(folder) if is_moved else None)

    for part in (QUERY, "other-query", f"file://{place.resolve()}"):
        assert part in str(caught.value)
    assert contents(place) == before


def test_an_empty_folder_belongs_to_whoever_comes(folder: Path) -> None:
    ledger_in(folder).refuse_if_foreign(None, query=QUERY, moved_from="/somewhere/else")
    assert not folder.exists()
