"""Readers that know nothing of twophase see whole epochs, at any moment, however they look."""

from __future__ import annotations

import glob
import threading
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest

from tests.files_query import dataset, query
from tests.pipeline import crash_at
from twophase.file_table import MANIFEST
from twophase.sinks import FilesSink

EPOCHS = 15
Reader = Callable[[Path], dict[int, int]]
"""Rows by epoch."""


def by_duckdb(pattern: str) -> Reader:
    def read(table: Path) -> dict[int, int]:
        if not list(table.glob("epoch=*")):
            return {}
        with duckdb.connect() as connection:
            source = f"read_parquet('{table}{pattern}', hive_partitioning=true)"
            return dict(connection.execute(f"SELECT epoch, count(*) FROM {source} GROUP BY epoch").fetchall())

    return read


def by_pyarrow(table: Path) -> dict[int, int]:
    if not list(table.glob("epoch=*")):
        return {}
    epochs = dataset(table).to_table(columns=["epoch"]).column("epoch").to_pylist()
    return {epoch: epochs.count(epoch) for epoch in set(epochs)}


READERS = {
    "pyarrow": by_pyarrow,
    "duckdb **/*.parquet": by_duckdb("/**/*.parquet"),
    "duckdb */*.parquet": by_duckdb("/*/*.parquet"),
    "duckdb folder": by_duckdb(""),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_that_polls_never_sees_part_of_an_epoch(tmp_path: Path, name: str) -> None:
    table, read = tmp_path / "table", READERS[name]
    seen: list[dict[int, int]] = []
    done = threading.Event()

    def poll() -> None:
        while not done.is_set():
            seen.append(read(table))

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        pipeline = query(tmp_path)
        for number in range(EPOCHS):
            pipeline.log(number)
            if number % 5 == 2:
                with crash_at(tmp_path, "files.manifest_published"):
                    pipeline.finish([1, 2], [3], [4])
            pipeline.restart().finish([1, 2], [3], [4])
    finally:
        done.set()
        reader.join()
    seen.append(read(table))

    assert seen[-1] == dict.fromkeys(range(EPOCHS), 4)
    for view in seen:
        assert view == dict.fromkeys(range(len(view)), 4), "part of an epoch, or a gap"
    assert len({len(view) for view in seen}) > 2, "the reader was too slow to see anything"


@pytest.mark.parametrize("file_format", ["parquet", "json", "csv"])
def test_the_manifest_is_invisible_to_readers(tmp_path: Path, file_format: str) -> None:
    table = tmp_path / "table"
    sink = FilesSink(str(table), file_format=file_format, header=file_format == "csv")  # type: ignore[arg-type]
    query(tmp_path, sink).epoch(0, [1, 2])
    assert (table / "epoch=0" / MANIFEST).exists()
    assert dataset(table, file_format).count_rows() == 2
    assert len(glob.glob(f"{table}/*/*")) == 1
    assert len(glob.glob(f"{table}/**", recursive=True)) == 3  # the table, the epoch, the file
    with duckdb.connect() as connection:
        for pattern in (f"{table}/**/*.{file_format}", f"{table}/*/*.{file_format}", f"{table}/*/part-*"):
            assert connection.execute(f"SELECT count(*) FROM read_{file_format}('{pattern}')").fetchall() == [(2,)]


@pytest.mark.parametrize("file_format", ["parquet", "json"])
def test_a_pattern_that_names_every_file_fails_loudly(tmp_path: Path, file_format: str) -> None:
    """DuckDB hides nothing from `**`; the manifest's first line makes it stop there, instead of showing one more row."""
    query(tmp_path, FilesSink(str(tmp_path / "table"), file_format=file_format)).epoch(0, [1, 2])  # type: ignore[arg-type]
    with duckdb.connect() as connection, pytest.raises(duckdb.Error, match="manifest"):
        connection.execute(f"SELECT count(*) FROM read_{file_format}('{tmp_path}/table/**')").fetchall()


def test_staging_is_not_below_the_table(tmp_path: Path) -> None:
    pipeline = query(tmp_path)
    pipeline.epoch(0, [1])
    pipeline.log(1)
    pipeline.prepare()
    pipeline.run([2])
    assert sorted(path.name for path in (tmp_path / "table").iterdir()) == ["epoch=0"]
    with duckdb.connect() as connection:
        pattern = f"{tmp_path}/table/**/*.parquet"
        assert connection.execute(f"SELECT count(*) FROM read_parquet('{pattern}')").fetchall() == [(1,)]
