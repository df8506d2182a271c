"""The journal: which files hold the lines that were received, in which order, and who may add to them.

::

    00000000000000000007.record          journal 5f…, writer 3a…, segments:  lines 0-999    4-e1….lines   sealed at 65,432 bytes
                                                                             lines 1000-    7-0c….lines   open, of writer 3a…
    00000000000000000004-e1….lines       frames
    00000000000000000007-0c….lines       frames, and after a crash perhaps a part of one

    begin to write    record 8: writer is me                               from here on nobody else acknowledges or offers a line
                      measure the open segment: its whole frames, synced
                      record 9: that segment is sealed there, and mine is open
    add lines         write a frame, sync, look: am I still the writer?    only then are its lines offered, and acknowledged
    forget lines      record 10: without the segments that are read        then their files are deleted

Records are numbered, and each holds the whole state. One is published exclusively, after the one before it was read: so each is a
compare-and-set, and two processes that both believe to be the receiver can't both go on.

The guarantee: a line that was offered or acknowledged keeps its number, for ever. A process that was overtaken may still write
into its segment. Either it has synced a frame before it looked, and the look was before record 8: then whoever published record 8
measured the segment after that, and the frame is in it. Or it sees record 8, and says nothing of the frame to anyone.

What it can't do: keep its promise on a mount whose machines see each other's new files late (NFS); there a receiver on another
machine may not notice that it was overtaken.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace

from twophase.errors import DataLost, Fenced, LedgerCorrupt, OptionError, OutcomeUnknown
from twophase.local_storage import LocalStorage
from twophase.sources.socket.frames import Frame, frames, payload_of, whole_frame_after
from twophase.vote import canonical_json

JOURNAL_FORMAT = 1
KEPT_RECORDS = 8
TRIES = 50
TEMPORARY_LIVES_S = 3600.0
_MAGIC = b"twophase-socket"
_DIGITS = 20
_RECORD = re.compile(r"([0-9]{20})\.record")
_SEGMENT = re.compile(r"([0-9]{20})-[0-9a-f]{16}\.lines")
_INDEX_BYTES = 1 << 16


@dataclass(frozen=True)
class Extent:
    """How much of a segment counts."""

    lines: int
    bytes: int


@dataclass(frozen=True)
class Segment:
    """A file of frames."""

    name: str
    writer: str
    first_line: int
    sealed: Extent | None = None
    """None for as long as its writer may add to it."""


@dataclass(frozen=True)
class State:
    """The journal, as one record says it."""

    number: int
    nonce: str
    journal: str
    writer: str = ""
    place: str = ""
    """Of the writer, for people."""
    stream: str | None = None
    base: int = 0
    """What number the journal's line 0 has in the stream of the sender."""
    segments: tuple[Segment, ...] = ()

    @property
    def first_line(self) -> int:
        return self.segments[0].first_line if self.segments else 0

    @property
    def last(self) -> Segment | None:
        return self.segments[-1] if self.segments else None


@dataclass(frozen=True)
class Place:
    """Where a line lies: the byte where its frame begins, and the number of that frame's first line."""

    segment: Segment
    byte: int
    line: int


