"""What FilesSink writes, read by others: formats, partitions, and columns that change."""

from __future__ import annotations

import datetime
import decimal
import gzip
from pathlib import Path
from typing import Any, get_args

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from tests.files_query import FilesQuery, dataset, query, staged
from twophase import partition_folder
from twophase.errors import SchemaMismatch
from twophase.file_table import TableForm, open_table
from twophase.sinks import FilesSink
from twophase.sinks.files import partitions, table_schema, transaction
from twophase.sinks.files.sink import FileFormat
from twophase.sinks.files.writers import CODECS

EVERY = {
    "id": pa.array([1, 2, None], pa.int64()),
    "text": pa.array(['a,"b"\\c', "", "line\nbreak"]),
    "flag": pa.array([True, None, False]),
    "ratio": pa.array([0.1, None, -1e300]),
    "money": pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-0.01")], pa.decimal128(10, 2)),
    "day": pa.array([datetime.date(2024, 2, 29), None, datetime.date(1970, 1, 1)]),
    "at": pa.array(
        [datetime.datetime(2024, 2, 29, 1, 2, 3, 456789), None, datetime.datetime(1970, 1, 1)], pa.timestamp("us")
    ),
    "instant": pa.array([1_700_000_000_123_456, None, 0], pa.timestamp("us", "Europe/Berlin")),
}
NESTED = {
    "raw": pa.array([b"\x00\xff", None, b""]),
    "tags": pa.array([["a", None], [], None]),
    "point": pa.array([{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}]),
    "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
}


