"""Keys and rows of a state as bytes: they come back as they were, keys sort as bytes, and groups are found by Spark's hash."""

from __future__ import annotations

import datetime
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twophase.state.key_encoding import decode_keys, encode_keys
from twophase.state.key_groups import GroupRange, KeyGroups
from twophase.state.row_encoding import decode_rows, encode_rows, is_storable
from twophase.state.xx_hash import is_hashable, xx_hash
from twophase.testing.arrow_columns import ARROW_COLUMNS, same_values

STORABLE = {name: column for name, column in ARROW_COLUMNS.items() if is_storable(column.type)}
HASHABLE = {name: column for name, column in ARROW_COLUMNS.items() if is_hashable(column.type)}


def pieces(column: Any) -> list[Any]:
    """A column as it is, a slice out of the middle of a longer one, and nothing of it."""
    longer = pa.concat_arrays([column, column])
    return [column, longer.slice(1, len(column)), column.slice(0, 0)]


def assert_same(expected: Any, found: Any) -> None:
    found.validate(full=True)
    assert found.type == expected.type
    wrong = [(a, b) for a, b in zip(expected.to_pylist(), found.to_pylist(), strict=True) if not same_values(a, b)]
    assert wrong == []


def test_every_type_but_dictionaries_can_be_stored() -> None:
    assert [name for name in ARROW_COLUMNS if name not in STORABLE] == [
        name for name in ARROW_COLUMNS if name.startswith("dictionary")
    ]


@pytest.mark.parametrize("kind", STORABLE)
def test_rows_come_back_as_they_were(kind: str) -> None:
    for column in pieces(STORABLE[kind]):
        numbers = pa.array(range(len(column)), pa.int64())
        first, second, last = decode_rows(
            encode_rows([column, numbers, column], len(column)), [column.type, pa.int64(), column.type]
        )
        assert_same(column, first)
        assert_same(numbers, second)
        assert_same(column, last)


@pytest.mark.parametrize("kind", HASHABLE)
def test_keys_come_back_as_they_were_and_sort_as_bytes(kind: str) -> None:
    for column in pieces(HASHABLE[kind]):
        groups = np.full(len(column), 3, np.int64)
        numbers = pa.array(range(len(column)), pa.int64())
        first, second, last = decode_keys(
            encode_keys(groups, [column, numbers, column], len(column)), [column.type, pa.int64(), column.type]
        )
        assert_same(column, first)
        assert_same(numbers, second)
        assert_same(column, last)
        keys = encode_keys(None, [column], len(column)).to_pylist()
        in_order = [value for _, value in sorted(zip(keys, column.to_pylist(), strict=True), key=lambda pair: pair[0])]
        assert in_order == sorted(in_order, key=_order)


_key = st.tuples(
    st.none() | st.text(max_size=40),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.binary(max_size=40),
    st.none() | st.booleans(),
    st.none() | st.dates(),
    st.none() | st.decimals(-(10**8), 10**8, places=3),
)
_TYPES = [pa.string(), pa.int64(), pa.binary(), pa.bool_(), pa.date32(), pa.decimal128(18, 3)]


@settings(max_examples=50, deadline=None)
@given(st.lists(_key, min_size=1, max_size=30))
def test_keys_of_several_columns_sort_column_by_column(keys: list[tuple[Any, ...]]) -> None:
    columns = [pa.array(list(values), kind) for values, kind in zip(zip(*keys, strict=True), _TYPES, strict=True)]

    encoded = encode_keys(None, columns, len(keys)).to_pylist()

    by_bytes = [key for _, key in sorted(zip(encoded, keys, strict=True), key=lambda pair: pair[0])]
    assert by_bytes == sorted(keys, key=lambda key: tuple(_order(value) for value in key))
    assert len(set(encoded)) == len(set(keys))


def _order(value: Any) -> tuple[Any, ...]:
    """Nulls first; texts by their UTF-8."""
    if value is None:
        return (0,)
    return (1, value.encode() if isinstance(value, str) else value)


# ---- the hash ----

