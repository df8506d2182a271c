"""Readers that know nothing of twophase see whole epochs, at any moment, however they look."""

from __future__ import annotations

import datetime
import glob
import re
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.files_query import FilesQuery, dataset, query, quick
from tests.markdown import blocks, section
from tests.pipeline import crash_at
from twophase.file_table import MANIFEST, open_table
from twophase.identity import Owner
from twophase.sinks import FilesSink

EPOCHS = 10
Reader = Callable[[Path], dict[int, int]]
"""Rows by epoch."""
ANY_DEPTH = ["", "/**", "/**/*", "/**/*.parquet", "/epoch=*/**"]
PATTERNS = {"plain": [*ANY_DEPTH, "/*/*", "/epoch=*/*", "/*/*.parquet"], "partitioned": [*ANY_DEPTH, "/*/*/*"]}
"""By the kind of table: what DuckDB may be given after the table's folder."""
EVERY_PATTERN = [(kind, pattern) for kind, patterns in PATTERNS.items() for pattern in patterns]


def selected(
    table: Path, pattern: str, *, what: str = "*", function: str = "read_parquet", options: str = "", then: str = ""
) -> tuple[dict[str, str], list[Any]]:
    """What DuckDB answers: its columns with their types, and its rows."""
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT {what} FROM {function}('{table}{pattern}'{options}) {then}")
        return {column[0]: str(column[1]) for column in found.description}, sorted(found.fetchall(), key=repr)


def by_duckdb(pattern: str) -> Reader:
    def read(table: Path) -> dict[int, int]:
        if not list(table.glob("epoch=*")):
            return {}
        return dict(selected(table, pattern, what="epoch, count(*)", then="GROUP BY epoch")[1])

    return read


def by_pyarrow(table: Path) -> dict[int, int]:
    if not list(table.glob("epoch=*")):
        return {}
    epochs = dataset(table).to_table(columns=["epoch"]).column("epoch").to_pylist()
    return {epoch: epochs.count(epoch) for epoch in set(epochs)}


READERS = {
    **{(kind, "pyarrow"): by_pyarrow for kind in PATTERNS},
    **{(kind, f"duckdb {pattern}"): by_duckdb(pattern) for kind, pattern in EVERY_PATTERN},
}


def keyed(keys: Sequence[Any], values: Sequence[int], kind: Any = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"key": pa.array(keys, kind), "value": pa.array(values, pa.int64())})


def sink_of(tmp_path: Path, **settings: Any) -> FilesSink:
    return FilesSink(str(tmp_path / "table"), storage=quick(), **settings)


@pytest.mark.parametrize(("kind", "name"), READERS)
def test_a_reader_that_polls_never_sees_part_of_an_epoch(tmp_path: Path, kind: str, name: str) -> None:
    table, read = tmp_path / "table", READERS[kind, name]
    tasks: list[Any] = [[1, 2], [3], [4]]
    if kind == "partitioned":
        tasks = [keyed([1, 2], [1, 2]), keyed([2], [3]), keyed([3], [4])]
    seen: list[dict[int, int]] = []
    done, looked = threading.Event(), threading.Event()

    def poll() -> None:
        while not done.is_set():
            seen.append(read(table))
            looked.set()

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        pipeline = query(tmp_path, sink_of(tmp_path, partition_by=["key"] if kind == "partitioned" else []))
        for number in range(EPOCHS):
            pipeline.log(number)
            if number % 5 == 2:
                with crash_at(tmp_path, "files.manifest_published"):
                    pipeline.finish(*tasks)
            pipeline.restart().finish(*tasks)
            # On a busy machine all epochs may pass during one look: the next one waits until a look is over.
            looked.clear()
            assert looked.wait(60), "the reader has died"
    finally:
        done.set()
        reader.join()
    seen.append(read(table))

    assert seen[-1] == dict.fromkeys(range(EPOCHS), 4)
    for view in seen:
        assert view == dict.fromkeys(range(len(view)), 4), "part of an epoch, or a gap"
    assert len({len(view) for view in seen}) > 2, "the reader was too slow to see anything"


# ---- what a reader finds, whatever pattern it was given ----

