"""What a sink of json files may write, the source reads back: maps, numbers that are none, and what lies deep inside."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.file_tables import all_rows, drop, source
from tests.files_query import query, quick
from twophase import json_lines
from twophase.errors import Unreadable
from twophase.sinks import FilesSink
from twophase.sources.files import json_rows

INSTANT = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=datetime.UTC)
DAY = datetime.date(2024, 2, 29)
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], [], None]),
    "map of a quoted key": (pa.map_(pa.string(), pa.string()), [[('"\\n', "x"), ("", "")], [("ä漢", None)], None]),
    "map by number": (pa.map_(pa.int32(), pa.float64()), [[(1, 0.5), (-2, math.inf)], [], None]),
    "map by truth": (pa.map_(pa.bool_(), pa.bool_()), [[(True, False)], [(False, None)], None]),
    "map by day": (pa.map_(pa.date32(), pa.date32()), [[(DAY, DAY)], [], None]),
    "map by instant": (pa.map_(pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")), [[(INSTANT, None)], [], None]),
    "map by price": (
        pa.map_(pa.decimal128(10, 2), pa.decimal128(10, 2)),
        [[(Decimal("1.50"), Decimal("-0.01"))], [], None],
    ),
    "map by bytes": (pa.map_(pa.binary(), pa.binary()), [[(b"\x00\xff", b""), (b"", None)], [], None]),
    "map by struct": (
        pa.map_(pa.struct([("x", pa.int32())]), pa.int32()),
        [[({"x": 1}, 2), ({"x": None}, 3)], [], None],
    ),
    "map by list": (pa.map_(pa.list_(pa.string()), pa.int32()), [[(["a", '"'], 2)], [], None]),
    "map of maps": (
        pa.map_(pa.string(), pa.map_(pa.int8(), pa.string())),
        [[("a", [(1, "x")]), ("b", None)], [], None],
    ),
    "list of maps": (pa.list_(pa.map_(pa.string(), pa.int8())), [[[("a", 1)], None, []], [], None]),
    "double": (pa.float64(), [math.inf, -math.inf, 5e-324, 0.1, -0.0, 1e300, None]),
    "float": (pa.float32(), [math.inf, -math.inf, 0.10000000149011612, 3.4028234663852886e38, None]),
    "half": (pa.float16(), [0.5, math.inf, None]),
    "list of doubles": (pa.list_(pa.float64()), [[math.inf, 1.0, None], [-math.inf], [], None]),
    "struct of doubles": (pa.struct([("x", pa.float64())]), [{"x": math.inf}, {"x": None}, None]),
    "list of instants": (pa.list_(pa.timestamp("us", "Europe/Berlin")), [[INSTANT, None], [], None]),
    "struct of bytes": (pa.struct([("x", pa.binary()), ("y", pa.time64("us"))]), [{"x": b"\xff", "y": None}, None]),
    "time": (pa.time64("us"), [datetime.time(23, 59, 59, 123456), datetime.time(0), None]),
    "list of times": (pa.list_(pa.time32("s")), [[datetime.time(1, 2, 3), None], [], None]),
    "struct of nothing": (pa.struct([]), [{}, None]),
    "struct of local times": (pa.struct([("x", pa.timestamp("ms"))]), [{"x": datetime.datetime(2024, 1, 2, 3, 4, 5)}]),
    "deep": (
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.struct([("d", pa.decimal128(38, 18))]))))])),
        [[{"m": [("k", [{"d": Decimal("12345678901234567890.123456789012345678")}, None])]}, None], [], None],
    ),
    "null": (pa.null(), [None, None]),
    "large": (pa.large_list(pa.large_string()), [["x", None], [], None]),
    "fixed": (pa.list_(pa.int16(), 2), [[1, None], None]),
    "view": (pa.string_view(), ["x", "", None]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["x", "x", None]),
}


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_sink_may_write_as_json_is_read_back(tmp_path: Path, kind: str, compression: str) -> None:
    column = pa.array(KINDS[kind][1], KINDS[kind][0])
    written = pa.record_batch([pa.array(range(len(column))), column], names=["n", "value"])
    sink = FilesSink(str(tmp_path / "table"), file_format="json", compression=compression, storage=quick())
    query(tmp_path, sink, schema=written.schema).epoch(0, written)
    files = source(tmp_path / "table")

    assert files.schema().field("value").type == column.type
    assert all_rows(files) == written.to_pylist()


FLAT: dict[str, tuple[pa.DataType, list[Any]]] = {
    name: (kind, values) for name, (kind, values) in KINDS.items() if not pa.types.is_nested(kind)
} | {
    "seconds": (pa.time32("s"), [datetime.time(1, 2, 3), None]),
    "date64": (pa.date64(), [DAY, None]),
    "timestamp": (pa.timestamp("s"), [datetime.datetime(2024, 1, 2, 3, 4, 5), None]),
    "unsigned": (pa.uint64(), [2**64 - 1, 0, None]),
    "wide": (pa.decimal256(50, 3), [Decimal("12345678901234567890123456789012345678.125"), None]),
}


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("kind", FLAT)
def test_what_a_sink_may_write_as_csv_is_read_back(tmp_path: Path, kind: str, header: bool) -> None:
    column = pa.array(FLAT[kind][1], FLAT[kind][0])
    written = pa.record_batch([pa.array(range(len(column))), column], names=["n", "value"])
    sink = FilesSink(str(tmp_path / "table"), file_format="csv", header=header, storage=quick())
    query(tmp_path, sink, schema=written.schema).epoch(0, written)

    assert all_rows(source(tmp_path / "table")) == written.to_pylist()


@pytest.mark.parametrize(
    "kind", [pa.float32(), pa.float64(), pa.list_(pa.float64()), pa.map_(pa.string(), pa.float64())], ids=str
)
def test_what_is_not_a_number_is_read_back_as_that(tmp_path: Path, kind: pa.DataType) -> None:
    inside: Any = {"list": [math.nan], "map": [("k", math.nan)]}.get(str(kind).partition("<")[0], math.nan)
    written = pa.record_batch([pa.array([inside], kind), pa.array(["NaN"])], names=["value", "text"])
    sink = FilesSink(str(tmp_path / "table"), file_format="json", storage=quick())
    query(tmp_path, sink, schema=written.schema).epoch(0, written)
    (row,) = all_rows(source(tmp_path / "table"))

    found = row["value"]
    while isinstance(found, list | tuple):
        found = found[-1]
    assert math.isnan(found)
    assert row["text"] == "NaN"


def test_a_file_of_many_blocks_is_read_whole_whatever_is_in_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks with and without what Arrow can't read, a row that is longer than a block, blank lines, and no line end at the end."""
    monkeypatch.setattr("twophase.sources.files.line_blocks.BLOCK_BYTES", 64)
    values: list[float | str] = [*range(40), "NaN", *range(40), "-Infinity", 7]
    rows = [f'{{"x":{value}}}' if isinstance(value, int) else f'{{"x":"{value}"}}' for value in values]
    rows.insert(60, '{"x":1.5,"other":"' + "y" * 500 + '"}')
    drop(tmp_path / "in", "a.json", "\n\n".join(rows).encode())
    found = [row["x"] for row in all_rows(source(tmp_path / "in", pa.schema([("x", pa.float64())]), fileFormat="json"))]

    assert len(found) == len(values) + 1
    assert sum(math.isnan(x) for x in found) == 1
    assert math.isinf(found[-2])
    assert sum(x for x in found if math.isfinite(x)) == 2 * sum(range(40)) + 7 + 1.5


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.map_(pa.string(), pa.int64()), '{"k":{"a":"one"}}'),
        (pa.map_(pa.string(), pa.int64()), '{"k":{"a":1.5}}'),
        (pa.map_(pa.string(), pa.int64()), '{"k":{"a":true}}'),
        (pa.map_(pa.string(), pa.int8()), '{"k":{"a":300}}'),
        (pa.map_(pa.string(), pa.int64()), '{"k":["a"]}'),
        (pa.map_(pa.string(), pa.int64()), '{"k":7}'),
        (pa.map_(pa.int64(), pa.int64()), '{"k":{"a":1}}'),
        (pa.map_(pa.string(), pa.string()), '{"k":{"a":1}}'),
        (pa.map_(pa.string(), pa.bool_()), '{"k":{"a":1}}'),
        (pa.map_(pa.string(), pa.float64()), '{"k":{"a":"1.5"}}'),
        (pa.map_(pa.string(), pa.float64()), '{"k":{"a":1e999}}'),
        (pa.map_(pa.string(), pa.float64()), '{"k":{"a":' + "9" * 400 + "}}"),
        (pa.map_(pa.string(), pa.float64()), '{"k":{"a":NaN}}'),
        (pa.map_(pa.string(), pa.decimal128(3, 1)), '{"k":{"a":1.55}}'),
        (pa.map_(pa.string(), pa.date32()), '{"k":{"a":"tomorrow"}}'),
        (pa.map_(pa.string(), pa.date32()), '{"k":{"a":7}}'),
        (pa.map_(pa.string(), pa.binary()), '{"k":{"a":"not base64!"}}'),
        (pa.map_(pa.string(), pa.string()), '{"k":{"a":"\\ud800"}}'),
        (pa.map_(pa.string(), pa.struct([("x", pa.int8())])), '{"k":{"a":[1]}}'),
        (pa.map_(pa.string(), pa.struct([("x", pa.int8())])), '{"k":{"a":{"x":1,"x":2}}}'),
        (pa.map_(pa.string(), pa.list_(pa.int8())), '{"k":{"a":{"x":1}}}'),
        (pa.map_(pa.list_(pa.int8()), pa.int8()), '{"k":{"[":1}}'),
        (pa.map_(pa.string(), pa.null()), '{"k":{"a":1}}'),
        (pa.map_(pa.string(), pa.string()), '{"k":{"a":'),
        (pa.map_(pa.string(), pa.string()), '["k"]'),
        (pa.map_(pa.string(), pa.string()), "[" * 100_000),
        (pa.map_(pa.string(), pa.string()), '{"k":null,"k":null}'),
        (pa.float64(), '{"k":"Infinity"}\n{"k":"much"}'),
        (pa.float64(), '{"k":"NaN"}\n{"k":true}'),
    ],
)
def test_json_that_is_not_what_the_schema_says_is_an_error_that_names_file_and_column(
    tmp_path: Path, kind: pa.DataType, text: str
) -> None:
    drop(tmp_path / "in", "bad.json", text.encode())
    with pytest.raises(Unreadable, match=r"bad\.json can't be read as json"):
        all_rows(source(tmp_path / "in", pa.schema([("k", kind)]), fileFormat="json"))


