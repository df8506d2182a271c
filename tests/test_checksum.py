"""The checksum of rows: equal for the same rows in any order and layout, different for anything else."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from twophase import checksum
from twophase.checksum import Checksum, combine

Values = list[Any]

# On a busy machine a single example may take long; and a small alphabet spares the tables of all of Unicode.
PROPERTY = settings(deadline=None)
ALPHABET = "aB \0ßé€𝄞"

array: Any = pa.array  # the stubs know only part of what it takes


@pytest.fixture(scope="module", params=["C", "numpy"], autouse=True)
def _loops(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything holds with and without the extension."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "numpy":
            patch.setattr(checksum, "native", None)
        yield


def value_of(*batches: pa.RecordBatch) -> str:
    total = Checksum()
    for batch in batches:
        total.add(batch)
    return total.value


def batch_of(*arrays: pa.Array[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(arrays), [f"c{index}" for index in range(len(arrays))])


def value_of_array(column: pa.Array[Any]) -> str:
    return value_of(batch_of(column))


# -- random tables of random types -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """An Arrow type, how to draw values of it, and what makes two of them the same."""

    type: pa.DataType
    values: st.SearchStrategy[Any]
    identity: Callable[[Any], Any] = lambda value: value

    def identify(self, value: Any) -> Any:
        return None if value is None else self.identity(value)

    @property
    def nullable(self) -> st.SearchStrategy[Any]:
        return st.none() | self.values


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) if signed else st.integers(0, (1 << bits) - 1)


def floats(width: Literal[16, 32, 64]) -> Kind:
    number: Any = {16: np.float16, 32: np.float32, 64: np.float64}[width]
    kind: Any = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}[width]
    values = st.floats(width=width, allow_nan=False) | st.just(float("nan"))
    return Kind(kind, values.map(number), lambda value: value.tobytes())


def interval(parts: tuple[int, int, int]) -> Any:
    kind: Any = pa.MonthDayNano
    return kind(parts)


LEAVES = [
    Kind(pa.null(), st.none()),
    Kind(pa.bool_(), st.booleans()),
    *(Kind(kind, integers(kind.bit_width)) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())),
    *(Kind(kind, integers(kind.bit_width, signed=False)) for kind in (pa.uint8(), pa.uint64())),
    floats(16),
    floats(32),
    floats(64),
    Kind(pa.decimal128(38, 3), integers(120).map(lambda value: Decimal(value).scaleb(-3))),
    Kind(pa.decimal256(60, 0), integers(190).map(Decimal)),
    Kind(pa.decimal32(9, 2), integers(29).map(lambda value: Decimal(value).scaleb(-2))),
    Kind(pa.date32(), integers(32)),
    Kind(pa.date64(), st.integers(-10_000, 10_000).map(lambda day: day * 86_400_000)),
    Kind(pa.timestamp("us"), integers(64)),
    Kind(pa.timestamp("us", "Europe/Berlin"), integers(64)),
    Kind(pa.duration("us"), integers(64)),
    Kind(pa.time32("s"), st.integers(0, 86_399)),
    Kind(pa.time64("ns"), st.integers(0, 86_399_999_999_999)),
    Kind(pa.month_day_nano_interval(), st.tuples(integers(32), integers(32), integers(64)).map(interval)),
    *(Kind(kind, st.text(ALPHABET, max_size=20)) for kind in (pa.string(), pa.large_string(), pa.string_view())),
    *(Kind(kind, st.binary(max_size=200)) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    Kind(pa.binary(5), st.binary(min_size=5, max_size=5)),
]


def list_kind(element: Kind) -> Kind:
    values = st.lists(element.nullable, max_size=4)
    return Kind(pa.list_(element.type), values, lambda value: tuple(map(element.identify, value)))


def fixed_size_list_kind(element: Kind) -> Kind:
    values = st.lists(element.nullable, min_size=2, max_size=2)
    return Kind(pa.list_(element.type, 2), values, lambda value: tuple(map(element.identify, value)))


def struct_kind(fields: Sequence[Kind]) -> Kind:
    names = [f"f{index}" for index in range(len(fields))]
    values = st.tuples(*(field.nullable for field in fields)).map(lambda value: dict(zip(names, value, strict=True)))
    return Kind(
        pa.struct([(name, field.type) for name, field in zip(names, fields, strict=True)]),
        values,
        lambda value: tuple(field.identify(value[name]) for name, field in zip(names, fields, strict=True)),
    )


def map_kind(item: Kind) -> Kind:
    values = st.dictionaries(st.text(ALPHABET, max_size=3), item.nullable, max_size=3).map(
        lambda value: list(value.items())
    )
    return Kind(
        pa.map_(pa.string(), item.type),
        values,
        lambda value: frozenset((key, item.identify(entry)) for key, entry in value),
    )


KINDS = st.recursive(
    st.sampled_from(LEAVES),
    lambda kinds: st.one_of(
        kinds.map(list_kind),
        kinds.map(fixed_size_list_kind),
        kinds.map(map_kind),
        st.lists(kinds, max_size=3).map(struct_kind),
    ),
    max_leaves=4,
)


@dataclass(frozen=True)
class Rows:
    """A small table: for each column its kind, and for each row its values."""

    kinds: list[Kind]
    rows: list[tuple[Any, ...]]

    def with_rows(self, rows: Sequence[tuple[Any, ...]]) -> Rows:
        return Rows(self.kinds, list(rows))

    def replaced(self, row: int, column: int, value: Any) -> Rows:
        changed = list(self.rows)
        changed[row] = (*changed[row][:column], value, *changed[row][column + 1 :])
        return self.with_rows(changed)

    @property
    def batch(self) -> pa.RecordBatch:
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.kinds)
        return batch_of(*(array(list(v), kind.type) for v, kind in zip(columns, self.kinds, strict=True)))

    @property
    def contents(self) -> Counter[tuple[Any, ...]]:
        """The rows as a multiset, by an independent notion of sameness."""
        return Counter(
            tuple(kind.identify(value) for kind, value in zip(self.kinds, row, strict=True)) for row in self.rows
        )


@st.composite
def tables(draw: st.DrawFn, min_rows: int = 0) -> Rows:
    kinds = draw(st.lists(KINDS, min_size=1, max_size=4))
    rows = draw(st.lists(st.tuples(*(kind.nullable for kind in kinds)), min_size=min_rows, max_size=12))
    return Rows(kinds, rows)


@PROPERTY
@given(tables(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(table: Rows, random: Any) -> None:
    shuffled = list(table.rows)
    random.shuffle(shuffled)

    assert value_of(table.with_rows(shuffled).batch) == value_of(table.batch)


@PROPERTY
@given(tables(), st.lists(st.integers(0, 12)))
def test_the_borders_of_batches_and_the_offsets_of_slices_do_not_matter(table: Rows, cuts: list[int]) -> None:
    whole = table.batch
    borders = [0, *sorted(min(cut, whole.num_rows) for cut in cuts), whole.num_rows]
    parts = [whole.slice(low, high - low) for low, high in pairwise(borders)]

    assert value_of(*parts) == value_of(whole)
    assert combine(map(value_of, parts)) == value_of(whole)


@PROPERTY
@given(tables())
def test_what_lies_around_a_slice_does_not_matter(table: Rows) -> None:
    around = [*table.rows[:2], *table.rows, *table.rows[-3:]]
    inside = table.with_rows(around).batch.slice(len(table.rows[:2]), len(table.rows))

    assert value_of(inside) == value_of(table.batch)


@PROPERTY
@given(tables(min_rows=1), st.data())
def test_one_changed_value_always_shows(table: Rows, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(table.rows) - 1))
    column = data.draw(st.integers(0, len(table.kinds) - 1))
    changed = table.replaced(row, column, data.draw(table.kinds[column].nullable))
    assume(changed.contents != table.contents)

    assert value_of(changed.batch) != value_of(table.batch)


@PROPERTY
@given(tables(min_rows=2), st.data())
def test_values_of_one_column_exchanged_between_two_rows_show(table: Rows, data: st.DataObject) -> None:
    one, two = data.draw(st.permutations(range(len(table.rows))))[:2]
    column = data.draw(st.integers(0, len(table.kinds) - 1))
    swapped = table.replaced(one, column, table.rows[two][column]).replaced(two, column, table.rows[one][column])
    assume(swapped.contents != table.contents)

    assert value_of(swapped.batch) != value_of(table.batch)


@PROPERTY
@given(tables(min_rows=1), st.data())
def test_a_row_that_is_lost_or_there_twice_shows(table: Rows, data: st.DataObject) -> None:
    row = data.draw(st.integers(0, len(table.rows) - 1))
    values = {
        value_of(table.with_rows(rows).batch)
        for rows in (
            table.rows,
            table.rows[:row] + table.rows[row + 1 :],
            [*table.rows, table.rows[row]],
            [*table.rows, table.rows[row], table.rows[row]],
        )
    }

    assert len(values) == 4


@settings(PROPERTY, max_examples=300)
@given(st.lists(st.sampled_from([pa.bool_(), pa.int8(), pa.string()]), min_size=1, max_size=3), st.data())
def test_checksums_are_equal_exactly_if_the_rows_are(types: list[pa.DataType], data: st.DataObject) -> None:
    domain: dict[str, Values] = {"bool": [None, True], "int8": [None, 0, 1], "string": [None, "", "\0"]}
    rows = st.lists(st.tuples(*(st.sampled_from(domain[str(kind)]) for kind in types)), min_size=1, max_size=4)
    one, two = (Rows([Kind(kind, st.none()) for kind in types], data.draw(rows)) for _ in range(2))

    assert (value_of(one.batch) == value_of(two.batch)) == (one.contents == two.contents)


# -- what counts as the same value -----------------------------------------------------------------------------------

TEXTS = ["", "a", None, "ß" * 40, "a", "x" * 300, None, ""]
NUMBERS = [None, 0, 1, -1, 127, -128]


def test_strings_are_the_same_in_every_layout() -> None:
    null_in_dictionary: Any = pa.DictionaryArray.from_arrays(
        array([0, 1, 2, 3, 1, 4, None, 0]), array(["", "a", None, "ß" * 40, "x" * 300])
    )
    expected = value_of_array(array(TEXTS))

    for kind in (pa.large_string(), pa.string_view()):
        assert value_of_array(array(TEXTS, kind)) == expected
    assert value_of_array(array(TEXTS).dictionary_encode()) == expected
    assert value_of_array(null_in_dictionary) == expected
    assert value_of_array(null_in_dictionary.slice(3)) != expected


@pytest.mark.parametrize("kind", [pa.large_binary(), pa.binary_view()])
def test_binaries_are_the_same_in_every_layout(kind: pa.DataType) -> None:
    values = [None if text is None else text.encode() for text in TEXTS]

    assert value_of_array(array(values, kind)) == value_of_array(array(values, pa.binary()))
    assert value_of_array(array([b"abc"], pa.binary(3))) == value_of_array(array([b"abc"]))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32()])
def test_integers_are_the_same_in_every_width(kind: pa.DataType) -> None:
    assert value_of_array(array(NUMBERS, kind)) == value_of_array(array(NUMBERS, pa.int64()))


def test_lists_are_the_same_in_every_layout() -> None:
    values = [[1, None], None, [3, 4]]
    expected = value_of_array(array(values, pa.list_(pa.int64())))

    for kind in (pa.large_list(pa.int64()), pa.list_(pa.int64(), 2), pa.list_(pa.int8())):
        assert value_of_array(array(values, kind)) == expected


def test_a_timestamp_is_the_same_in_every_session_time_zone() -> None:
    stamps = [0, 1, None, -1]
    values = {value_of_array(array(stamps, pa.timestamp("us", zone))) for zone in (None, "UTC", "Asia/Tokyo")}

    assert len(values) == 1


def test_a_map_is_the_same_in_any_order_of_its_entries_but_a_list_is_not() -> None:
    entries = [("a", 1), ("b", 2)]
    turned, crossed = entries[::-1], [("a", 2), ("b", 1)]
    maps = [value_of_array(array([value], pa.map_(pa.string(), pa.int64()))) for value in (entries, turned, crossed)]
    lists = {value_of_array(array([[1, 2], value])) for value in ([1, 2], [2, 1], [2], [1, 2, 0])}

    assert maps[0] == maps[1] != maps[2]
    assert len(lists) == 4


def test_an_extension_type_is_taken_by_its_storage() -> None:
    identifier = bytes(range(16))

    assert value_of_array(array([identifier], pa.uuid())) == value_of_array(array([identifier], pa.binary(16)))


def buffer(numbers: list[int]) -> pa.Buffer:
    return pa.py_buffer(np.array(numbers, np.int32).tobytes())


def test_what_lies_below_a_null_does_not_matter() -> None:
    valid = pa.py_buffer(bytes([0b101]))
    offsets = buffer([0, 1, 3, 4])
    hidden = pa.Array.from_buffers(pa.string(), 3, [valid, offsets, pa.py_buffer(b"a??b")])
    numbers = pa.Array.from_buffers(pa.int32(), 3, [valid, buffer([1, 99, 3])])
    lists = pa.Array.from_buffers(pa.list_(pa.int32()), 3, [valid, offsets], children=[array([1, 2, 3, 4], pa.int32())])

    assert value_of_array(hidden) == value_of_array(array(["a", None, "b"]))
    assert value_of_array(numbers) == value_of_array(array([1, None, 3], pa.int32()))
    assert value_of_array(lists) == value_of_array(array([[1], None, [4]], pa.list_(pa.int32())))


def test_kinds_of_nothing_differ() -> None:
    nothing: list[Any] = [
        array([None], pa.null()),
        array([0]),
        array([0.0]),
        array([-0.0]),
        array([0.0], pa.float32()),
        array([False]),
        array([""]),
        array(["\0"]),
        array(["\0" * 8]),
        array(["\0" * 64]),
        array([b""]),
        array([0], pa.date32()),
        array([0], pa.timestamp("us")),
        array([0], pa.timestamp("ns")),
        array([0], pa.duration("us")),
        array([Decimal("0.0")], pa.decimal128(5, 1)),
        array([Decimal("0.00")], pa.decimal128(5, 2)),
        array([[]], pa.list_(pa.int64())),
        array([[None]], pa.list_(pa.int64())),
        array([[0]], pa.list_(pa.int64())),
        array([[0, 0]], pa.list_(pa.int64())),
        array([[]], pa.map_(pa.string(), pa.int64())),
        array([{"a": None}], pa.struct([("a", pa.int64())])),
        array([{}], pa.struct([])),
    ]
    values = [value_of_array(column) for column in nothing]

    assert len(set(values)) == len(values)
    for column in nothing[1:]:
        assert value_of_array(pa.nulls(1, column.type)) == values[0]


def test_the_order_of_columns_matters_and_their_names_do_not() -> None:
    one, two = array([1, 2]), array([3, 4])

    assert value_of(batch_of(one, two)) != value_of(batch_of(two, one))
    assert value_of(pa.RecordBatch.from_arrays([one, two], ["x", "y"])) == value_of(batch_of(one, two))


def test_rows_without_columns_are_counted() -> None:
    rows = batch_of(array([1, 2, 3])).select([])
    total = Checksum()
    total.add(rows)

    assert total.rows == 3
    assert total.value != Checksum().value


def test_an_unknown_type_is_refused_by_name() -> None:
    union = pa.UnionArray.from_dense(array([0], pa.int8()), array([0], pa.int32()), [array([1])])
    runs = pa.RunEndEncodedArray.from_arrays(array([2], pa.int32()), array([7]))

    with pytest.raises(TypeError, match="dense_union"):
        value_of_array(union)
    with pytest.raises(TypeError, match="run_end_encoded"):
        value_of(pa.RecordBatch.from_arrays([array([1, 2]), runs], ["a", "b"]))


# -- long values -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 7, 8, 9, 63, 64, 65, 127, 128, 129, 1000])
def test_every_byte_of_a_string_counts_and_so_does_its_length(length: int) -> None:
    text = bytes(range(1, 251)) * 4
    values = [text[:length], text[: length - 1], text[:length] + b"\0"]
    for position in range(length):
        changed = bytearray(text[:length])
        changed[position] ^= 0x80
        values.append(bytes(changed))

    assert len({value_of_array(array([value])) for value in values}) == len(values)


@pytest.mark.parametrize("bit", [0x01, 0x80])
def test_the_same_bit_flipped_in_any_two_bytes_of_a_block_shows(bit: int) -> None:
    text = bytes(range(64))
    values = set()
    for one in range(64):
        for two in range(one):
            changed = bytearray(text)
            changed[one] ^= bit
            changed[two] ^= bit
            values.add(value_of_array(array([bytes(changed)])))

    assert len(values) == 64 * 63 // 2


def test_the_blocks_of_a_long_string_are_bound_to_their_places() -> None:
    blocks = [b"a" * 64, b"b" * 64, b"c" * 64]
    values = {value_of_array(array([b"".join(parts)])) for parts in (blocks, blocks[::-1], blocks[1:] + blocks[:1])}

    assert len(values) == 3


@settings(PROPERTY, max_examples=50)
@given(tables(), st.integers(1, 5), st.integers(1, 3))
def test_the_size_of_the_pieces_worked_on_does_not_matter(table: Rows, blocks: int, rows: int) -> None:
    expected = value_of(table.batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksum, "_CHUNK_BLOCKS", blocks)
        patch.setattr(checksum, "_CHUNK_ROWS", rows)
        assert value_of(table.batch) == expected


@pytest.mark.parametrize("blocks", [1, 2, 3, 7])
def test_long_values_may_be_cut_anywhere_into_pieces(monkeypatch: pytest.MonkeyPatch, blocks: int) -> None:
    column = array([b"abcdefgh" * (length // 8) for length in (0, 8, 64, 72, 1000, 0, 64, 320, 8)])
    expected = value_of_array(column)

    monkeypatch.setattr(checksum, "_CHUNK_BLOCKS", blocks)
    assert value_of_array(column) == expected


def test_a_huge_value_is_not_copied() -> None:
    huge = batch_of(array([b"x" * (64 << 20)]))
    tracemalloc.start()
    try:
        value_of(huge)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 16 << 20


# -- the text of a checksum ------------------------------------------------------------------------------------------


def sample() -> pa.RecordBatch:
    return batch_of(
        array([None, 0, -1, 1 << 40], pa.int64()),
        array([True, None, False, True]),
        array([0.0, -0.0, 1.5, None]),
        array(["", None, "ascii", "ü" * 100]),
        array([b"\0", b"\xff" * 64, None, b""]),
        array([Decimal("1.25"), None, Decimal("-0.01"), Decimal("0.00")], pa.decimal128(38, 2)),
        array([0, 1, None, -1], pa.timestamp("us", "UTC")),
        array([0, 19_000, None, -1], pa.date32()),
        array([[1, None], [], None, [2, 3]], pa.list_(pa.int32())),
        array([[("k", 1)], [], None, [("k", None), ("l", 2)]], pa.map_(pa.string(), pa.int64())),
        array([{"a": 1, "b": "x"}, {"a": None, "b": None}, None, {"a": 2, "b": ""}]),
        array([None] * 4, pa.null()),
        array([interval((1, 2, 3)), None, interval((0, 0, -1)), interval((0, 0, 0))]),
    )


def test_the_algorithm_of_version_r1_never_changes() -> None:
    # Decisions carry checksums, and a replay by a newer release must find the same: a new algorithm is a new version.
    assert value_of(sample()) == "r1:aae8f73b24f479ddc16a0f3988e208ae"
    assert value_of(batch_of(array([1, 2, 3]))) == "r1:109d590883c63c94b7ffeb19dc0f65a8"
    assert Checksum().value == combine([]) == "r1:" + "0" * 32


def test_rows_are_counted() -> None:
    total = Checksum()
    for _ in range(3):
        total.add(sample())
    total.add(sample().slice(0, 0))

    assert total.rows == 12
    assert total.value == combine([value_of(sample())] * 3)


@pytest.mark.parametrize(
    "value", ["", "r1:", "r2:" + "0" * 32, "r1:" + "0" * 31, "r1:" + "G" * 32, "r1:" + "0" * 32 + "\n"]
)
def test_what_is_no_checksum_of_this_version_is_not_combined(value: str) -> None:
    with pytest.raises(ValueError, match="not a checksum of version r1"):
        combine([Checksum().value, value])
