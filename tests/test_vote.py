"""Votes: JSON text that is read as data, whatever it holds."""

from __future__ import annotations

import json
import os
import pickle
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twophase.checksum import Checksum
from twophase.errors import ProtocolViolation
from twophase.identity import Attempt, Epoch, Generation
from twophase.sinks.heap import HeapHandle
from twophase.vote import Vote, VotedShare, canonical_json

GENERATION = Generation("0123456789abcdef", 7)
EPOCH = Epoch(3, "f" * 32)
SHARE = VotedShare.of(2, Attempt(GENERATION, 11), 4, Checksum().value, HeapHandle(4, False))
VOTE = Vote(GENERATION, EPOCH, "heap", 2, SHARE)

NAMES = st.text(st.characters(exclude_categories=()), max_size=20)
NUMBERS = st.integers(0, 2**63 - 1)


def altered(**changes: Any) -> str:
    return json.dumps({**json.loads(VOTE.to_text()), **changes})


def altered_share(**changes: Any) -> str:
    data = json.loads(VOTE.to_text())
    return json.dumps({**data, "share": {**data["share"], **changes}})


@given(sink=NAMES, slot=st.integers(0, 100_000), task=st.integers(-1, 2**63 - 1), rows=NUMBERS, drained=st.booleans())
@example(sink='"}', slot=0, task=0, rows=0, drained=False)
@example(sink="\ud800", slot=0, task=-1, rows=0, drained=True)
def test_a_vote_round_trips(sink: str, slot: int, task: int, rows: int, drained: bool) -> None:
    share = VotedShare.of(slot, Attempt(GENERATION, task), rows, Checksum().value, HeapHandle(rows, True))
    vote = Vote(GENERATION, EPOCH, sink, slot, None if drained else share)
    text = vote.to_text()
    assert Vote.from_text(text) == vote
    assert Vote.from_text(text).to_text() == text


def test_the_text_does_not_depend_on_the_order_of_keys() -> None:
    shuffled = json.dumps(dict(reversed(json.loads(VOTE.to_text()).items())), indent=2)
    assert Vote.from_text(shuffled) == VOTE
    assert Vote.from_text(shuffled).to_text() == VOTE.to_text()
    assert canonical_json({"b": 1, "a": [2, {"d": 3, "c": 4}]}) == '{"a":[2,{"c":4,"d":3}],"b":1}'


def test_the_handle_is_read_as_the_type_that_the_sink_says() -> None:
    share = Vote.from_text(VOTE.to_text()).share
    assert share is not None
    assert share.read(HeapHandle).handle == HeapHandle(4, False)


def test_a_vote_is_never_unpickled(tmp_path: Any) -> None:
    trap = tmp_path / "sprung"

    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(trap),)

    data = pickle.dumps(Trap(), protocol=0)
    for text in (data.decode("latin-1"), data, altered(sink=data.decode("latin-1"), share=data.decode("latin-1"))):
        with pytest.raises(ProtocolViolation):
            Vote.from_text(text)  # type: ignore[arg-type]
    assert not trap.exists()


@pytest.mark.parametrize("form", [0, 2, 99, "1", None, [1]], ids=str)
def test_a_vote_of_another_format_is_refused_and_says_what_to_do(form: Any) -> None:
    with pytest.raises(ProtocolViolation, match="driver and executors must run the same release"):
        Vote.from_text(altered(format=form))


MALFORMED = {
    "nothing": "",
    "not json": "vote",
    "torn": VOTE.to_text()[:-5],
    "two": VOTE.to_text() * 2,
    "null": "null",
    "number": "5",
    "list": "[]",
    "text": '"vote"',
    "empty object": "{}",
    "nan": '{"format": 1, "generation": NaN}',
    "deep": "[" * 100_000,
    "long number": '{"format": ' + "9" * 5_000 + "}",
    "generation is a number": altered(generation=5),
    "generation is null": altered(generation=None),
    "generation is a list": altered(generation=["l", 1]),
    "generation without number": altered(generation="l"),
    "epoch is a number": altered(epoch=3),
    "epoch without number": altered(epoch="@x"),
    "sink is a number": altered(sink=5),
    "sink is null": altered(sink=None),
    "slot is text": altered(slot="2"),
    "slot is null": altered(slot=None),
    "slot is a fraction": altered(slot=2.5),
    "slot is a boolean": altered(slot=True, share=None),
    "slot is negative": altered(slot=-1, share=None),
    "share is a list": altered(share=[]),
    "share is text": altered(share="x"),
    "share is empty": altered(share={}),
    "share of another slot": altered_share(slot=1),
    "share's slot is a fraction": altered_share(slot=2.5),
    "attempt is a number": altered_share(attempt=11),
    "attempt is no attempt": altered_share(attempt="x.y"),
    "rows is text": altered_share(rows="many"),
    "rows is null": altered_share(rows=None),
    "rows is a fraction": altered_share(rows=3.5),
    "rows is negative": altered_share(rows=-1),
    "checksum is null": altered_share(checksum=None),
    "handle holds nan": VOTE.to_text().replace('"rows":4,"version"', '"rows":NaN,"version"'),
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_vote_is_a_protocol_violation(text: str) -> None:
    with pytest.raises(ProtocolViolation):
        Vote.from_text(text)


@given(
    data=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
    )
)
@example(data={})
def test_whatever_stands_in_a_field_the_answer_is_a_vote_or_a_protocol_violation(data: Any) -> None:
    for field in ("format", "generation", "epoch", "sink", "slot", "share"):
        try:
            vote = Vote.from_text(altered(**{field: data}))
        except ProtocolViolation:
            continue
        assert isinstance(vote.sink, str)
        assert type(vote.slot) is int


def test_a_field_too_few_is_a_protocol_violation() -> None:
    for field in json.loads(VOTE.to_text()):
        data = json.loads(VOTE.to_text())
        del data[field]
        with pytest.raises(ProtocolViolation):
            Vote.from_text(json.dumps(data))


@pytest.mark.parametrize(
    "handle", [None, [], 5, "x", {}, {"version": 2}, {"version": 1, "rows": "4", "overwrite": False}], ids=str
)
def test_a_handle_that_the_sink_can_not_read_is_a_protocol_violation(handle: Any) -> None:
    with pytest.raises(ProtocolViolation):
        _read_handle(altered_share(handle=handle))


def _read_handle(text: str) -> HeapHandle:
    share = Vote.from_text(text).share
    assert share is not None
    return share.read(HeapHandle).handle
