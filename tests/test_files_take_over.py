"""A take-over of a table of files is refused while the table is still its owner's, if the new query's rows would not fit it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.files_query import FilesQuery, query, quick, staged, visible
from twophase.errors import OptionError, SchemaMismatch
from twophase.file_table import open_table
from twophase.identity import Owner
from twophase.sinks import FilesSink

FITS = pa.schema([("value", pa.int64())])


def heir(tmp_path: Path, schema: pa.Schema | None = FITS, **options: Any) -> FilesQuery:
    """A second query, told to take the table over from the first."""
    sink = FilesSink(str(tmp_path / "table"), storage=quick(), **options)
    taking = {"s": Owner("first", "s")}
    return FilesQuery(
        tmp_path / "second", {"s": sink}, owner="second", take_over=taking, storage=quick(), schema=schema
    )


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (pa.schema([("value", pa.string())]), {}, "the column 'value' was int64 and is now string"),
        (pa.schema([("other", pa.int64())]), {}, "the column 'value' was dropped"),
        (FITS, {"file_format": "csv"}, "the table's files are parquet"),
        (None, {"file_format": "csv"}, "the table's files are parquet"),
        (FITS.append(pa.field("k", pa.string())), {"partition_by": ["k"]}, "partitioned by nothing"),
        (FITS.append(pa.field("k", pa.string())), {"schema_change": "refuse"}, "columns were added"),
    ],
    ids=["type", "dropped", "format", "format before the columns are known", "partitions", "added"],
)
def test_a_take_over_by_a_query_that_does_not_fit_leaves_the_table_to_its_owner(
    tmp_path: Path, schema: pa.Schema | None, options: dict[str, Any], said: str
) -> None:
    table, first = tmp_path / "table", query(tmp_path, owner="first")
    first.epoch(0, [1])
    first.log(1)
    first.prepare()
    first.run([2])
    waiting = staged(table)
    second = heir(tmp_path, schema, **options)
    second.log(0)
    with pytest.raises(SchemaMismatch, match=said):
        second.prepare()

    assert open_table(str(table)).positions() == [0]
    assert second.ledger().read() is None, "a start that is refused disturbs nobody"
    assert staged(table) == waiting
    first.commit()
    first.log_commit()
    first.restart().epoch(2, [3])
    assert visible(table) == [(0, [1]), (1, [2]), (2, [3])]

    heir(tmp_path).log(0)
    heir(tmp_path).finish([7])
    assert visible(table) == [(0, [1]), (1, [2]), (2, [3]), (4, [7])]


def test_a_take_over_that_would_replace_the_table_leaves_it_to_its_owner(tmp_path: Path) -> None:
    query(tmp_path, owner="first").epoch(0, [1])
    second = heir(tmp_path)
    second.log(0)
    with pytest.raises(OptionError, match="complete mode"):
        second.prepare(overwrite=True)
    assert open_table(str(tmp_path / "table")).positions() == [0]


def test_rows_that_do_not_fit_a_table_of_their_own_are_refused_after_what_was_decided_is_visible(
    tmp_path: Path,
) -> None:
    """Only a take-over is judged before recovery: an owner's own decided epoch does not wait for its columns to be mended."""
    first = query(tmp_path, owner="first")
    first.log(0)
    first.prepare()
    first.run([1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FilesSink, "commit", _dies)
        with pytest.raises(KeyboardInterrupt):
            first.commit()
    assert visible(tmp_path / "table") == []
    first.log_commit()
    first.log(1)
    other = first.restart(schema=pa.schema([("value", pa.string())]))
    with pytest.raises(SchemaMismatch, match="was int64 and is now string"):
        other.prepare()
    assert visible(tmp_path / "table") == [(0, [1])]


def _dies(*_: object) -> None:
    raise KeyboardInterrupt
