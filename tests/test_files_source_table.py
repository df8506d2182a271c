"""A twophase table as a source: pipelines chain without a gap, and what is gone or another's is noticed."""

from __future__ import annotations

import datetime
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.file_tables import Rows, all_rows, commit, drop, follow, numbers, rows, source, taken
from tests.files_query import FilesQuery, query
from twophase.errors import CheckpointMismatch, DataLost, OptionError, Unreadable
from twophase.sinks import FilesSink
from twophase.source import ReadLimit

N = pa.schema([("n", pa.int64())])
INSTANT = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=datetime.UTC)
HOSTILE = 'a,b;"c" \\ \'d\' \\\\ \\" ä漢🎉 = % / {x}'

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), [HOSTILE, "", None, "NULL", "two\nlines", "\\", '"', "'"]),
    "whole": (pa.int64(), [2**63 - 1, -(2**63), None, 0, 1, 2, 3, 4]),
    "small": (pa.int8(), [127, -128, None, 0, 1, 2, 3, 4]),
    "real": (pa.float64(), [0.1, -1e300, None, 5e-324, 1.0, 2.5, -0.0, 3.0]),
    "flag": (pa.bool_(), [True, False, None, True, True, False, False, None]),
    "day": (pa.date32(), [datetime.date(2024, 2, 29), datetime.date(1, 1, 1), None, *[datetime.date(1970, 1, 1)] * 5]),
    "instant": (pa.timestamp("us", "UTC"), [INSTANT, INSTANT.replace(year=1904), None, *[INSTANT] * 5]),
    "local": (pa.timestamp("us"), [INSTANT.replace(tzinfo=None), None, *[datetime.datetime(2024, 1, 1)] * 6]),
    "price": (
        pa.decimal128(20, 4),
        [Decimal("1234567890123456.7891"), Decimal("-0.0001"), None, *[Decimal("1.0000")] * 5],
    ),
}
NESTED: dict[str, tuple[pa.DataType, list[Any]]] = {
    "list": (pa.list_(pa.int32()), [[1, None], [], None, *[[7]] * 5]),
    "struct": (
        pa.struct([("a", pa.string()), ("d", pa.date32())]),
        [{"a": "x", "d": datetime.date(2024, 1, 1)}, None] * 4,
    ),
    "bytes": (pa.binary(), [b"\x00\xff", b"", None, b"abc", b"a", b"b", b"c", b"d"]),
}


def batch(columns: dict[str, tuple[pa.DataType, list[Any]]]) -> pa.RecordBatch:
    arrays = [pa.array(values, kind) for kind, values in columns.values()]
    return pa.record_batch(arrays, names=list(columns))


def write(writer: FilesQuery, number: int, rows: Any) -> None:
    """One epoch of one task."""
    writer.epoch(number, rows)


def by_whole(found: Rows) -> Rows:
    return sorted(found, key=lambda row: (row["whole"] is None, row["whole"] or 0))


def test_a_pipeline_that_reads_what_another_writes_takes_each_epoch_once(tmp_path: Path) -> None:
    first = query(tmp_path)
    files = source(tmp_path / "table", pa.schema([("value", pa.int64())]), sourceKind="table")
    at, seen = files.earliest(), list[int]()
    for number in range(6):
        first.epoch(number, [10 * number, 10 * number + 1], [10 * number + 2])
        if number % 2:  # two epochs wait, once in a while
            end = files.latest(at)
            seen += sorted(row["value"] for row in rows(files, at, end))
            at = end
    expected = [10 * number + row for number in range(6) for row in range(3)]

    assert seen == expected
    assert files.latest(at) == at


def test_a_follower_that_starts_before_the_first_epoch_follows_a_table(tmp_path: Path) -> None:
    """The writer has made the table's folder, and committed nothing: taken for a plain folder, the offsets would be no table's."""
    writer = query(tmp_path)
    writer.log(0)
    writer.prepare()
    before = source(tmp_path / "table", schema=pa.schema([("value", pa.int64())]))
    start = before.earliest()
    assert before.latest(start) == start
    writer.run([1, 2])
    writer.commit()

    again = source(tmp_path / "table")

    assert [row["value"] for row in rows(again, start, again.latest(start))] == [1, 2]