def batch(columns: dict[str, Any], **more: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({**columns, **more})


def columns(**types: pa.DataType) -> pa.Schema:
    return pa.schema(types)


def files(table: Path) -> list[Path]:
    return sorted(path for path in table.rglob("part-*") if path.is_file())


def sql(text: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        return connection.execute(text).fetchall()


# ---- formats ----


@pytest.mark.parametrize(("file_format", "codec"), [(f, c) for f in get_args(FileFormat) for c in CODECS[f]])
def test_every_format_and_codec_is_read_by_duckdb(tmp_path: Path, file_format: FileFormat, codec: str) -> None:
    table = tmp_path / "table"
    sink = FilesSink(str(table), file_format=file_format, compression=codec, header=file_format == "csv")
    query(tmp_path, sink).epoch(0, [1, 2, 3], [4])
    (file, _) = files(table)
    pattern = f"{table}/**/*.{file_format}*"
    assert sql(
        f"SELECT sum(value), count(*), max(epoch) FROM read_{file_format}('{pattern}', hive_partitioning=true)"
    ) == [(10, 4, 0)]
    assert file.read_bytes()[:2] == b"\x1f\x8b" or codec != "gzip" or file_format == "parquet"


def test_parquet_keeps_every_value_and_is_compressed_as_sparks_is(tmp_path: Path) -> None:
    rows = batch(EVERY, **NESTED)
    pipeline = query(tmp_path, schema=rows.schema)
    pipeline.epoch(0, rows)
    (file,) = files(tmp_path / "table")
    assert pq.read_table(file, partitioning=None).equals(pa.Table.from_batches([rows]))
    metadata = pq.ParquetFile(file).metadata
    assert metadata.row_group(0).column(0).compression == "SNAPPY"
    logical = {metadata.schema.column(i).name: str(metadata.schema.column(i).logical_type) for i in range(8)}
    assert "isAdjustedToUTC=true" in logical["instant"]
    assert "isAdjustedToUTC=false" in logical["at"]
    assert file.name.endswith(".snappy.parquet")


def test_json_lines_keep_every_value(tmp_path: Path) -> None:
    rows = batch(EVERY, **NESTED)
    sink = FilesSink(str(tmp_path / "table"), file_format="json")
    query(tmp_path, sink).epoch(0, rows)
    found = dataset(tmp_path / "table", "json").to_table().to_pylist()
    assert [row["text"] for row in found] == ['a,"b"\\c', "", "line\nbreak"]
    assert [row["ratio"] for row in found] == [0.1, None, -1e300]
    assert [row["tags"] for row in found] == [["a", None], [], None]
    (first, *_) = sql(f"SELECT id, instant, map FROM read_json('{tmp_path}/table/**/*.json')")
    assert first[1].astimezone(datetime.UTC) == datetime.datetime(2023, 11, 14, 22, 13, 20, 123456, datetime.UTC)


def test_csv_keeps_every_value(tmp_path: Path) -> None:
    rows = batch(EVERY)
    sink = FilesSink(str(tmp_path / "table"), file_format="csv", header=True)
    query(tmp_path, sink).epoch(0, rows)
    (file,) = files(tmp_path / "table")
    source = f"read_csv('{file}', header=true, escape='\\', quote='\"')"
    found = sql(f'SELECT id, text, flag, ratio, money, day, "at" FROM {source}')
    assert [row[1] for row in found] == ['a,"b"\\c', None, "line\nbreak"]
    assert found[0][2:] == (True, 0.1, 1.5, datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 1, 2, 3, 456789))
    text = file.read_text()
    assert text.startswith('"id","text","flag"')
    assert ',"",' in text, "an empty text and a null are not the same in the file"


def test_a_null_alone_in_its_row_is_a_row(tmp_path: Path) -> None:
    sink = FilesSink(str(tmp_path / "table"), file_format="csv", header=True)
    query(tmp_path, sink).epoch(0, batch({"a": pa.array([None, "x", None])}))
    assert sql(f"SELECT a FROM read_csv('{tmp_path}/table/**/*.csv', header=true)") == [(None,), ("x",), (None,)]


def test_csv_without_a_header_has_none(tmp_path: Path) -> None:
    query(tmp_path, FilesSink(str(tmp_path / "table"), file_format="csv", compression="gzip")).epoch(0, [7])
    (file,) = files(tmp_path / "table")
    assert gzip.decompress(file.read_bytes()) == b"7\n"


def test_row_groups_are_large_whatever_the_batches_are(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    small = [pa.record_batch([pa.array(range(i, i + 1000))], names=["value"]) for i in range(0, 50_000, 1000)]
    pipeline.votes = [pipeline.task("s", 0, small)]
    pipeline.commit()
    (file,) = files(tmp_path / "table")
    assert pq.ParquetFile(file).metadata.num_row_groups == 1
    assert pq.read_table(file, partitioning=None).column("value").to_pylist() == list(range(50_000))


def test_a_row_group_ends_when_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "ROW_GROUP_ROWS", 10)
    query(tmp_path).epoch(0, list(range(25)))
    pipeline = FilesQuery(tmp_path / "checkpoint", {"s": FilesSink(str(tmp_path / "table"))})
    pipeline.log(1)
    pipeline.prepare()
    rows = [pa.record_batch([pa.array(range(i, i + 4))], names=["value"]) for i in range(0, 40, 4)]
    pipeline.votes = [pipeline.task("s", 0, rows)]
    pipeline.commit()
    (file,) = (tmp_path / "table" / "epoch=1").glob("part-*")
    assert [pq.ParquetFile(file).metadata.row_group(i).num_rows for i in range(4)] == [12, 12, 12, 4]


# ---- partitions ----

HOSTILE = [
    "a/b",
    "..",
    "x=y",
    "100%",
    "ü €",
    "a:b",
    "q\"'",
    "tab\there",
    "",
    None,
    " ",
    "[x]^{y}",
    "a\\b",
]


@pytest.mark.parametrize("file_format", get_args(FileFormat))
def test_partition_values_come_back_whatever_they_are(tmp_path: Path, file_format: FileFormat) -> None:
    rows = batch({"key": pa.array(HOSTILE * 3), "value": pa.array(range(len(HOSTILE) * 3))})
    sink = FilesSink(
        str(tmp_path / "table"), file_format=file_format, partition_by=["key"], header=file_format == "csv"
    )
    query(tmp_path, sink).epoch(0, rows.slice(0, 20), rows.slice(20))

    typed = ds.HivePartitioning(columns(epoch=pa.int64(), key=pa.string()), segment_encoding="uri")
    found = dataset(tmp_path / "table", file_format, typed).to_table().to_pylist()

    def spark_reads(key: str | None) -> str | None:
        return key or None

    wanted = [(spark_reads(key), value) for key, value in zip(*rows.to_pydict().values(), strict=True)]
    assert {row["value"]: row["key"] for row in found} == {value: key for key, value in wanted}
    assert len(found) == len(wanted)
    assert staged(tmp_path / "table") == []


def test_folders_are_spelled_as_spark_spells_them(tmp_path: Path) -> None:
    rows = batch(
        {
            "at": pa.array([datetime.datetime(2024, 1, 2, 3, 4, 5, 600000)], pa.timestamp("us")),
            "day": pa.array([datetime.date(2024, 1, 2)]),
            "n": pa.array([-5], pa.int16()),
            "ok": pa.array([True]),
            "a b": pa.array(["x/y=%"]),
            "value": pa.array([1]),
        }
    )
    names = ["at", "day", "n", "ok", "a b"]
    query(tmp_path, FilesSink(str(tmp_path / "table"), partition_by=names)).epoch(0, rows)
    (file,) = files(tmp_path / "table" / "epoch=0")
    assert file.parent.relative_to(tmp_path / "table" / "epoch=0").as_posix() == (
        "at=2024-01-02 03%3A04%3A05.6/day=2024-01-02/n=-5/ok=true/a b=x%2Fy%3D%25"
    )
    assert pq.read_schema(file).names == ["value"]


def test_an_instant_is_the_local_time_of_its_zone() -> None:
    rows = batch({"at": pa.array([0], pa.timestamp("us", "Asia/Tokyo")), "value": [1]})
    assert [folder for folder, _ in partitions.split(rows, ["at"])] == ["at=1970-01-01 09%3A00%3A00"]


def test_splitting_keeps_rows_and_their_order() -> None:
    rows = batch({"a": pa.array([2, 1, None, 2, 1]), "b": pa.array(["x", "y", "x", "x", "y"]), "v": pa.array(range(5))})
    split = {folder: part.to_pydict() for folder, part in partitions.split(rows, ["a", "b"])}
    assert split == {
        "a=2/b=x": {"v": [0, 3]},
        "a=1/b=y": {"v": [1, 4]},
        "a=__HIVE_DEFAULT_PARTITION__/b=x": {"v": [2]},
    }
    assert list(partitions.split(rows.slice(0, 0), ["a"])) == []


def test_more_partitions_than_files_may_be_open_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "OPEN_FILES", 3)
    monkeypatch.setattr(transaction, "GATHERED_BYTES", 20_000)
    rows = [batch({"key": [i % 17 for i in range(100)], "value": list(range(j, j + 100))}) for j in range(0, 2000, 100)]
    pipeline = query(tmp_path, FilesSink(str(tmp_path / "table"), partition_by=["key"]))
    pipeline.log(0)
    pipeline.prepare()
    pipeline.votes = [pipeline.task("s", 0, rows)]
    pipeline.commit()
    found = dataset(tmp_path / "table").to_table().to_pylist()
    assert sorted(row["value"] for row in found) == list(range(2000))
    assert len(files(tmp_path / "table")) > 17


