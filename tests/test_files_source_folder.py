"""A plain folder: what is taken, in which order, and that the journal of taken files survives races and crashes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.file_tables import all_rows, drop, follow, numbers, source, taken
from twophase.errors import DataLost, LedgerCorrupt, OptionError, OutcomeUnknown
from twophase.local_storage import LocalStorage
from twophase.source import ReadLimit
from twophase.sources import FilesSource
from twophase.sources.files import journal as journal_module
from twophase.sources.files.journal import Journal, TakenFile

ROOT = Path(__file__).resolve().parent.parent
OLD_NS = 1_000_000_000

RACER = """
import sys, time
from pathlib import Path
from tests.file_tables import source, taken
files, end_at, read = source(Path(sys.argv[1])), int(sys.argv[2]), []
at = files.earliest()
while len(read) < end_at:
    end = files.latest(at)
    read.extend(taken(files, at, end))
    at = end
print(sorted(read), at)
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from twophase.local_storage import Posix
from tests.file_tables import source
step, count = sys.argv[2], [int(sys.argv[3])]
done = getattr(Posix, step)
def dies(self, *args):
    result = done(self, *args)
    count[0] -= 1
    if count[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return result
files = source(Path(sys.argv[1]))
start = files.earliest()
setattr(Posix, step, dies)
files.latest(start)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "incoming"
    path.mkdir()
    return path


def records(folder: Path) -> list[Path]:
    return sorted((folder.parent / f".{folder.name}.twophase" / "taken").glob("*.record"))


def forget() -> None:
    """As a fresh process begins: with nothing in memory."""
    journal_module._histories.clear()


def test_an_empty_folder_has_nothing_and_then_its_first_file(folder: Path) -> None:
    files = source(folder, pa.schema([("n", pa.int64())]))
    start = files.earliest()
    assert files.latest(start) == start
    assert records(folder) == []

    drop(folder, "a.parquet", numbers(1))

    assert taken(files, start, files.latest(start)) == [1]


def test_a_folder_that_is_not_there_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    files = source(tmp_path / "nowhere", pa.schema([("n", pa.int64())]))
    with pytest.raises(DataLost, match="create it"):
        files.latest(files.earliest())


def test_a_late_file_with_an_older_time_is_not_lost(folder: Path) -> None:
    drop(folder, "new.parquet", numbers(1))
    files = source(folder)
    start = files.earliest()
    end = files.latest(start)
    drop(folder, "a-late-one.parquet", numbers(2), modified_ns=OLD_NS)
    later = files.latest(end)

    assert taken(files, start, end) == [1]
    assert taken(files, end, later) == [2]


def test_files_that_wait_are_taken_oldest_first(folder: Path) -> None:
    for name, age in (("a", 3), ("b", 1), ("c", 2)):
        drop(folder, f"{name}.parquet", numbers(age), modified_ns=OLD_NS * age)

    assert follow(source(folder, maxFilesPerTrigger=1)) == [[1], [2], [3]]


def test_a_file_that_vanished_after_it_was_taken_is_named(folder: Path) -> None:
    file = drop(folder, "a.parquet", numbers(1))
    files = source(folder)
    start = files.earliest()
    end = files.latest(start)
    file.unlink()

    with pytest.raises(DataLost, match=r"a\.parquet was taken and is gone"):
        files.plan(start, end)


def test_a_file_that_was_changed_after_it_was_taken_is_named(folder: Path) -> None:
    drop(folder, "a.parquet", numbers(1))
    files = source(folder)
    start = files.earliest()
    end = files.latest(start)
    (split,) = files.plan(start, end)
    drop(folder, "a.parquet", numbers(1, 2, 3))

    with pytest.raises(DataLost, match=r"a\.parquet was changed after it was taken"):
        files.plan(start, end)
    with pytest.raises(DataLost, match=r"a\.parquet was changed after it was taken"):
        list(files.read(split))


def test_a_file_that_only_its_time_tells_from_the_one_taken_is_named(folder: Path) -> None:
    drop(folder, "a.parquet", numbers(1))
    files = source(folder)
    start = files.earliest()
    end = files.latest(start)
    drop(folder, "a.parquet", numbers(2))

    with pytest.raises(DataLost, match="changed at"):
        taken(files, start, end)


def test_a_file_that_is_replaced_while_it_is_read_fails_the_read(folder: Path) -> None:
    drop(folder, "a.parquet", pa.table({"n": pa.array(range(30_000), pa.int64())}))
    files = source(folder)
    start = files.earliest()
    (split,) = files.plan(start, files.latest(start))
    batches = files.read(split)
    next(batches)
    drop(folder, "a.parquet", numbers(1))

    with pytest.raises(DataLost, match="was changed"):
        list(batches)


def test_a_file_replaced_after_its_epoch_is_not_read_again_and_that_is_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drop(folder, "a.parquet", numbers(1))
    files = source(folder)
    end = files.latest(files.earliest())
    drop(folder, "a.parquet", numbers(2))
    with caplog.at_level("WARNING", "twophase"):
        assert files.latest(end) == end
        assert files.latest(end) == end

    assert [record.message for record in caplog.records if "replaced" in record.message] == [
        f"a file was replaced after it was taken, and is not read again file=file://{folder}/a.parquet"
    ]


def test_a_new_query_begins_after_files_that_were_cleaned_away(folder: Path) -> None:
    gone = [drop(folder, f"{n}.parquet", numbers(n)) for n in range(3)]
    drop(folder, "3.parquet", numbers(3))
    files = source(folder)
    files.latest(files.earliest())
    for file in gone:
        file.unlink()

    assert follow(source(folder)) == [[3]]


def test_hidden_files_and_hidden_folders_are_not_taken(folder: Path) -> None:
    for name in (
        "_SUCCESS",
        ".hidden.parquet",
        "_tmp/b.parquet",
        ".x=1/c.parquet",
        "d.parquet._COPYING_",
        "sub/e.parquet",
    ):
        drop(folder, name, numbers(0))
    drop(folder, "ok.parquet", numbers(1))

    assert follow(source(folder)) == [[1]]


def test_folders_below_are_taken_if_that_is_asked_for(folder: Path) -> None:
    drop(folder, "a.parquet", numbers(1))
    drop(folder, "x/y/b.parquet", numbers(2))
    drop(folder, "k=v/c.parquet", numbers(3))
    files = source(folder, recursiveFileLookup=True)

    assert follow(files) == [[1, 2, 3]]
    assert files.schema().names == ["n"]


def test_two_readers_with_other_filters_share_the_journal_and_take_each_its_own(folder: Path) -> None:
    left, right = source(folder, pathGlobFilter="l*"), source(folder, pathGlobFilter="r*")
    for n, name in enumerate(("l1", "r1", "l2", "r2")):
        drop(folder, name, numbers(n))

    assert follow(left) == [[0, 2]]
    assert follow(right) == [[1, 3]]
    assert follow(source(folder, maxFilesPerTrigger=2)) == [[0, 2], [1, 3]]
    at_the_end = left.latest(left.earliest())
    drop(folder, "r3", numbers(9))
    right.latest(right.earliest())
    assert left.latest(at_the_end) == at_the_end, "what others take is no epoch of ours"


def test_links_are_followed_and_a_circle_of_them_ends(folder: Path, tmp_path: Path) -> None:
    elsewhere = drop(tmp_path / "elsewhere", "a.parquet", numbers(1))
    (folder / "link.parquet").symlink_to(elsewhere)
    (folder / "dangling.parquet").symlink_to(tmp_path / "nothing")
    (folder / "circle").symlink_to(folder)

    assert follow(source(folder, recursiveFileLookup=True)) == [[1]]


@pytest.mark.parametrize(
    "name",
    [
        "with space.parquet",
        "ä ö 漢字 🎉.parquet",
        "a=b.parquet",
        "100%.parquet",
        "%41.parquet",
        "q?*[x]#&.parquet",
        "'\".parquet",
        "line\nbreak",
    ],
)
def test_a_file_may_have_any_name(folder: Path, name: str) -> None:
    drop(folder, name, numbers(7))
    start = source(folder).earliest()
    end = source(folder).latest(start)
    forget()

    assert taken(source(folder), start, end) == [7]


def test_a_name_that_is_not_utf_8_is_taken(folder: Path) -> None:
    file = drop(folder, "plain.parquet", numbers(7))
    os.rename(os.fsencode(file), os.fsencode(folder) + b"/\xff\xfe.parquet")
    start = source(folder).earliest()
    end = source(folder).latest(start)
    forget()

    assert taken(source(folder), start, end) == [7]


def test_the_folder_may_be_a_link_or_a_url_and_is_the_same_place(folder: Path, tmp_path: Path) -> None:
    drop(folder, "a.parquet", numbers(1))
    (tmp_path / "link").symlink_to(folder)
    start = source(folder).earliest()
    end = source(folder).latest(start)

    assert taken(source(tmp_path / "link"), start, end) == [1]
    assert taken(source(Path(f"file:{folder}")), start, end) == [1]


def test_a_journal_begun_again_is_not_taken_for_the_old_one(folder: Path) -> None:
    for n in range(3):
        drop(folder, f"{n}.parquet", numbers(n))
    files = source(folder)
    start = files.earliest()
    end = files.latest(start, ReadLimit(rows=2))
    for record in records(folder):
        record.unlink()

    with pytest.raises(DataLost, match="up to file 2 of the journal"):
        files.latest(end)
    source(folder).latest('{"file":0}')
    with pytest.raises(DataLost, match="the option ledger was changed"):
        files.plan(start, end)


def test_the_journal_may_lie_elsewhere_and_one_place_serves_many_folders(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    drop(folder, "a.parquet", numbers(1))
    drop(other, "a.parquet", numbers(2))
    ledger = tmp_path / "ledger"

    assert follow(source(folder, ledger=ledger)) == [[1]]
    assert follow(source(other, ledger=ledger)) == [[2]]
    assert records(folder) == []


def test_where_the_journal_may_not_be_written_the_error_says_which_option_helps(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: LocalStorage, folder: str) -> None:
        raise PermissionError(13, "Permission denied", folder)  # by hand: root may write everywhere

    monkeypatch.setattr(LocalStorage, "make_folder", refuse)
    drop(folder, "a.parquet", numbers(1))
    files = source(folder)

    with pytest.raises(OptionError, match="set the option ledger"):
        files.latest(files.earliest())


def test_a_gap_in_the_journal_is_an_error(folder: Path) -> None:
    files = source(folder, pa.schema([("n", pa.int64())]))
    start = files.earliest()
    for n in range(3):
        drop(folder, f"{n}.parquet", numbers(n))
        files.latest(start)
    records(folder)[1].unlink()
    forget()

    with pytest.raises(LedgerCorrupt, match="has no record 2, but has record 3"):
        source(folder).earliest()


DAMAGE = {
    "cut": (rb"(?s).{20}$", b"", "torn or was altered"),
    "altered": (rb"0\.parquet", b"9.parquet", "torn or was altered"),
    "empty": (rb"(?s).*", b"", "another program"),
    "foreign": (rb"(?s).+", b"hello\n", "another program"),
    "newer": (rb"taken 1", b"taken 2", "format 2"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_never_guessed_around(folder: Path, damage: str) -> None:
    drop(folder, "0.parquet", numbers(0))
    source(folder).latest('{"file":0}')
    (record,) = records(folder)
    pattern, replacement, said = DAMAGE[damage]
    record.write_bytes(re.sub(pattern, replacement, record.read_bytes()))

    with pytest.raises(LedgerCorrupt, match=said):
        source(folder).earliest()


def test_a_process_reads_only_what_is_new_in_the_journal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = source(folder, pa.schema([("n", pa.int64())]))
    at = files.earliest()
    for n in range(20):
        drop(folder, f"{n}.parquet", numbers(n))
        at = files.latest(at)
    reads: list[str] = []
    read = LocalStorage.read

    def counted(self: LocalStorage, path: str) -> bytes:
        reads.append(path)
        return read(self, path)

    monkeypatch.setattr(LocalStorage, "read", counted)
    drop(folder, "last.parquet", numbers(99))
    files.latest(at)

    assert len(records(folder)) == 21
    assert len(reads) < 12, "the newest record as a check, the next as a try; not the history"


def test_a_record_counts_for_nothing_until_it_is_durable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drop(folder, "a.parquet", numbers(1))
    files = source(folder)
    start = '{"file":0}'
    files.latest(start)
    forget()
    synced: list[str] = []
    sync = LocalStorage.sync

    def fails_once(self: LocalStorage, path: str) -> None:
        synced.append(path)
        if len(synced) == 1:
            raise OSError(5, "Input/output error")
        sync(self, path)

    monkeypatch.setattr(LocalStorage, "sync", fails_once)
    with pytest.raises(OSError, match="Input/output error"):
        files.latest(start)
    files.latest(start)

    assert len(synced) == 2, "the second look must not trust what the first could not make durable"


def test_many_files_are_several_records(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "FILES_PER_RECORD", 3)
    for n in range(8):
        drop(folder, f"{n}.parquet", numbers(n))

    assert follow(source(folder)) == [list(range(8))]
    assert len(records(folder)) == 3


def test_a_lost_reply_is_tried_again_with_the_same_record(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish = LocalStorage.publish
    tries: list[bytes] = []

    def silent(self: LocalStorage, path: str, data: bytes) -> None:
        tries.append(data)
        publish(self, path, data)
        raise TimeoutError("no reply")

    monkeypatch.setattr(LocalStorage, "publish", silent)
    drop(folder, "a.parquet", numbers(1))

    assert follow(source(folder)) == [[1]]
    assert len(tries) == 2
    assert len(set(tries)) == 1


def test_storage_that_never_answers_is_an_unknown_outcome(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise TimeoutError("no reply")

    monkeypatch.setattr(LocalStorage, "publish", silent)
    drop(folder, "a.parquet", numbers(1))
    files = source(folder)

    with pytest.raises(OutcomeUnknown, match="start the query again"):
        files.latest(files.earliest())


def test_when_another_reader_publishes_first_only_the_rest_is_appended(folder: Path) -> None:
    place = str(folder.parent / f".{folder.name}.twophase" / "taken")
    a, b, c = (TakenFile(name, 1, 1) for name in "abc")
    first = Journal(LocalStorage(), place)
    first.extend([a])
    stale = journal_module._histories.copy()
    forget()
    Journal(LocalStorage(), place).extend([a, b])
    journal_module._histories.update(stale)  # what a reader knows that has not looked since

    history = first.extend([a, b, c])

    assert [file.name for file in history.files] == ["a", "b", "c"]
    assert len(records(folder)) == 3


def test_two_processes_that_race_take_every_file_once_in_the_same_order(folder: Path) -> None:
    command = [sys.executable, "-c", RACER, str(folder), "60"]
    drop(folder, "first.parquet", numbers(0))
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)]
    for n in range(1, 60):
        drop(folder, f"{n}.parquet", numbers(n))
    answers = {racer.communicate(timeout=60)[0] for racer in racers}

    assert [racer.returncode for racer in racers] == [0, 0]
    (answer,) = answers
    assert answer.startswith(str(list(range(60))))
    forget()
    names = [file.name for file in Journal(LocalStorage(), str(records(folder)[0].parent)).read().files]
    assert sorted(names) == sorted({*names})
    assert len(names) == 60


@pytest.mark.parametrize(
    ("step", "count"),
    [
        ("mkdir", 1),
        ("mkdir", 2),
        *(("fsync", count) for count in range(1, 6)),
        *((s, 1) for s in ("create", "write", "link", "unlink")),
    ],
)
def test_a_reader_killed_while_it_publishes_loses_nothing_and_takes_nothing_twice(
    folder: Path, step: str, count: int
) -> None:
    for n in range(4):
        drop(folder, f"{n}.parquet", numbers(n))
    command = [sys.executable, "-c", KILLED, str(folder), step, str(count)]
    assert subprocess.run(command, check=False, cwd=ROOT).returncode == -signal.SIGKILL, "the fault did not fire"
    start = source(folder).earliest()
    end = source(folder).latest(start)
    drop(folder, "late.parquet", numbers(4), modified_ns=OLD_NS)

    assert taken(source(folder), start, end) == [0, 1, 2, 3]
    assert taken(source(folder), end, source(folder).latest(end)) == [4]
    assert all_rows(source(folder)) == [{"n": n} for n in (0, 1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "s3a://bucket/x"}, "no storage for s3a"),
        ({"path": "hdfs:///x"}, "supported is"),
        ({"path": ""}, "path is required"),
        ({"path": "/x", "sep": "ab"}, "sep is"),
        ({"path": "/x", "fileFormat": "orc"}, "fileFormat"),
        ({"path": "/x", "sourceKind": "folder", "includeEpoch": "true"}, "includeEpoch"),
        ({"path": "/x", "fileFormat": "csv", "maxRowsPerTrigger": "5"}, "use maxBytesPerTrigger"),
        ({"path": "/x", "maxFilesPerTrigger": "0"}, "below the minimum"),
        ({"path": "/x", "maxFilePerTrigger": "1"}, "did you mean maxFilesPerTrigger"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        FilesSource.from_options(options)
