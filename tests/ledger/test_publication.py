"""Publication is a compare-and-set: of all who publish the next record, one wins, and the others are fenced."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from tests.disk import FaultyPosix, race
from tests.ledger.ledger_folder import (
    QUERY,
    Relay,
    contents,
    decide,
    decision_after,
    epoch_of,
    ledger_in,
    path_of,
    prepare,
    publish_after,
    read,
    records,
)
from twophase.errors import Fenced
from twophase.local_storage import LocalStorage
from twophase.storage import Entry


@pytest.mark.parametrize("stale", ["no tail", "prepare after a prepare", "prepare after a decision", "decision"])
def test_a_stale_tail_is_fenced_and_the_folder_is_unchanged(folder: Path, stale: str) -> None:
    ledger, other = ledger_in(folder), ledger_in(folder)
    tail = ledger.read()
    prepare(other, 0)
    if stale != "no tail":
        tail = read(ledger)
        if stale == "prepare after a decision":
            decide(other, "orders")
        else:
            prepare(other, 0)
    before = contents(folder)

    with pytest.raises(Fenced, match="published by another driver"):
        publish_after(ledger, tail, is_decision=stale == "decision")

    assert contents(folder) == before


def attempt(step: Callable[[], object]) -> str:
    try:
        step()
    except Fenced:
        return "fenced"
    return "won"


def test_of_two_racing_processes_exactly_one_publishes_the_next_record(folder: Path) -> None:
    ledger = ledger_in(folder, kept_records=5)
    before: dict[str, bytes] = {}
    for turn in range(20):
        tail = ledger.read()
        step = partial(attempt, partial(ledger.prepare, tail, query=QUERY, epoch=epoch_of(0)))
        rivals = [step, step]
        if tail is not None and tail.decide is None:
            rivals.append(partial(attempt, partial(ledger.decide, tail, decision_after(tail, "orders"))))

        assert sorted(race(rivals)) == ["fenced"] * (len(rivals) - 1) + ["won"]
        assert list(contents(folder))[-1] == path_of(folder, turn + 1).name
        assert read(ledger).number == turn + 1
        kept = {name: data for name, data in before.items() if name in contents(folder)}
        assert kept.items() <= contents(folder).items()
        before = contents(folder)
    records(folder)


class NamesOnly(Relay):
    """Lists by one call, without lengths: shows a small folder as it was at one moment."""

    def list(self, folder: str) -> list[Entry]:
        return [Entry(name, False, 0) for name in sorted(os.listdir(folder))] if os.path.isdir(folder) else []


def test_of_many_drivers_that_fence_each_other_each_number_is_won_once_and_no_reader_is_misled(folder: Path) -> None:
    """Every process reads and publishes as fast as it can, with the shortest history: reading must stand compaction."""

    def drive() -> str:
        ledger = ledger_in(folder, NamesOnly(LocalStorage(FaultyPosix(fsync=False))), kept_records=3)
        won: list[int] = []
        while len(won) < 15:
            with suppress(Fenced):
                won.append(prepare(ledger, 0).number)
            with suppress(Fenced):
                tail = read(ledger)
                if tail.decide is None:
                    ledger.decide(tail, decision_after(tail, "orders"))
                    won.append(tail.number + 1)
        return " ".join(map(str, won))

    numbers = [int(number) for answer in race([drive] * 4) for number in answer.split()]

    # Some numbers are missing: whoever published them was overtaken before it saw that it had won.
    assert len(set(numbers)) == len(numbers)
    assert max(numbers) <= read(ledger_in(folder)).number == max(records(folder))