class Journal:
    """The journal in a folder of a local disk, or of a mount that several machines share."""

    def __init__(self, storage: LocalStorage, folder: str):
        self.storage = storage
        self.folder = folder

    # ---- its state ----

    def state(self) -> State | None:
        """What the newest record says; None if there is none."""
        for _ in range(TRIES):
            numbers = self._numbers()
            if not numbers:
                return None
            path = self._record(numbers[-1])
            try:
                return decode(self.storage.read(path), path=path)
            except FileNotFoundError:
                continue  # newer ones have come in between, and it was cleared away
        raise OutcomeUnknown(f"the journal {self.folder} changes faster than it can be read")

    def required(self) -> State:
        state = self.state()
        if state is None:
            raise DataLost(
                f"the journal {self.folder} is gone, and with it every line that was received and not processed: restore the "
                "folder, or begin anew, with a new checkpoint"
            )
        return state

    def made(self) -> State:
        """The journal; an empty one, if there is none."""
        state = self.state()
        if state is None:
            self.storage.make_folder(self.folder)
            with suppress(_Overtaken):
                self._publish(State(1, secrets.token_hex(8), secrets.token_hex(8)))
            state = self.required()
        return state

    def newest_number(self) -> int:
        return max(self._numbers(), default=0)

    def update(self, change: Callable[[State], State | None], *, writer: str | None = None) -> State:
        """Publish what `change` makes of the newest state, unless it makes nothing; with `writer`, only if that is the writer."""
        for _ in range(TRIES):
            state = self.required()
            if writer is not None:
                require_writer(state, writer, self.folder)
            changed = change(state)
            if changed is None:
                return state
            changed = replace(changed, number=state.number + 1, nonce=secrets.token_hex(8))
            try:
                self._publish(changed)
            except _Overtaken:
                continue
            return changed
        raise OutcomeUnknown(f"the journal {self.folder} changes faster than it can be changed")

    def forget(self, line: int) -> int:
        """Delete the segments that are wholly before `line`; returns how many."""
        gone: list[Segment] = []

        def shortened(state: State) -> State | None:
            gone[:] = [each for each in state.segments if each.sealed is not None and _end(each) <= line]
            # The last one stays, sealed or not: it says how many lines there were.
            gone[:] = [each for each in gone if each is not state.last]
            kept = tuple(each for each in state.segments if each not in gone)
            return replace(state, segments=kept) if gone else None

        self.update(shortened)
        for segment in gone:
            self.storage.delete(self.path(segment))
        return len(gone)

    def sweep(self) -> None:
        """Delete what processes that died have left."""
        state = self.required()
        names = {each.name for each in state.segments}
        for entry in self.storage.list(self.folder):
            found = _SEGMENT.fullmatch(entry.name)
            # A higher number is a segment that somebody is about to open.
            if found and entry.name not in names and int(found[1]) <= state.number:
                self.storage.delete(f"{self.folder}/{entry.name}")
        self.storage.sweep_temporary(self.folder, older_than_s=TEMPORARY_LIVES_S)

    # ---- its lines ----

    def path(self, segment: Segment) -> str:
        return f"{self.folder}/{segment.name}"

    def kept_bytes(self, state: State) -> int:
        """How large the segments are."""
        return sum(self._end_byte(each) for each in state.segments)

    def measured(self, segment: Segment) -> Extent:
        """The whole frames at the beginning of a segment that was open, synced. What follows them is what a crash has torn."""
        with self.opened(segment) as file:
            lines = end_byte = 0
            size = os.fstat(file).st_size
            for frame in frames(file, byte=0, first_line=segment.first_line, end_byte=size):
                if payload_of(file, frame, segment.name) is None:
                    break
                lines, end_byte = lines + frame.lines, frame.end_byte
            if whole_frame_after(os.pread(file, size - end_byte, end_byte), segment.first_line + lines, segment.name):
                # Each frame is synced before the next one is begun: no crash leaves a whole one after a broken one.
                raise DataLost(
                    f"the file {self.path(segment)} of the journal is damaged at byte {end_byte}, with whole lines after it: line "
                    f"{segment.first_line + lines} and some that follow can't be read. Restore the file from a backup"
                )
            # Whoever wrote them may have died before they were on the disk.
            self.storage.posix.fsync(file)
        return Extent(lines, end_byte)

    def durable_lines(self) -> int:
        """How many lines there are that nobody can take away any more, as somebody sees it who does not write."""
        for _ in range(TRIES):
            state = self.required()
            last = state.last
            if last is None:
                return 0
            if last.sealed is not None:
                return _end(last)
            lines = self.measured(last).lines
            # As a writer does: synced, and then looked. One that is being overtaken is about to be measured by another.
            if self.required().writer == last.writer:
                return last.first_line + lines
            if state.writer != last.writer:
                return last.first_line
        raise OutcomeUnknown(f"the journal {self.folder} changes faster than it can be read")

    def located(self, state: State, line: int) -> Place:
        """Where a line lies that is in the journal; of the line after the last one, where it will lie."""
        if line < state.first_line:
            raise DataLost(
                f"the lines {line} to {state.first_line - 1} are no longer in the journal {self.folder}: another query has read "
                "them from it, or the checkpoint was restored from a backup. Begin anew, with a new checkpoint"
            )
        at = bisect_right([each.first_line for each in state.segments], line) - 1
        if at < 0:
            raise _short(self, line, 0)
        segment = state.segments[at]
        begin = _index_of(self.path(segment)).before(line, segment.first_line)
        with self.opened(segment) as file:
            place = Place(segment, begin[1], begin[0])
            for frame in self._frames(file, segment, place):
                if line < frame.end_line:
                    return Place(segment, frame.byte, frame.first_line)
                place = Place(segment, frame.end_byte, frame.end_line)
                _index_of(self.path(segment)).add(frame.end_line, frame.end_byte)
        if line > place.line:
            raise _short(self, line, place.line)
        return place

    def walked(self, state: State, start: int, end: int) -> Iterator[tuple[Segment, Frame]]:
        """The frames with lines from `start` to `end`, by their headers alone."""
        line = start
        while line < end:
            place = self.located(state, line)
            before = line
            with self.opened(place.segment) as file:
                for frame in self._frames(file, place.segment, place):
                    if frame.first_line >= end:
                        return
                    yield place.segment, frame
                    line = frame.end_line
            if line == before:
                raise _short(self, end, line)

    def payload(self, segment: Segment, frame: Frame) -> bytes:
        """The lines of a frame."""
        with self.opened(segment) as file:
            payload = payload_of(file, frame, segment.name)
        if payload is None:
            raise damaged(self, segment, frame.first_line)
        return payload

    @contextmanager
    def opened(self, segment: Segment) -> Iterator[int]:
        try:
            file = self.storage.posix.open_file(self.path(segment))
        except FileNotFoundError:
            raise self._missing(segment) from None
        try:
            yield file
        finally:
            with suppress(OSError):  # nothing was written through it
                self.storage.posix.close(file)

    def _frames(self, file: int, segment: Segment, place: Place) -> Iterator[Frame]:
        end_byte = os.fstat(file).st_size if segment.sealed is None else segment.sealed.bytes
        return frames(file, byte=place.byte, first_line=place.line, end_byte=end_byte)

    def _end_byte(self, segment: Segment) -> int:
        if segment.sealed is not None:
            return segment.sealed.bytes
        with self.opened(segment) as file:
            return os.fstat(file).st_size

    def _missing(self, segment: Segment) -> Exception:
        if self.state() is None:
            return not_here(self.folder)
        return DataLost(
            f"the file {self.path(segment)} of the journal is gone, with the lines from line {segment.first_line} on"
            + ("" if segment.sealed is None else f" to line {_end(segment) - 1}")
            + ": restore it from a backup"
        )

    # ---- inside ----

    def _publish(self, state: State) -> None:
        path, data = self._record(state.number), encode(state)
        for _ in range(TRIES):
            try:
                self.storage.publish(path, data)
            except FileExistsError:
                try:
                    won = decode(self.storage.read(path), path=path).nonce == state.nonce
                except FileNotFoundError:
                    won = False
                if not won:
                    raise _Overtaken from None
                self.storage.sync(self.folder)
            except TimeoutError:
                continue  # it may have landed: only the same record may be tried again
            break
        else:
            raise OutcomeUnknown(f"the record {path} may have been published: start the query again")
        numbers = self._numbers()
        if state.number <= numbers[-1] - KEPT_RECORDS:
            # Perhaps the number was free only because it was cleared away, long ago.
            raise Fenced(
                f"the journal {self.folder} went on to record {numbers[-1]} meanwhile: another process receives into it"
            )
        for number in numbers:
            if number <= state.number - KEPT_RECORDS:
                self.storage.delete(self._record(number))

    def _numbers(self) -> list[int]:
        names = (entry.name for entry in self.storage.list(self.folder))
        return sorted(int(found[1]) for name in names if (found := _RECORD.fullmatch(name)))

    def _record(self, number: int) -> str:
        return f"{self.folder}/{number:0{_DIGITS}d}.record"


