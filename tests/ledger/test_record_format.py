"""The record format: whatever is in a record, it is read back as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ledger.ledger_folder import (
    QUERY,
    decide,
    decision_after,
    epoch_of,
    framed,
    kinds,
    ledger_in,
    prepare,
    read,
    records,
)
from twophase.decision import Decision, SinkDecision
from twophase.identity import Attempt, DecisionId, Epoch, Generation, Owner
from twophase.record import Decide, Enrolment, Prepare, Record, decode, encode
from twophase.sink import Marker
from twophase.vote import VotedShare, canonical_json

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
    begun=st.none() | st.dictionaries(names, whole_numbers, max_size=3),
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