def test_a_partitioned_epoch_without_rows_still_shows_its_columns(tmp_path: Path) -> None:
    schema = columns(key=pa.string(), value=pa.int64())
    pipeline = query(tmp_path, FilesSink(str(tmp_path / "table"), partition_by=["key"]), schema=schema)
    nothing = batch({"key": pa.array([], pa.string()), "value": pa.array([], pa.int64())})
    pipeline.epoch(0, nothing, nothing)
    typed = ds.HivePartitioning(columns(epoch=pa.int64(), key=pa.string()))
    found = dataset(tmp_path / "table", partitioning=typed).to_table()
    assert found.num_rows == 0
    assert set(found.schema.names) == {"key", "value", "epoch"}
    assert open_table(str(tmp_path / "table")).manifest(0).form == TableForm("parquet", ("key",), schema)


def test_folders_of_losing_tasks_are_not_in_the_epoch(tmp_path: Path) -> None:
    pipeline = query(tmp_path, FilesSink(str(tmp_path / "table"), partition_by=["key"]))
    pipeline.log(0)
    pipeline.prepare()
    votes = pipeline.run(batch({"key": ["a"], "value": [1]}))
    pipeline.task("s", 0, batch({"key": ["a", "lost"], "value": [1, 2]}))
    pipeline.commit(votes)
    assert {path.name for path in (tmp_path / "table" / "epoch=0").glob("key=*")} == {
        "key=a",
        f"key={partition_folder.NULL}",
    }
    assert [path.parent.name for path in (tmp_path / "table" / "epoch=0").rglob("part-*")] == ["key=a"]
    assert len(files(tmp_path / "table")) == 1


