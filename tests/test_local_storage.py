"""Storage on a local disk: what survives kills, errors, races and power cuts."""

from __future__ import annotations

import errno
import os
import pickle
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import count, permutations
from pathlib import Path

import pytest

from tests.disk import CrashStates, Effect, Fault, FaultyPosix, When, in_child, race
from twophase.local_storage import LocalStorage, Posix
from twophase.storage import Entry, Storage

RECORD = b'{"number": 1}' * 20
OTHER = b'{"number": 2}' * 20
KILLED = -9


@pytest.fixture
def root(tmp_path: Path) -> str:
    folder = tmp_path / "root"
    folder.mkdir()
    return str(folder)


@pytest.fixture
def storage() -> Storage:
    return LocalStorage()


def temporary_files(root: str) -> list[str]:
    return [name for name in os.listdir(root) if name.startswith(".tmp-")]


# -- publish ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"x", RECORD, os.urandom(3_000_000)], ids=["empty", "byte", "record", "large"])
def test_what_was_published_is_read_back_whole(storage: Storage, root: str, data: bytes) -> None:
    storage.publish(f"{root}/1", data)

    assert storage.read(f"{root}/1") == data
    assert temporary_files(root) == []


@pytest.mark.parametrize("taken", ["file", "empty folder", "full folder", "link", "dangling link"])
def test_publishing_under_a_taken_name_changes_nothing(storage: Storage, root: str, taken: str) -> None:
    make_target(Path(root, "1"), taken)
    before = snapshot(root)

    with pytest.raises(FileExistsError):
        storage.publish(f"{root}/1", RECORD)

    assert snapshot(root) == before


def test_publishing_never_creates_the_parent(storage: Storage, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        storage.publish(f"{root}/missing/1", RECORD)

    assert os.listdir(root) == []


def test_of_racing_publications_exactly_one_wins_and_its_record_is_whole(storage: Storage, root: str) -> None:
    def publisher(number: int, path: str) -> str:
        try:
            storage.publish(path, bytes([number]) * 100_000)
        except FileExistsError:
            return "lost"
        return str(number)

    for turn in range(20):
        path = f"{root}/{turn}"
        answers = race([partial(publisher, number, path) for number in range(6)])
        winners = [int(answer) for answer in answers if answer != "lost"]
        assert len(winners) == 1
        assert storage.read(path) == bytes(winners) * 100_000
    assert temporary_files(root) == []


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
def test_a_kill_at_any_call_of_publish_leaves_nothing_or_the_whole_record(tmp_path: Path, when: When) -> None:
    storage = LocalStorage()
    outcomes = set()
    for at in count():
        root = tmp_path / str(at)
        root.mkdir()
        path = f"{root}/1"
        doomed = LocalStorage(FaultyPosix(Fault(at, "kill", when)))
        status = in_child(partial(doomed.publish, path, RECORD))
        if status == 0:
            break
        assert status == KILLED
        names = [entry.name for entry in storage.list(str(root))]
        assert names in ([], ["1"])
        if names:
            with pytest.raises(FileExistsError):
                storage.publish(path, OTHER)
        else:
            storage.publish(path, RECORD)
        assert storage.read(path) == RECORD
        outcomes.add(bool(names))
        storage.sweep_temporary(str(root), older_than_s=0)
        assert os.listdir(root) == ["1"]
    assert outcomes == {True, False}, "the kills must fall on both sides of the link"


@pytest.mark.parametrize("effect", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("when", ["before", "halfway", "after"])
def test_an_error_at_any_call_of_publish_is_told_as_what_it_means_for_the_name(
    tmp_path: Path, effect: Effect, when: When
) -> None:
    storage = LocalStorage()
    struck: dict[str, set[str]] = {}
    for at in count():
        root = tmp_path / str(at)
        root.mkdir()
        posix = FaultyPosix(Fault(at, effect, when))
        try:
            LocalStorage(posix).publish(f"{root}/1", RECORD)
        except TimeoutError:
            outcome = "unknown"
        except OSError as error:
            outcome = "failed" if error.errno == getattr(errno, effect) else repr(error)
        else:
            outcome = "published"
        if posix.fired is None:
            break
        if outcome == "failed":
            assert storage.list(str(root)) == []
            storage.publish(f"{root}/1", RECORD)
        assert storage.read(f"{root}/1") == RECORD
        if posix.fired != "unlink":
            assert temporary_files(str(root)) == []
        struck.setdefault(posix.fired, set()).add(outcome)

    # Only what can't harm is passed over: data is synced before its file is closed, and a temporary file is residue.
    assert struck == {
        "open_folder": {"failed", "unknown"},
        "create": {"failed"},
        "write": {"failed"},
        "fsync": {"failed", "unknown"},
        "close": {"published"},
        "stat": {"failed"},
        "link": {"published" if when == "after" else "failed"},
        "unlink": {"published"},
    }


def test_an_error_after_the_link_that_can_not_be_looked_up_is_an_unknown_outcome(root: str) -> None:
    class LinkThenBlind(Posix):
        linked = False

        def link(self, name: str, target: str, folder: int | None = None) -> None:
            super().link(name, target, folder)
            self.linked = True
            raise OSError(errno.EIO, "link")

        def stat(self, name: str, folder: int | None = None) -> os.stat_result:
            if self.linked:
                raise OSError(errno.EIO, "stat")
            return super().stat(name, folder)

    with pytest.raises(TimeoutError, match="can't be seen"):
        LocalStorage(LinkThenBlind()).publish(f"{root}/1", RECORD)


def test_a_repeated_link_that_says_exists_about_our_own_record_is_a_success(root: str) -> None:
    class Repeated(Posix):
        def link(self, name: str, target: str, folder: int | None = None) -> None:
            super().link(name, target, folder)
            super().link(name, target, folder)

    storage = LocalStorage(Repeated())
    storage.publish(f"{root}/1", RECORD)

    assert storage.read(f"{root}/1") == RECORD


def test_a_short_write_is_continued(root: str) -> None:
    class ShortWrites(Posix):
        def write(self, file: int, data: memoryview) -> int:
            return super().write(file, data[:7])

    storage = LocalStorage(ShortWrites())
    storage.publish(f"{root}/1", RECORD)

    assert storage.read(f"{root}/1") == RECORD


def test_a_disk_that_takes_no_bytes_is_an_error_not_a_hang(root: str) -> None:
    class Full(Posix):
        def write(self, file: int, data: memoryview) -> int:
            return 0

    with pytest.raises(OSError, match="nothing could be written"):
        LocalStorage(Full()).publish(f"{root}/1", RECORD)
    assert os.listdir(root) == []


class NoLinks(FaultyPosix):
    def link(self, name: str, target: str, folder: int | None = None) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), name)


