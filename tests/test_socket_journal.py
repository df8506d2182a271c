"""The journal of the socket source: torn tails, power cuts, errors of the disk, and writers that were overtaken."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tests.disk import CrashStates, Effect, Fault, FaultyPosix, Operation, When, in_child
from tests.socket_journals import add, journal_in, lines_of, writer_of
from twophase.errors import DataLost, Fenced, LedgerCorrupt, TwophaseError
from twophase.local_storage import Posix
from twophase.sources.socket.frames import HEADER_BYTES
from twophase.sources.socket.journal import KEPT_RECORDS, Journal
from twophase.sources.socket.writer import JournalWriter

T = TypeVar("T")
CHANGES = {"create", "write", "fsync", "link", "unlink", "mkdir", "rename"}


def open_segment(journal: Journal) -> Path:
    last = journal.required().last
    assert last is not None
    return Path(journal.path(last))


# ---- what is in it ----


def test_lines_keep_their_order_over_segments_and_writers(tmp_path: Path) -> None:
    journal = journal_in(tmp_path / "journal")
    wanted = []
    for round_ in range(4):
        writer = writer_of(journal, segment_bytes=200)
        for number in range(10):
            wanted.append(f"line {round_} {number}")
            add(writer, wanted[-1:])
        writer.close()
    assert lines_of(journal) == wanted
    assert len(journal.required().segments) > 4
    assert writer_of(journal).lines == len(wanted)


def test_a_journal_of_which_all_was_read_stays_small_and_goes_on_counting(tmp_path: Path) -> None:
    journal = journal_in(tmp_path / "journal")
    writer = writer_of(journal, segment_bytes=100)
    for number in range(200):
        add(writer, [f"line {number}"])
        journal.forget(number + 1)
        writer.look()
    names = os.listdir(journal.folder)
    assert len([name for name in names if name.endswith(".lines")]) <= 2
    assert len([name for name in names if name.endswith(".record")]) <= KEPT_RECORDS + 1
    assert writer.lines == 200
    writer.close()
    assert writer_of(journal).lines == 200


def test_only_segments_that_are_wholly_read_are_forgotten(tmp_path: Path) -> None:
    journal = journal_in(tmp_path / "journal")
    writer = writer_of(journal, segment_bytes=1)
    for number in range(5):
        add(writer, [f"{number}a", f"{number}b"])
    assert journal.forget(3) == 1
    assert lines_of(journal) == ["1a", "1b", "2a", "2b", "3a", "3b", "4a", "4b"]
    assert journal.required().first_line == 2
    assert journal.forget(3) == journal.forget(0) == 0
    assert journal.forget(100) == 3
    assert lines_of(journal) == ["4a", "4b"], "the open segment stays"


# ---- torn tails ----


def test_a_tail_that_was_torn_at_any_byte_is_cut_off_and_nothing_else(tmp_path: Path) -> None:
    """The file ends after any number of bytes of its last frame; or has zeros, or old bytes, in the place of the rest."""
    journal = journal_in(tmp_path / "journal")
    writer = writer_of(journal)
    add(writer, ["safe", "sound"])
    path = open_segment(journal)
    safe = len(path.read_bytes())
    add(writer, ["torn", "torn too"])
    writer.close()
    whole = path.read_bytes()
    for cut in range(safe, len(whole)):
        for rest in (b"", bytes(len(whole) - cut), whole[: len(whole) - cut]):
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(journal.folder, copy)
            (copy / path.name).write_bytes(whole[:cut] + rest)
            torn = journal_in(copy)
            again = writer_of(torn)
            assert again.lines == 2
            add(again, ["new"])
            again.close()
            assert lines_of(torn) == ["safe", "sound", "new"]
            assert writer_of(torn).lines == 3, "a second restart sees the same"
    assert lines_of(journal) == ["safe", "sound", "torn", "torn too"], "whole, it is taken"


def test_a_torn_tail_of_a_frame_over_several_pages_is_cut_off(tmp_path: Path) -> None:
    """A power cut leaves pages of a frame that was not synced, and not others."""
    journal = journal_in(tmp_path / "journal")
    writer = writer_of(journal)
    add(writer, ["safe"])
    path = open_segment(journal)
    safe = len(path.read_bytes())
    add(writer, ["x" * 100] * 200)
    writer.close()
    whole = bytearray(path.read_bytes())
    for page in range(safe // 4096, len(whole) // 4096 + 1):
        damaged = bytearray(whole)
        begin, end = max(safe, page * 4096), min(len(whole), (page + 1) * 4096)
        damaged[begin:end] = bytes(end - begin)
        path.write_bytes(damaged)
        assert lines_of(journal) == ["safe"]


def test_damage_before_the_last_frame_is_no_torn_tail(tmp_path: Path) -> None:
    """Frames are synced one by one, so no crash leaves a whole one behind a broken one: lines would be lost unnoticed."""
    journal = journal_in(tmp_path / "journal")
    writer = writer_of(journal)
    for number in range(3):
        add(writer, [f"line {number}"])
    writer.close()
    path = open_segment(journal)
    whole = path.read_bytes()
    frame = HEADER_BYTES + len("line 0\n")
    for byte in range(2 * frame):
        damaged = bytearray(whole)
        damaged[byte] ^= 0x20
        path.write_bytes(damaged)
        with pytest.raises(DataLost, match=f"line {byte // frame} "):
            writer_of(journal)
    path.write_bytes(whole)
    assert writer_of(journal).lines == 3


def test_lines_that_look_like_frames_are_lines(tmp_path: Path) -> None:
    """Somebody sends a journal through a journal; and its last frame is torn behind what looks like a whole one."""
    other = journal_in(tmp_path / "other")
    writer = writer_of(other)
    add(writer, ["forged"] * 3)
    writer.close()
    looks_like = open_segment(other).read_bytes() + b"\n"
    journal = journal_in(tmp_path / "journal")
    writer = writer_of(journal)
    writer.add(looks_like, looks_like.count(b"\n"), 0)
    writer.close()
    path = open_segment(journal)
    path.write_bytes(path.read_bytes()[:-1])
    assert writer_of(journal).lines == 0


def test_a_record_that_was_altered_is_refused(tmp_path: Path) -> None:
    journal = journal_in(tmp_path / "journal")
    writer_of(journal).close()
    [*_, newest] = sorted(Path(journal.folder).glob("*.record"))
    data = newest.read_bytes()
    for broken in (b"", data[:-3], data.replace(b'"base":0', b'"base":1'), b"something else\n" + data):
        newest.write_bytes(broken)
        with pytest.raises(LedgerCorrupt, match=newest.name):
            journal.state()


# ---- power cuts ----


def test_after_any_power_cut_every_line_that_was_added_is_there_and_at_most_one_frame_more(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    posix = FaultyPosix(fsync=False)
    journal = journal_in(root / "journal", posix)
    added = list[str]()
    for _ in range(2):
        writer = writer_of(journal, segment_bytes=60)
        for _ in range(3):
            added.append(f"line {len(added)}")
            add(writer, added[-1:])
            posix.note(added[-1])
        writer.close()
    copy = tmp_path / "copy"
    states = 0
    for state in CrashStates(str(root), tuple(posix.operations)):
        state.materialise(copy)
        promised = list(state.notes)
        after = journal_in(copy / "journal")
        writer = writer_of(after)
        found = lines_of(after)
        assert found[: len(promised)] == promised
        assert found in (promised, added[: len(promised) + 1])
        assert writer.lines == len(found)
        add(writer, ["next"])
        writer.close()
        assert lines_of(after) == [*found, "next"]
        states += 1
    assert states > 50


def test_after_any_power_cut_while_lines_are_forgotten_none_is_missing_that_was_not(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    posix = FaultyPosix(fsync=False)
    journal = journal_in(root / "journal", posix)
    writer = writer_of(journal, segment_bytes=1)
    for number in range(4):
        add(writer, [f"{number}"])
    initial: dict[str, bytes | None] = {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None for path in root.rglob("*")
    }
    posix.operations.clear()
    journal.forget(2)
    posix.note("forgotten")
    journal.forget(3)
    copy = tmp_path / "copy"
    for state in CrashStates(str(root), tuple(posix.operations), initial):
        state.materialise(copy)
        after = journal_in(copy / "journal")
        found = lines_of(after)
        assert found in (["0", "1", "2", "3"], ["2", "3"], ["3"])
        assert found != ["0", "1", "2", "3"] or not state.notes
        assert after.required().first_line == 4 - len(found)
        assert writer_of(after).lines == 4
        left = [name for name in os.listdir(after.folder) if name.endswith(".lines")]
        assert len(left) == len(after.required().segments), "what was back from the dead is swept"


# ---- errors and kills at each call ----


def write_some(journal: Journal, told: Path) -> None:
    """Two writers, segments that end, lines that are forgotten; what was added is told by a file of its own."""
    for round_ in range(2):
        writer = writer_of(journal, segment_bytes=60)
        for number in range(3):
            add(writer, [f"line {round_} {number}"])
            with open(told, "a", encoding="utf-8") as file:
                file.write(f"line {round_} {number}\n")
        journal.forget(writer.lines - 2)
        writer.close()


class _Listing(FaultyPosix):
    """Lists the calls, those that find nothing too."""

    def __init__(self) -> None:
        super().__init__(fsync=False)
        self.verbs: list[str] = []

    def _call(self, operation: Operation, call: Callable[[], T]) -> T:
        self.verbs.append(operation.verb)
        return super()._call(operation, call)


def places(tmp_path: Path, when: When, *, changes_only: bool) -> list[int]:
    """The calls to strike at: halfway is for writes, and after a look nothing has changed."""
    posix = _Listing()
    write_some(journal_in(tmp_path / "listed", posix), tmp_path / "listed.told")
    wanted = {"write"} if when == "halfway" else CHANGES if changes_only or when == "after" else set(posix.verbs)
    return [at for at, verb in enumerate(posix.verbs) if verb in wanted]


def check_after(journal: Journal, told: Path) -> None:
    """What was told is there, unless it was forgotten; and at most one line more."""
    promised = told.read_text("utf-8").splitlines() if told.exists() else []
    writer = writer_of(journal)
    found, first = lines_of(journal), journal.required().first_line
    assert first <= max(0, len(promised) - 2)
    assert found[: len(promised) - first] == promised[first:]
    assert len(promised) <= first + len(found) <= len(promised) + 1
    add(writer, ["next"])
    writer.close()
    assert lines_of(journal) == [*found, "next"]


@pytest.mark.parametrize("when", ["before", "halfway", "after"])
def test_nothing_that_was_added_is_lost_if_the_process_is_killed_at_any_call(tmp_path: Path, when: When) -> None:
    struck, killed = places(tmp_path, when, changes_only=True), 0
    for at in struck:
        folder, told = tmp_path / f"{at}", tmp_path / f"{at}.told"
        posix = FaultyPosix(Fault(at, "kill", when), fsync=False)
        ended = in_child(partial(write_some, journal_in(folder, posix), told))
        killed += ended == -signal.SIGKILL
        check_after(journal_in(folder), told)
    assert killed == len(struck) > 10


@pytest.mark.parametrize(
    ("effect", "when"), [("EIO", "before"), ("EIO", "halfway"), ("ENOSPC", "halfway"), ("EIO", "after")]
)
def test_nothing_that_was_added_is_lost_if_any_call_fails(tmp_path: Path, effect: Effect, when: When) -> None:
    failed = 0
    for at in places(tmp_path, when, changes_only=False):
        folder, told = tmp_path / f"{at}", tmp_path / f"{at}.told"
        posix = FaultyPosix(Fault(at, effect, when), fsync=False)
        try:
            write_some(journal_in(folder, posix), told)
        except (OSError, TwophaseError):
            failed += 1
        assert posix.fired is not None
        check_after(journal_in(folder), told)
    assert failed > 5


def test_what_a_failed_sync_left_behind_is_not_taken_for_durable(tmp_path: Path) -> None:
    """After an error of fsync the system may show bytes that are not on the disk, and call the next fsync a success."""

    class NoSync(Posix):
        broken = False

        def fsync(self, descriptor: int) -> None:
            if self.broken and os.readlink(f"/proc/self/fd/{descriptor}").endswith(".lines"):
                raise OSError(5, "Input/output error")
            super().fsync(descriptor)

    posix = NoSync()
    journal = journal_in(tmp_path / "journal", posix)
    writer = writer_of(journal)
    add(writer, ["safe"])
    posix.broken = True
    with pytest.raises(OSError, match="Input/output"):
        add(writer, ["not safe"])
    assert lines_of(journal_in(tmp_path / "journal")) == ["safe"]
    with pytest.raises(AssertionError):
        add(writer, ["nothing can be added behind it"])


# ---- writers that were overtaken ----


def test_a_writer_that_was_overtaken_adds_nothing_and_says_so(tmp_path: Path) -> None:
    journal = journal_in(tmp_path / "journal")
    old = writer_of(journal)
    add(old, ["one"])
    new = writer_of(journal_in(tmp_path / "journal"))
    with pytest.raises(Fenced, match="another process"):
        add(old, ["by the old one"])
    add(new, ["two"])
    with pytest.raises(Fenced):
        old.look()
    assert lines_of(journal) == ["one", "two"]
    assert writer_of(journal).lines == 2


def test_a_writer_that_is_overtaken_at_any_call_has_said_the_truth(tmp_path: Path) -> None:
    """While a line is being added, another process takes over: before each system call that this makes, and after the last one.
    A line that was called durable is in the journal; one that was not is not, or is, but never twice, and the numbers go on."""
    told = {True: 0, False: 0}
    for at in range(100):
        folder = tmp_path / f"{at}"
        posix = _Overtaking(at, folder)
        journal = journal_in(folder, posix)
        writer = writer_of(journal, segment_bytes=1)
        add(writer, ["one"])
        posix.begin()
        try:
            add(writer, ["two"])  # in a segment of its own, which is begun here
            durable = True
        except Fenced:
            durable = False
        told[durable] += 1
        taken_over = posix.taken_over
        if taken_over is None:
            assert durable
            assert at > 10, "there were no calls"
            break
        add(taken_over, ["three"])
        found = lines_of(journal_in(folder))
        assert found in ([["one", "two", "three"]] if durable else [["one", "three"], ["one", "two", "three"]])
        assert taken_over.lines == len(found)
    else:
        pytest.fail("more calls than anyone expects")
    assert told[False] > 5


class _Overtaking(Posix):
    """At the `at`-th call after `begin` another writer takes over."""

    def __init__(self, at: int, folder: Path):
        self._at, self._folder, self._calls = at, folder, -1
        self.taken_over: JournalWriter | None = None

    def begin(self) -> None:
        self._calls = 0


def _watched(name: str) -> object:
    real = getattr(Posix, name)

    def call(self: _Overtaking, *arguments: object) -> object:
        if self._calls >= 0:
            if self._calls == self._at:
                self.taken_over = writer_of(journal_in(self._folder))
            self._calls += 1
        return real(self, *arguments)

    return call


for _name in (
    "open_folder",
    "open_file",
    "create",
    "write",
    "fsync",
    "close",
    "link",
    "unlink",
    "stat",
    "names",
    "read",
):
    setattr(_Overtaking, _name, _watched(_name))


def test_of_two_that_begin_at_once_one_goes_on(tmp_path: Path) -> None:
    """The second begins between the first one's two records."""
    fenced = 0
    for at in range(200):
        folder = tmp_path / f"{at}"
        posix = _Overtaking(at, folder)
        posix.begin()
        try:
            first = writer_of(journal_in(folder, posix))
        except Fenced:
            fenced += 1
            continue
        second = posix.taken_over
        if second is None:
            assert fenced > 3
            return
        # It was there before the first one's record, or after its last look: then one of the two is out.
        went_on = 0
        for each in (first, second):
            with suppress(Fenced):
                add(each, ["line"])
                went_on += 1
        assert went_on == 1
        assert lines_of(journal_in(folder)) == ["line"]
    pytest.fail("more calls than anyone expects")


def test_a_process_that_slept_through_many_records_can_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers that it would take are free again: older records are cleared away."""
    folder = tmp_path / "journal"
    asleep = journal_in(folder)
    writer = writer_of(asleep)
    stale = asleep.required()
    others = journal_in(folder)
    for _ in range(3 * KEPT_RECORDS):
        newest = writer_of(others)
        add(newest, ["line"])
        newest.close()
    with monkeypatch.context() as patch:
        patch.setattr(asleep, "state", lambda: stale)
        with pytest.raises(Fenced):
            asleep.update(lambda state: state)
    assert len(lines_of(others)) == 3 * KEPT_RECORDS
    with pytest.raises(Fenced):
        add(writer, ["late"])
