"""Record batches of our own: what another client reads out of them is what was put in."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2  # type: ignore[import-untyped]
from kafka.record.memory_records import MemoryRecords  # type: ignore[import-untyped]

from tests.test_checksum import PROPERTY
from twophase.clients.kafka import record_batches
from twophase.clients.kafka.record_batches import Batch, BatchForm, Columns, batches_of
from twophase.clients.kafka.rows import NO_TIME, Rows, joined
from twophase.clients.kafka.settings import for_librdkafka

NATIVE: Any = record_batches.native
built = pytest.mark.skipif(NATIVE is None, reason="twophase was installed where there was no compiler")
NOW = 1_800_000_000_000
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Pairs = list[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, int, Pairs]
bytes_or_none = st.none() | st.binary(max_size=300)
records = st.lists(
    st.tuples(
        bytes_or_none,
        bytes_or_none,
        st.sampled_from([NO_TIME, 0, 1, NOW - 1, NOW, NOW + 10**9, -5]),
        st.none() | st.lists(st.tuples(st.text(max_size=9), bytes_or_none), max_size=3),
    ),
    min_size=1,
    max_size=60,
)


def test_it_is_there_wherever_it_can_be_built() -> None:
    assert (NATIVE is not None) == (shutil.which("cc") is not None)


def rows_of(given_records: Sequence[tuple[Any, Any, int, Any]]) -> Rows:
    keys, values, times, headers = zip(*given_records, strict=True)
    lists = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in headers]
    return Rows(
        values=pa.array(values, pa.binary()),
        keys=pa.array(keys, pa.binary()),
        headers=pa.array(lists, HEADERS),
        times=np.array(times, np.int64),
    )


def columns_of(rows: Rows) -> Columns:
    return Columns.of(rows, NOW)


def every_row(columns: Columns) -> Any:
    return np.arange(len(columns.values[0]), dtype=np.int64)


def found_in(batch: Batch, sequence: int = 7, form: BatchForm | None = None) -> list[Record]:
    """What kafka-python reads, once it has checked the checksum."""
    read = MemoryRecords(batch.sealed(form or BatchForm(), 12345, 6, sequence))
    found = read.next_batch()
    assert found is not None
    assert found.validate_crc()
    assert (found.magic, found.producer_id, found.producer_epoch, found.base_sequence) == (2, 12345, 6, sequence)
    assert found.is_transactional
    assert found.records_count == batch.count
    there = [(each.key, each.value, each.timestamp, list(each.headers)) for each in found]
    assert not read.has_next()
    return there


def expected(given_records: Sequence[tuple[Any, Any, int, Any]]) -> list[Record]:
    return [
        (key, value, NOW if time == NO_TIME else time, list(headers or []))
        for key, value, time, headers in given_records
    ]


@built
@PROPERTY
@given(records, st.integers(0, 3), st.sampled_from([1, 200, 1_000, 1 << 20]))
def test_another_client_reads_what_was_put_in(given_records: Any, begin: int, most: int) -> None:
    rows = rows_of(given_records)
    begin = min(begin, len(given_records) - 1)
    part = Rows(rows.values[begin:], rows.keys[begin:], None, rows.headers[begin:], rows.times[begin:])  # type: ignore[index]
    columns = columns_of(part)
    batches = list(batches_of(columns, every_row(columns), most))
    assert [record for batch in batches for record in found_in(batch)] == expected(given_records[begin:])
    assert all(len(batch.records) <= most or batch.count == 1 for batch in batches)


@built
def test_rows_without_keys_headers_and_times_are_records_of_now() -> None:
    columns = columns_of(Rows(pa.array(["a", None, ""])))
    (batch,) = batches_of(columns, every_row(columns), 1 << 20)
    assert found_in(batch) == [(None, b"a", NOW, []), (None, None, NOW, []), (None, b"", NOW, [])]


@built
def test_a_batch_that_is_too_large_can_be_cut_and_keeps_its_order() -> None:
    columns = columns_of(Rows(pa.array([str(number) * 50 for number in range(100)])))
    (batch,) = batches_of(columns, every_row(columns), 1 << 20)
    halves = batch.halves()
    assert [half.count for half in halves] == [50, 50]
    assert [record for half in halves for record in found_in(half)] == found_in(batch)


@built
@PROPERTY
@given(records)
def test_halves_of_a_batch_have_its_records(given_records: Any) -> None:
    columns = columns_of(rows_of(given_records))
    (batch,) = batches_of(columns, every_row(columns), 1 << 30)
    if batch.count > 1:
        first, second = batch.halves()
        assert [*found_in(first), *found_in(second)] == expected(given_records)


@built
@PROPERTY
@given(st.lists(bytes_or_none, min_size=1, max_size=50), st.integers(1, 7), st.integers(1, 7))
def test_a_key_is_where_javas_client_puts_it_and_others_are_spread(keys: Any, count: int, some: int) -> None:
    columns = columns_of(Rows(pa.array([b"x"] * len(keys)), keys=pa.array(keys, pa.binary())))
    any_of = list(range(count))[::-1][:some]
    found = columns.by_partition(count, any_of)
    assert sorted(row for rows in found.values() for row in rows.tolist()) == list(range(len(keys)))
    for number, rows in found.items():
        assert 0 <= number < count
        assert rows.tolist() == sorted(rows.tolist())
        for row in rows.tolist():
            if keys[row] is not None:
                assert number == (murmur2(keys[row]) & 0x7FFFFFFF) % count
    free = keys.count(None)
    if free == len(keys):
        sizes = [len(rows) for rows in found.values()]
        assert found.keys() <= set(any_of)
        assert len(found) == min(free, len(any_of))
        assert max(sizes) - min(sizes) <= 1


@built
def test_a_partition_that_a_row_names_is_its_own() -> None:
    rows = Rows(pa.array(["a", "b", "c"]), pa.array(["k", "k", "k"]), np.array([2, -1, 0], np.int32))
    (by_key,) = columns_of(Rows(pa.array(["b"]), pa.array(["k"]))).by_partition(3, [0])
    found = {number: numbers.tolist() for number, numbers in columns_of(rows).by_partition(3, [0]).items()}
    wanted: dict[int, list[int]] = {}
    for row, number in enumerate((2, by_key, 0)):
        wanted.setdefault(number, []).append(row)
    assert found == wanted


@built
def test_rows_that_are_joined_are_one_after_the_other() -> None:
    first, second = (
        rows_of([(b"a", b"1", 5, [("h", b"x")])]),
        rows_of([(None, b"2", NO_TIME, None), (b"c", None, 9, [])]),
    )
    assert first.is_like(second)
    assert not first.is_like(Rows(first.values))
    columns = columns_of(joined([first, second]))
    (batch,) = batches_of(columns, every_row(columns), 1 << 20)
    assert found_in(batch) == [
        (b"a", b"1", 5, [("h", b"x")]),
        (None, b"2", NOW, []),
        (b"c", None, 9, []),
    ]


@built
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 200_000])
@pytest.mark.parametrize("random", [True, False])
def test_frames_of_lz4_have_blocks_of_their_own(size: int, random: bool) -> None:
    """Java's client reads no others. Arrow reads them as any."""
    data = np.random.default_rng(5).bytes(size) if random else b"ab" * (size // 2)
    framed = BatchForm(compression="lz4")._compressed(data)
    assert framed[4] & 0x20, "blocks depend on each other"
    codec: Any = pa.Codec("lz4")
    assert codec.decompress(framed, len(data), asbytes=True) == data


@built
def test_the_checksum_is_the_same_by_tables_and_by_the_processor() -> None:
    assert NATIVE.crc32c(b"123456789") == 0xE3069283
    random = np.random.default_rng(3)
    for size in (0, 1, 7, 8, 9, 63, 1000, 4099):
        data = random.bytes(size)
        assert NATIVE.crc32c(data) == NATIVE.crc32c(data, True)


@built
def test_numbers_that_lead_nowhere_are_refused_and_not_followed() -> None:
    columns = columns_of(Rows(pa.array(["a"])))
    for rows in ([1], [-1]):
        with pytest.raises(ValueError, match=f"there is no row {rows[0]}"):
            list(batches_of(columns, np.array(rows, np.int64), 100))
    with pytest.raises(ValueError, match="lengths: 0 bytes"):
        NATIVE.partitions(np.ones(1, np.uint64), np.zeros(0, np.uint64), 3, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="no partitions"):
        NATIVE.partitions(np.zeros(1, np.uint64), np.zeros(1, np.uint64), 0, np.zeros(1, np.int32))
    one, offsets = np.zeros(1, np.uint64), np.array([0, 2], np.int64)
    with pytest.raises(ValueError, match="headers that are not there"):
        NATIVE.records(9, NOW, np.zeros(1, np.int64), one, one, one, one, None, offsets, one, one, one, one)


@built
@pytest.mark.parametrize(
    ("given_settings", "form"),
    [
        ({}, BatchForm()),
        ({"linger.ms": "20", "batch.size": "1000"}, BatchForm(1000)),
        ({"batch.size": "9999999"}, BatchForm(1_000_000)),
        ({"batch.size": "9999999", "max.request.size": "3000000"}, BatchForm(3_000_000, largest_record=3_000_000)),
        ({"compression.type": "zstd", "compression.level": "3"}, BatchForm(compression="zstd", compression_level=3)),
        ({"queue.buffering.max.messages": "5"}, None),
        ({"partitioner": "consistent"}, None),
        ({"partitioner": "murmur2"}, None),
        ({"linger.ms": "banana"}, None),
        ({"batch.size": "-5"}, None),
        ({"compression.type": "gzip", "compression.level": "99"}, None),
        ({"compression.type": "brotli"}, None),
        ({"batch.size": "many"}, None),
    ],
    ids=str,
)
def test_settings_that_only_librdkafka_has_are_left_to_it(
    given_settings: dict[str, str], form: BatchForm | None
) -> None:
    told = for_librdkafka({"bootstrap.servers": "broker:9092", **given_settings})
    assert BatchForm.of(told) == form


def test_without_the_c_librdkafka_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "native", None)
    assert BatchForm.of(for_librdkafka({"bootstrap.servers": "broker:9092"})) is None
