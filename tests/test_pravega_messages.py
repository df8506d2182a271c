"""What goes to Pravega's controller and segment stores, and comes from there, as bytes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twophase.clients.pravega import message
from twophase.clients.pravega.events import LARGEST_EVENT, blocks_of, events_of, whole_events
from twophase.clients.pravega.message import Message
from twophase.clients.pravega.stream import Stream, problem_with
from twophase.errors import SchemaMismatch, Unreadable

PROPERTY = settings(deadline=None, max_examples=100)


@PROPERTY
@given(st.integers(-(2**63), 2**63 - 1))
def test_a_number_is_read_as_it_was_written(value: int) -> None:
    assert Message(message.number(3, value)).number(3) == value


def test_a_message_is_read_as_it_was_written() -> None:
    inner = message.text(1, "scope") + message.text(2, "strëam")
    data = message.message(1, inner) + message.double(2, 0.25) + message.numbers_by_number(3, {5: 7, 1 << 32: 9})
    read = Message(data)

    assert (read.message(1).text(1), read.message(1).text(2), read.double(2)) == ("scope", "strëam", 0.25)
    assert {each.number(1): each.number(2) for each in read.messages(3)} == {5: 7, 1 << 32: 9}


def test_a_field_that_is_not_there_is_empty() -> None:
    read = Message(b"")

    assert (read.number(1), read.text(2), read.double(3), read.numbers(4), list(read.messages(5))) == (
        0,
        "",
        0.0,
        [],
        [],
    )


def test_repeated_numbers_are_read_packed_and_one_by_one() -> None:
    packed = message.message(2, message.varint(1) + message.varint(300))

    assert Message(packed).numbers(2) == [1, 300]
    assert Message(message.number(2, 1) + message.number(2, 300)).numbers(2) == [1, 300]


@pytest.mark.parametrize("data", [b"\x08", b"\x0a\x05abc", b"\x0b"])
def test_what_is_cut_off_is_no_message(data: bytes) -> None:
    with pytest.raises(ValueError, match="a message"):
        Message(data)


@PROPERTY
@given(st.lists(st.binary(max_size=40), max_size=50), st.integers(0, 3))
def test_events_are_read_as_they_were_written(values: list[bytes], skipped: int) -> None:
    column = pa.array([b"left out"] * skipped + values, pa.binary()).slice(skipped)
    blocks = list(blocks_of(column))
    data = b"".join(bytes(block.data) for block in blocks)
    ends = whole_events(data, 1000, "segment")
    events = events_of(data, ends, 1000)

    assert sum(block.events for block in blocks) == len(values)
    assert (events.values.to_pylist(), ends[-1]) == (values, len(data))
    assert list(events.positions) == [1000 + end for end in ends[:-1]]


def test_blocks_end_where_events_do_and_a_large_event_is_one_of_its_own() -> None:
    values = [b"a" * 600_000, b"b" * 600_000, b"c" * 3_000_000, b"d"]
    blocks = list(blocks_of(pa.array(values, pa.large_binary())))

    assert [block.events for block in blocks] == [1, 1, 1, 1]
    assert [len(block.data) - 8 for block in blocks] == [len(value) for value in values]


def test_text_is_written_as_utf8() -> None:
    (block,) = blocks_of(pa.array(["grün", "€"]))

    assert bytes(block.data) == b"\0\0\0\0\0\0\0\x05gr\xc3\xbcn\0\0\0\0\0\0\0\x03\xe2\x82\xac"


def test_an_event_that_no_client_could_write_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match=str(LARGEST_EVENT)):
        list(blocks_of(pa.array([b"x" * (LARGEST_EVENT + 1)])))


def test_only_whole_events_are_taken_and_no_more_than_asked_for() -> None:
    (block,) = blocks_of(pa.array([b"one", b"two", b"three"]))
    data = bytes(block.data)

    assert whole_events(data[:-1], 0, "segment") == [0, 11, 22]
    assert whole_events(data, 0, "segment", most=1) == [0, 11]
    assert whole_events(data[:5], 0, "segment") == [0]


def test_bytes_that_are_no_events_are_named_with_their_place() -> None:
    with pytest.raises(Unreadable, match="no event at 1003"):
        whole_events(b"\0\0\0\1aaaa", 1003, "segment")


def test_segments_have_the_names_by_which_stores_know_them() -> None:
    stream = Stream("shop", "orders")

    assert stream.segment((7 << 32) + 3) == "shop/orders/3.#epoch.7"
    assert stream.transaction_segment(0, "ab" * 16) == f"shop/orders/0.#epoch.0#transaction.{'ab' * 16}"


@pytest.mark.parametrize(("name", "fits"), [("orders-2026.v1", True), ("", False), ("a/b", False), ("_system", False)])
def test_names_that_users_may_not_give_are_refused(name: str, fits: bool) -> None:
    assert (problem_with(name) == "") is fits
