"""JSON lines from Arrow: every value comes back by readers that know nothing of us."""

from __future__ import annotations

import base64
import datetime
import decimal
import io
import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.json
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twophase.json_lines import render


def lines(array: Any) -> list[Any]:
    """Each value of the column, through Python's own JSON; a field that is left out is the text "absent"."""
    batch = pa.record_batch([array], names=["v"])
    text = render(batch).to_pybytes().decode()
    assert text.count("\n") == len(array)
    return [json.loads(line).get("v", "absent") for line in text.splitlines() if line]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-128, 0, 127]),
        (pa.int64(), [-(2**63), 2**63 - 1]),
        (pa.uint64(), [2**64 - 1]),
        (pa.bool_(), [True, False]),
        (pa.float64(), [0.1, -1.5e300, 5e-324, 1.0, -0.0, 1e22]),
        (pa.string(), ["", "ä€😀", 'a"b\\c/d', "tab\tnew\nline\r\b\f", "\x00\x01\x1f\x7f", "\\u0041", "{}", "null"]),
        (pa.large_string(), ["x" * 100_000]),
        (pa.list_(pa.int32()), [[1, 2], [], [3]]),
        (pa.large_list(pa.string()), [['"', None], [None], []]),
        (pa.list_(pa.int32(), 2), [[1, 2], [3, None]]),
        (pa.list_(pa.list_(pa.string())), [[["a"], []], [[]], []]),
        (pa.map_(pa.string(), pa.int32()), [[("a", 1), ('"', None)], []]),
        (pa.map_(pa.string(), pa.list_(pa.bool_())), [[("a", [True])]]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", "a"]),
    ],
    ids=str,
)
def test_every_value_comes_back(kind: pa.DataType, values: list[Any]) -> None:
    expected = [dict(value) if pa.types.is_map(kind) else value for value in values]
    # In the middle of a longer array, so that a forgotten offset shows; and with nulls around it.
    array = pa.array([*values, None, *values, None], kind)
    got = lines(array.slice(len(values) - 1, len(values) + 2))
    assert got == [expected[-1], "absent", *expected]
    assert lines(array.slice(0, 0)) == []


def test_structs_leave_out_what_is_null() -> None:
    inner = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.struct([("z", pa.string())])))])
    values = [{"x": 1, "y": [{"z": "a"}, {"z": None}, None]}, {"x": None, "y": None}, None, {"x": 2, "y": []}]
    got = lines(pa.array([None, *values], inner).slice(1))
    assert got == [{"x": 1, "y": [{"z": "a"}, {}, None]}, {}, "absent", {"x": 2, "y": []}]


def test_numbers_that_json_has_not_are_text_as_in_spark() -> None:
    got = lines(pa.array([math.nan, math.inf, -math.inf, None, 1.0], pa.float64()))
    assert got == ["NaN", "Infinity", "-Infinity", "absent", 1.0]
    assert render(pa.record_batch([pa.array([1.0, 1e300])], names=["v"])).to_pybytes() == b'{"v":1.0}\n{"v":1e+300}\n'


def test_floats_of_all_widths() -> None:
    assert lines(pa.array([0.5, 2.0], pa.float32())) == [0.5, 2.0]
    assert lines(pa.array([0.5, 2.0], pa.float16())) == [0.5, 2.0]


def test_decimals_keep_every_digit() -> None:
    text = render(pa.record_batch([pa.array([decimal.Decimal("123456789012345678.90")])], names=["v"])).to_pybytes()
    assert text == b'{"v":123456789012345678.90}\n'


def test_times_are_iso_8601() -> None:
    moment = datetime.datetime(2024, 2, 29, 13, 5, 7, 123456)
    zoned = pa.array([moment.replace(tzinfo=datetime.UTC)], pa.timestamp("us", "Europe/Berlin"))
    assert lines(zoned) == ["2024-02-29T13:05:07.123456Z"]
    assert lines(pa.array([moment], pa.timestamp("us"))) == ["2024-02-29T13:05:07.123456"]
    assert lines(pa.array([moment.date()])) == ["2024-02-29"]


def test_binary_is_base64() -> None:
    values = [b"", b"\x00\xff", b"abc"]
    assert lines(pa.array(values)) == [base64.b64encode(value).decode() for value in values]


def test_keys_of_maps_are_text() -> None:
    assert lines(pa.array([[(1, "a"), (2, "b")]], pa.map_(pa.int32(), pa.string()))) == [{"1": "a", "2": "b"}]
    day = datetime.date(2024, 1, 1)
    assert lines(pa.array([[(day, 1)]], pa.map_(pa.date32(), pa.int8()))) == [{"2024-01-01": 1}]


def test_names_of_columns_are_escaped_and_absent_fields_leave_no_comma() -> None:
    batch = pa.record_batch(
        [pa.array([None, 1, None]), pa.array([2, None, None]), pa.array([None, 3, None])], names=['a"b', "ü\n", "c"]
    )
    assert render(batch).to_pybytes().decode() == '{"ü\\n":2}\n{"a\\"b":1,"c":3}\n{}\n'


def test_a_row_without_columns_is_an_empty_object() -> None:
    assert lines(pa.array([{}, None], pa.struct([]))) == [{}, "absent"]


def test_pyarrow_reads_the_same_table_back() -> None:
    table = pa.table(
        {
            "id": pa.array(range(1000)),
            "text": pa.array([None if i % 7 == 0 else f'"{i}"\\' for i in range(1000)]),
            "part": pa.array([{"x": [i, None], "y": str(i)} for i in range(1000)]),
        }
    )
    text = b"".join(render(batch).to_pybytes() for batch in table.to_batches(max_chunksize=300))
    assert pyarrow.json.read_json(io.BytesIO(text)).select(table.schema.names).cast(table.schema) == table


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
tree = st.one_of(st.none(), texts)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(st.none(), st.lists(st.fixed_dictionaries({"a": tree, "b": st.one_of(st.none(), st.floats())}))))
)
def test_any_text_and_number_come_back(values: list[Any]) -> None:
    kind = pa.list_(pa.struct([("a", pa.string()), ("b", pa.float64())]))

    def expected(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return value

    wanted = [
        "absent" if row is None else [{k: expected(v) for k, v in item.items() if v is not None} for item in row]
        for row in values
    ]
    batch = pa.record_batch([pa.array(values, kind)], names=["v"])
    got = [json.loads(line).get("v", "absent") for line in render(batch).to_pybytes().decode().split("\n") if line]
    assert got == wanted