class _Overtaken(Exception):
    """The number was taken by another record."""


class _Index:
    """Where some of the frames of a segment begin: a hint, so that a look need not begin at the first one.

    Frames never move, and a segment's name is never used again; so what was seen once is so for ever.
    """

    def __init__(self) -> None:
        self._lines: list[int] = []
        self._bytes: list[int] = []
        self._lock = threading.Lock()

    def before(self, line: int, first_line: int) -> tuple[int, int]:
        """A line that is not after `line`, and the byte where its frame begins."""
        with self._lock:
            at = bisect_right(self._lines, line) - 1
            return (first_line, 0) if at < 0 else (self._lines[at], self._bytes[at])

    def add(self, line: int, byte: int) -> None:
        with self._lock:
            if byte - (self._bytes[-1] if self._bytes else 0) >= _INDEX_BYTES:
                self._lines.append(line)
                self._bytes.append(byte)


_indexes: dict[str, _Index] = {}
_MOST_INDEXES = 256


def _index_of(path: str) -> _Index:
    if path not in _indexes and len(_indexes) >= _MOST_INDEXES:
        _indexes.clear()
    return _indexes.setdefault(path, _Index())


def require_writer(state: State, writer: str, folder: str) -> None:
    if state.writer != writer:
        raise Fenced(
            f"another process ({state.place}) receives into the journal {folder} now: a journal is one query's alone. Stop one of "
            "the two, or give each its own journal"
        )