class NoExclusiveRename(FaultyPosix):
    def rename(self, name: str, target: str, folder: int | None = None) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), name)


class Neither(NoLinks, NoExclusiveRename):
    pass


def test_without_hard_links_publish_is_still_exclusive_and_leaves_no_temporary_file(root: str) -> None:
    storage = LocalStorage(NoLinks())
    storage.publish(f"{root}/1", RECORD)
    with pytest.raises(FileExistsError):
        storage.publish(f"{root}/1", OTHER)

    assert storage.read(f"{root}/1") == RECORD
    assert os.listdir(root) == ["1"]


def test_where_no_exclusive_publication_is_possible_it_is_refused_by_name(root: str) -> None:
    with pytest.raises(OSError, match="neither hard links nor RENAME_NOREPLACE") as caught:
        LocalStorage(Neither()).publish(f"{root}/1", RECORD)

    assert caught.value.errno == errno.EOPNOTSUPP
    assert os.listdir(root) == []


def test_publishing_into_a_folder_that_is_renamed_away_fails_and_leaves_nothing_in_it(root: str) -> None:
    class RenamedAway(Posix):
        def link(self, name: str, target: str, folder: int | None = None) -> None:
            os.rename(f"{root}/7.1", f"{root}/7.1.sealed")
            super().link(name, target, folder)

    os.mkdir(f"{root}/7.1")
    with pytest.raises(FileNotFoundError):
        LocalStorage(RenamedAway()).publish(f"{root}/7.1/manifest", RECORD)

    assert os.listdir(root) == ["7.1.sealed"]
    assert os.listdir(f"{root}/7.1.sealed") == []


def test_a_published_record_is_readable_by_whom_the_umask_lets_read(storage: Storage, root: str) -> None:
    old = os.umask(0o027)
    try:
        storage.publish(f"{root}/1", RECORD)
    finally:
        os.umask(old)

    assert stat.S_IMODE(os.stat(f"{root}/1").st_mode) == 0o640


# -- power cuts ------------------------------------------------------------------------------------------------------


def broken_promises(root: str, posix: FaultyPosix, records: Mapping[str, bytes]) -> set[str]:
    """What is wrong in any state after a power cut: a record must be absent or whole, and there once it is noted."""
    wrong = set()
    for state in CrashStates(root, tuple(posix.operations)):
        for name, data in records.items():
            found = state.files.get(name)
            if found is None and name in state.notes:
                wrong.add("lost")
            if found is not None and found != data:
                wrong.add("torn")
    return wrong


def publish_all(storage: Storage, posix: FaultyPosix, root: str, records: Mapping[str, bytes]) -> None:
    for name, data in records.items():
        storage.publish(f"{root}/{name}", data)
        posix.note(name)


