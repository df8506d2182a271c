"""Retention: old epochs go, but never one that a follower with a name has not acknowledged; and what is left has no gap."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.file_tables import rows, source
from tests.files_query import FilesQuery, staged
from twophase.errors import CheckpointMismatch, DataLost, OptionError
from twophase.file_table import open_table
from twophase.local_storage import LocalStorage, Posix
from twophase.sinks import FilesSink
from twophase.sinks.files.retention import retire
from twophase.sources.files import FilesSource
from twophase.table_readers import TableReaders

SCHEMA = pa.schema([("value", pa.int64())])


def writer(tmp_path: Path, retained: int | None) -> FilesQuery:
    return FilesQuery(tmp_path / "checkpoint", {"s": FilesSink(str(tmp_path / "table"), retain_epochs=retained)})


def follower(tmp_path: Path, name: str | None) -> FilesSource:
    named = {} if name is None else {"reader": name}
    return source(tmp_path / "table", SCHEMA, sourceKind="table", **named)


def positions(tmp_path: Path) -> list[int]:
    return open_table(str(tmp_path / "table")).positions()


def test_the_newest_epochs_stay_and_older_ones_go(tmp_path: Path) -> None:
    query = writer(tmp_path, 3)
    for number in range(8):
        query.epoch(number, [number])
        assert positions(tmp_path) == list(range(max(0, number - 2), number + 1))
    assert staged(tmp_path / "table") == []


def test_without_the_option_everything_stays(tmp_path: Path) -> None:
    query = writer(tmp_path, None)
    for number in range(4):
        query.epoch(number, [number])
    assert positions(tmp_path) == [0, 1, 2, 3]


def test_what_a_named_follower_has_not_acknowledged_stays(tmp_path: Path) -> None:
    query, files = writer(tmp_path, 1), follower(tmp_path, "billing")
    query.epoch(0, [0])
    start = files.earliest()
    end = files.latest(start)  # from here on it is waited for
    for number in range(1, 4):
        query.epoch(number, [number])
    assert positions(tmp_path) == [0, 1, 2, 3]
    assert [row["value"] for row in rows(files, start, end)] == [0]

    files.acknowledge(end)
    query.epoch(4, [4])
    assert positions(tmp_path) == [1, 2, 3, 4]

    second = follower(tmp_path, "billing").latest(end)
    assert sorted(row["value"] for row in rows(files, end, second)) == [1, 2, 3, 4]
    files.acknowledge(second)
    files.acknowledge(end)  # an older one changes nothing
    query.epoch(5, [5])
    assert positions(tmp_path) == [5]


def test_the_slowest_of_several_followers_is_waited_for(tmp_path: Path) -> None:
    query, fast, slow = writer(tmp_path, 1), follower(tmp_path, "fast"), follower(tmp_path, "slow/ä .")
    query.epoch(0, [0])
    ends = {}
    for files in (fast, slow):
        ends[files] = files.latest(files.earliest())
    query.epoch(1, [1])
    fast.acknowledge(fast.latest(ends[fast]))
    query.epoch(2, [2])
    assert positions(tmp_path) == [0, 1, 2]

    slow.acknowledge(ends[slow])
    query.epoch(3, [3])

    assert positions(tmp_path) == [1, 2, 3]


def test_a_follower_without_a_name_is_refused_where_old_epochs_are_deleted(tmp_path: Path) -> None:
    query, files = writer(tmp_path, 2), follower(tmp_path, None)
    query.epoch(0, [0])

    with pytest.raises(OptionError, match="set the option reader"):
        files.latest(files.earliest())


def test_a_follower_without_a_name_reads_a_table_that_keeps_everything(tmp_path: Path) -> None:
    query, files = writer(tmp_path, None), follower(tmp_path, None)
    query.epoch(0, [0])

    end = files.latest(files.earliest())
    files.acknowledge(end)

    assert [row["value"] for row in rows(files, files.earliest(), end)] == [0]


def test_a_new_follower_begins_with_the_oldest_epoch_that_is_left(tmp_path: Path) -> None:
    query = writer(tmp_path, 2)
    for number in range(5):
        query.epoch(number, [number])
    files = follower(tmp_path, "late")

    start = files.earliest()

    assert sorted(row["value"] for row in rows(files, start, files.latest(start))) == [3, 4]


def test_an_offset_before_what_is_left_is_data_that_is_lost(tmp_path: Path) -> None:
    query, files = writer(tmp_path, None), follower(tmp_path, None)
    query.epoch(0, [0])
    start = files.earliest()
    writer(tmp_path, 1).restart()
    retire(open_table(str(tmp_path / "table")), 0, 1)
    query = writer(tmp_path, 1)
    for number in range(1, 4):
        query.epoch(number, [number])

    with pytest.raises(DataLost, match="retention"):
        follower(tmp_path, "new").latest(start)


class DyingPosix(Posix):
    """Renames so often, and then no more."""

    def __init__(self, renames: int):
        self.left = renames

    def rename(self, name: str, target: str, folder: int | None = None) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "died")
        super().rename(name, target, folder)


@pytest.mark.parametrize("renames", range(4))
def test_retention_that_dies_halfway_leaves_no_gap_and_is_finished_by_the_next(tmp_path: Path, renames: int) -> None:
    query = writer(tmp_path, None)
    for number in range(6):
        query.epoch(number, [number])
    table = open_table(str(tmp_path / "table"))
    table.storage = LocalStorage(DyingPosix(renames))

    retire(table, 5, 2)  # it is logged, and the commit stands

    assert positions(tmp_path) == list(range(min(renames, 4), 6))
    assert retire(open_table(str(tmp_path / "table")), 5, 2) == list(range(min(renames, 4), 4))
    assert positions(tmp_path) == [4, 5]
    assert [path.name for path in (tmp_path / ".table.twophase").glob(".retired*")] == []


def test_a_replay_after_retention_writes_nothing(tmp_path: Path) -> None:
    query = writer(tmp_path, 1)
    for number in range(3):
        query.epoch(number, [number])
    (query.root / "commits" / "2").unlink()

    query.restart().finish([2])

    assert positions(tmp_path) == [2]


def test_another_owner_is_still_refused_when_old_epochs_are_gone(tmp_path: Path) -> None:
    query = writer(tmp_path, 1)
    for number in range(3):
        query.epoch(number, [number])
    other = FilesQuery(tmp_path / "other", {"s": FilesSink(str(tmp_path / "table"))}, owner="other")
    other.log(0)

    with pytest.raises(CheckpointMismatch):
        other.prepare()


def test_readers_are_told_apart_and_counted_by_their_highest_number(tmp_path: Path) -> None:
    readers = TableReaders(open_table(str(tmp_path / "table")))
    assert not readers.are_expected()
    assert readers.next_wanted() == {}
    readers.expect()
    readers.enrol("a", 3)
    readers.enrol("a", 9)  # it is known
    readers.acknowledge("b", 7)

    assert readers.are_expected()
    assert readers.next_wanted() == {"a": 3, "b": 7}
    (tmp_path / ".table.twophase" / ".readers" / "a" / f"{5:020d}").touch()
    assert readers.next_wanted()["a"] == 5
