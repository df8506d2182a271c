"""Rows of plain files: each format, older and other schemas, columns from folders, and files that can't be read."""

from __future__ import annotations

import bz2
import datetime
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.file_tables import all_rows, batches_of, drop, escaped, follow, numbers, source
from twophase.errors import OptionError, Unreadable
from twophase.source import ReadLimit


def schema(**kinds: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind) for name, kind in kinds.items()])


N = schema(n=pa.int64())
NS = schema(n=pa.int64(), s=pa.string())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "incoming"
    path.mkdir()
    return path


def lines(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_json_lines(folder: Path) -> None:
    drop(folder, "a.json", b'{"n":1,"s":"a\\nb"}\n\n{"s":"x","other":[1]}\n{"n":null,"s":null}')

    assert all_rows(source(folder, NS, fileFormat="json")) == [
        {"n": 1, "s": "a\nb"},
        {"n": None, "s": "x"},
        {"n": None, "s": None},
    ]


def test_json_of_all_types(folder: Path) -> None:
    kinds = schema(
        day=pa.date32(),
        at=pa.timestamp("us", "Europe/Berlin"),
        local=pa.timestamp("us"),
        data=pa.binary(),
        items=pa.list_(pa.date32()),
        inner=pa.struct([("x", pa.int32())]),
        real=pa.float32(),
    )
    drop(
        folder,
        "a.json",
        lines(
            {
                "day": "2024-02-29",
                "at": "2024-07-01T12:00:00+02:00",
                "local": "2024-07-01 12:00:00",
                "data": "AP8=",
                "items": ["2024-01-01", None],
                "inner": {"x": 1, "y": 2},
                "real": 1,
            },
        ),
    )
    drop(folder, "b.json", lines({"at": "2024-07-01 12:00:00"}))
    noon = datetime.datetime(2024, 7, 1, 12)
    first, second = all_rows(source(folder, kinds, fileFormat="json"))

    assert first | {"at": None} == {
        "day": datetime.date(2024, 2, 29),
        "at": None,
        "local": noon,
        "data": b"\x00\xff",
        "items": [datetime.date(2024, 1, 1), None],
        "inner": {"x": 1},
        "real": 1.0,
    }
    assert first["at"] == second["at"] == datetime.datetime(2024, 7, 1, 10, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), '{"k":"five"}'),
        (pa.int8(), '{"k":300}'),
        (pa.date32(), '{"k":"tomorrow"}'),
        (pa.binary(), '{"k":"not base64!"}'),
        (pa.string(), '{"k":'),
        (pa.string(), "plain text"),
    ],
    ids=["text-for-number", "overflow", "no-date", "no-base64", "cut", "no-json"],
)
def test_json_that_is_not_what_the_schema_says_is_an_error_that_names_the_file(
    folder: Path, kind: pa.DataType, text: str
) -> None:
    drop(folder, "bad.json", text.encode())
    with pytest.raises(Unreadable, match=r"bad\.json can't be read as json"):
        all_rows(source(folder, schema(k=kind), fileFormat="json"))


def test_csv_by_place(folder: Path) -> None:
    drop(folder, "a.csv", b'1,"x, ""y"""\n,\n3,""\n')

    assert all_rows(source(folder, NS, fileFormat="csv")) == [
        {"n": 1, "s": 'x, "y"'},
        {"n": None, "s": None},
        {"n": 3, "s": ""},
    ]


def test_csv_by_name(folder: Path) -> None:
    drop(folder, "a.csv", b"s;other;n\nx;9;1\n;;-\n")

    assert all_rows(source(folder, NS, fileFormat="csv", header=True, sep=";", nullValue="-")) == [
        {"n": 1, "s": "x"},
        {"n": None, "s": ""},
    ]


def test_csv_separated_by_tabs(folder: Path) -> None:
    drop(folder, "a.csv", b"1\tx,y\n")

    assert all_rows(source(folder, NS, fileFormat="csv", sep="\\t")) == [{"n": 1, "s": "x,y"}]