@pytest.mark.parametrize("kind", [FaultyPosix, NoLinks])
def test_after_any_power_cut_a_record_is_absent_or_whole_and_there_once_publish_returned(
    root: str, kind: type[FaultyPosix]
) -> None:
    posix = kind()
    records = {"1": RECORD, "2": OTHER}
    publish_all(LocalStorage(posix), posix, root, records)

    assert broken_promises(root, posix, records) == set()


def test_after_any_power_cut_the_next_publication_works(root: str, tmp_path: Path) -> None:
    posix = FaultyPosix()
    publish_all(LocalStorage(posix), posix, root, {"1": RECORD, "2": OTHER})

    storage, recovered = LocalStorage(FaultyPosix(fsync=False)), str(tmp_path / "recovered")
    seen = set()
    for state in CrashStates(root, tuple(posix.operations)):
        state.materialise(recovered)
        for name, data in (("1", RECORD), ("2", OTHER)):
            with suppress(FileExistsError):
                storage.publish(f"{recovered}/{name}", data)
            assert storage.read(f"{recovered}/{name}") == data
        storage.sweep_temporary(recovered, older_than_s=0)
        assert sorted(os.listdir(recovered)) == ["1", "2"]
        seen.add(tuple(sorted(name for name in state.files if not name.startswith("."))))
    assert seen == {(), ("1",), ("1", "2")}


def test_record_two_is_never_there_without_record_one_but_a_deleted_one_may_return(root: str) -> None:
    posix = FaultyPosix(fsync=False)
    storage = LocalStorage(posix)
    for number in range(1, 5):
        storage.publish(f"{root}/{number}", RECORD)
        posix.note(str(number))
        if number == 2:
            storage.delete(f"{root}/1")

    shown = {"".join(sorted(filter(str.isdigit, state.files))) for state in CrashStates(root, posix.operations)}
    assert shown == {"", "1", "12", "2", "123", "23", "234"}


class WithoutFileSync(FaultyPosix):
    def fsync(self, descriptor: int) -> None:
        if self.is_folder(descriptor):
            super().fsync(descriptor)


class WithoutFolderSync(FaultyPosix):
    def fsync(self, descriptor: int) -> None:
        if not self.is_folder(descriptor):
            super().fsync(descriptor)


class ExclusiveCreate(LocalStorage):
    """A bare O_EXCL create under the final name."""

    def publish(self, path: str, data: bytes) -> None:
        parent, name = os.path.split(path)
        with self._folder(parent) as folder:
            self._write(name, folder, data)
        self.sync(parent)


class LinkBeforeSync(LocalStorage):
    def publish(self, path: str, data: bytes) -> None:
        parent = os.path.dirname(path)
        with self._folder(parent) as folder:
            file = self.posix.create(".tmp-1-0000000000000000", folder)
            self.posix.write(file, memoryview(data))
            self.posix.link(".tmp-1-0000000000000000", path, folder)
            self.posix.fsync(file)
            self.posix.close(file)
            self.posix.unlink(".tmp-1-0000000000000000", folder)
        self.sync(parent)


class FolderSyncBeforeLink(LocalStorage):
    def _claim(self, temporary: str, folder: int, target: str, identity: tuple[int, int]) -> None:
        self.posix.fsync(folder)
        super()._claim(temporary, folder, target, identity)

    def _sync_names(self, folder: str, *, done: str) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "mistaken", "caught"),
    [
        (FaultyPosix, ExclusiveCreate, {"torn"}),
        (WithoutFileSync, LocalStorage, {"torn"}),
        (WithoutFolderSync, LocalStorage, {"lost"}),
        (FaultyPosix, LinkBeforeSync, {"torn"}),
        (FaultyPosix, FolderSyncBeforeLink, {"lost"}),
    ],
)
def test_a_mistake_in_publish_is_caught_by_some_power_cut(
    root: str, kind: type[FaultyPosix], mistaken: type[LocalStorage], caught: set[str]
) -> None:
    posix = kind()
    records = {"1": RECORD, "2": OTHER}
    publish_all(mistaken(posix), posix, root, records)

    assert broken_promises(root, posix, records) == caught


def test_after_any_power_cut_a_renamed_folder_has_one_of_its_names_and_the_new_one_once_rename_returned(
    root: str,
) -> None:
    posix = FaultyPosix()
    storage = LocalStorage(posix)
    for folder in ("staging", "staging/7.1", "table"):
        storage.make_folder(f"{root}/{folder}")
    storage.publish(f"{root}/staging/7.1/part", RECORD)
    posix.note("staged")
    storage.rename(f"{root}/staging/7.1", f"{root}/table/epoch=7")
    posix.note("committed")

    seen = set()
    for state in CrashStates(root, posix.operations):
        there = sorted(path for path, content in state.files.items() if content == RECORD and path.endswith("part"))
        if "committed" in state.notes:
            assert there == ["table/epoch=7/part"]
        elif "staged" in state.notes:
            assert there in (["staging/7.1/part"], ["table/epoch=7/part"])
        seen.update(there)
    assert seen == {"staging/7.1/part", "table/epoch=7/part"}


