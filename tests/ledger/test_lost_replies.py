"""Lost, late and missing replies: whoever published finds out by the nonce, or is told that the outcome is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.ledger.ledger_folder import (
    LATE,
    Fate,
    Network,
    Relay,
    contents,
    decide,
    decision_after,
    kinds,
    ledger_in,
    path_of,
    prepare,
    read,
    records,
)
from twophase.errors import Fenced, OutcomeUnknown
from twophase.ledger import PUBLISH_TRIES, Tail
from twophase.record import Decide


def fates() -> Iterator[tuple[Fate, ...]]:
    """Every way to lose one to three replies before one comes."""
    lost: tuple[Fate, ...] = ("reply lost", "lost", "late")
    last: tuple[Fate, ...] = ("answered", "after the late ones")
    for length in (1, 2, 3):
        yield from ((*before, after) for before in product(lost, repeat=length) for after in last)


def test_whatever_replies_were_lost_the_record_is_won_by_its_nonce_and_is_there_once(tmp_path: Path) -> None:
    for turn, fate in enumerate(fates()):
        folder = tmp_path / str(turn)
        network = Network(*fate)
        prepared = prepare(ledger_in(folder, network), 0)
        assert records(folder) == {1: prepared}

        network.fates = list(fate)
        decision = decide(ledger_in(folder, network), "orders")
        decided = records(folder)[2]
        assert isinstance(decided, Decide)
        assert decided.decision == decision

        before = contents(folder)
        network.arrive()
        assert contents(folder) == before
        assert list(before) == [path_of(folder, 1).name, path_of(folder, 2).name]


@pytest.mark.parametrize("fate", ["lost", "late", "reply lost"])
def test_a_prepare_that_is_never_answered_is_an_unknown_outcome_and_a_later_reader_goes_by_what_is_there(
    folder: Path, fate: Fate
) -> None:
    prepare(ledger_in(folder), 0)
    before = contents(folder)
    network = Network(*[fate] * PUBLISH_TRIES)

    with pytest.raises(OutcomeUnknown, match=str(path_of(folder, 2))):
        prepare(ledger_in(folder, network), 0)

    if fate != "reply lost":
        assert contents(folder) == before
    network.arrive()
    landed = 0 if fate == "lost" else 1
    assert read(ledger_in(folder)).number == 1 + landed

    later = prepare(ledger_in(folder), 0)
    assert later.number == 2 + landed
    assert list(records(folder)) == list(range(1, later.number + 1))
    assert read(ledger_in(folder)) == Tail(later, None)


def test_a_decision_that_is_never_answered_and_lands_is_the_decision_of_a_later_reader(folder: Path) -> None:
    network = Network()
    prepare(ledger_in(folder, network), 0)
    tail = read(ledger_in(folder, network))
    decision = decision_after(tail, "orders")
    network.fates = LATE.copy()

    with pytest.raises(OutcomeUnknown):
        ledger_in(folder, network).decide(tail, decision)
    assert read(ledger_in(folder)) == tail

    network.arrive()
    assert read(ledger_in(folder)).decision == decision
    assert prepare(ledger_in(folder), 1).decision == decision
    assert kinds(folder) == {1: "Prepare", 2: "Decide", 3: "Prepare"}


def test_a_decision_that_is_never_answered_can_not_land_any_more_once_another_prepare_is_there(folder: Path) -> None:
    network = Network()
    prepare(ledger_in(folder, network), 0)
    tail = read(ledger_in(folder, network))
    network.fates = LATE.copy()
    with pytest.raises(OutcomeUnknown):
        ledger_in(folder, network).decide(tail, decision_after(tail, "orders"))

    fence = prepare(ledger_in(folder), 0)
    before = contents(folder)
    network.arrive()

    assert contents(folder) == before
    assert read(ledger_in(folder)) == Tail(fence, None)
    assert fence.decision is None


@pytest.mark.parametrize("first_try", ["answered", "lost"])
def test_a_late_record_of_another_driver_that_lands_first_fences_the_one_that_did_not_see_it(
    folder: Path, first_try: Fate
) -> None:
    prepare(ledger_in(folder), 0)
    slow = Network(*LATE)
    with pytest.raises(OutcomeUnknown):
        prepare(ledger_in(folder, slow), 0)
    late = contents_under_way(slow)

    class Overtaken(Network):
        def publish(self, path: str, data: bytes) -> None:
            if not self.fates:
                slow.arrive()
            super().publish(path, data)

    own = Overtaken(*([first_try] if first_try != "answered" else []))
    with pytest.raises(Fenced, match="published by another driver"):
        prepare(ledger_in(folder, own), 0)

    assert list(records(folder)) == [1, 2]
    assert path_of(folder, 2).read_bytes() == late
    assert prepare(ledger_in(folder), 0).number == 3


def contents_under_way(network: Network) -> bytes:
    """What all tries have sent: the same bytes each time, because only the same record may be tried again."""
    (data,) = {data for _, data in network.under_way}
    return data


def test_a_failure_that_is_no_time_out_is_told_as_it_is_and_nothing_is_tried_again(folder: Path) -> None:
    class Full(Relay):
        tries = 0

        def publish(self, path: str, data: bytes) -> None:
            self.tries += 1
            raise OSError(28, "no space left on device", path)

    full = Full()
    with pytest.raises(OSError, match="no space left"):
        prepare(ledger_in(folder, full), 0)

    assert full.tries == 1
    assert contents(folder) == {}
    assert prepare(ledger_in(folder), 0).number == 1