@pytest.mark.parametrize("told", [True, False])
def test_partition_by_finds_its_column_in_any_case_and_the_column_keeps_its_spelling(
    tmp_path: Path, told: bool
) -> None:
    """As Spark does by default."""
    rows = batch({"Key": ["a", "b"], "value": [1, 2]})
    for number, names in enumerate((["KEY"], ["key"], ["Key"])):
        sink = FilesSink(str(tmp_path / "table"), partition_by=names)
        query(tmp_path, sink, schema=rows.schema if told else None).epoch(number, rows)
    assert open_table(str(tmp_path / "table")).manifest(2).form == TableForm("parquet", ("Key",), rows.schema)
    assert {path.parent.name for path in files(tmp_path / "table")} == {"Key=a", "Key=b"}


def test_partition_by_takes_the_column_of_its_own_spelling_or_refuses_to_choose(tmp_path: Path) -> None:
    rows = batch({"key": ["a"], "Key": ["b"], "value": [1]})
    for names in (["key"], ["KEY"]):
        pipeline = query(tmp_path, FilesSink(str(tmp_path / "table"), partition_by=names), schema=rows.schema)
        pipeline.log(0)
        with pytest.raises(SchemaMismatch, match="several columns named 'key'"):
            pipeline.prepare()


def test_a_table_whose_first_epoch_had_no_columns_keeps_the_spelling_of_partition_by(tmp_path: Path) -> None:
    """As when a function of foreachBatch did not write it: where the manifest of the next epoch is, is told by the last one."""
    sink = FilesSink(str(tmp_path / "table"), partition_by=["KEY"])
    query(tmp_path, sink).epoch(0)
    other = query(tmp_path, sink)
    other.log(1)
    with pytest.raises(SchemaMismatch, match="partitioned by KEY: name the column as the table does"):
        other.finish(batch({"key": ["a"], "value": [1]}))
    query(tmp_path, sink).finish(batch({"KEY": ["a"], "value": [1]}))
    assert [path.parent.name for path in files(tmp_path / "table")] == ["KEY=a"]


# ---- columns that change ----


def change(tmp_path: Path, first: dict[str, Any], second: dict[str, Any], *, told: bool, **settings: Any) -> None:
    """Two epochs with these columns, through one sink setting."""
    for number, columns in enumerate((first, second)):
        rows = batch(columns)
        pipeline = query(tmp_path, FilesSink(str(tmp_path / "table"), **settings), schema=rows.schema if told else None)
        pipeline.epoch(number, rows)


@pytest.mark.parametrize("told", [True, False], ids=["told by prepare", "seen by the task"])
def test_an_added_column_is_taken(tmp_path: Path, told: bool) -> None:
    change(tmp_path, {"a": [1]}, {"a": [2], "b": ["x"]}, told=told)
    newest = open_table(str(tmp_path / "table")).newest()
    assert newest is not None
    assert newest.form.schema is not None
    assert newest.form.schema.names == ["a", "b"]
    assert sql(f"SELECT a, b FROM read_parquet('{tmp_path}/table/**/*.parquet', union_by_name=true) ORDER BY a") == [
        (1, None),
        (2, "x"),
    ]