def test_a_made_folder_survives_any_power_cut_even_if_a_process_that_died_had_just_created_it(root: str) -> None:
    posix = FaultyPosix()
    posix.mkdir(f"{root}/a")
    storage = LocalStorage(posix)
    storage.make_folder(f"{root}/a/b/c")
    posix.note("made")

    states = list(CrashStates(root, posix.operations))
    assert all(state.folders == {"a", "a/b", "a/b/c"} for state in states if state.notes)
    assert {len(state.folders) for state in states} == {0, 1, 2, 3}


def test_a_history_with_too_many_open_ends_is_refused_rather_than_sampled(root: str) -> None:
    posix = FaultyPosix()
    for number in range(15):
        posix.mkdir(f"{root}/{number}")

    with pytest.raises(ValueError, match="15 changes"):
        list(CrashStates(root, posix.operations))


def test_a_crash_state_can_be_laid_out_over_an_earlier_one(root: str, tmp_path: Path) -> None:
    posix = FaultyPosix()
    storage = LocalStorage(posix)
    storage.make_folder(f"{root}/a/b")
    storage.publish(f"{root}/a/b/1", RECORD)

    for state in CrashStates(root, posix.operations, {"old": b"old", "kept": None, "kept/1": OTHER}):
        state.materialise(tmp_path / "again")
        assert snapshot(str(tmp_path / "again")) == dict(state.tree)
        assert state.files["old"] == b"old"
        assert state.files["kept/1"] == OTHER


# -- rename ----------------------------------------------------------------------------------------------------------


def make_target(path: Path, kind: str) -> None:
    if kind == "file":
        path.write_bytes(b"taken")
    elif kind == "link":
        path.symlink_to(path.parent)
    elif kind == "dangling link":
        path.symlink_to(path.parent / "nowhere")
    else:
        path.mkdir()
        if kind == "full folder":
            (path / "taken").write_bytes(b"taken")


def snapshot(root: str) -> dict[str, bytes | None]:
    """Each path below the root: its content, or where a link points, or None for a folder."""
    found: dict[str, bytes | None] = {}
    for path in Path(root).rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = os.fsencode(os.readlink(path))
        else:
            found[name] = None if path.is_dir() else path.read_bytes()
    return found


@pytest.mark.parametrize("kind", [Posix, NoExclusiveRename])
@pytest.mark.parametrize("target", ["file", "empty folder", "full folder", "link", "dangling link"])
def test_rename_of_a_file_never_replaces(root: str, kind: type[Posix], target: str) -> None:
    Path(root, "source").write_bytes(RECORD)
    make_target(Path(root, "target"), target)
    before = snapshot(root)

    with pytest.raises(FileExistsError):
        LocalStorage(kind()).rename(f"{root}/source", f"{root}/target")

    assert snapshot(root) == before


@pytest.mark.parametrize("target", ["file", "empty folder", "full folder", "link", "dangling link"])
def test_rename_of_a_folder_never_replaces(storage: Storage, root: str, target: str) -> None:
    make_target(Path(root, "source"), "full folder")
    make_target(Path(root, "target"), target)
    before = snapshot(root)

    with pytest.raises(FileExistsError):
        storage.rename(f"{root}/source", f"{root}/target")

    assert snapshot(root) == before


@pytest.mark.parametrize("kind", [Posix, NoExclusiveRename])
def test_a_renamed_file_has_its_new_name_only(root: str, kind: type[Posix]) -> None:
    Path(root, "source").write_bytes(RECORD)
    os.mkdir(f"{root}/b")

    LocalStorage(kind()).rename(f"{root}/source", f"{root}/b/target")

    assert snapshot(root) == {"b": None, "b/target": RECORD}


def test_renaming_something_to_itself_keeps_it(root: str) -> None:
    Path(root, "source").write_bytes(RECORD)
    for posix in (Posix(), NoExclusiveRename()):
        with pytest.raises(FileExistsError):
            LocalStorage(posix).rename(f"{root}/source", f"{root}/source")

    assert snapshot(root) == {"source": RECORD}


def test_a_folder_is_refused_where_only_a_replacing_rename_exists(root: str) -> None:
    os.mkdir(f"{root}/source")

    with pytest.raises(OSError, match="no RENAME_NOREPLACE for folders"):
        LocalStorage(NoExclusiveRename()).rename(f"{root}/source", f"{root}/target")

    assert snapshot(root) == {"source": None}