def test_an_epoch_that_is_staged_or_aborted_is_not_taken(tmp_path: Path) -> None:
    first = query(tmp_path)
    first.epoch(0, [1])
    first.log(1)
    first.prepare()
    first.run([2])
    assert all_rows(source(tmp_path / "table")) == [{"value": 1}]

    first.commit()
    assert all_rows(source(tmp_path / "table")) == [{"value": 1}, {"value": 2}]


def test_empty_epochs_are_taken_and_have_no_rows(tmp_path: Path) -> None:
    first = query(tmp_path)
    first.epoch(0)
    first.epoch(1, [])
    first.epoch(2, [5])
    files = source(tmp_path / "table", pa.schema([("value", pa.int64())]), maxEpochsPerTrigger=1)
    at = files.earliest()
    read = []
    for _ in range(3):
        end = files.latest(at)
        read.append(rows(files, at, end))
        at = end

    assert read == [[], [], [{"value": 5}]]


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(
    ("file_format", "header"), [("parquet", False), ("json", False), ("csv", False), ("csv", True)]
)
def test_what_the_sink_wrote_comes_back_value_by_value(
    tmp_path: Path, file_format: Literal["parquet", "json", "csv"], header: bool, compression: str
) -> None:
    columns = VALUES if file_format == "csv" else VALUES | NESTED
    written = batch(columns)
    sink = FilesSink(str(tmp_path / "table"), file_format=file_format, header=header, compression=compression)
    write(query(tmp_path, sink, schema=written.schema), 0, written)
    files = source(tmp_path / "table")

    assert files.schema() == written.schema
    assert by_whole(all_rows(files)) == by_whole(written.to_pylist())


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("values", [["a", None, "", None], [None], [None, None], ["x"]])
def test_a_single_csv_column_keeps_every_row(tmp_path: Path, header: bool, values: list[str | None]) -> None:
    """A null alone in its row would be an empty line, which readers skip: it is written as an empty text."""
    written = pa.record_batch([pa.array(values, pa.string())], names=["text"])
    sink = FilesSink(str(tmp_path / "table"), file_format="csv", header=header)
    write(query(tmp_path, sink, schema=written.schema), 0, written)

    assert all_rows(source(tmp_path / "table")) == [{"text": value or ""} for value in values]


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.bool_(), pa.date32()], ids=str)
def test_a_null_that_is_alone_in_its_row_of_csv_is_one(tmp_path: Path, kind: pa.DataType, header: bool) -> None:
    """Also where the other column is a folder."""
    for folder in ([], ["key"]):
        place = tmp_path / "-".join(["table", *folder])
        sink = FilesSink(str(place), file_format="csv", header=header, partition_by=folder)
        columns = {"value": (kind, [None, None])} | ({"key": (pa.int64(), [1, 2])} if folder else {})
        writer = FilesQuery(tmp_path / f"checkpoint-{place.name}", {"s": sink})
        write(writer, 0, batch(columns))
        assert [row["value"] for row in all_rows(source(place))] == [None, None]


@pytest.mark.parametrize("header", [False, True])
def test_a_csv_row_that_looks_like_a_header_is_a_row(tmp_path: Path, header: bool) -> None:
    written = pa.record_batch([pa.array(["text", "x"], pa.string())], names=["text"])
    sink = FilesSink(str(tmp_path / "table"), file_format="csv", header=header)
    write(query(tmp_path, sink, schema=written.schema), 0, written)

    assert all_rows(source(tmp_path / "table")) == written.to_pylist()


PARTITIONS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (pa.string(), [HOSTILE.replace("\\", "-"), "a/b", None, "100%41", "k=v", " ", "..", "x:y"]),
    "day": VALUES["day"],
    "whole": VALUES["whole"],
    "flag": VALUES["flag"],
    "instant": (pa.timestamp("us", "Europe/Berlin"), [INSTANT, None, *[INSTANT.replace(month=7)] * 6]),
    "price": VALUES["price"],
}


