"""The ledger and its records: what is in the folder after each step, whatever is lost, late, raced or damaged."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.disk import FaultyPosix, race
from twophase.decision import Decision, SinkDecision
from twophase.errors import CheckpointMismatch, Fenced, LedgerCorrupt, OutcomeUnknown, ProtocolViolation
from twophase.identity import Attempt, DecisionId, Epoch, Generation, Owner, offsets_hash
from twophase.ledger import KEPT_RECORDS, PUBLISH_TRIES, Ledger, Tail
from twophase.local_storage import LocalStorage, Posix
from twophase.record import RECORD_FORMAT, Decide, Enrolment, Prepare, Record, decode, encode
from twophase.sink import Marker
from twophase.storage import Entry, Storage
from twophase.vote import VotedShare, canonical_json

QUERY = "0d7e3c1a-query"
NOW_MS = 1_763_300_000_000
SAMPLE = Path(__file__).parent / "samples" / "ledger-v1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint" / "twophase"


def ledger_in(
    folder: str | Path,
    storage: Storage | None = None,
    *,
    kept_records: int = KEPT_RECORDS,
    new_id: Callable[[], str] = lambda: uuid4().hex,
) -> Ledger:
    inner = LocalStorage() if storage is None else storage
    return Ledger(inner, str(folder), new_id=new_id, now_ms=lambda: NOW_MS, kept_records=kept_records)


def epoch_of(number: int) -> Epoch:
    return Epoch(number, offsets_hash(b"offsets/%d" % number))


def decision_after(tail: Tail, *sinks: str, shares: int = 2) -> Decision:
    """A decision that may follow `tail`, with `shares` shares in each of the sinks."""
    generation, epoch = tail.generation, tail.prepare.epoch
    by = DecisionId(tail.prepare.ledger, tail.number + 1)
    decided = {}
    for name in sinks:
        origin = None if epoch.number == 0 else Marker(Owner(QUERY, name), epoch_of(epoch.number - 1), str(by))
        voted = (
            VotedShare(
                slot, Attempt(generation, 100 + slot), 3, "c0ffee", canonical_json({"version": 1, "file": f"{slot}"})
            )
            for slot in range(shares)
        )
        enrolment = tail.sinks.get(name, Enrolment(epoch.number, 0))
        decided[name] = SinkDecision(by, enrolment.joined, enrolment.base, origin, tuple(voted))
    return Decision(by, generation, epoch, 0, decided)


def prepare(ledger: Ledger, number: int, **more: Any) -> Prepare:
    """Prepare an epoch after whatever is there."""
    return ledger.prepare(ledger.read(), query=QUERY, epoch=epoch_of(number), **more)


def decide(ledger: Ledger, *sinks: str) -> Decision:
    """Decide what was prepared last."""
    tail = read(ledger)
    decision = decision_after(tail, *sinks)
    ledger.decide(tail, decision)
    return decision


def run_epoch(ledger: Ledger, number: int, *sinks: str) -> Decision:
    prepare(ledger, number)
    return decide(ledger, *(sinks or ("orders",)))


def read(ledger: Ledger) -> Tail:
    tail = ledger.read()
    assert tail is not None
    return tail


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in the folder, temporary ones included."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def path_of(folder: Path, number: int) -> Path:
    return folder / f"{number:020d}.record"


def records(folder: Path) -> dict[int, Record]:
    """Every record in the folder; fails if there is anything else."""
    found = {}
    for name, data in contents(folder).items():
        number = int(name.removesuffix(".record"))
        assert path_of(folder, number).name == name
        found[number] = decode(data, path=name, number=number)
    return found


def kinds(folder: Path) -> dict[int, str]:
    return {number: type(record).__name__ for number, record in records(folder).items()}


class Relay:
    """A storage in front of another one: what a subclass does not change is passed on."""

    def __init__(self, inner: Storage | None = None):
        self.inner = LocalStorage() if inner is None else inner

    def normalise(self, path: str) -> str:
        return self.inner.normalise(path)

    def publish(self, path: str, data: bytes) -> None:
        self.inner.publish(path, data)

    def rename(self, source: str, target: str) -> None:
        self.inner.rename(source, target)

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def list(self, folder: str) -> list[Entry]:
        return self.inner.list(folder)

    def make_folder(self, folder: str) -> None:
        self.inner.make_folder(folder)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def sweep_temporary(self, folder: str, older_than_s: float) -> int:
        return self.inner.sweep_temporary(folder, older_than_s)

    def sync(self, folder: str) -> None:
        self.inner.sync(folder)


# -- the sequence ----------------------------------------------------------------------------------------------------


def test_a_ledger_that_was_never_written_reads_as_nothing_and_reading_makes_no_folder(folder: Path) -> None:
    assert ledger_in(folder).read() is None
    assert not folder.exists()


def test_the_first_prepare_creates_the_folder_and_the_ledger_id_and_is_number_one(folder: Path) -> None:
    ids = iter(["ledger1", "nonce1"])
    ledger = ledger_in(folder, new_id=lambda: next(ids))
    assert prepare(ledger, 7) == Prepare(
        number=1,
        nonce="nonce1",
        ledger="ledger1",
        location=f"file://{folder.resolve()}",
        query=QUERY,
        epoch=epoch_of(7),
        tasks=True,
        written_ms=NOW_MS,
    )

    assert list(contents(folder)) == ["00000000000000000001.record"]
    tail = read(ledger_in(folder))
    assert (tail.number, tail.generation, tail.decide, tail.decision) == (1, Generation("ledger1", 1), None, None)
    assert tail.sinks == {}


def test_numbers_step_by_one_and_a_decision_directly_follows_its_prepare(folder: Path) -> None:
    ledger = ledger_in(folder)
    steps: list[tuple[Callable[[], object], str]] = [
        (lambda: prepare(ledger, 0), "Prepare"),
        (lambda: decide(ledger, "orders"), "Decide"),
        (lambda: prepare(ledger, 1), "Prepare"),
        (lambda: prepare(ledger, 1, tasks=False), "Prepare"),
        (lambda: prepare(ledger, 1), "Prepare"),
        (lambda: decide(ledger, "orders"), "Decide"),
    ]
    before: dict[str, bytes] = {}
    for number, (step, _) in enumerate(steps, 1):
        step()
        assert kinds(folder) == {n: kind for n, (_, kind) in enumerate(steps[:number], 1)}
        assert read(ledger_in(folder)).number == number
        assert before.items() <= contents(folder).items(), "a published record never changes"
        before = contents(folder)

    found = records(folder)
    assert {record.ledger for record in found.values()} == {found[1].ledger}, "one ledger, one id"
    for number, record in found.items():
        if isinstance(record, Decide):
            assert record.decision.id == DecisionId(record.ledger, number)
            assert record.decision.generation == Generation(record.ledger, number - 1)
    fences = [record.tasks for record in found.values() if isinstance(record, Prepare)]
    assert fences == [True, True, False, True]


def test_nothing_is_kept_in_memory_so_any_process_can_go_on(folder: Path) -> None:
    for number in range(4):
        prepare(ledger_in(folder), number)
        decision = decide(ledger_in(folder), "orders")
        assert read(ledger_in(folder)).decision == decision

    assert sorted(records(folder)) == list(range(1, 9))


def test_a_second_decision_of_a_generation_or_one_with_another_id_is_refused_and_nothing_is_written(
    folder: Path,
) -> None:
    ledger = ledger_in(folder)
    prepare(ledger, 0)
    undecided = read(ledger)
    decision = decide(ledger, "orders")
    before = contents(folder)

    wrong = Decision(DecisionId(undecided.prepare.ledger, 5), decision.generation, decision.epoch, 0, decision.sinks)
    for tail, offered in ((read(ledger), decision), (read(ledger), decision_after(read(ledger))), (undecided, wrong)):
        with pytest.raises(ProtocolViolation, match="does not follow its prepare"):
            ledger.decide(tail, offered)
        assert contents(folder) == before


def test_a_ledger_must_keep_a_prepare_its_decision_and_the_next_prepare(folder: Path) -> None:
    with pytest.raises(ValueError, match="at least 3"):
        ledger_in(folder, kept_records=2)


def test_other_names_in_the_folder_are_nobodys_records_and_stay(folder: Path) -> None:
    ledger = ledger_in(folder, kept_records=3)
    prepare(ledger, 0)
    strangers = {
        ".tmp-12-0123456789abcdef": b"residue of a kill",
        "README": b"",
        "7.record": b"",
        "000000000000000000009.record": b"",
        "00000000000000000009.record.bak": b"",
        "0000000000000000000x.record": b"",
        f"{'²' * 20}.record": b"",
        f"{'٣' * 20}.record": b"",
    }
    for name, data in strangers.items():
        (folder / name).write_bytes(data)

    for number in range(5):
        run_epoch(ledger, number)

    assert read(ledger).number == 11
    for name in strangers:
        assert (folder / name).read_bytes() == strangers[name]
        (folder / name).unlink()
    assert list(records(folder)) == [8, 9, 10, 11]


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


# -- publication is a compare-and-set --------------------------------------------------------------------------------


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


def publish_after(ledger: Ledger, tail: Tail | None, *, is_decision: bool) -> None:
    if is_decision:
        assert tail is not None
        ledger.decide(tail, decision_after(tail, "orders"))
    else:
        ledger.prepare(tail, query=QUERY, epoch=epoch_of(0))


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


# -- lost, late and missing replies ----------------------------------------------------------------------------------

Fate = Literal["answered", "reply lost", "lost", "late", "after the late ones"]


LATE: list[Fate] = ["late"] * PUBLISH_TRIES


class Network(Relay):
    """A storage behind a network: each publication meets the next fate, and is answered when there is none left.

    What is late is under way until `arrive`, or until a publication comes after it.
    """

    def __init__(self, *fates: Fate, inner: Storage | None = None):
        super().__init__(inner)
        self.fates = list(fates)
        self.under_way: list[tuple[str, bytes]] = []

    def publish(self, path: str, data: bytes) -> None:
        fate = self.fates.pop(0) if self.fates else "answered"
        if fate == "late":
            self.under_way.append((path, data))
        if fate == "after the late ones":
            self.arrive()
        if fate == "reply lost":
            with suppress(FileExistsError):
                super().publish(path, data)
        if fate in ("reply lost", "lost", "late"):
            raise TimeoutError(f"no answer about {path}")
        super().publish(path, data)

    def arrive(self) -> None:
        for path, data in self.under_way:
            with suppress(FileExistsError):
                super().publish(path, data)
        self.under_way.clear()


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


# -- a writer that slept through compaction --------------------------------------------------------------------------


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


def test_only_the_newest_generation_is_the_newest(folder: Path) -> None:
    ledger = ledger_in(folder)
    assert not ledger.is_newest(Generation("x", 1))
    first = prepare(ledger, 0).generation
    decide(ledger, "orders")
    assert ledger.is_newest(first)
    assert not ledger.is_newest(Generation("x", 1)), "numbers are compared within one ledger only"
    second = prepare(ledger, 1).generation

    assert [ledger.is_newest(generation) for generation in (first, second)] == [False, True]
    assert list(records(folder)) == [1, 2, 3]


# -- moved, copied, foreign ------------------------------------------------------------------------------------------


def copied(folder: Path, name: str) -> Path:
    target = folder.parent.parent / name / "twophase"
    shutil.copytree(folder, target)
    return target


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


# -- damaged records -------------------------------------------------------------------------------------------------


def framed(body: bytes, *, version: int = RECORD_FORMAT) -> bytes:
    """A body with the header that belongs to it, made without the code under test."""
    return f"twophase-ledger {version} sha256={hashlib.sha256(body).hexdigest()}\n".encode() + body


def expect_corrupt(folder: Path, *words: str, number: int) -> None:
    """Reading is refused with the path and these words; so is publishing that number, unread; nothing is written."""
    before = contents(folder)
    with pytest.raises(LedgerCorrupt) as caught:
        ledger_in(folder).read()
    assert str(folder) in str(caught.value)
    for word in words:
        assert word in str(caught.value)
    if number > 1:
        tail = decode(path_of(folder, 1).read_bytes(), path="", number=1)
        assert isinstance(tail, Prepare)
        if number == 2:
            with pytest.raises(LedgerCorrupt, match=str(path_of(folder, 2))):
                ledger_in(folder).prepare(Tail(tail, None), query=QUERY, epoch=epoch_of(0))
    assert contents(folder) == before


def damage(folder: Path, data: bytes, *words: str, number: int = 2) -> None:
    path_of(folder, number).write_bytes(data)
    expect_corrupt(folder, path_of(folder, number).name, *words, number=number)


@pytest.fixture(params=["prepare", "decide"])
def whole(request: pytest.FixtureRequest, folder: Path) -> bytes:
    """The bytes of record 2 of a ledger, of each kind; and the folder holds it."""
    ledger = ledger_in(folder)
    prepare(ledger, 0)
    if request.param == "prepare":
        prepare(ledger, 0)
    else:
        decide(ledger, "orders", "Aufträge 注文")
    return path_of(folder, 2).read_bytes()


def test_a_record_torn_at_any_length_is_never_taken_for_a_whole_one(folder: Path, whole: bytes) -> None:
    for length in range(len(whole)):
        with pytest.raises(LedgerCorrupt, match="is empty" if length == 0 else "is torn"):
            decode(whole[:length], path="", number=2)
    for length in (*range(0, len(whole), 29), len(whole) - 1):
        damage(folder, whole[:length], "is empty" if length == 0 else "is torn")

    path_of(folder, 2).write_bytes(whole)
    assert read(ledger_in(folder)).number == 2


def test_a_record_whose_end_is_zeros_is_never_taken_for_a_whole_one(folder: Path, whole: bytes) -> None:
    """What a power cut leaves of data that was not synced, on some file systems."""
    for length in range(0, len(whole), 29):
        damage(folder, whole[:length] + bytes(len(whole) - length))


def test_a_record_with_something_behind_it_is_refused(folder: Path, whole: bytes) -> None:
    for rest in (b"\n", b"x", b"x\n", whole):
        damage(folder, whole + rest)


def test_a_flipped_byte_anywhere_is_noticed_or_harmless(folder: Path, whole: bytes) -> None:
    expected = decode(whole, path="", number=2)
    accepted = set()
    for position in range(len(whole)):
        for mask in (*(1 << bit for bit in range(8)), 0xFF):
            flipped = bytearray(whole)
            flipped[position] ^= mask
            try:
                assert decode(bytes(flipped), path="", number=2) == expected
                accepted.add(position)
            except LedgerCorrupt:
                pass

    format_number = whole.index(b" ") + 1
    assert accepted <= {format_number}
    for position in range(0, len(whole), 29):
        if position not in accepted:
            damage(folder, whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :])


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"", "is empty"),
        (b"\n", "another program"),
        (b"\0" * 400, "another program"),
        (b'{"kind":"prepare"}\n', "another program"),
        (b"v1\n{}\n", "another program"),
        (b"twophase-ledgers 1 sha256=0\n{}\n", "another program"),
        (b"twophase-ledger one sha256=0\n{}\n", "is torn"),
        (b"twophase-ledger -1 sha256=0\n{}\n", "is torn"),
        (b"twophase-ledger 1 md5=0\n{}\n", "is torn"),
        (b"twophase-ledger 1 sha256=\n{}\n", "was altered"),
    ],
)
def test_what_another_program_wrote_is_named_as_that(folder: Path, data: bytes, word: str) -> None:
    prepare(ledger_in(folder), 0)
    damage(folder, data, word)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_that_were_not_encoded_are_ever_read(data: bytes) -> None:
    for spoilt in (
        data,
        b"twophase-ledger " + data,
        b"twophase-ledger 1 sha256=" + data,
        framed(data),
        framed(data + b"\n"),
    ):
        with pytest.raises(LedgerCorrupt):
            decode(spoilt, path="p", number=1)


def test_a_record_of_a_newer_format_says_which_release_to_run(folder: Path) -> None:
    prepare(ledger_in(folder), 0)
    newer = RECORD_FORMAT + 1
    for body in (b'{"kind":"prepare","number":2}\n', b"\x93\x01\x02", b""):
        damage(folder, framed(body, version=newer), f"format {newer}", f"1 to {RECORD_FORMAT}", "release that wrote it")


SENSELESS: dict[str, Callable[[dict[str, Any]], object]] = {
    "another kind": lambda body: body.update(kind="vote"),
    "no kind": lambda body: body.pop("kind"),
    "kind of a kind": lambda body: body.update(kind=[]),
    "no nonce": lambda body: body.pop("nonce"),
    "a number of no kind": lambda body: body.update(number="two"),
    "an endless number": lambda body: body.update(number=1e999),
    "no time": lambda body: body.update(written_ms=None),
    "a decision of no kind": lambda body: body.update(decision=[]),
    "a decision without sinks": lambda body: body["decision"].pop("sinks"),
    "sinks as a list": lambda body: body["decision"].update(sinks=[]),
    "a sink of no kind": lambda body: body["decision"]["sinks"].update(orders=7),
    "shares of no kind": lambda body: body["decision"]["sinks"]["orders"].update(shares=7),
    "an attempt without a task": lambda body: body["decision"]["sinks"]["orders"]["shares"][0].update(attempt="x"),
    "an epoch without a number": lambda body: body["decision"].update(epoch="@"),
    "an epoch of no kind": lambda body: body["decision"].update(epoch=0),
}


@pytest.mark.parametrize("change", SENSELESS.values(), ids=SENSELESS)
def test_a_record_that_is_whole_and_makes_no_sense_is_refused(
    folder: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    ledger = ledger_in(folder)
    run_epoch(ledger, 0)
    body = json.loads(path_of(folder, 2).read_bytes().partition(b"\n")[2])
    change(body)

    damage(folder, framed(json.dumps(body).encode() + b"\n"), "makes no sense to this release")


@pytest.mark.parametrize(
    "body", [b"null\n", b"7\n", b"[]\n", b'"text"\n', b"{}\n", b"{\n", b"\xff\n", b"\n", b"[" * 9999 + b"\n"]
)
def test_a_whole_body_that_is_no_record_is_refused(folder: Path, body: bytes) -> None:
    prepare(ledger_in(folder), 0)
    damage(folder, framed(body), "makes no sense to this release")


def test_a_record_under_another_number_is_refused(folder: Path) -> None:
    ledger = ledger_in(folder)
    prepare(ledger, 0)
    prepare(ledger, 0)
    path_of(folder, 2).rename(path_of(folder, 3))
    expect_corrupt(folder, path_of(folder, 3).name, "says that it is record 2", number=3)

    damage(folder, path_of(folder, 1).read_bytes(), "says that it is record 1", number=4)


def test_a_decision_whose_prepare_is_gone_is_refused(folder: Path) -> None:
    ledger = ledger_in(folder)
    for number in range(2):
        run_epoch(ledger, number)
    path_of(folder, 3).unlink()
    expect_corrupt(folder, "record 4", "the prepare before it is gone", number=4)

    only = decode(path_of(folder, 2).read_bytes(), path="", number=2)
    assert isinstance(only, Decide)
    for number in (1, 2, 4):
        path_of(folder, number).unlink()
    path_of(folder, 1).write_bytes(encode(Decide(1, only.nonce, only.ledger, only.decision)))
    expect_corrupt(folder, "record 1", "the prepare before it is gone", number=1)


def test_two_decisions_in_a_row_are_refused(folder: Path) -> None:
    ledger = ledger_in(folder)
    run_epoch(ledger, 0)
    first = decode(path_of(folder, 2).read_bytes(), path="", number=2)
    assert isinstance(first, Decide)
    path_of(folder, 3).write_bytes(encode(Decide(3, "nonce", first.ledger, first.decision)))

    expect_corrupt(folder, "records 2 and 3", "both decide", number=3)


def test_a_decision_of_another_generation_than_the_prepare_before_it_is_refused(folder: Path) -> None:
    """Records of two histories in one folder, as when single files of a backup are put back."""
    prepare(ledger_in(folder), 0)
    copy = copied(folder, "copy")
    moved = prepare(ledger_in(copy), 0)
    decide(ledger_in(copy), "orders")
    prepare(ledger_in(folder), 0)
    assert moved.number == 2
    shutil.copy(path_of(copy, 3), path_of(folder, 3))

    expect_corrupt(folder, "3", "does not belong to the prepare before it", number=3)


def test_a_damaged_record_that_is_not_the_newest_hinders_nobody_and_is_compacted(folder: Path) -> None:
    """History is for people: all state is in the newest prepare, and the decision after it."""
    ledger = ledger_in(folder, kept_records=3)
    for number in range(2):
        run_epoch(ledger, number)
    for number in (1, 2):
        path_of(folder, number).write_bytes(b"damaged")

    run_epoch(ledger, 2)

    assert list(records(folder)) == [3, 4, 5, 6]


# -- the record format -----------------------------------------------------------------------------------------------

HOSTILE = [
    "",
    ".",
    "..",
    "../../etc",
    "a/b",
    "\0",
    "\n",
    "\r\n",
    '"',
    "\\",
    "{}",
    "@",
    "%",
    "%2F",
    "\u2028",
    "😀",
    "e\u0301",
    "é",
]
whole_numbers = st.integers(0, 2**63 - 1)
plain_ids = st.text("0123456789abcdefXYZ", min_size=1, max_size=32)
names = st.text(max_size=30) | st.sampled_from(HOSTILE)
owners = st.builds(Owner, names, names)
epochs = st.builds(Epoch, whole_numbers, names)
generations = st.builds(Generation, plain_ids, whole_numbers)
attempts = st.builds(Attempt, generations, st.integers(-1, 2**63 - 1))
decision_ids = st.builds(DecisionId, plain_ids, whole_numbers)
markers = st.builds(Marker, owners, epochs, names, whole_numbers)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names
handles = st.dictionaries(
    names, scalars | st.lists(scalars, max_size=3) | st.dictionaries(names, scalars, max_size=3), max_size=4
)
shares = st.builds(VotedShare, whole_numbers, attempts, whole_numbers, names, handles.map(canonical_json))
sink_decisions = st.builds(
    SinkDecision,
    decision_ids,
    whole_numbers,
    whole_numbers,
    st.none() | markers,
    st.lists(shares, max_size=6).map(tuple),
)
decisions = st.builds(
    Decision, decision_ids, generations, epochs, whole_numbers, st.dictionaries(names, sink_decisions, max_size=3)
)
enrolments = st.builds(Enrolment, whole_numbers, whole_numbers)
prepares = st.builds(
    Prepare,
    number=whole_numbers,
    nonce=plain_ids,
    ledger=plain_ids,
    location=names,
    query=names,
    epoch=epochs,
    tasks=st.booleans(),
    sinks=st.dictionaries(names, enrolments, max_size=4),
    replaces=st.lists(plain_ids, max_size=4).map(tuple),
    decision=st.none() | decisions,
    written_ms=whole_numbers,
)
decides = st.builds(Decide, whole_numbers, plain_ids, plain_ids, decisions, whole_numbers)


@settings(deadline=None, max_examples=300)
@given(prepares | decides)
def test_every_record_is_read_back_as_it_was_and_is_two_lines(record: Record) -> None:
    data = encode(record)

    assert decode(data, path="p", number=record.number) == record
    assert encode(decode(data, path="p", number=record.number)) == data
    assert data.count(b"\n") == 2
    assert data.endswith(b"\n")
    assert framed(data.partition(b"\n")[2]) == data


def test_a_decision_with_a_thousand_shares_is_read_back_whole(folder: Path) -> None:
    ledger = ledger_in(folder)
    prepare(ledger, 0)
    tail = read(ledger)
    decision = decision_after(tail, "orders", "audit", shares=1000)
    ledger.decide(tail, decision)

    assert read(ledger_in(folder)).decision == decision
    assert prepare(ledger_in(folder), 1).decision == decision
    assert [len(sink.shares) for sink in decision.sinks.values()] == [1000, 1000]
    assert list(records(folder)) == [1, 2, 3]


@pytest.mark.parametrize("name", ["\ud800", "caf\udce9", "\ude00\ud83d"])
def test_a_text_that_has_no_utf8_form_is_read_back_as_it_was(folder: Path, name: str) -> None:
    """A path whose bytes are not UTF-8 reaches Python like this, and so can an option."""
    ledger = ledger_in(folder)
    ledger.prepare(None, query=name, epoch=epoch_of(0))
    decision = decide(ledger, name)

    assert read(ledger_in(folder)).prepare.query == name
    assert read(ledger_in(folder)).decision == decision
    assert kinds(folder) == {1: "Prepare", 2: "Decide"}


@pytest.mark.parametrize("name", ["x" * 201, "注文" * 12], ids=["long", "short but escaped"])
def test_a_ledger_whose_owner_has_a_name_too_long_for_its_text_form_can_be_read(folder: Path, name: str) -> None:
    ledger = ledger_in(folder)
    prepare(ledger, 1)
    tail = read(ledger)
    by = DecisionId(tail.prepare.ledger, 2)
    origin = Marker(Owner(QUERY, name), epoch_of(0), str(by))
    decision = Decision(by, tail.generation, epoch_of(1), 0, {name: SinkDecision(by, 0, 0, origin, ())})
    ledger.decide(tail, decision)

    assert read(ledger_in(folder)).decision == decision
    assert kinds(folder) == {1: "Prepare", 2: "Decide"}


# -- the cost of an epoch --------------------------------------------------------------------------------------------


class Counting(Relay):
    """Counts what is asked of the storage, and the bytes that are published and read."""

    def __init__(self, inner: Storage):
        super().__init__(inner)
        self.asked: Counter[str] = Counter()
        self.published_bytes = 0
        self.read_bytes = 0

    def normalise(self, path: str) -> str:
        self.asked["normalise"] += 1
        return super().normalise(path)

    def publish(self, path: str, data: bytes) -> None:
        self.asked["publish"] += 1
        self.published_bytes += len(data)
        super().publish(path, data)

    def read(self, path: str) -> bytes:
        self.asked["read"] += 1
        data = super().read(path)
        self.read_bytes += len(data)
        return data

    def list(self, folder: str) -> list[Entry]:
        self.asked["list"] += 1
        return super().list(folder)

    def make_folder(self, folder: str) -> None:
        self.asked["make_folder"] += 1
        super().make_folder(folder)

    def delete(self, path: str) -> None:
        self.asked["delete"] += 1
        super().delete(path)

    def sync(self, folder: str) -> None:
        self.asked["sync"] += 1
        super().sync(folder)


@pytest.mark.parametrize(("kept_records", "steady_from"), [(10, 10), (KEPT_RECORDS, 60)])
def test_an_epoch_costs_the_same_however_long_the_history_is(folder: Path, kept_records: int, steady_from: int) -> None:
    posix = FaultyPosix(fsync=False)
    costs, sizes, files = [], [], []
    for number in range(501 if kept_records == 10 else 120):
        storage = Counting(LocalStorage(posix))
        calls = posix.calls
        run_epoch(ledger_in(folder, storage, kept_records=kept_records), number)
        posix.operations.clear()
        costs.append((posix.calls - calls, storage.asked))
        sizes.append((storage.published_bytes, storage.read_bytes))
        files.append(len(contents(folder)))

    assert all(cost == costs[steady_from] for cost in costs[steady_from:])
    assert costs[-1][1]["publish"] == 2
    assert max(files) == kept_records + 1
    # Numbers are written in decimal: from 10 to 1000 each of them grows by two digits, and nothing else does.
    numbers_in_an_epoch = 40
    for kind in (0, 1):
        grown = [size[kind] - sizes[steady_from][kind] for size in sizes[steady_from:]]
        assert 0 <= min(grown) <= max(grown) <= 2 * numbers_in_an_epoch
    records(folder)


# -- the upgrade promise ---------------------------------------------------------------------------------------------

OLD = Generation("5f0c2b9a41d84e6f", 38)
NEW = Generation("5f0c2b9a41d84e6f", 40)
SAMPLE_EPOCH = Epoch(7, "9b1c64f0a2e85d7733c0f1e2d4b5a697")
SAMPLE_FIRST = Decision(
    DecisionId(OLD.ledger, 39),
    OLD,
    SAMPLE_EPOCH,
    0,
    {
        "orders": SinkDecision(
            decided_by=DecisionId(OLD.ledger, 39),
            joined=0,
            base=0,
            origin=Marker(
                Owner("3a51", "orders"), Epoch(6, "00aa11bb22cc33dd44ee55ff66778899"), f"{OLD.ledger}.33.511"
            ),
            shares=(
                VotedShare(0, Attempt(OLD, 611), 1200, "7f3a", '{"producer_epoch":0,"producer_id":4001,"version":1}'),
                VotedShare(1, Attempt(OLD, 612), 0, "0", '{"producer_epoch":3,"producer_id":4002,"version":1}'),
                VotedShare(2, Attempt(OLD, 615), 7, "e1", '{"producer_epoch":0,"producer_id":4003,"version":1}'),
            ),
        ),
        "Prüfung / 監査": SinkDecision(
            decided_by=DecisionId(OLD.ledger, 39),
            joined=7,
            base=3,
            origin=None,
            shares=(
                VotedShare(
                    0,
                    Attempt(OLD, 620),
                    1207,
                    "e19b",
                    '{"bytes":88123,"name":"part-0 \\"ä\\".parquet","rows":1.5e+300,"version":2}',
                ),
            ),
        ),
    },
)
SAMPLE_REVISED = Decision(
    DecisionId(NEW.ledger, 41),
    NEW,
    SAMPLE_EPOCH,
    1,
    {
        "orders": SinkDecision(
            decided_by=DecisionId(NEW.ledger, 41),
            joined=0,
            base=0,
            origin=SAMPLE_FIRST.sinks["orders"].origin,
            shares=(
                SAMPLE_FIRST.sinks["orders"].shares[0],
                VotedShare(1, Attempt(NEW, 702), 0, "0", '{"producer_epoch":0,"producer_id":4009,"version":1}'),
                SAMPLE_FIRST.sinks["orders"].shares[2],
            ),
        ),
        "Prüfung / 監査": SAMPLE_FIRST.sinks["Prüfung / 監査"],
    },
)
SAMPLE_RECORDS: Sequence[Record] = (
    Prepare(
        number=38,
        nonce="n38",
        ledger=OLD.ledger,
        location="file:///checkpoints/orders/twophase",
        query="3a51",
        epoch=SAMPLE_EPOCH,
        tasks=True,
        sinks={"orders": Enrolment(0, 0), "dropped": Enrolment(2, 11)},
        replaces=("e7d0", "11aa"),
        decision=None,
        written_ms=1_763_300_000_038,
    ),
    Decide(39, "n39", OLD.ledger, SAMPLE_FIRST, 1_763_300_000_039),
    Prepare(
        number=40,
        nonce="n40",
        ledger=OLD.ledger,
        location="file:///checkpoints/orders/twophase",
        query="3a51",
        epoch=SAMPLE_EPOCH,
        tasks=True,
        sinks={"orders": Enrolment(0, 0), "dropped": Enrolment(2, 11), "Prüfung / 監査": Enrolment(7, 3)},
        replaces=("e7d0", "11aa"),
        decision=SAMPLE_FIRST,
        written_ms=1_763_300_000_040,
    ),
    Decide(41, "n41", OLD.ledger, SAMPLE_REVISED, 1_763_300_000_041),
    Prepare(
        number=42,
        nonce="n42",
        ledger=OLD.ledger,
        location="file:///checkpoints/orders/twophase",
        query="3a51",
        epoch=Epoch(8, "c4d5e6f708192a3b4c5d6e7f8091a2b3"),
        tasks=False,
        sinks={"orders": Enrolment(0, 0), "dropped": Enrolment(2, 11), "Prüfung / 監査": Enrolment(7, 3)},
        replaces=("e7d0", "11aa"),
        decision=SAMPLE_REVISED,
        written_ms=1_763_300_000_042,
    ),
)


def test_the_sample_of_version_1_is_read_record_by_record() -> None:
    """Never change the sample: it stands for the ledgers that are out there. A new format gets a sample beside it."""
    assert list(records(SAMPLE).items()) == [(record.number, record) for record in SAMPLE_RECORDS]


def test_the_same_content_written_today_has_the_same_bytes() -> None:
    written = {path_of(SAMPLE, record.number).name: encode(record) for record in SAMPLE_RECORDS}

    assert written == contents(SAMPLE)


def test_a_ledger_of_version_1_can_be_gone_on_with_from_any_of_its_records(tmp_path: Path) -> None:
    tails: list[Tail] = []
    for record in SAMPLE_RECORDS:
        tails.append(Tail(record, None) if isinstance(record, Prepare) else Tail(tails[-1].prepare, record))
    assert [tail.number for tail in tails] == [38, 39, 40, 41, 42]
    for kept, expected in enumerate(tails, 1):
        folder = tmp_path / str(kept)
        folder.mkdir()
        for record in SAMPLE_RECORDS[:kept]:
            shutil.copy(path_of(SAMPLE, record.number), folder)
        ledger = ledger_in(folder)
        tail = read(ledger)
        assert tail == expected
        with pytest.raises(CheckpointMismatch, match="file:///checkpoints/orders/twophase"):
            ledger.refuse_if_foreign(tail, query="3a51", moved_from=None)
        ledger.refuse_if_foreign(tail, query="3a51", moved_from="file:/checkpoints/orders/twophase")

        moved = ledger.prepare(tail, query="3a51", epoch=Epoch(8, "x"))

        assert moved.number == expected.number + 1
        assert moved.replaces == ("e7d0", "11aa", OLD.ledger)
        assert moved.decision == expected.decision
        assert moved.sinks == expected.sinks
        assert set(moved.sinks) >= {"orders", "dropped"}
        assert list(records(folder)) == [*range(38, moved.number + 1)]