DAYS = [datetime.date(2024, 1, day) for day in (1, 2, 3)]
KEYS: dict[str, tuple[list[Any], Any, str, str]] = {
    "texts": (["DE", "US", "FR"], pa.string(), "VARCHAR", "string"),
    "texts and nulls": (["DE", None, "FR"], pa.string(), "VARCHAR", "string"),
    "integers": ([1, 2, 30], pa.int64(), "BIGINT", "int32"),
    "integers and nulls": ([1, None, 30], pa.int64(), "BIGINT", "int32"),
    "days": (DAYS, pa.date32(), "DATE", "string"),
}
"""Values of a partition column, its type, and what DuckDB and pyarrow make of the folders' names."""


@pytest.mark.parametrize("pattern", PATTERNS["partitioned"])
@pytest.mark.parametrize("name", KEYS)
def test_partition_columns_have_their_types_and_values(tmp_path: Path, name: str, pattern: str) -> None:
    keys, kind, in_duckdb, in_pyarrow = KEYS[name]
    table, pipeline = tmp_path / "table", query(tmp_path, sink_of(tmp_path, partition_by=["key"]))
    pipeline.epoch(0, keyed(keys[:2], [1, 2], kind))
    pipeline.epoch(1, keyed(keys[2:], [3], kind))

    wanted = sorted([(1, 0, keys[0]), (2, 0, keys[1]), (3, 1, keys[2])], key=repr)
    for options in ("", ", hive_partitioning=true"):
        types, rows = selected(table, pattern, what="value, epoch, key", options=options)
        assert (types, rows) == ({"value": "BIGINT", "epoch": "BIGINT", "key": in_duckdb}, wanted)
    types, rows = selected(table, pattern, options=", hive_partitioning=false")
    assert (types, rows) == ({"value": "BIGINT"}, [(1,), (2,), (3,)])
    found = dataset(table).to_table()
    assert str(found.schema.field("key").type) == in_pyarrow
    assert sorted(found["value"].to_pylist()) == [1, 2, 3]


def test_a_table_by_several_columns_is_read_by_any_pattern(tmp_path: Path) -> None:
    table, names = tmp_path / "table", ["key", "a b%"]
    pipeline = query(tmp_path, sink_of(tmp_path, partition_by=names))
    for number in range(2):
        batch = pa.RecordBatch.from_pydict({"key": [1, 2], "a b%": ["x", None], "value": [number, number]})
        pipeline.epoch(number, batch)
    for pattern in (*ANY_DEPTH, "/*/*/*/*"):
        _, rows = selected(table, pattern, what="epoch, key, value")
        assert rows == [(0, 1, 0), (0, 2, 0), (1, 1, 1), (1, 2, 1)]
    assert dataset(table).count_rows() == 4


@pytest.mark.parametrize(("kind", "pattern"), EVERY_PATTERN)
def test_a_table_that_begins_without_rows_is_read_by_any_pattern(tmp_path: Path, kind: str, pattern: str) -> None:
    table = tmp_path / "table"
    pipeline = query(tmp_path, sink_of(tmp_path, partition_by=["key"] if kind == "partitioned" else []))
    pipeline.epoch(0, keyed([], [], pa.int64()))
    pipeline.epoch(1, keyed([], [], pa.int64()))
    assert selected(table, pattern, what="epoch, key, value")[1] == []
    pipeline.epoch(2, keyed([7], [1], pa.int64()))
    types, rows = selected(table, pattern, what="epoch, key, value")
    assert (types, rows) == ({"epoch": "BIGINT", "key": "BIGINT", "value": "BIGINT"}, [(2, 7, 1)])


@pytest.mark.parametrize(("kind", "pattern"), EVERY_PATTERN)
def test_added_columns_are_there_by_name(tmp_path: Path, kind: str, pattern: str) -> None:
    table = tmp_path / "table"
    pipeline = query(tmp_path, sink_of(tmp_path, partition_by=["key"] if kind == "partitioned" else []))
    pipeline.epoch(0, keyed([1], [1]))
    pipeline.epoch(1, pa.RecordBatch.from_pydict({"key": [1], "value": [2], "more": ["m"]}))

    _, rows = selected(table, pattern, what="value, more", options=", union_by_name=true")
    assert rows == [(1, None), (2, "m")]
    assert selected(table, pattern)[0] == selected(table, "/**/*.parquet")[0], "the columns of the first epoch"