def test_csv_as_spark_writes_it(folder: Path) -> None:
    drop(folder, "a.csv", b'1,"say \\"a, b\\""\n')

    assert all_rows(source(folder, NS, fileFormat="csv", escape="\\")) == [{"n": 1, "s": 'say "a, b"'}]


def test_csv_of_an_older_schema_is_shorter_and_a_longer_one_is_refused(folder: Path) -> None:
    drop(folder, "a.csv", b"1\n")
    assert all_rows(source(folder, NS, fileFormat="csv")) == [{"n": 1, "s": None}]

    drop(folder, "b.csv", b"2,x,surplus\n")
    with pytest.raises(Unreadable, match="it has 3 columns"):
        all_rows(source(folder, NS, fileFormat="csv"))


def test_a_csv_time_without_an_offset_is_of_the_columns_zone(folder: Path) -> None:
    drop(folder, "a.csv", b"2024-07-01 12:00:00\n")
    drop(folder, "b.csv", b"2024-07-01T10:00:00Z\n")
    rows = all_rows(source(folder, schema(t=pa.timestamp("us", "Europe/Berlin")), fileFormat="csv"))

    assert [row["t"] for row in rows] == [datetime.datetime(2024, 7, 1, 10, tzinfo=datetime.UTC)] * 2


def test_text_lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twophase.sources.files.line_blocks.BLOCK_BYTES", 7)
    text = "one\r\ntwo\n\n a longer line than a block, ä漢🎉\nlast"
    drop(folder, "a.txt", text.encode())
    drop(folder, "b.txt", b"ends in a newline\n")

    assert [row["value"] for row in all_rows(source(folder, fileFormat="text"))] == [
        "one",
        "two",
        "",
        " a longer line than a block, ä漢🎉",
        "last",
        "ends in a newline",
    ]


def test_text_that_is_not_utf_8_is_an_error_that_names_the_file(folder: Path) -> None:
    drop(folder, "a.txt", b"\xff\n")
    with pytest.raises(Unreadable, match=r"a\.txt can't be read as text"):
        all_rows(source(folder, fileFormat="text"))


@pytest.mark.parametrize("file_format", ["json", "csv", "text"])
def test_packed_files_are_unpacked_by_their_ending(folder: Path, file_format: str) -> None:
    data = {"json": b'{"value":"x"}\n', "csv": b"x\n", "text": b"x\n"}[file_format]
    drop(folder, "a.gz", gzip.compress(data))
    drop(folder, "b.bz2", bz2.compress(data))
    drop(folder, "c", data)

    assert all_rows(source(folder, schema(value=pa.string()), fileFormat=file_format)) == [{"value": "x"}] * 3


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv", "text"])
def test_a_file_of_no_bytes_has_no_rows(folder: Path, file_format: str) -> None:
    drop(folder, "empty", b"")

    assert follow_count(folder, file_format) == [0]


@pytest.mark.parametrize(("file_format", "rows"), [("json", 0), ("csv", 0), ("text", 2)])
def test_blank_lines_are_rows_of_text_only(folder: Path, file_format: str, rows: int) -> None:
    drop(folder, "blank", b"\n\n")

    assert follow_count(folder, file_format) == [rows]


def follow_count(folder: Path, file_format: str) -> list[int]:
    files = source(folder, schema(value=pa.string()), fileFormat=file_format)
    start = files.earliest()
    end = files.latest(start)
    assert end != start
    return [sum(batch.num_rows for batch in batches_of(files, start, end))]


def test_a_limit_on_rows_takes_files_of_unknown_rows_one_by_one(folder: Path) -> None:
    for n in range(3):
        drop(folder, f"{n}.json", lines({"n": n}))

    assert follow(source(folder, N, fileFormat="json"), limit=ReadLimit(rows=100)) == [[0], [1], [2]]
    assert follow(source(folder, N, fileFormat="json", maxBytesPerTrigger=25)) == [[0, 1], [2]]


