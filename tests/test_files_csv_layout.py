"""Each epoch of a csv table says how its files are laid out, so that a follower reads them as they were written."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.file_tables import all_rows, source
from tests.files_query import FilesQuery, query, quick
from tests.pipeline import crash_at
from twophase.errors import DataLost, TableCorrupt
from twophase.file_table import MANIFEST, CsvLayout, Manifest, open_table
from twophase.local_storage import LocalStorage
from twophase.sinks import FilesSink


def texts(*values: str, names: tuple[str, ...] = ("text",)) -> pa.RecordBatch:
    """Rows in which every column has the same value."""
    return pa.record_batch([pa.array(values, pa.string())] * len(names), names=list(names))


def writing(tmp_path: Path, **options: Any) -> FilesQuery:
    options = {"file_format": "csv"} | options
    return query(tmp_path, FilesSink(str(tmp_path / "table"), storage=quick(), **options))


def found(tmp_path: Path, **options: Any) -> list[str]:
    return sorted(row["text"] for row in all_rows(source(tmp_path / "table", **options)))


def as_written_before(epoch: Path) -> None:
    """The epoch as a release would have left it whose manifests do not say how csv files are laid out."""
    (folder,) = epoch.rglob(MANIFEST)
    manifest = Manifest.read(LocalStorage(), str(folder))
    shutil.rmtree(folder)
    older = replace(manifest, form=replace(manifest.form, csv=None))
    assert older.text().startswith(b"twophase-manifest 1 ")
    older.publish(LocalStorage(), str(folder), columns=None, through=str(epoch.parent.parent))


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("partition_by", [[], ["key"]], ids=["plain", "partitioned"])
def test_a_follower_reads_each_epoch_as_it_was_written_though_the_option_changed(
    tmp_path: Path, partition_by: list[str], compression: str
) -> None:
    """The first row of each epoch is the very text that a header would be."""
    names = ("text", *partition_by)
    for number, header in enumerate([False, True, False, True]):
        writer = writing(tmp_path, header=header, partition_by=partition_by, compression=compression)
        writer.epoch(number, texts("text", str(number), names=names))

    assert found(tmp_path) == sorted(["text", "0", "text", "1", "text", "2", "text", "3"])
    assert found(tmp_path, header=True) == found(tmp_path), "the option is for tables that do not say it"
    said = [open_table(str(tmp_path / "table")).manifest(number).form.csv for number in range(4)]
    assert said == [CsvLayout(header, ("text",)) for header in (False, True, False, True)]


def test_a_decided_epoch_that_is_finished_after_the_option_changed_says_how_it_was_written(tmp_path: Path) -> None:
    first = writing(tmp_path, header=False)
    first.log(0)
    first.prepare()
    first.run(texts("text"))
    with crash_at(tmp_path, "decide.published"):
        first.commit()
    later = writing(tmp_path, header=True)
    later.finish(texts("text"))
    later.epoch(1, texts("other"))

    assert found(tmp_path) == ["other", "text"]


def test_an_epoch_whose_columns_are_in_another_order_is_read_by_its_own(tmp_path: Path) -> None:
    """As `schemaChange` any allows: without a header nothing in the file tells."""
    columns = pa.record_batch({"a": ["a0"], "b": ["b0"]})
    writing(tmp_path, schema_change="any").epoch(0, columns)
    writing(tmp_path, schema_change="any").epoch(1, columns.select(["b", "a"]))
    writing(tmp_path, schema_change="any").epoch(2, columns.select(["b"]))

    whole, part = {"a": "a0", "b": "b0"}, {"a": None, "b": "b0"}
    assert all_rows(source(tmp_path / "table")) == [whole, whole, part]


def test_an_epoch_that_does_not_say_how_it_was_written_is_looked_at_or_follows_the_option(tmp_path: Path) -> None:
    for number, header in enumerate([True, False]):
        writing(tmp_path, header=header).epoch(number, texts("x", str(number)))
        as_written_before(tmp_path / "table" / f"epoch={number}")
    writing(tmp_path, header=False).epoch(2, texts("text"))
    assert found(tmp_path) == ["0", "1", "text", "x", "x"]

    writing(tmp_path, header=False).epoch(3, texts("text", "3"))
    as_written_before(tmp_path / "table" / "epoch=3")
    with pytest.raises(DataLost, match=r"has 1 rows, and its manifest says 2.*the option header"):
        found(tmp_path)


def test_a_header_that_is_not_what_the_manifest_says_is_not_blamed_on_the_option(tmp_path: Path) -> None:
    writing(tmp_path, header=True).epoch(0, texts("x"))
    (file,) = (tmp_path / "table").rglob("*.csv")
    file.write_bytes(file.read_bytes().replace(b'"text"\n"x"\n', b'"text","x"\n'))
    with pytest.raises(DataLost, match="has 0 rows, and its manifest says 1") as caught:
        found(tmp_path)
    assert "the option header" not in str(caught.value)


def test_only_manifests_of_csv_are_of_the_newer_format(tmp_path: Path) -> None:
    """So that tables of parquet and json can still be read by the release before."""
    for file_format, expected in (("csv", b"2"), ("json", b"1"), ("parquet", b"1")):
        place = tmp_path / file_format
        sink = FilesSink(str(place / "table"), file_format=file_format, storage=quick())  # type: ignore[arg-type]
        query(place, sink).epoch(0, texts("x"))
        text = open_table(str(place / "table")).manifest(0).text()
        assert text.split(b" ")[1] == expected


def test_a_manifest_of_format_0_is_not_said_to_be_of_another_release(tmp_path: Path) -> None:
    writing(tmp_path).epoch(0, texts("x"))
    text = open_table(str(tmp_path / "table")).manifest(0).text()
    with pytest.raises(TableCorrupt, match="format 0, which no release has written"):
        Manifest.decode(text.replace(b"manifest 2 ", b"manifest 0 "), "p")


def test_an_epoch_without_texts_is_read_after_a_text_was_added(tmp_path: Path) -> None:
    """A null that is alone in its row is written in quotes, and is a null in a file that has no text."""
    writing(tmp_path).epoch(0, pa.record_batch({"id": pa.array([1, None], pa.int32())}))
    writing(tmp_path).epoch(1, pa.record_batch({"id": pa.array([2], pa.int32()), "name": pa.array(["x"])}))

    assert [(row["id"], row["name"]) for row in all_rows(source(tmp_path / "table"))] == [
        (1, None),
        (None, None),
        (2, "x"),
    ]