@pytest.mark.parametrize("told", [True, False], ids=["told by prepare", "seen by the task"])
@pytest.mark.parametrize(
    ("second", "settings", "message"),
    [
        ({"b": [1]}, {}, "'a' was dropped"),
        ({"a": ["x"]}, {}, "'a' was int64 and is now string"),
        ({"a": [1], "b": [2]}, {"schema_change": "refuse"}, "added"),
        ({"a": [1], "Epoch": [2]}, {}, "can't be named 'Epoch'"),
        ({"a": [1], "A": [2]}, {}, "several columns named 'a'"),
        ({"A": [1]}, {}, "'A' is 'a' in the table, and readers do not tell upper from lower case"),
        (
            {"A": [1]},
            {"schema_change": "any"},
            "'A' is 'a' in the table, and readers do not tell upper from lower case",
        ),
        ({"a": [1], "s": [{"d": 1, "D": 2}]}, {}, "'s' has several fields named 'd'"),
        ({"a": [1]}, {"file_format": "json"}, "fileFormat is json"),
        ({"a": [1], "b": [1]}, {"partition_by": ["b"]}, "partitionBy is b, and the table is partitioned by nothing"),
        ({"a": [1], "d": pa.array([1], pa.duration("us"))}, {}, r"'d' is duration\[us\]"),
        ({"a": [1], "s": [{"d": None}]}, {}, r"'s\.d' is null"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    tmp_path: Path, second: dict[str, Any], settings: dict[str, Any], message: str, told: bool
) -> None:
    change(tmp_path, {"a": [1]}, {"a": [2]}, told=told)
    rows = batch(second)
    pipeline = query(tmp_path, FilesSink(str(tmp_path / "table"), **settings), schema=rows.schema if told else None)
    pipeline.log(2)
    with pytest.raises(SchemaMismatch, match=message):
        pipeline.finish(rows)
    query(tmp_path).finish(batch({"a": [3]}))
    assert open_table(str(tmp_path / "table")).positions() == [0, 1, 2]
    assert staged(tmp_path / "table") == []


def test_any_change_is_taken_if_asked_for(tmp_path: Path) -> None:
    change(tmp_path, {"a": [1], "b": [1]}, {"a": ["x"]}, told=True, schema_change="any")
    newest = open_table(str(tmp_path / "table")).newest()
    assert newest is not None
    assert newest.form.schema == columns(a=pa.string(), b=pa.int64())


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        ({"a": [1]}, {"partition_by": ["k"]}, "partition column 'k' is not among"),
        ({"k": [1]}, {"partition_by": ["k"]}, "no column besides"),
        ({"k": [1.5], "a": [1]}, {"partition_by": ["k"]}, "can't be a partition column"),
        (
            {"k": pa.array([0], pa.timestamp("us", "GMT+8")), "a": [1]},
            {"partition_by": "k"},
            "'GMT\\+8', which only Java knows",
        ),
        ({"l": [[{"d": 1, "D": 2}]]}, {}, r"'l\.element' has several fields named 'd'"),
        ({"a": [[1]]}, {"file_format": "csv"}, "csv files can't hold"),
        ({"a": [b"x"]}, {"file_format": "csv"}, "csv files can't hold"),
    ],
)
def test_what_no_table_could_hold_is_refused(
    tmp_path: Path, columns: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    rows = batch(columns)
    pipeline = query(tmp_path, FilesSink(str(tmp_path / "table"), **settings), schema=rows.schema)
    pipeline.log(0)
    with pytest.raises(SchemaMismatch, match=message):
        pipeline.prepare()


def test_csv_columns_are_by_position(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="by position"):
        change(tmp_path, {"a": [1], "b": [1]}, {"b": [1], "a": [1]}, told=True, file_format="csv")


def test_types_that_readers_can_not_tell_apart_are_the_same() -> None:
    assert table_schema.same_type(pa.large_string(), pa.string())
    assert table_schema.same_type(pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin"))
    assert table_schema.same_type(
        pa.list_(pa.field("item", pa.large_string(), nullable=False)), pa.large_list(pa.string())
    )
    assert not table_schema.same_type(pa.timestamp("us", "UTC"), pa.timestamp("us"))
    assert not table_schema.same_type(pa.int32(), pa.int64())