def test_parquet_of_other_schemas_comes_as_the_first_files(folder: Path) -> None:
    drop(folder, "a", pa.table({"n": pa.array([1], pa.int64()), "s": pa.array(["x"])}))
    drop(folder, "b", pa.table({"s": pa.array(["y"], pa.large_string()), "n": pa.array([2], pa.int8()), "new": [1]}))
    drop(folder, "c", pa.table({"N": pa.array([3], pa.int32())}))

    assert all_rows(source(folder)) == [{"n": 1, "s": "x"}, {"n": 2, "s": "y"}, {"n": 3, "s": None}]


def test_the_schema_stays_that_of_the_first_file_taken(folder: Path) -> None:
    drop(folder, "b", numbers(1))
    source(folder).latest('{"file":0}')
    drop(folder, "a", pa.table({"other": [1]}), modified_ns=1)

    assert source(folder).schema() == N


def test_a_struct_that_grew_has_null_in_older_files(folder: Path) -> None:
    kinds = schema(k=pa.struct([("a", pa.int64()), ("b", pa.string())]))
    drop(folder, "a", pa.table({"k": pa.array([{"a": 1}], pa.struct([("a", pa.int32())]))}))

    assert all_rows(source(folder, kinds)) == [{"k": {"a": 1, "b": None}}]


@pytest.mark.parametrize(
    "values",
    [pa.array([2**40]), pa.array([1.5]), pa.array(["x"]), pa.array([[1]])],
    ids=["overflow", "fraction", "text", "list"],
)
def test_a_value_that_would_change_is_an_error_that_names_file_and_column(folder: Path, values: pa.Array[Any]) -> None:
    drop(folder, "bad.parquet", pa.table({"n": values}))
    with pytest.raises(Unreadable, match=r"bad\.parquet can't be read as parquet: column 'n' is of type"):
        all_rows(source(folder, schema(n=pa.int32())))


def test_two_columns_of_one_name_are_refused(folder: Path) -> None:
    drop(folder, "a", pa.table([[1], [2]], names=["N", "n"]))
    assert all_rows(source(folder, N)) == [{"n": 2}]
    drop(folder, "b", pa.table([[1], [2]], names=["N", "N"]))
    with pytest.raises(Unreadable, match="more than one column is called 'n'"):
        all_rows(source(folder, N))


def test_types_that_spark_does_not_have_become_those_that_hold_them(folder: Path) -> None:
    table = pa.table(
        {
            "u8": pa.array([255], pa.uint8()),
            "u64": pa.array([2**64 - 1], pa.uint64()),
            "word": pa.array(["x"]).dictionary_encode(),
            "ns": pa.array([1_000], pa.timestamp("ns")),
            "list": pa.array([[1]], pa.large_list(pa.uint16())),
        }
    )
    drop(folder, "a", table)
    files = source(folder)
    types = {field.name: field.type for field in files.schema()}

    assert types == {
        "u8": pa.int16(),
        "u64": pa.decimal128(20, 0),
        "word": pa.string(),
        "ns": pa.timestamp("us"),
        "list": pa.list_(pa.int32()),
    }
    (row,) = all_rows(files)
    assert (row["u8"], int(row["u64"]), row["word"], row["list"]) == (255, 2**64 - 1, "x", [1])


def test_nanoseconds_that_would_be_lost_are_an_error(folder: Path) -> None:
    drop(folder, "a", pa.table({"ns": pa.array([1_001], pa.timestamp("ns"))}))
    with pytest.raises(Unreadable, match="would lose data"):
        all_rows(source(folder))


def test_a_file_that_is_no_parquet_is_an_error_that_names_it(folder: Path) -> None:
    drop(folder, "bad.parquet", b"hello, this is no parquet at all")
    with pytest.raises(Unreadable, match=r"bad\.parquet can't be read as parquet"):
        all_rows(source(folder, N))
    with pytest.raises(Unreadable, match=r"bad\.parquet can't be read as parquet"):
        source(folder).schema()