def test_the_column_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    drop(tmp_path / "in", "bad.json", b'{"good":{},"bad":{"a":"one"}}')
    kind = pa.map_(pa.string(), pa.int64())
    with pytest.raises(Unreadable, match="column 'bad'"):
        all_rows(source(tmp_path / "in", pa.schema([("good", kind), ("bad", kind)]), fileFormat="json"))


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
reals = st.floats(allow_nan=False, allow_infinity=False)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
            "real": st.none() | reals,
            "text": st.none() | texts,
            "flag": st.none() | st.booleans(),
            "day": st.none() | st.dates(),
            "list": st.none() | st.lists(st.none() | texts, max_size=3),
            "struct": st.none() | st.fixed_dictionaries({"x": st.none() | reals, "y": st.none() | texts}),
        }
    ),
    min_size=1,
    max_size=5,
)
COLUMNS: dict[str, pa.DataType] = {
    "whole": pa.int64(),
    "real": pa.float64(),
    "text": pa.string(),
    "flag": pa.bool_(),
    "day": pa.date32(),
    "list": pa.list_(pa.string()),
    "struct": pa.struct([("x", pa.float64()), ("y", pa.string())]),
}
PLAIN = pa.schema(COLUMNS)


@settings(deadline=None, max_examples=100)
@given(rows)
def test_both_ways_of_reading_json_give_the_same_rows(values: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(values, PLAIN)
    text = json_lines.render(batch).to_pybytes()
    fast = pa.Table.from_batches(list(json_rows.by_arrow(text, PLAIN)))
    slow = json_rows.by_python(text, PLAIN)
    days = fast.column("day").cast(pa.date32())
    assert fast.set_column(4, "day", days).to_pylist() == slow.to_pylist() == batch.to_pylist()