def test_the_manifest_has_the_columns_that_the_files_have(tmp_path: Path) -> None:
    """A column that was dropped is still the table's, and not the epoch's: with `any` a reader of new epochs must not meet it."""
    table, pipeline = tmp_path / "table", query(tmp_path, sink_of(tmp_path, schema_change="any"))
    pipeline.epoch(0, keyed([1], [1]))
    pipeline.epoch(1, pa.RecordBatch.from_pydict({"value": ["two"]}))
    (table / "epoch=0").rename(tmp_path / "retired")
    assert selected(table, "/**", options=", hive_partitioning=false") == ({"value": "VARCHAR"}, [("two",)])


@pytest.mark.parametrize(("kind", "pattern"), EVERY_PATTERN)
def test_the_epoch_of_a_take_over_has_no_rows_for_any_pattern(tmp_path: Path, kind: str, pattern: str) -> None:
    table, sink = tmp_path / "table", sink_of(tmp_path, partition_by=["key"] if kind == "partitioned" else [])
    query(tmp_path, sink, owner="first").epoch(0, keyed([1], [1]))
    second = FilesQuery(tmp_path / "second", {"s": sink}, owner="second", take_over={"s": Owner("first", "s")})
    second.epoch(0, keyed([2], [2]))
    assert selected(table, pattern, what="epoch, key, value")[1] == [(0, 1, 1), (2, 2, 2)]
    (table / "epoch=0").rename(tmp_path / "retired")
    assert selected(table, pattern, what="epoch, key, value")[1] == [(2, 2, 2)]


# ---- json and csv ----

JSON_READERS = ["read_json", "read_json_auto", "read_ndjson", "read_ndjson_auto"]


@pytest.mark.parametrize("partition_by", [[], ["key"]], ids=["plain", "partitioned"])
@pytest.mark.parametrize("function", JSON_READERS)
def test_json_is_read_by_any_pattern(tmp_path: Path, function: str, partition_by: list[str]) -> None:
    table = tmp_path / "table"
    pipeline = query(tmp_path, sink_of(tmp_path, file_format="json", partition_by=partition_by))
    pipeline.epoch(0, keyed([], [], pa.int64()))
    pipeline.epoch(1, keyed([1, 2], [10, 20]))
    pipeline.epoch(2, keyed([3], [30]))
    for pattern in ("/**", "/**/*", "/epoch=*/**", "/*/*/*" if partition_by else "/*/*"):
        types, rows = selected(table, pattern, what="epoch, key, value", function=function)
        assert rows == [(1, 1, 10), (1, 2, 20), (2, 3, 30)]
        assert types == dict.fromkeys(types, "BIGINT")


@pytest.mark.parametrize("partition_by", [[], ["key"]], ids=["plain", "partitioned"])
@pytest.mark.parametrize("options", ["", ", header=true", ", union_by_name=true"])
def test_csv_is_read_by_any_pattern(tmp_path: Path, options: str, partition_by: list[str]) -> None:
    """There is no text that every reader of csv takes for no row: so the manifest is no file."""
    table = tmp_path / "table"
    pipeline = query(tmp_path, sink_of(tmp_path, file_format="csv", header=True, partition_by=partition_by))
    pipeline.epoch(0, keyed([], [], pa.int64()))
    pipeline.epoch(1, keyed([1, 2], [10, 20]))
    pipeline.epoch(2, keyed([3], [30]))
    for pattern in ("/**", "/**/*", "/**/*.csv", "/epoch=*/**", "/*/*/*" if partition_by else "/*/*"):
        types, rows = selected(table, pattern, what="epoch, key, value", function="read_csv", options=options)
        assert rows == [(1, 1, 10), (1, 2, 20), (2, 3, 30)]
        assert types == dict.fromkeys(types, "BIGINT")