@pytest.mark.parametrize(
    "value",
    ["plain", "with space", "a/b", "100%", "%41", "k=v", "ä漢🎉", "%E4", "ab%C3%A4", "q?*[x]#", "'\"", "..", "a:b"],
)
def test_folders_are_columns_whatever_their_values(folder: Path, value: str) -> None:
    drop(folder, f"by={escaped(value)}/day=2024-02-29/a.parquet", numbers(1))
    drop(folder, "by=__HIVE_DEFAULT_PARTITION__/day=__HIVE_DEFAULT_PARTITION__/a.parquet", numbers(2))
    typed = schema(n=pa.int64(), day=pa.date32(), by=pa.string())

    assert all_rows(source(folder)) == [
        {"n": 1, "by": value, "day": "2024-02-29"},
        {"n": 2, "by": None, "day": None},
    ]
    assert all_rows(source(folder, typed)) == [
        {"n": 1, "day": datetime.date(2024, 2, 29), "by": value},
        {"n": 2, "day": None, "by": None},
    ]
    assert all_rows(source(folder, N)) == [{"n": 1}, {"n": 2}]


def test_a_folder_that_is_not_of_the_columns_type_is_named(folder: Path) -> None:
    drop(folder, "day=soon/a.parquet", numbers(1))
    with pytest.raises(Unreadable, match="its folder says day='soon', which is no date32"):
        all_rows(source(folder, schema(n=pa.int64(), day=pa.date32())))


@pytest.mark.parametrize("file_format", ["json", "csv", "parquet"])
def test_a_folder_whose_columns_can_not_be_known_needs_a_schema(folder: Path, file_format: str) -> None:
    with pytest.raises(OptionError, match="give the schema"):
        source(folder, fileFormat=file_format).schema()


def test_rows_of_which_no_column_is_in_the_file_are_counted(folder: Path) -> None:
    drop(folder, "day=2024-01-01/a.parquet", numbers(1, 2, 3))

    assert all_rows(source(folder, schema(day=pa.string()))) == [{"day": "2024-01-01"}] * 3


# ---- columns that are found in another case, or not wanted ----


def test_a_header_in_another_case_alters_no_value(folder: Path) -> None:
    drop(folder, "a.csv", b'"Code",N,more\n007,1,x\n1.10,2,\nTRUE,3,y\n')
    wanted = schema(code=pa.string(), n=pa.int64())
    assert all_rows(source(folder, wanted, fileFormat="csv", header=True)) == [
        {"code": "007", "n": 1},
        {"code": "1.10", "n": 2},
        {"code": "TRUE", "n": 3},
    ]


def test_a_column_of_csv_that_nobody_wants_may_hold_anything(folder: Path) -> None:
    rows = b"".join(b"%d,%d\n" % (number, number) for number in range(200_000))
    drop(folder, "a.csv", b"n,other\n" + rows + b"200000,abc\n200001,\xff\n")
    found = all_rows(source(folder, N, fileFormat="csv", header=True))
    assert [row["n"] for row in found] == list(range(200_002))


@pytest.mark.parametrize("file_format", ["text", "json", "csv"])
def test_rows_of_which_only_the_folder_is_wanted_are_rows(folder: Path, file_format: str) -> None:
    (folder / "k=7").mkdir()
    content = {"text": b"x\ny\n", "json": b'{"n":1}\n{"n":2}\n', "csv": b"n\n1\n2\n"}[file_format]
    drop(folder / "k=7", f"a.{file_format}", content)
    found = all_rows(source(folder, schema(k=pa.int32()), fileFormat=file_format, header=file_format == "csv"))
    assert found == [{"k": 7}, {"k": 7}]


def test_a_header_whose_quote_is_never_closed_is_an_error_of_the_file(folder: Path) -> None:
    drop(folder, "a.csv", b'"n,other\n' + b"1,2\n" * 100_000)
    with pytest.raises(Unreadable, match=r"a\.csv can't be read as csv"):
        all_rows(source(folder, N, fileFormat="csv", header=True))
