"""Each prepare carries all state, so that older records can go; and who slept meanwhile is fenced, or reads again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from tests.ledger.ledger_folder import (
    LATE,
    QUERY,
    Network,
    Relay,
    contents,
    decide,
    epoch_of,
    kinds,
    ledger_in,
    path_of,
    prepare,
    publish_after,
    read,
    records,
    run_epoch,
)
from twophase.errors import Fenced, OutcomeUnknown
from twophase.identity import Generation
from twophase.ledger import Ledger, Tail
from twophase.local_storage import LocalStorage, Posix
from twophase.record import Enrolment, decode

# -- each prepare carries all state ----------------------------------------------------------------------------------


def test_a_prepare_alone_tells_every_sink_ever_named_the_newest_decision_and_what_was_replaced(folder: Path) -> None:
    ledger = ledger_in(folder)
    first = prepare(ledger, 0)
    decide(ledger, "orders", "audit")
    run_epoch(ledger, 1, "orders")  # audit is not configured any more
    prepare(ledger, 2, replaces=("stranger",))
    newest_decision = decide(ledger, "orders", "late")
    whole = prepare(ledger, 3)

    for number in records(folder):
        if number != whole.number:
            path_of(folder, number).unlink()

    tail = read(ledger_in(folder))
    assert tail == Tail(whole, None)
    assert tail.sinks == {"orders": Enrolment(0, 0), "audit": Enrolment(0, 0), "late": Enrolment(2, 0)}
    assert tail.decision == newest_decision
    assert tail.prepare.replaces == (first.ledger, "stranger")
    run_epoch(ledger_in(folder), 3)
    assert kinds(folder) == {7: "Prepare", 8: "Prepare", 9: "Decide"}


@pytest.mark.parametrize("kept_records", [3, 4, 7])
def test_compaction_keeps_a_bounded_history_and_loses_no_state(folder: Path, kept_records: int) -> None:
    compacting, whole = ledger_in(folder, kept_records=kept_records), ledger_in(folder.with_name("whole"))
    prepare(compacting, 0, replaces=("stranger",))
    prepare(whole, 0, replaces=("stranger",))
    decide(compacting, "first")
    decide(whole, "first")
    for number in range(1, 12):
        name = "orders" if number < 6 else "late"
        prepare(compacting, number)
        kept = sorted(records(folder))
        assert kept == list(range(max(1, 2 * number + 2 - kept_records), 2 * number + 2))
        decide(compacting, name)
        run_epoch(whole, number, name)

        tail, other = read(compacting), read(whole)
        assert tail.sinks == other.sinks
        assert tail.decision is not None
        assert other.decision is not None
        assert tail.decision.epoch == other.decision.epoch
        assert tail.prepare.replaces == other.prepare.replaces == ("stranger",)
        assert len(records(folder)) <= kept_records + 1


# -- a writer or a reader that slept through compaction --------------------------------------------------------------


@pytest.mark.parametrize("sleeper", ["first prepare", "prepare", "decision"])
def test_a_writer_that_slept_while_the_kept_range_went_by_is_fenced_and_its_stray_record_counts_for_nothing(
    folder: Path, sleeper: str
) -> None:
    ledger, other = ledger_in(folder, kept_records=3), ledger_in(folder, kept_records=3)
    tail = ledger.read()
    run_epoch(other, 0)
    run_epoch(other, 1)
    if sleeper != "first prepare":
        tail = prepared_tail(other, 2)
    for number in range(2, 6):
        run_epoch(other, number)
    newest, before = read(other), contents(folder)
    stray = 1 if tail is None else tail.number + 1
    assert not path_of(folder, stray).exists()

    with pytest.raises(Fenced, match=f"record {stray} is not the newest"):
        publish_after(ledger, tail, is_decision=sleeper == "decision")

    after = contents(folder)
    published = after.pop(path_of(folder, stray).name)
    assert after == before, "nothing but the stray record is new, and nothing was deleted"
    record = decode(published, path="", number=stray)
    assert read(ledger_in(folder)) == newest
    assert not ledger.is_newest(Generation(record.ledger, stray))
    assert ledger.is_newest(newest.generation)

    following = prepare(other, 6)
    assert following.decision == newest.decision
    assert list(records(folder)) == [following.number - 2, following.number - 1, following.number], "the stray is gone"


def prepared_tail(ledger: Ledger, number: int) -> Tail:
    prepare(ledger, number)
    return read(ledger)


def test_a_late_record_that_lands_in_the_freed_range_counts_for_nothing_and_is_compacted(folder: Path) -> None:
    network = Network(*LATE)
    with pytest.raises(OutcomeUnknown):
        prepare(ledger_in(folder, network), 0)
    ledger = ledger_in(folder, kept_records=3)
    for number in range(4):
        run_epoch(ledger, number)
    newest = read(ledger)

    network.arrive()

    assert list(records(folder)) == [1, 5, 6, 7, 8]
    assert read(ledger_in(folder)) == newest
    run_epoch(ledger, 4)
    assert list(records(folder)) == [7, 8, 9, 10]


def test_a_reader_that_is_overtaken_by_a_whole_kept_range_reads_again(folder: Path) -> None:
    ledger = ledger_in(folder, kept_records=3)
    run_epoch(ledger, 0)

    class Slow(Relay):
        reads = 0

        def read(self, path: str) -> bytes:
            self.reads += 1
            if self.reads in (1, 3):  # before its newest record is read; and between a decision and its prepare
                for number in range(1, 4):
                    run_epoch(ledger, number)
            return super().read(path)

    slow = Slow()
    tail = read(ledger_in(folder, slow))

    assert slow.reads == 5
    assert tail == read(ledger)
    assert tail.number == max(records(folder)) == 14


class SlowListing(Posix):
    """Others go on while the folder is listed for the first time: after its names, or after the length of the first."""

    def __init__(self, pause_after: Literal["names", "stat"], meanwhile: Callable[[], object]):
        self.pause_after = pause_after
        self.meanwhile = [meanwhile]

    def names(self, folder: int) -> list[str]:
        found = super().names(folder)
        self.pause("names")
        return found

    def stat(self, name: str, folder: int | None = None) -> os.stat_result:
        status = super().stat(name, folder)
        if name.endswith(".record"):
            self.pause("stat")
        return status

    def pause(self, place: str) -> None:
        if place == self.pause_after and self.meanwhile:
            self.meanwhile.pop()()


def test_a_reader_for_whom_the_kept_range_goes_by_while_it_lists_does_not_take_the_ledger_for_empty(
    folder: Path,
) -> None:
    ledger = ledger_in(folder, kept_records=3)
    run_epoch(ledger, 0)

    slow = SlowListing("names", lambda: [run_epoch(ledger, number) for number in range(1, 4)])

    assert ledger_in(folder, LocalStorage(slow)).read() == read(ledger)


def test_a_stray_record_is_fenced_even_if_the_kept_range_goes_by_once_more_while_the_folder_is_listed(
    folder: Path,
) -> None:
    ledger = ledger_in(folder, kept_records=3)
    tail = prepared_tail(ledger, 0)
    for number in range(4):
        run_epoch(ledger, number)

    slow = SlowListing("stat", lambda: [run_epoch(ledger, number) for number in range(4, 8)])
    with pytest.raises(Fenced):
        ledger_in(folder, LocalStorage(slow), kept_records=3).prepare(tail, query=QUERY, epoch=epoch_of(0))
