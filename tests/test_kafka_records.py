"""Rows as records of Kafka: which columns are taken, and what is said about the others. No broker is needed for that."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from twophase.clients.kafka.rows import NO_TIME
from twophase.errors import SchemaMismatch
from twophase.sinks.kafka import records

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_rows_go_to_the_topics_that_they_name_in_their_order() -> None:
    rows = batch(value=["1", "2", "3", "4"], topic=["a", "b", "a", "b"]).slice(1)
    found = {topic: part.values.to_pylist() for topic, part in records.rows_by_topic(rows, None)}
    assert found == {"b": ["2", "4"], "a": ["3"]}
    ((topic, part),) = records.rows_by_topic(rows, "all")
    assert (topic, part.values.to_pylist()) == ("all", ["2", "3", "4"])


def test_a_batch_without_rows_has_no_topic() -> None:
    assert list(records.rows_by_topic(batch(value=["x"]).slice(1), "t")) == []


def test_a_partition_that_is_not_said_is_any() -> None:
    ((_, rows),) = records.rows_by_topic(batch(value=["1", "2"], partition=pa.array([None, 3], pa.int64())), "t")
    assert rows.partitions is not None
    assert rows.partitions.tolist() == [-1, 3]


def test_columns_that_are_no_part_of_a_record_are_left_out() -> None:
    rows = batch(value=["1"], offset=[7], timestampType=[0])
    records.check(rows.schema, "t")
    ((_, found),) = records.rows_by_topic(rows, "t")
    assert found.values.to_pylist() == ["1"]
    twice = pa.RecordBatch.from_arrays([pa.array(["1"]), pa.array(["2"])], names=["value", "value"])
    with pytest.raises(SchemaMismatch, match="the column value is there twice"):
        records.check(twice.schema, "t")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_a_time_is_in_milliseconds_and_none_is_now(unit: Any, zone: str | None) -> None:
    times = pa.array([1_700_000_000, None], pa.timestamp("s", zone)).cast(pa.timestamp(unit, zone))
    ((_, rows),) = records.rows_by_topic(batch(value=["1", "2"], timestamp=times), "t")
    assert rows.times is not None
    assert rows.times.tolist() == [1_700_000_000_000, NO_TIME]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (batch(value=["x"], partition=pa.array([2**40])), "the column partition"),
        (batch(value=["x", "y"], partition=pa.array([0, -1])), "the column partition has -1"),
        (
            batch(value=["x", "y"], timestamp=pa.array([0, -1], pa.timestamp("us"))),
            "the column timestamp has 1969-12-31",
        ),
        (batch(value=["x"], topic=pa.array([None], pa.string())), "a row has no topic"),
        (batch(value=["x"], headers=pa.array([[{"key": None, "value": b"x"}]], HEADERS)), "a header has no key"),
    ],
    ids=["partition", "negative partition", "time before 1970", "topic", "header"],
)
def test_a_value_that_no_record_can_have_is_named(rows: pa.RecordBatch, says: str) -> None:
    records.check(rows.schema, None if "topic" in rows.schema.names else "t")
    with pytest.raises(SchemaMismatch, match=says):
        list(records.rows_by_topic(rows, None if "topic" in rows.schema.names else "t"))


@pytest.mark.parametrize(
    "headers",
    [pa.list_(pa.string()), pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])), pa.string()],
    ids=str,
)
def test_headers_of_another_type_are_refused_before_anything_is_written(headers: pa.DataType) -> None:
    rows = batch(value=["x"], headers=pa.array([None], headers))
    with pytest.raises(SchemaMismatch, match="the column headers is"):
        records.check(rows.schema, "t")


def test_everything_that_is_wrong_with_the_columns_is_said_at_once() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        records.check(batch(key=[1], timestamp=["now"]).schema, None)
    said = str(caught.value)
    for problem in (
        "timestamp is string, and must be a timestamp",
        "the column value is missing",
        "neither a column nor an option topic",
        "key is int64",
    ):
        assert problem in said
