"""Damaged records: torn, altered, senseless, out of place, of another program or of a newer release."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledger.ledger_folder import (
    QUERY,
    contents,
    copied,
    decide,
    epoch_of,
    framed,
    ledger_in,
    path_of,
    prepare,
    read,
    records,
    run_epoch,
)
from twophase.errors import LedgerCorrupt
from twophase.ledger import Tail
from twophase.record import RECORD_FORMAT, Decide, Prepare, decode, encode


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


def test_a_record_of_format_0_is_not_said_to_be_of_another_release(folder: Path) -> None:
    """No release has written it, so none can be run to read it."""
    prepare(ledger_in(folder), 0)
    damage(folder, framed(b"{}\n", version=0), "format 0", "no release has written")
    with pytest.raises(LedgerCorrupt) as caught:
        ledger_in(folder).read()
    assert "run the release" not in str(caught.value)


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


def test_a_format_of_thousands_of_digits_is_no_format(folder: Path, whole: bytes) -> None:
    name, number, checksum = whole.split(b" ", 2)
    damage(folder, b" ".join((name, number * 5_000, checksum)), "header is not whole")


def test_a_folder_in_the_place_of_the_next_record_is_explained(folder: Path) -> None:
    ledger = ledger_in(folder)
    prepare(ledger, 0)
    path_of(folder, 2).mkdir()
    with pytest.raises(LedgerCorrupt, match="is not a file"):
        prepare(ledger_in(folder), 0)
    assert path_of(folder, 2).is_dir()


@pytest.mark.parametrize("number", [2, 3], ids=["the newest", "the prepare before a decision"])
def test_a_link_that_leads_nowhere_in_the_place_of_a_record_is_explained(folder: Path, number: int) -> None:
    """As is left of a ledger whose records were moved away and linked to."""
    ledger = ledger_in(folder)
    for epoch in range(2):
        run_epoch(ledger, epoch)
    for newer in range(number + 2 if number == 3 else number + 1, 5):
        path_of(folder, newer).unlink()
    path_of(folder, number).unlink()
    path_of(folder, number).symlink_to(folder / "elsewhere.record")
    with pytest.raises(LedgerCorrupt, match="leads nowhere") as caught:
        ledger_in(folder).read()
    assert str(path_of(folder, number)) in str(caught.value)
    assert path_of(folder, number).is_symlink()
