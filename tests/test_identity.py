"""The names of things: one text form each, and its inverse."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from twophase.identity import Attempt, DecisionId, Epoch, Generation, Owner, offsets_hash
from twophase.names import LONGEST, escape

# Lone surrogates too: an option can hold one.
NAMES = st.text(st.characters(exclude_categories=()), max_size=40)
NUMBERS = st.integers(0, 2**63 - 1)
LEDGERS = st.text("0123456789abcdef", min_size=1, max_size=32)
HOSTILE = ["", ".", "..", "../..", "/", "a/b", "@", "a@b", "%", "%2F", "a.b", "\0", "\n", "é", "e\u0301", "\ud800", " "]


@given(number=st.integers(-1, 2**63 - 1), offsets=st.one_of(st.just(""), st.text("0123456789abcdef", min_size=32)))
def test_an_epoch_round_trips(number: int, offsets: str) -> None:
    epoch = Epoch(number, offsets)
    assert Epoch.parse(str(epoch)) == epoch


@given(query=NAMES, sink=NAMES)
@example(query="a/b", sink="c")
@example(query="a", sink="b/c")
@example(query="", sink="")
@example(query="\ud800", sink="..")
def test_an_owner_round_trips_and_is_two_harmless_path_components(query: str, sink: str) -> None:
    owner = Owner(query, sink)
    text = str(owner)
    # One that was cut may be two shorter than the longest: no half of an escape is left at the cut.
    assume(all(len(escape(name)) < LONGEST - 2 for name in (query, sink)))
    assert Owner.parse(text) == owner
    assert text.isascii()
    assert text.count("/") == 1
    assert not {"", ".", ".."} & set(text.split("/"))


@pytest.mark.parametrize("one", HOSTILE, ids=ascii)
def test_owners_that_differ_differ_in_their_text(one: str) -> None:
    texts = [str(Owner(*pair)) for other in HOSTILE if other != one for pair in ((one, other), (other, one))]
    assert len(set(texts)) == len(texts)
    assert str(Owner("a/b", "c")) != str(Owner("a", "b/c"))


@given(
    ledger=LEDGERS,
    number=NUMBERS,
    task=st.integers(-1, 2**63 - 1),
    nonce=st.from_regex("[a-z0-9]{0,12}", fullmatch=True),
)
@example(ledger="with.dots.5", number=5, task=-1, nonce="")
@example(ledger="with.dots.5", number=5, task=-1, nonce="12")
def test_generations_attempts_and_decisions_round_trip(ledger: str, number: int, task: int, nonce: str) -> None:
    generation = Generation(ledger, number)
    attempt = Attempt(generation, task, nonce)
    decision = DecisionId(ledger, number)
    assert Generation.parse(str(generation)) == generation
    assert Attempt.parse(str(attempt)) == attempt
    assert DecisionId.parse(str(decision)) == decision


@given(one=LEDGERS, two=LEDGERS, numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS, NUMBERS))
def test_attempts_that_differ_differ_in_their_text(one: str, two: str, numbers: tuple[int, int, int, int]) -> None:
    a = Attempt(Generation(one, numbers[0]), numbers[1])
    b = Attempt(Generation(two, numbers[2]), numbers[3])
    assert (str(a) == str(b)) == (a == b)


@given(ledger=LEDGERS, one=NUMBERS, two=NUMBERS)
def test_generations_of_one_ledger_are_ordered_by_number(ledger: str, one: int, two: int) -> None:
    first, second = Generation(ledger, one), Generation(ledger, two)
    assert first.is_older_than(second) == (one < two)
    assert [first.is_older_than(second), first == second, second.is_older_than(first)].count(True) == 1


@given(ledgers=st.tuples(LEDGERS, LEDGERS), one=NUMBERS, two=NUMBERS)
def test_of_generations_of_different_ledgers_neither_is_older(ledgers: tuple[str, str], one: int, two: int) -> None:
    assume(ledgers[0] != ledgers[1])
    first, second = Generation(ledgers[0], one), Generation(ledgers[1], two)
    assert first != second
    assert not first.is_older_than(second)
    assert not second.is_older_than(first)


def test_generations_have_no_other_order() -> None:
    with pytest.raises(TypeError):
        sorted([Generation("a", 2), Generation("a", 1)])  # type: ignore[type-var]


@pytest.mark.parametrize("text", ["", "@", "x@y", "1.5@y", "None"])
def test_what_is_no_epoch_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        Epoch.parse(text)


@pytest.mark.parametrize("text", ["", "l", "l.", "l.x", ".", "l.1.5x"])
@pytest.mark.parametrize("kind", [Generation, Attempt, DecisionId])
def test_what_is_no_id_is_a_value_error(kind: type[Generation | Attempt | DecisionId], text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        kind.parse(text)


@pytest.mark.parametrize("text", ["", "a", "a/", "/a", "a/b/c", "a/b c", "%2f/a", "%41/a", "../a", "a/%zz"])
def test_what_is_no_owner_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="not an escaped name"):
        Owner.parse(text)


def test_the_offsets_hash_depends_on_every_byte_and_on_nothing_else() -> None:
    assert offsets_hash(b"v1\n{}") == offsets_hash(b"v1\n{}") == "fb367f591ca61e8e67fb21c87ccaf605"
    assert len({offsets_hash(data) for data in (b"", b"\n", b"v1\n{}", b"v1\n{}\n", b"v1\n{} ")}) == 5
