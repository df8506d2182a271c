"""The replay suite of the files source, on a table and on a plain folder: the same range, the same rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from tests.file_tables import commit, drop, follow, numbers, source, taken
from twophase.errors import DataLost, OptionError
from twophase.source import ReadLimit
from twophase.sources.files import FilesSource

ROOT = Path(__file__).resolve().parent.parent

RESTARTED = """
import json, sys
from tests.file_tables import source, taken
from pathlib import Path
path, start, end = sys.argv[1:]
print(json.dumps(taken(source(Path(path)), start, end)))
"""


@dataclass(frozen=True)
class Place:
    """A table or a folder; `add` gives it one unit more: an epoch, or a file."""

    path: Path
    add: Callable[[pa.Table], None]
    unit_option: str

    def source(self, **options: object) -> FilesSource:
        return source(self.path, None, **options)


@pytest.fixture(params=["table", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    path = tmp_path / "in coming=ä%41"
    count = iter(range(1000))

    def add_epoch(rows: pa.Table) -> None:
        commit(path, next(count), {"part-0.parquet": rows})

    def add_file(rows: pa.Table) -> None:
        drop(path, f"f{next(count)}.parquet", rows)

    if request.param == "table":
        return Place(path, add_epoch, "maxEpochsPerTrigger")
    return Place(path, add_file, "maxFilesPerTrigger")


@pytest.fixture
def full(place: Place) -> Place:
    for first in range(0, 20, 2):
        place.add(numbers(first, first + 1))
    return place


def test_the_same_range_read_twice_gives_the_same_rows(full: Place) -> None:
    files = full.source()
    start = files.earliest()
    end = files.latest(start)

    assert taken(files, start, end) == taken(files, start, end) == list(range(20))


def test_the_same_range_gives_the_same_rows_however_it_is_split(full: Place) -> None:
    start = full.source().earliest()
    end = full.source().latest(start)
    split = {count: full.source(parallelism=count) for count in (1, 3, 10, 50)}

    assert {len(files.plan(start, end)) for files in split.values()} == {1, 3, 10}
    assert [taken(files, start, end) for files in split.values()] == [list(range(20))] * 4


def test_the_same_range_gives_the_same_rows_in_a_fresh_process(full: Place) -> None:
    start = full.source().earliest()
    middle = full.source().latest(start, ReadLimit(rows=6))
    end = full.source().latest(middle)
    command = [sys.executable, "-c", RESTARTED, str(full.path), middle, end]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)

    assert json.loads(answer.stdout) == taken(full.source(), middle, end) == list(range(6, 20))


def test_the_same_range_gives_the_same_rows_while_new_data_arrive(full: Place) -> None:
    files = full.source()
    start = files.earliest()
    end = files.latest(start)
    full.add(numbers(100))
    later = files.latest(end)

    assert taken(files, start, end) == list(range(20))
    assert taken(files, end, later) == [100]
    assert taken(full.source(), start, end) == list(range(20))


def test_ranges_follow_each_other_without_gap_or_overlap(full: Place) -> None:
    per_unit = follow(full.source(**{full.unit_option: 3}))
    per_rows = follow(full.source(maxRowsPerTrigger=5))
    by_limit = follow(full.source(), limit=ReadLimit(rows=5))

    assert per_unit == [list(range(6)), list(range(6, 12)), list(range(12, 18)), [18, 19]]
    assert per_rows == by_limit == [list(range(at, at + 4)) for at in range(0, 20, 4)]


@pytest.mark.parametrize("limit", [ReadLimit(rows=0), ReadLimit(bytes=0), ReadLimit(rows=1, bytes=1)])
def test_however_small_the_limit_each_epoch_makes_progress(full: Place, limit: ReadLimit) -> None:
    assert follow(full.source(), limit=limit) == [[at, at + 1] for at in range(0, 20, 2)]


def test_the_smaller_of_option_and_limit_counts(full: Place) -> None:
    files = full.source(maxRowsPerTrigger=10)
    start = files.earliest()

    assert taken(files, start, files.latest(start, ReadLimit(rows=4))) == [0, 1, 2, 3]
    assert taken(files, start, files.latest(start, ReadLimit(rows=14))) == list(range(10))


def test_bytes_are_a_limit(full: Place) -> None:
    file = next(path for path in full.path.rglob("*.parquet"))
    epochs = follow(full.source(maxBytesPerTrigger=int(file.stat().st_size * 2.5)))

    assert [len(epoch) for epoch in epochs] == [4] * 5


def test_a_bounded_run_takes_what_was_there_when_it_began_whatever_an_epoch_may_take(full: Place) -> None:
    files = full.source(**{full.unit_option: 4})
    until = files.newest()
    full.add(numbers(100))
    at, epochs = files.earliest(), list[list[int]]()
    while (end := full.source(**{full.unit_option: 4}).latest(at, until=until)) != at:
        epochs.append(taken(files, at, end))
        at = end

    assert epochs == [list(range(8)), list(range(8, 16)), [16, 17, 18, 19]]
    later = files.latest(at)
    assert taken(files, at, later) == [100]
    assert files.latest(later, until=until) == later, "an offset never goes back"


def test_nothing_new_is_the_same_offset(full: Place) -> None:
    files = full.source()
    end = files.latest(files.earliest())

    assert files.latest(end) == end
    assert files.plan(end, end) == []


def test_acknowledging_forgets_nothing(full: Place) -> None:
    files = full.source()
    start = files.earliest()
    end = files.latest(start)
    files.acknowledge(end)
    files.acknowledge(start)

    assert taken(files, start, end) == list(range(20))


def test_a_unit_without_rows_is_ordinary(place: Place) -> None:
    place.add(numbers())
    place.add(numbers(1))
    place.add(numbers())
    files = place.source(**{place.unit_option: 1})

    assert follow(files) == [[], [1], []]


def test_large_files_come_in_small_batches(place: Place) -> None:
    place.add(pa.table({"n": pa.array(range(25_000), pa.int64())}))
    files = place.source()
    start = files.earliest()
    (split,) = files.plan(start, files.latest(start))
    lengths = [batch.num_rows for batch in files.read(split)]

    assert sum(lengths) == 25_000
    assert max(lengths) <= 10_000


def test_an_offset_of_the_other_kind_is_refused(full: Place) -> None:
    wrong = '{"file":1}' if full.unit_option == "maxEpochsPerTrigger" else '{"epoch":1}'
    with pytest.raises(OptionError, match="this query began on a"):
        full.source().latest(wrong)


def test_deleted_data_that_were_taken_are_an_error_that_names_them(full: Place) -> None:
    files = full.source()
    start = files.earliest()
    end = files.latest(start)
    (split,) = files.plan(start, end)
    gone = max(full.path.rglob("*.parquet"))
    gone.unlink()

    with pytest.raises(DataLost, match=gone.name):
        list(files.read(split))
