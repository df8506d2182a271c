"""Messages become columns by their addresses: whatever their lengths, and wherever they lie."""

from __future__ import annotations

import mmap

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophase.sources.kafka.columns import Messages, _owned

WORDS = 14


def addresses_of(values: list[bytes | None], memory: np.ndarray, places: list[int]) -> tuple[np.ndarray, np.ndarray]:
    start = memory.ctypes.data
    for value, place in zip(values, places, strict=True):
        if value:
            memory[place : place + len(value)] = np.frombuffer(value, np.uint8)
    addresses = [0 if value is None else start + place for value, place in zip(values, places, strict=True)]
    return np.array(addresses, np.uint64), np.array([len(value or b"") for value in values], np.uint64)


@given(st.lists(st.none() | st.binary(max_size=40), max_size=50), st.integers(0, 7))
def test_bytes_come_back_as_they_lie_in_memory(values: list[bytes | None], shift: int) -> None:
    """Of any length, at any place of a word, with other bytes right before and after them."""
    memory = np.full(50 * 50 + 8, 0xAA, np.uint8)
    places = [shift + 8 + 50 * number + number % 8 for number in range(len(values))]
    addresses, lengths = addresses_of(values, memory, places)
    assert _owned(addresses, lengths).to_pylist() == values


def test_what_is_copied_does_not_change_with_its_memory() -> None:
    memory = np.zeros(100, np.uint8)
    values: list[bytes | None] = [b"short", b"longer than twelve bytes"]
    column = _owned(*addresses_of(values, memory, [0, 30]))
    memory[:] = 0xFF
    assert column.to_pylist() == values


@pytest.mark.parametrize("length", [*range(1, 14), 100])
def test_nothing_is_read_beyond_the_page_of_a_value(length: int) -> None:
    """The last bytes of a mapping: whoever reads on is killed."""
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        memory = np.frombuffer(page, np.uint8)
        value = bytes(range(1, length + 1))
        addresses, lengths = addresses_of([value], memory, [mmap.PAGESIZE - length])
        assert _owned(addresses, lengths).to_pylist() == [value]
        del memory


def test_values_may_lie_in_regions_that_are_far_apart() -> None:
    first, second = np.zeros(1 << 20, np.uint8), np.zeros(1 << 20, np.uint8)
    one = addresses_of([b"a value in the one"], first, [5])
    other = addresses_of([b"and one in the other"], second, [7])
    with mmap.mmap(-1, 3 << 30) as large:
        far = np.frombuffer(large, np.uint8)
        third = addresses_of([b"more than a region away"], far, [(3 << 30) - 23])
        found = _owned(*(np.concatenate(parts) for parts in zip(one, other, third, strict=True)))
        assert found.to_pylist() == [b"a value in the one", b"and one in the other", b"more than a region away"]
        del far


def test_the_words_of_a_message_are_what_they_stand_for() -> None:
    """By structures that are laid out as the library's public header says."""
    value, key = b"the value of a record", b"key"
    memory = np.zeros(100, np.uint8)
    (at_value, at_key), _ = addresses_of([value, key], memory, [1, 50])
    structures = np.zeros((2, WORDS), np.uint64)
    structures[0, 0] = np.uint64(np.uint32(np.int32(-191).view(np.uint32)))
    structures[0, 7] = 41
    structures[1, 3:8] = (at_value, len(value), at_key, len(key), 42)
    pointers = np.array([structures[number].ctypes.data for number in range(2)], np.uint64)
    messages = Messages(pointers)
    assert messages.errors().tolist() == [-191, 0]
    assert messages.offsets().tolist() == [41, 42]
    records = messages.where(messages.errors() == 0)
    assert (records.keys().to_pylist(), records.values().to_pylist()) == ([key], [value])
    assert records.sizes().tolist() == [len(key) + len(value)]
    assert records.values().type == pa.binary()