_MASK = (1 << 64) - 1
_P1, _P2, _P3, _P4, _P5 = (
    11400714785074694791,
    14029467366897019727,
    1609587929392839161,
    9650029242287828579,
    2870177450012600261,
)


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def plain_xxh64(data: bytes, seed: int) -> int:
    """By the book, one step after the other."""
    at, rest = 0, len(data)
    if rest >= 32:
        lanes = [(seed + _P1 + _P2) & _MASK, (seed + _P2) & _MASK, seed, (seed - _P1) & _MASK]
        while rest >= 32:
            for lane, word in enumerate(struct.unpack_from("<4Q", data, at)):
                lanes[lane] = _rotated((lanes[lane] + word * _P2) & _MASK, 31) * _P1 & _MASK
            at, rest = at + 32, rest - 32
        value = sum(_rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            value = ((value ^ (_rotated(lane * _P2 & _MASK, 31) * _P1 & _MASK)) * _P1 + _P4) & _MASK
    else:
        value = (seed + _P5) & _MASK
    value = (value + len(data)) & _MASK
    while rest >= 8:
        word = int.from_bytes(data[at : at + 8], "little")
        value = (_rotated(value ^ (_rotated(word * _P2 & _MASK, 31) * _P1 & _MASK), 27) * _P1 + _P4) & _MASK
        at, rest = at + 8, rest - 8
    if rest >= 4:
        value = (_rotated(value ^ (int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at, rest = at + 4, rest - 4
    for byte in data[at:]:
        value = _rotated(value ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    value = (value ^ (value >> 33)) * _P2 & _MASK
    value = (value ^ (value >> 29)) * _P3 & _MASK
    return value ^ (value >> 32)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.none() | st.binary(max_size=150), min_size=1, max_size=20), st.lists(st.integers(-(2**63), 2**63 - 1))
)
def test_the_hash_is_xxh64_of_each_column_with_that_of_the_last_as_its_seed(
    texts: list[bytes | None], numbers: list[int]
) -> None:
    """A number is hashed as its 8 bytes; a null leaves the seed."""
    numbers = (numbers + [0] * len(texts))[: len(texts)]
    columns = [pa.array(texts, pa.binary()), pa.array(numbers, pa.int64())]

    found = xx_hash(columns, len(texts)).view(np.uint64).tolist()

    seeds = [42 if text is None else plain_xxh64(text, 42) for text in texts]
    assert found == [plain_xxh64(struct.pack("<q", n), seed) for n, seed in zip(numbers, seeds, strict=True)]


def test_what_spark_says() -> None:
    """Written down, so that a change of the hash, by which rows are found, is noticed without Spark too."""
    columns = [pa.array(["Spark", None]), pa.array([1, 2], pa.int64()), pa.array([3, None], pa.int32())]
    assert xx_hash(columns[:1], 2).tolist() == [-4294468057691064905, 42]
    assert xx_hash([pa.array([1], pa.int64())], 1).tolist() == [-7001672635703045582]
    day, price = pa.array([datetime.date(2026, 1, 1)]), pa.array([Decimal("1.25")], pa.decimal128(10, 2))
    assert xx_hash([day], 1).tolist() == xx_hash([day.cast(pa.int32())], 1).tolist()
    assert xx_hash([price], 1).tolist() == xx_hash([pa.array([125], pa.int64())], 1).tolist()


# ---- groups ----


@given(st.integers(1, 300), st.integers(1, 300))
def test_ranges_of_tasks_cover_all_groups_once_and_in_order(count: int, tasks: int) -> None:
    groups = KeyGroups(count)
    owned = [groups.owned(slot, tasks) for slot in range(tasks)]

    assert [group for each in owned for group in range(each.first, each.end)] == list(range(count))
    assert all(group in owned[groups.slot_of(group, tasks)] for group in range(count))


@given(*([st.integers(0, 20)] * 4))
def test_a_range_without_another_is_what_is_left(a: int, b: int, c: int, d: int) -> None:
    one, other = GroupRange(min(a, b), max(a, b)), GroupRange(min(c, d), max(c, d))
    left = [group for each in one.without(other) for group in range(each.first, each.end)]

    assert left == [group for group in range(one.first, one.end) if group not in other]