def new_segment(number: int, writer: str, first_line: int) -> Segment:
    """One whose name was never used: by the number of the record that names it, and a nonce for records that come second."""
    return Segment(f"{number:0{_DIGITS}d}-{secrets.token_hex(8)}.lines", writer, first_line)


def not_here(folder: str) -> OptionError:
    problem = (
        f"the journal {folder} is not on the machine {os.uname().nodename}, where a task runs: give a path that is the same place "
        "for the driver and for all executors. What was received is safe in the driver's journal"
    )
    return OptionError(f"1 problem with the options: {problem}", problems=[problem])


def damaged(journal: Journal, segment: Segment, line: int) -> DataLost:
    return DataLost(
        f"line {line} can't be read: the file {journal.path(segment)} of the journal was damaged or changed. Restore it from a "
        "backup"
    )


def _short(journal: Journal, line: int, there: int) -> DataLost:
    return DataLost(
        f"this query has read the journal {journal.folder} up to line {line}, and it has {there} lines: it was restored from an "
        "older copy, or damaged. Restore it, or begin anew, with a new checkpoint"
    )


def _end(segment: Segment) -> int:
    assert segment.sealed is not None
    return segment.first_line + segment.sealed.lines


def encode(state: State) -> bytes:
    body = canonical_json(asdict(state)).encode() + b"\n"
    return b"%s %d sha256=%s\n" % (_MAGIC, JOURNAL_FORMAT, _digest(body)) + body


def decode(data: bytes, *, path: str) -> State:
    """Read a record; raises LedgerCorrupt that says in what way it can't be read."""
    header, _, body = data.partition(b"\n")
    words = header.split(b" ")
    if words[0] != _MAGIC or len(words) != 3 or not words[1].isdigit():
        raise _corrupt(path, "is not a record of a journal: another program wrote it, or it is torn")
    if int(words[1]) != JOURNAL_FORMAT:
        raise _corrupt(
            path, f"has format {int(words[1])}, and this release reads {JOURNAL_FORMAT}: run a newer release"
        )
    if words[2] != b"sha256=" + _digest(body):
        raise _corrupt(path, "is torn or was altered: its checksum does not match")
    try:
        content = json.loads(body)
        segments = tuple(_segment(each) for each in content.pop("segments"))
        return State(**content, segments=segments)
    except (ValueError, KeyError, TypeError) as error:
        raise _corrupt(path, f"is whole but makes no sense to this release: {error!r}") from error


def _segment(content: dict[str, object]) -> Segment:
    sealed = content.pop("sealed")
    assert sealed is None or isinstance(sealed, dict)
    return Segment(**content, sealed=None if sealed is None else Extent(**sealed))  # type: ignore[arg-type]


def _corrupt(path: str, what: str) -> LedgerCorrupt:
    return LedgerCorrupt(f"{path} {what}. Nothing was changed. Restore the journal from a backup.")


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()