@pytest.mark.parametrize("column", PARTITIONS)
@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
def test_partition_columns_come_back_from_the_folders(
    tmp_path: Path, column: str, file_format: Literal["parquet", "json", "csv"]
) -> None:
    kind, values = PARTITIONS[column]
    written = pa.record_batch([pa.array(range(8), pa.int64()), pa.array(values, kind)], names=["n", "by"])
    sink = FilesSink(str(tmp_path / "table"), file_format=file_format, partition_by=["by"])
    write(query(tmp_path, sink, schema=written.schema), 0, written)
    found = all_rows(source(tmp_path / "table"))

    assert sorted(found, key=lambda row: int(row["n"])) == written.to_pylist()


@pytest.mark.parametrize(
    ("file_format", "header"), [("parquet", False), ("json", False), ("csv", False), ("csv", True)]
)
def test_older_epochs_have_null_in_columns_that_were_added_later(
    tmp_path: Path, file_format: Literal["parquet", "json", "csv"], header: bool
) -> None:
    sink = FilesSink(str(tmp_path / "table"), file_format=file_format, header=header)
    old = pa.record_batch([pa.array([1], pa.int64())], names=["n"])
    new = pa.record_batch([pa.array([2], pa.int64()), pa.array(["x"])], names=["n", "extra"])
    writer = query(tmp_path, sink, schema=old.schema)
    write(writer, 0, old)
    writer.schema = new.schema
    write(writer, 1, new)

    assert all_rows(source(tmp_path / "table")) == [{"n": 1, "extra": None}, {"n": 2, "extra": "x"}]
    assert all_rows(source(tmp_path / "table", N)) == [{"n": 1}, {"n": 2}], "only what was asked for"
    kinds: dict[str, pa.DataType] = {"extra": pa.large_string(), "n": pa.float64(), "never": pa.date32()}
    wider = pa.schema(kinds)
    assert all_rows(source(tmp_path / "table", wider)) == [
        {"extra": None, "n": 1.0, "never": None},
        {"extra": "x", "n": 2.0, "never": None},
    ]


def test_columns_that_a_running_query_does_not_read_are_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    commit(tmp_path / "t", 0, {"a.parquet": pa.table({"n": [1], "new": ["x"]})})
    with caplog.at_level("WARNING", "twophase"):
        assert all_rows(source(tmp_path / "t", N)) == [{"n": 1}]
        assert all_rows(source(tmp_path / "t", N)) == [{"n": 1}]

    assert [record.message for record in caplog.records if "columns of the table" in record.message] == [
        f"columns of the table are not read table=file://{tmp_path}/t columns=new"
    ]


def test_the_epoch_is_a_column_if_that_is_asked_for(tmp_path: Path) -> None:
    for position in range(3):
        commit(tmp_path / "t", position, {"a.parquet": numbers(position * 10)})
    expected = [{"n": 0, "epoch": 0}, {"n": 10, "epoch": 1}, {"n": 20, "epoch": 2}]

    assert all_rows(source(tmp_path / "t", includeEpoch=True)) == expected
    assert all_rows(source(tmp_path / "t", N, includeEpoch=True)) == expected
    assert all_rows(source(tmp_path / "t")) == [{"n": 0}, {"n": 10}, {"n": 20}]
    drop(tmp_path / "plain", "a", numbers(1))
    with pytest.raises(OptionError, match="is a plain folder"):
        source(tmp_path / "plain", includeEpoch=True).earliest()


