"""The sequence of records: numbers step by one, a decision directly follows its prepare, and nothing is kept in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ledger.ledger_folder import (
    NOW_MS,
    QUERY,
    contents,
    decide,
    decision_after,
    epoch_of,
    kinds,
    ledger_in,
    prepare,
    read,
    records,
    run_epoch,
)
from twophase.decision import Decision
from twophase.errors import ProtocolViolation
from twophase.identity import DecisionId, Generation
from twophase.record import Decide, Prepare


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
        begun={},
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


def test_a_sink_is_begun_from_its_first_prepare_with_tasks_until_a_decision_names_it(folder: Path) -> None:
    ledger = ledger_in(folder)
    prepare(ledger, 0, writes=["orders"])
    assert read(ledger).begun == {"orders": 0}
    prepare(ledger, 0, tasks=False, writes=["orders", "audit"])
    assert read(ledger).begun == {"orders": 0}, "a fence begins nothing, and forgets nothing"
    prepare(ledger, 0, writes=["orders"])
    decide(ledger, "orders")
    assert read(ledger).begun == {}
    prepare(ledger, 1, writes=["orders", "audit"])
    assert read(ledger).begun == {"audit": 1}
    prepare(ledger, 1, writes=["orders"])
    assert read(ledger).begun == {}, "it was removed from the query before its first epoch was decided"
