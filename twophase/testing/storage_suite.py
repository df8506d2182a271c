"""StorageSuite: what every storage promises, as tests. Adopted by a subclass that says what the storage is and where it may write.

    class TestLocalStorage(StorageSuite):
        @pytest.fixture
        def storage(self): return LocalStorage()

        @pytest.fixture
        def root(self, tmp_path): return str(tmp_path)

What a storage does when its calls fail, when it is killed, or when the power is cut, is its own affair to test: this asks only what
can be asked of all of them, on the real thing.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from twophase.storage import Entry, FileStorage

RECORD = b'{"number": 1}' * 20
OTHER = b'{"number": 2}' * 20
NAMES = (
    "a b",
    "a%20b",
    "a#b",
    "a?b",
    "ü",
    "country=DE",
    "a+b",
    "a&b",
    "a;b",
    "*",
    "[x]",
    "{y}",
    "a'b",
    'a"b',
    "a,b",
    "~",
    "$x",
)


class StorageSuite:
    """Adopt it, and give it the fixtures `storage` and `root`: a folder that is there, and empty."""

    racers = 4
    turns = 5
    many_names = 2_100

    # ---- publish ----

    @pytest.mark.parametrize("size", [0, 1, 260, 3_000_000])
    def test_what_was_published_is_read_back_whole(self, storage: FileStorage, root: str, size: int) -> None:
        data = os.urandom(size)

        storage.publish(f"{root}/1", data)

        assert storage.read(f"{root}/1") == data
        assert [entry.name for entry in storage.list(root)] == ["1"]
        assert storage.sweep_temporary(root, older_than_s=-60) == 0

    @pytest.mark.parametrize("taken", ["file", "record", "empty folder", "full folder"])
    def test_publishing_under_a_taken_name_changes_nothing(self, storage: FileStorage, root: str, taken: str) -> None:
        put(storage, f"{root}/1", taken)
        before = snapshot(storage, root)

        with pytest.raises(FileExistsError):
            storage.publish(f"{root}/1", RECORD)

        assert snapshot(storage, root) == before
        assert storage.sweep_temporary(root, older_than_s=-60) == 0

    def test_publishing_never_creates_the_parent(self, storage: FileStorage, root: str) -> None:
        with pytest.raises(FileNotFoundError):
            storage.publish(f"{root}/missing/1", RECORD)

        assert storage.list(root) == []

    def test_publishing_below_a_file_is_refused(self, storage: FileStorage, root: str) -> None:
        write(storage, f"{root}/file", RECORD)

        with pytest.raises((NotADirectoryError, FileNotFoundError)):
            storage.publish(f"{root}/file/1", RECORD)

    def test_of_racing_publications_exactly_one_wins_and_its_record_is_whole(
        self, storage: FileStorage, root: str
    ) -> None:
        def publisher(number: int, path: str) -> int | None:
            try:
                storage.publish(path, bytes([number]) * 10_000)
            except FileExistsError:
                return None
            return number

        for turn in range(self.turns):
            path = f"{root}/{turn}"
            answers = raced([lambda n=n, p=path: publisher(n, p) for n in range(self.racers)])  # type: ignore[misc]
            winners = [answer for answer in answers if isinstance(answer, int)]
            assert len(winners) == 1
            assert storage.read(path) == bytes(winners) * 10_000
        assert storage.sweep_temporary(root, older_than_s=-60) == 0

    def test_publishing_through_another_folder_leaves_nothing_but_the_record(
        self, storage: FileStorage, root: str
    ) -> None:
        storage.make_folder(f"{root}/sealed")
        storage.publish_through(f"{root}/sealed/1", RECORD, through=root)

        assert snapshot(storage, root) == {"sealed/": b"", "sealed/1": RECORD}
        with pytest.raises(FileExistsError):
            storage.publish_through(f"{root}/sealed/1", OTHER, through=root)
        assert storage.read(f"{root}/sealed/1") == RECORD
        assert storage.sweep_temporary(root, older_than_s=-60) == 0

    def test_publishing_through_another_folder_never_creates_the_target_folder(
        self, storage: FileStorage, root: str
    ) -> None:
        with pytest.raises(FileNotFoundError):
            storage.publish_through(f"{root}/missing/1", RECORD, through=root)
        with pytest.raises(FileNotFoundError):
            storage.publish_through(f"{root}/1", RECORD, through=f"{root}/missing")

        assert storage.list(root) == []
        assert storage.sweep_temporary(root, older_than_s=-60) == 0

    def test_folders_are_published_once_and_never_into_a_missing_folder(self, storage: FileStorage, root: str) -> None:
        names = ["0-abc", "1-def", "2-" + "x" * 200]
        storage.make_folder(f"{root}/sealed")
        storage.publish_folders(f"{root}/sealed/m", names, through=root)

        with pytest.raises(FileExistsError):
            storage.publish_folders(f"{root}/sealed/m", ["other"], through=root)
        with pytest.raises(FileNotFoundError):
            storage.publish_folders(f"{root}/missing/m", names, through=root)

        assert [entry.name for entry in storage.list(f"{root}/sealed/m")] == names
        assert [entry.name for entry in storage.list(root)] == ["sealed"]
        assert storage.sweep_temporary(root, older_than_s=-60) == 0

    def test_a_record_named_like_a_temporary_file_is_refused(self, storage: FileStorage, root: str) -> None:
        with pytest.raises(ValueError, match="would not be listed"):
            storage.publish(f"{root}/.tmp-1-0123456789abcdef", RECORD)

    # ---- rename ----

    @pytest.mark.parametrize("target", ["file", "record", "empty folder", "full folder"])
    @pytest.mark.parametrize("source", ["file", "full folder"])
    def test_rename_never_replaces_and_never_moves_into(
        self, storage: FileStorage, root: str, source: str, target: str
    ) -> None:
        put(storage, f"{root}/source", source)
        put(storage, f"{root}/target", target)
        before = snapshot(storage, root)

        with pytest.raises(FileExistsError):
            storage.rename(f"{root}/source", f"{root}/target")

        assert snapshot(storage, root) == before

    @pytest.mark.parametrize("source", ["file", "record", "empty folder", "full folder"])
    def test_what_was_renamed_has_its_new_name_only(self, storage: FileStorage, root: str, source: str) -> None:
        put(storage, f"{root}/source", source)
        before = snapshot(storage, root)
        storage.make_folder(f"{root}/folder")

        storage.rename(f"{root}/source", f"{root}/folder/target")

        after = snapshot(storage, f"{root}/folder")
        assert {name.replace("source", "target", 1): data for name, data in before.items()} == after
        assert [entry.name for entry in storage.list(root)] == ["folder"]

    def test_rename_without_source_or_parent_is_not_found(self, storage: FileStorage, root: str) -> None:
        write(storage, f"{root}/file", RECORD)
        before = snapshot(storage, root)

        for source, target in (("missing", "target"), ("file", "missing/target"), ("missing/file", "target")):
            with pytest.raises(FileNotFoundError):
                storage.rename(f"{root}/{source}", f"{root}/{target}")

        assert snapshot(storage, root) == before

    def test_of_racing_renames_of_one_folder_exactly_one_is_told_that_it_won(
        self, storage: FileStorage, root: str
    ) -> None:
        def renamer(turn: int) -> str:
            try:
                storage.rename(f"{root}/{turn}", f"{root}/{turn}.sealed")
            except (FileNotFoundError, FileExistsError) as error:
                return type(error).__name__
            return "won"

        for turn in range(self.turns):
            put(storage, f"{root}/{turn}", "full folder")
            answers = raced([lambda t=turn: renamer(t)] * self.racers)  # type: ignore[misc]
            assert answers.count("won") == 1
            assert storage.read(f"{root}/{turn}.sealed/inside") == OTHER
            assert storage.list(f"{root}/{turn}") == []

    # ---- reading, listing, folders ----

    def test_reading_what_is_not_there_is_not_found_and_a_folder_is_called_one(
        self, storage: FileStorage, root: str
    ) -> None:
        storage.make_folder(f"{root}/folder")

        for path in (f"{root}/missing", f"{root}/missing/1"):
            with pytest.raises(FileNotFoundError):
                storage.read(path)
            with pytest.raises(FileNotFoundError):
                storage.open(path)
        with pytest.raises(IsADirectoryError):
            storage.read(f"{root}/folder")

    def test_a_listing_is_sorted_and_a_missing_folder_lists_as_empty(self, storage: FileStorage, root: str) -> None:
        for name in ("b", "a", "c", ".hidden", "_too"):
            write(storage, f"{root}/{name}", name.encode())
        storage.make_folder(f"{root}/aa")

        expected = [Entry(name, False, len(name)) for name in (".hidden", "_too", "a", "b", "c")] + [
            Entry("aa", True, 0)
        ]
        assert storage.list(root) == sorted(expected)
        assert storage.list(f"{root}/missing") == []
        with pytest.raises(NotADirectoryError):
            storage.list(f"{root}/a")

    def test_names_are_what_they_are(self, storage: FileStorage, root: str) -> None:
        """Nothing is decoded, expanded or cut off."""
        for name in NAMES:
            write(storage, f"{root}/{name}", name.encode())
            storage.make_folder(f"{root}/folders/{name}/in")

        assert [entry.name for entry in storage.list(root)] == sorted([*NAMES, "folders"])
        assert [entry.name for entry in storage.list(f"{root}/folders")] == sorted(NAMES)
        for name in NAMES:
            assert storage.read(f"{root}/{name}") == name.encode()
            assert storage.list(f"{root}/folders/{name}") == [Entry("in", True, 0)]
            storage.rename(f"{root}/{name}", f"{root}/folders/{name}/file")
            with storage.open(f"{root}/folders/{name}/file") as file:
                assert file.read() == name.encode()
            storage.delete(f"{root}/folders/{name}")
        assert storage.list(f"{root}/folders") == []

    def test_a_folder_of_thousands_is_listed_whole(self, storage: FileStorage, root: str) -> None:
        """A NameNode gives out a thousand names at a time."""
        names = [f"{number:05d}" for number in range(self.many_names)]
        storage.publish_folders(f"{root}/many", names, through=root)

        assert [entry.name for entry in storage.list(f"{root}/many")] == names

    def test_making_a_folder_makes_its_parents_and_accepts_an_existing_one(
        self, storage: FileStorage, root: str
    ) -> None:
        storage.make_folder(f"{root}/a/b/c")
        storage.make_folder(f"{root}/a/b/c")
        write(storage, f"{root}/file", RECORD)

        assert storage.list(f"{root}/a/b") == [Entry("c", True, 0)]
        with pytest.raises((FileExistsError, NotADirectoryError)):
            storage.make_folder(f"{root}/file")

    def test_a_child_folder_is_made_in_a_folder_that_is_there_and_nowhere_else(
        self, storage: FileStorage, root: str
    ) -> None:
        storage.make_child(f"{root}/a")
        storage.make_child(f"{root}/a")
        write(storage, f"{root}/file", RECORD)

        with pytest.raises(FileNotFoundError):
            storage.make_child(f"{root}/missing/a")
        with pytest.raises(FileExistsError):
            storage.make_child(f"{root}/file")

        assert snapshot(storage, root) == {"a/": b"", "file": RECORD}
        assert storage.sweep_temporary(root, older_than_s=-60) == 0

    def test_deleting_takes_files_and_trees_and_what_is_missing(self, storage: FileStorage, root: str) -> None:
        put(storage, f"{root}/tree", "full folder")
        storage.make_folder(f"{root}/tree/deep/er")
        write(storage, f"{root}/file", RECORD)
        storage.publish(f"{root}/kept", RECORD)

        for name in ("tree", "file", "missing", "missing/too"):
            storage.delete(f"{root}/{name}")

        assert snapshot(storage, root) == {"kept": RECORD}

    def test_the_sweep_deletes_old_temporary_things_and_nothing_else(self, storage: FileStorage, root: str) -> None:
        storage.make_folder(f"{root}/.tmp-1-0123456789abcdef/in")
        write(storage, f"{root}/.tmp-1-kept", RECORD)

        assert storage.list(root) == [Entry(".tmp-1-kept", False, len(RECORD))]
        assert storage.sweep_temporary(root, older_than_s=3600) == 0
        assert storage.sweep_temporary(root, older_than_s=-60) == 1
        assert storage.sweep_temporary(f"{root}/missing", older_than_s=-60) == 0
        assert storage.list(root) == [Entry(".tmp-1-kept", False, len(RECORD))]

    def test_a_folder_can_be_synced_and_a_missing_one_is_not_found(self, storage: FileStorage, root: str) -> None:
        storage.sync(root)
        with pytest.raises(FileNotFoundError):
            storage.sync(f"{root}/missing")

    # ---- files ----

    def test_what_was_written_to_a_new_file_is_read_back_from_any_position(
        self, storage: FileStorage, root: str
    ) -> None:
        data = os.urandom(5_000_000)
        with storage.create(f"{root}/file") as file:
            for start in range(0, len(data), 700_000):
                assert file.write(data[start : start + 700_000]) == len(data[start : start + 700_000])
            assert file.tell() == len(data)

        with storage.open(f"{root}/file") as file:
            assert file.seek(0, os.SEEK_END) == len(data)
            assert file.read(10) == b""
            assert file.seek(4_000_000) == 4_000_000
            assert file.read(1_500_000) == data[4_000_000:]
            file.seek(3)
            assert file.read(7) == data[3:10]
            file.seek(0)
            assert file.read() == data
        assert storage.list(root) == [Entry("file", False, len(data))]

    def test_a_new_file_never_replaces_and_never_creates_its_folder(self, storage: FileStorage, root: str) -> None:
        write(storage, f"{root}/file", RECORD)

        with pytest.raises(FileExistsError):
            storage.create(f"{root}/file")
        with pytest.raises(FileNotFoundError):
            storage.create(f"{root}/missing/file")

        assert snapshot(storage, root) == {"file": RECORD}

    def test_a_late_writer_whose_folder_was_renamed_away_brings_nothing_back(
        self, storage: FileStorage, root: str
    ) -> None:
        """Its file may be in the renamed folder, for whoever sealed it to delete; the old folder is gone for good."""
        storage.make_folder(f"{root}/7.g")
        file = storage.create(f"{root}/7.g/late")
        file.write(RECORD)
        storage.rename(f"{root}/7.g", f"{root}/7.g.sealed")

        with suppress(FileNotFoundError):
            file.close()
        with pytest.raises(FileNotFoundError):
            storage.create(f"{root}/7.g/later")

        assert [entry.name for entry in storage.list(root)] == ["7.g.sealed"]
        storage.delete(f"{root}/7.g.sealed")
        assert storage.list(root) == []

    def test_a_closed_file_takes_nothing_more(self, storage: FileStorage, root: str) -> None:
        file = storage.create(f"{root}/file")
        file.write(RECORD)
        file.close()
        file.close()

        with pytest.raises(ValueError, match="closed"):
            file.write(RECORD)
        assert storage.read(f"{root}/file") == RECORD

    # ---- places ----

    def test_every_spelling_of_a_place_has_one_normal_form_which_is_its_own(
        self, storage: FileStorage, root: str
    ) -> None:
        storage.publish(f"{root}/1", RECORD)
        normal = storage.normalise(root)

        assert {storage.normalise(spelling) for spelling in (root, f"{root}/", normal, f"{normal}/")} == {normal}
        assert storage.read(f"{normal}/1") == RECORD
        assert storage.normalise(f"{root}/not/there") == f"{normal}/not/there"

    def test_what_does_not_end_in_a_name_is_refused(self, storage: FileStorage, root: str) -> None:
        top = storage.normalise(root).partition("://")[0] + "://"
        for path in (f"{root}/..", f"{root}/.", "relative", f"{top}"):
            with pytest.raises(ValueError, match=r"\w"):
                storage.publish(path, RECORD)

    def test_a_storage_crosses_to_another_process(self, storage: FileStorage, root: str) -> None:
        storage.publish(f"{root}/1", RECORD)
        other = pickle.loads(pickle.dumps(storage))

        assert other == storage
        assert other.read(f"{root}/1") == RECORD


def put(storage: FileStorage, path: str, kind: str) -> None:
    if kind == "file":
        write(storage, path, OTHER)
    elif kind == "record":
        storage.publish(path, OTHER)
    else:
        storage.make_folder(path)
        if kind == "full folder":
            storage.publish(f"{path}/inside", OTHER)


def write(storage: FileStorage, path: str, data: bytes) -> None:
    with storage.create(path) as file:
        file.write(data)


def snapshot(storage: FileStorage, folder: str) -> dict[str, bytes]:
    """Everything below a folder: content by relative name; folders end with a slash, unless something was published there."""
    found: dict[str, bytes] = {}
    todo = [""]
    while todo:
        prefix = todo.pop()
        for entry in storage.list(f"{folder}/{prefix}".rstrip("/")):
            try:
                found[prefix + entry.name] = storage.read(f"{folder}/{prefix}{entry.name}")
            except IsADirectoryError:
                found[f"{prefix}{entry.name}/"] = b""
                todo.append(f"{prefix}{entry.name}/")
    return found


def raced(calls: Sequence[Callable[[], object]]) -> list[object]:
    """What the calls gave, made at the same moment."""
    start = threading.Barrier(len(calls))
    answers: list[object] = [None] * len(calls)

    def run(place: int) -> None:
        start.wait(timeout=30)
        try:
            answers[place] = calls[place]()
        except Exception as error:  # noqa: BLE001 - compared by whoever asked
            answers[place] = error

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    return answers