@pytest.mark.parametrize(("source", "target"), [("missing", "target"), ("source", "missing/target")])
def test_rename_without_source_or_parent_is_not_found(storage: Storage, root: str, source: str, target: str) -> None:
    Path(root, "source").write_bytes(RECORD)

    with pytest.raises(FileNotFoundError):
        storage.rename(f"{root}/{source}", f"{root}/{target}")

    assert snapshot(root) == {"source": RECORD}


def renamer(storage: Storage, source: str, target: str) -> str:
    try:
        storage.rename(source, target)
    except FileExistsError:
        return "taken"
    except FileNotFoundError:
        return "gone"
    return "renamed"


def test_of_racing_renames_to_one_name_exactly_one_wins(storage: Storage, root: str) -> None:
    for turn in range(20):
        for number in range(5):
            storage.make_folder(f"{root}/{turn}/{number}")
            storage.publish(f"{root}/{turn}/{number}/by", str(number).encode())
        target = f"{root}/{turn}/epoch"
        answers = race([partial(renamer, storage, f"{root}/{turn}/{number}", target) for number in range(5)])

        assert sorted(answers) == ["renamed", *["taken"] * 4]
        assert storage.read(f"{target}/by") == str(answers.index("renamed")).encode()
        assert len(storage.list(f"{root}/{turn}")) == 5


def test_of_racing_renames_of_one_folder_to_the_same_name_exactly_one_is_told_that_it_won(
    storage: Storage, root: str
) -> None:
    for turn in range(20):
        storage.make_folder(f"{root}/{turn}")
        answers = race([partial(renamer, storage, f"{root}/{turn}", f"{root}/{turn}.sealed") for _ in range(5)])

        assert answers.count("renamed") == 1
        assert set(answers) <= {"renamed", "gone", "taken"}