def test_epochs_that_retention_deleted_before_they_were_read_are_named(tmp_path: Path) -> None:
    for position in range(6):
        commit(tmp_path / "t", position, {"a.parquet": numbers(position)})
    files = source(tmp_path / "t")
    start = files.earliest()
    first = files.latest(start, ReadLimit(rows=1))
    end = files.latest(start)
    for position in range(4):
        shutil.rmtree(tmp_path / "t" / f"epoch={position}")

    with pytest.raises(DataLost, match="epochs 1 to 3 of the table"):
        files.latest(first)
    with pytest.raises(DataLost, match="epochs 1 to 3 of the table"):
        files.latest(first, ReadLimit(rows=1))
    with pytest.raises(DataLost, match="epochs 1 to 3 of the table"):
        files.plan(first, end)
    assert follow(source(tmp_path / "t")) == [[4, 5]], "a new query begins with what is there"
    commit(tmp_path / "t", 6, {"a.parquet": numbers(6)})
    assert taken(files, end, files.latest(end)) == [6], "what was read may go"


def test_a_table_that_was_begun_again_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    for position in range(3):
        commit(tmp_path / "t", position, {"a.parquet": numbers(position)})
    files = source(tmp_path / "t", sourceKind="table")
    start = files.earliest()
    end = files.latest(start)
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(DataLost, match="no epoch at all"):
        files.latest(end)
    commit(tmp_path / "t", 0, {"a.parquet": numbers(0)}, by="other.2")
    with pytest.raises(DataLost, match="its newest epoch is 0"):
        files.latest(end)
    for position in (1, 2, 3):
        commit(tmp_path / "t", position, {"a.parquet": numbers(position)}, by=f"other.{position}")
    with pytest.raises(DataLost, match=r"committed by other\.2, and not by ledger\.4"):
        files.latest(end)
    with pytest.raises(DataLost, match="begun again"):
        files.plan(start, end)


def test_a_file_of_an_epoch_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    commit(tmp_path / "t", 0, {"a.parquet": numbers(1, 2, 3)})
    file = tmp_path / "t" / "epoch=0" / "a.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[:-4])
    with pytest.raises(DataLost, match=rf"a\.parquet has {len(whole) - 4} bytes, and had {len(whole)}"):
        all_rows(source(tmp_path / "t"))

    pq.write_table(numbers(1, 2), file)
    file.write_bytes(file.read_bytes())
    other = tmp_path / "same-length"
    pq.write_table(numbers(7, 8, 9), other)
    assert other.stat().st_size == len(whole)
    file.write_bytes(whole.replace(b"PAR1", b"PAR2"))
    with pytest.raises(Unreadable, match=r"a\.parquet can't be read as parquet"):
        all_rows(source(tmp_path / "t"))


def test_a_csv_file_with_other_rows_than_its_manifest_says_is_noticed(tmp_path: Path) -> None:
    commit(tmp_path / "t", 0, {"a.csv": numbers(1, 2, 3)}, file_format="csv")
    file = tmp_path / "t" / "epoch=0" / "a.csv"
    file.write_bytes(file.read_bytes().replace(b"2\n", b"22"))
    with pytest.raises(DataLost, match="has 2 rows, and its manifest says 3"):
        all_rows(source(tmp_path / "t"))


def test_a_table_without_an_epoch_waits_for_its_first_one(tmp_path: Path) -> None:
    files = source(tmp_path / "t", N, sourceKind="table")
    start = files.earliest()
    assert files.latest(start) == start
    with pytest.raises(OptionError, match="give the schema"):
        source(tmp_path / "t", sourceKind="table").schema()
    commit(tmp_path / "t", 0, {"a.parquet": numbers(1)})

    assert taken(files, start, files.latest(start)) == [1]


def test_a_damaged_table_is_never_read_as_a_plain_folder(tmp_path: Path) -> None:
    commit(tmp_path / "t", 0, {"a.parquet": numbers(1)})
    drop(tmp_path / "t", "stray.parquet", numbers(2))
    with pytest.raises(CheckpointMismatch, match="stray"):
        source(tmp_path / "t").earliest()


def test_a_folder_that_became_a_table_is_not_read_on_as_a_folder(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    files = source(tmp_path / "t", N)
    start = files.earliest()
    commit(tmp_path / "t", 0, {"a.parquet": numbers(1)})

    with pytest.raises(OptionError, match="this query began on a plain folder"):
        source(tmp_path / "t", N).latest(start)