@pytest.mark.parametrize("partition_by", [[], ["key"]], ids=["plain", "partitioned"])
@pytest.mark.parametrize("file_format", ["json", "csv"])
def test_compressed_text_is_read_by_any_pattern_as_the_page_for_operators_says(
    tmp_path: Path, file_format: str, partition_by: list[str]
) -> None:
    """DuckDB finds the codec by the ending, file by file. Told that all are gzip, it unpacks manifests of json too."""
    header = file_format == "csv"
    sink = sink_of(tmp_path, file_format=file_format, compression="gzip", header=header, partition_by=partition_by)
    pipeline = query(tmp_path, sink)
    pipeline.epoch(0, keyed([1, 2], [10, 20]))
    pipeline.epoch(1, keyed([3], [30]))

    def rows(pattern: str, options: str) -> list[Any]:
        function = f"read_{file_format}"
        return selected(tmp_path / "table", pattern, what="epoch, key, value", function=function, options=options)[1]

    expected = [(0, 1, 10), (0, 2, 20), (1, 3, 30)]
    for pattern in ("/**", "/epoch=*/**", f"/**/*.{file_format}.gz"):
        assert rows(pattern, "") == expected
    assert rows(f"/**/*.{file_format}.gz", ", compression='gzip'") == expected
    if file_format == "csv":
        assert rows("/**", ", compression='gzip'") == expected
    else:
        with pytest.raises(duckdb.IOException, match=rf"not a GZIP stream.*\{MANIFEST}"):
            rows("/**", ", compression='gzip'")


def test_csv_without_a_header_is_read_by_any_pattern(tmp_path: Path) -> None:
    query(tmp_path, sink_of(tmp_path, file_format="csv", header=False)).epoch(0, [1, 2])
    assert selected(tmp_path / "table", "/**", function="read_csv", options=", header=false")[1] == [(1, 0), (2, 0)]


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
def test_the_manifest_is_hidden_from_who_ignores_dots(tmp_path: Path, file_format: str) -> None:
    table = tmp_path / "table"
    query(tmp_path, sink_of(tmp_path, file_format=file_format, header=file_format == "csv")).epoch(0, [1, 2])
    assert (table / "epoch=0" / MANIFEST).exists()
    assert dataset(table, file_format).count_rows() == 2
    assert len(glob.glob(f"{table}/*/*")) == 1
    assert len(glob.glob(f"{table}/**", recursive=True)) == 3  # the table, the epoch, the file
    for pattern in (f"/**/*.{file_format}", f"/*/*.{file_format}", "/*/part-*"):
        assert selected(table, pattern, what="count(*)", function=f"read_{file_format}")[1] == [(2,)]


# ---- around the table ----


@pytest.mark.parametrize("partition_by", [[], ["key"]], ids=["plain", "partitioned"])
def test_a_copy_of_the_folder_is_a_whole_table(tmp_path: Path, partition_by: list[str]) -> None:
    query(tmp_path, sink_of(tmp_path, partition_by=partition_by)).epoch(0, keyed([1, 2], [1, 2]))
    shutil.copytree(tmp_path / "table", tmp_path / "copy" / "table")
    newest = open_table(str(tmp_path / "copy" / "table")).newest()
    assert newest == open_table(str(tmp_path / "table")).newest()
    assert newest is not None
    assert selected(tmp_path / "copy" / "table", "/**", what="value")[1] == [(1,), (2,)]


def test_the_page_for_operators_says_how_to_read_a_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parent.parent / "docs" / "operations.md").read_text("utf-8")
    text = section(page, "Readers")
    pipeline = query(tmp_path, FilesSink(str(tmp_path / "orders"), storage=quick()))
    pipeline.epoch(0, [1, 2])
    (code,) = blocks(text, "python")
    exec(compile(code.replace("/data/", f"{tmp_path}/"), "operations.md", "exec"), {})
    assert capsys.readouterr().out.startswith(f"0 {pipeline.name}/s 0 2 ")
    (statement,) = re.findall("`(SELECT .*?)`", text)
    with duckdb.connect() as connection:
        ((said,),) = connection.execute(statement.replace("/data/", f"{tmp_path}/")).fetchall()
    assert said.encode() == open_table(str(tmp_path / "orders")).manifest(0).text()


def test_an_epoch_without_any_column_is_nothing_to_any_pattern(tmp_path: Path) -> None:
    """A parquet file must have a column, and a sink that was never written has none."""
    table, pipeline = tmp_path / "table", query(tmp_path)
    pipeline.log(0)
    pipeline.prepare()
    pipeline.commit([])
    pipeline.log_commit()
    pipeline.epoch(1, [1])
    assert selected(table, "/**")[1] == selected(table, "/**/*.parquet")[1] == [(1, 1)]


def test_staging_is_not_below_the_table(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.epoch(0, [1])
    pipeline.log(1)
    pipeline.prepare()
    pipeline.run([2])
    assert sorted(path.name for path in (tmp_path / "table").iterdir()) == ["epoch=0"]
    assert selected(tmp_path / "table", "/**")[1] == [(1, 0)]