@pytest.mark.parametrize("effect", ["EIO", "ENOSPC"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [FaultyPosix, NoExclusiveRename])
def test_an_error_at_any_call_of_rename_is_never_told_as_failure_once_it_took_effect(
    tmp_path: Path, effect: Effect, when: When, kind: type[FaultyPosix]
) -> None:
    for at in count():
        root = tmp_path / str(at)
        (root / "a").mkdir(parents=True)
        (root / "b").mkdir()
        (root / "a" / "source").write_bytes(RECORD)
        posix = kind(Fault(at, effect, when))
        failed = False
        try:
            LocalStorage(posix).rename(f"{root}/a/source", f"{root}/b/target")
        except TimeoutError:
            pass
        except OSError:
            failed = True
        if posix.fired is None:
            break
        found = snapshot(str(root))
        assert found.get("a/source" if failed else "b/target") == RECORD
        assert not (failed and "b/target" in found)
    assert at > 4


# -- read, list, delete, sync ----------------------------------------------------------------------------------------


def test_reading_what_is_not_there_is_not_found(storage: Storage, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read(f"{root}/1")


def test_a_listing_is_sorted_and_hides_only_temporary_files_of_publications(storage: Storage, root: str) -> None:
    for name in ("b", "a", ".hidden", ".tmp-x", ".tmp-12-0123456789abcdef.parquet"):
        storage.publish(f"{root}/{name}", name.encode())
    storage.make_folder(f"{root}/c")
    Path(root, "d").symlink_to(f"{root}/c")
    Path(root, ".tmp-12-0123456789abcdef").write_bytes(b"residue")

    assert storage.list(root) == [
        Entry(".hidden", False, 7),
        Entry(".tmp-12-0123456789abcdef.parquet", False, 32),
        Entry(".tmp-x", False, 6),
        Entry("a", False, 1),
        Entry("b", False, 1),
        Entry("c", True, 0),
        Entry("d", False, len(f"{root}/c")),
    ]


def test_a_missing_folder_lists_as_empty(storage: Storage, root: str) -> None:
    assert storage.list(f"{root}/missing/deeper") == []


def test_a_name_that_vanishes_while_it_is_listed_is_left_out(root: str) -> None:
    class Vanishing(Posix):
        def names(self, folder: int) -> list[str]:
            return [*super().names(folder), "vanished"]

    Path(root, "a").write_bytes(b"")

    assert LocalStorage(Vanishing()).list(root) == [Entry("a", False, 0)]


def test_a_record_named_like_a_temporary_file_is_refused(storage: Storage, root: str) -> None:
    with pytest.raises(ValueError, match="would not be listed"):
        storage.publish(f"{root}/.tmp-12-0123456789abcdef", RECORD)


def test_the_sweep_deletes_old_temporary_files_and_nothing_else(root: str) -> None:
    storage = LocalStorage()
    old, young = f"{root}/.tmp-1-0000000000000001", f"{root}/.tmp-1-0000000000000002"
    for path in (old, young, f"{root}/record"):
        Path(path).write_bytes(RECORD)
    for path in (old, f"{root}/record"):
        os.utime(path, (0, 0))

    assert storage.sweep_temporary(root, older_than_s=3600) == 1
    assert sorted(os.listdir(root)) == [os.path.basename(young), "record"]
    assert storage.sweep_temporary(f"{root}/missing", older_than_s=0) == 0


def test_a_publication_that_loses_its_temporary_file_to_a_sweep_publishes_nothing(root: str) -> None:
    class Swept(Posix):
        def link(self, name: str, target: str, folder: int | None = None) -> None:
            assert LocalStorage().sweep_temporary(root, older_than_s=0) == 1
            super().link(name, target, folder)

    with pytest.raises(FileNotFoundError):
        LocalStorage(Swept()).publish(f"{root}/1", RECORD)
    assert os.listdir(root) == []


def test_making_a_folder_makes_its_parents_and_accepts_an_existing_one(storage: Storage, root: str) -> None:
    storage.make_folder(f"{root}/a/b/c")
    storage.make_folder(f"{root}/a/b/c")
    storage.make_folder(f"{root}/a/b")

    assert snapshot(root) == {"a": None, "a/b": None, "a/b/c": None}


def test_a_file_where_a_folder_should_be_made_is_an_error(storage: Storage, root: str) -> None:
    Path(root, "a").write_bytes(b"")

    for folder in ("a", "a/b"):
        with pytest.raises(FileExistsError, match=f"{root}/a'"):
            storage.make_folder(f"{root}/{folder}")


def test_racing_makers_of_one_folder_all_succeed(storage: Storage, root: str) -> None:
    def maker(path: str) -> str:
        storage.make_folder(path)
        return "made"

    for turn in range(10):
        assert race([partial(maker, f"{root}/{turn}/a/b/c/d")] * 5) == ["made"] * 5


def test_deleting_takes_files_and_trees_and_what_is_missing(storage: Storage, root: str) -> None:
    for folder in ("a/b/c", "a/d"):
        storage.make_folder(f"{root}/{folder}")
        storage.publish(f"{root}/{folder}/file", RECORD)
    storage.publish(f"{root}/kept", RECORD)

    for path in ("a/d/file", "a", "a", "missing", "missing/deeper"):
        storage.delete(f"{root}/{path}")

    assert snapshot(root) == {"kept": RECORD}


def test_deleting_never_follows_a_link(storage: Storage, root: str) -> None:
    outside = Path(root, "outside")
    make_target(outside, "full folder")
    tree = Path(root, "tree")
    (tree / "deeper").mkdir(parents=True)
    (tree / "deeper" / "folder").symlink_to(outside)
    (tree / "file").symlink_to(outside / "taken")
    Path(root, "direct").symlink_to(outside)

    storage.delete(f"{root}/direct")
    storage.delete(str(tree))

    assert snapshot(root) == {"outside": None, "outside/taken": b"taken"}


def test_deleting_does_not_enter_a_folder_that_is_swapped_for_a_link_at_the_last_moment(root: str) -> None:
    outside = Path(root, "outside")
    make_target(outside, "full folder")
    victim = Path(root, "tree", "victim")
    victim.mkdir(parents=True)

    class Swapping(Posix):
        def open_folder(self, path: str, inside: int | None = None) -> int:
            if path == "victim":
                victim.rmdir()
                victim.symlink_to(outside)
            return super().open_folder(path, inside)

    with pytest.raises(OSError, match="victim"):
        LocalStorage(Swapping()).delete(f"{root}/tree")
    assert (outside / "taken").read_bytes() == b"taken"


def test_racing_deleters_of_one_tree_all_succeed(storage: Storage, root: str) -> None:
    def deleter() -> str:
        storage.delete(f"{root}/tree")
        return "deleted"

    for _ in range(10):
        for number in range(20):
            storage.make_folder(f"{root}/tree/{number % 4}")
            Path(root, "tree", str(number % 4), str(number)).write_bytes(b"")
        assert race([deleter] * 4) == ["deleted"] * 4
        assert os.listdir(root) == []


def test_a_folder_can_be_synced_and_a_missing_one_is_not_found(storage: Storage, root: str) -> None:
    storage.sync(root)
    with pytest.raises(FileNotFoundError):
        storage.sync(f"{root}/missing")


def test_a_name_that_another_process_linked_and_did_not_sync_is_certain_after_sync(root: str) -> None:
    posix = FaultyPosix()
    died = WithoutFolderSync()
    died.operations = posix.operations
    LocalStorage(died).publish(f"{root}/1", RECORD)
    LocalStorage(posix).sync(root)
    posix.note("synced")

    assert all(state.files == {"1": RECORD} for state in CrashStates(root, posix.operations) if state.notes)


# -- paths -----------------------------------------------------------------------------------------------------------


def spellings(path: str) -> Iterator[str]:
    for prefix in ("", "file:", "file://", "file://localhost"):
        for suffix in ("", "/", "//"):
            yield f"{prefix}{path}{suffix}"


def test_every_spelling_of_a_place_has_one_normal_form_and_all_of_them_work(storage: Storage, root: str) -> None:
    os.mkdir(f"{root}/a b%20é")
    Path(root, "link").symlink_to(f"{root}/a b%20é")
    places = [f"{root}/a b%20é", f"{root}/link", f"{root}/./link/../link"]
    expected = "file://" + os.path.realpath(f"{root}/a b%20é")

    written = [f"//{root}/link", *(path for place in places for path in spellings(place))]
    assert {storage.normalise(path) for path in written} == {expected}
    assert storage.normalise(expected) == expected

    for number, path in enumerate(written):
        record = f"{path.rstrip('/')}/{number}"
        storage.publish(record, RECORD)
        assert storage.read(record) == RECORD
        storage.delete(record)
        storage.sync(path)
        assert storage.list(path) == []


def test_a_place_need_not_exist_to_have_a_normal_form(storage: Storage, root: str) -> None:
    assert storage.normalise(f"{root}/missing/deeper/") == "file://" + os.path.realpath(root) + "/missing/deeper"
    assert storage.normalise("/") == "file:///"


@pytest.mark.parametrize("path", ["", "a/b", "file:a", "file://server/a", "hdfs://server/a", "s3a:/b", "/a\0b"])
def test_what_is_no_absolute_local_path_is_refused(storage: Storage, path: str) -> None:
    calls: list[Callable[[], object]] = [
        partial(storage.normalise, path),
        partial(storage.publish, path, b""),
        partial(storage.read, path),
        partial(storage.list, path),
        partial(storage.make_folder, path),
        partial(storage.delete, path),
        partial(storage.sync, path),
        *(partial(storage.rename, *pair) for pair in permutations((path, "/nowhere/at/all"))),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=re.escape(repr(path))):
            call()


@pytest.mark.parametrize("path", ["/", "file:///", "/a/..", "/a/."])
def test_what_does_not_end_in_a_name_is_neither_published_nor_renamed_nor_deleted(storage: Storage, path: str) -> None:
    for call in (
        partial(storage.publish, path, b""),
        partial(storage.delete, path),
        partial(storage.rename, path, "/nowhere/at/all"),
    ):
        with pytest.raises(ValueError, match="does not end in a name"):
            call()


def test_a_storage_crosses_to_another_process() -> None:
    assert pickle.loads(pickle.dumps(LocalStorage())) == LocalStorage()


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def files() -> LocalStorage:
    return LocalStorage()


def test_what_was_written_to_a_new_file_is_read_back_from_any_position(files: LocalStorage, root: str) -> None:
    with files.create(f"{root}/data") as file:
        assert file.write(b"0123") == 4
        assert file.write(memoryview(b"456")) == 3
        assert file.tell() == 7
    with files.open(f"file://{root}/data") as file:
        file.seek(2)
        assert file.read(3) == b"234"
        file.seek(-1, os.SEEK_END)
        assert file.read() == b"6"


def test_a_new_file_never_replaces_and_never_creates_its_folder(files: LocalStorage, root: str) -> None:
    files.create(f"{root}/data").close()
    with pytest.raises(FileExistsError):
        files.create(f"{root}/data")
    with pytest.raises(FileNotFoundError):
        files.create(f"{root}/missing/data")
    assert os.listdir(root) == ["data"]


def test_a_new_file_is_made_by_its_whole_path_so_that_a_renamed_folder_takes_none(root: str) -> None:
    """By a descriptor of the folder it would land in whatever the folder is called by then."""
    posix = FaultyPosix()
    LocalStorage(posix).create(f"{root}/data").close()
    assert [operation.verb for operation in posix.operations] == ["create", "fsync", "close"]
    assert posix.operations[0].path == f"{root}/data"


def test_a_closed_file_takes_nothing_more_whose_number_is_another_files_by_then(root: str) -> None:
    storage = LocalStorage()
    first = storage.create(f"{root}/first")
    first.close()
    with storage.create(f"{root}/second") as second:
        second.write(b"second")
        with pytest.raises(ValueError, match="closed"):
            first.write(b"first")
    assert storage.read(f"{root}/second") == b"second"


def test_after_any_power_cut_a_closed_file_in_a_synced_folder_is_whole(root: str) -> None:
    posix = FaultyPosix()
    storage = LocalStorage(posix)
    storage.make_child(f"{root}/part")
    with storage.create(f"{root}/part/data") as file:
        file.write(b"content")
    storage.sync(f"{root}/part")
    storage.sync(root)
    posix.note("closed")
    states = list(CrashStates(root, tuple(posix.operations)))
    assert any("part/data" not in state.files for state in states)
    assert all(state.files["part/data"] == b"content" for state in states if state.notes)


def test_an_error_while_making_a_file_durable_is_told_and_closes_it(root: str) -> None:
    posix = FaultyPosix()
    file = LocalStorage(posix).create(f"{root}/data")
    file.write(b"x")
    posix.fault = Fault(posix.calls, "EIO")
    with pytest.raises(OSError, match="Input/output"):
        file.close()
    assert posix.fired == "fsync"
    assert file.closed
    file.close()
    assert posix.operations[-1].verb == "close"


def test_a_child_folder_is_made_in_a_folder_that_is_there_and_nowhere_else(files: LocalStorage, root: str) -> None:
    files.make_child(f"{root}/a")
    files.make_child(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        files.make_child(f"{root}/missing/a")
    Path(root, "file").touch()
    with pytest.raises(FileExistsError):
        files.make_child(f"{root}/file")
    assert sorted(os.listdir(root)) == ["a", "file"]


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
def test_publishing_through_another_folder_leaves_nothing_but_the_record(tmp_path: Path, when: When) -> None:
    for at in range(40):
        beside, inside = tmp_path / str(at), tmp_path / str(at) / "inside"
        inside.mkdir(parents=True)
        posix = FaultyPosix(Fault(at, "EIO", when))
        storage = LocalStorage(posix)
        with suppress(OSError):
            storage.publish_through(f"{inside}/record", RECORD, through=str(beside))
        assert [name for name in os.listdir(inside) if name != "record"] == []
        if (inside / "record").exists():
            assert (inside / "record").read_bytes() == RECORD
        if posix.calls <= at:
            return
    pytest.fail("the calls never ended")


def test_publishing_through_another_folder_never_creates_the_target_folder(files: LocalStorage, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.publish_through(f"{root}/missing/record", RECORD, through=root)
    assert os.listdir(root) == []
    Path(root, "inside").mkdir()
    files.publish_through(f"{root}/inside/record", RECORD, through=root)
    with pytest.raises(FileExistsError):
        files.publish_through(f"{root}/inside/record", b"other", through=root)
    assert snapshot(root) == {"inside": None, "inside/record": RECORD}


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
def test_published_folders_are_all_there_or_none(tmp_path: Path, when: When) -> None:
    for at in range(60):
        beside, inside = tmp_path / str(at), tmp_path / str(at) / "inside"
        inside.mkdir(parents=True)
        posix = FaultyPosix(Fault(at, "EIO", when))
        failed = False
        try:
            LocalStorage(posix).publish_folders(f"{inside}/names", ["a", "b", "c"], through=str(beside))
        except OSError:
            failed = True
        assert sorted(os.listdir(inside)) in ([], ["names"])
        if (inside / "names").exists():
            assert sorted(os.listdir(inside / "names")) == ["a", "b", "c"]
        else:
            assert failed
        LocalStorage().sweep_temporary(str(beside), 0)
        assert os.listdir(beside) == ["inside"]
        if posix.calls <= at:
            assert not failed
            return
    pytest.fail("the calls never ended")


def test_after_any_power_cut_published_folders_are_all_there_or_none(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    posix = FaultyPosix(fsync=False)
    LocalStorage(posix).publish_folders(f"{root}/inside/names", ["a", "b", "c"], through=str(root))
    posix.note("published")
    states = list(CrashStates(str(root), tuple(posix.operations), {"inside": None}))
    assert any("inside/names" not in state.folders for state in states)
    for state in states:
        found = {folder for folder in state.folders if folder.startswith("inside/names")}
        assert found in (set(), {"inside/names", "inside/names/a", "inside/names/b", "inside/names/c"})
        assert found or "published" not in state.notes


def test_folders_are_published_once_and_never_into_a_missing_folder(files: LocalStorage, root: str) -> None:
    with pytest.raises(FileNotFoundError):
        files.publish_folders(f"{root}/missing/names", ["a"], through=root)
    assert os.listdir(root) == []
    files.publish_folders(f"{root}/names", ["a"], through=root)
    with pytest.raises(FileExistsError):
        files.publish_folders(f"{root}/names", ["b"], through=root)
    assert snapshot(root) == {"names": None, "names/a": None}


def test_a_publication_of_folders_that_is_swept_while_it_sleeps_publishes_nothing(root: str) -> None:
    class Sleeper(Posix):
        def rename(self, name: str, target: str, folder: int | None = None) -> None:
            if target.endswith("/names"):
                assert LocalStorage().sweep_temporary(root, 0) == 1
            super().rename(name, target, folder)

    with pytest.raises(FileNotFoundError):
        LocalStorage(Sleeper()).publish_folders(f"{root}/names", ["a", "b"], through=root)
    assert os.listdir(root) == []
