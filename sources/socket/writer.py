"""JournalWriter: who adds lines to a journal. There is one at a time; a new one overtakes the one before it."""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace

from twophase.errors import TwophaseError
from twophase.sources.socket.frames import encode
from twophase.sources.socket.journal import Extent, Journal, Segment, State, new_segment, require_writer


@dataclass
class _Open:
    """The segment that is being written, and how much of it is durable."""

    segment: Segment
    file: int
    lines: int = 0
    bytes: int = 0


class JournalWriter:
    """Adds lines, each durable before `add` returns. It begins by overtaking whoever wrote before.

    Parameters
    ----------
    segment_bytes:
        When a segment has so many, the next one is begun.
    """

    def __init__(self, journal: Journal, *, segment_bytes: int):
        self._journal = journal
        self._segment_bytes = segment_bytes
        self._name = secrets.token_hex(8)
        journal.made()
        place = f"process {os.getpid()} on {os.uname().nodename}"
        journal.update(lambda state: replace(state, writer=self._name, place=place))
        # From here on whoever wrote before neither offers nor acknowledges a line.
        self._open: _Open | None = None
        self.state = self._begin()
        journal.sweep()

    @property
    def lines(self) -> int:
        """How many lines the journal has, from its first one on; all of them durable."""
        assert self._open is not None
        return self._open.segment.first_line + self._open.lines

    @property
    def kept_bytes(self) -> int:
        """How large the journal is."""
        sealed = sum(each.sealed.bytes for each in self.state.segments if each.sealed is not None)
        return sealed + (0 if self._open is None else self._open.bytes)

    def look(self) -> None:
        """Fenced, unless this is still the writer."""
        if self._journal.newest_number() != self.state.number:
            state = self._journal.required()
            require_writer(state, self._name, self._journal.folder)
            self.state = state

    def add(self, payload: bytes, lines: int, received_us: int) -> None:
        """Add lines. When this returns they are durable, and nobody can take their numbers any more."""
        assert self._open is not None
        if self._open.bytes >= self._segment_bytes:
            self.state = self._begin()
        frame = encode(
            payload, segment=self._open.segment.name, lines=lines, first_line=self.lines, received_us=received_us
        )
        try:
            self._append(self._open.file, frame)
            # After the sync and not before it: see the journal's docstring.
            self.look()
        except BaseException:
            # What lies in the file now is not what is counted here: nothing may be added behind it.
            self.close()
            raise
        self._open.lines += lines
        self._open.bytes += len(frame)

    def bind(self, stream: str, base: int) -> None:
        """Write down whose lines these are."""
        self.state = self._journal.update(lambda state: replace(state, stream=stream, base=base), writer=self._name)

    def close(self) -> None:
        """Let the file go. The journal stays as after a crash: what comes next does not depend on a tidy end."""
        if self._open is not None:
            with suppress(OSError):  # all that counts was synced
                self._journal.storage.posix.close(self._open.file)
            self._open = None

    def _append(self, file: int, data: bytes) -> None:
        posix, rest = self._journal.storage.posix, memoryview(data)
        try:
            while rest:
                written = posix.write(file, rest)
                if written == 0:
                    raise OSError(errno.EIO, "nothing could be written", self._journal.folder)
                rest = rest[written:]
            posix.fsync(file)
        except OSError:
            self._give_up()
            raise

    def _begin(self) -> State:
        """Seal the segment that is open, mine or another's, and open a new one."""
        before = self._open
        created: list[_Open] = []

        def opened(state: State) -> State:
            segments = state.segments
            last = state.last
            if last is not None and last.sealed is None:
                if before is not None and before.segment == last:
                    extent = Extent(before.lines, before.bytes)
                else:
                    extent = self._journal.measured(last)
                # One without lines is left out, and swept.
                segments = segments[:-1] + ((replace(last, sealed=extent),) if extent.lines else ())
            end = _end_of(segments) if segments else (0 if last is None else last.first_line)
            segment = new_segment(state.number + 1, self._name, end)
            self._discard(created)
            created.append(self._created(segment))
            return replace(state, segments=(*segments, segment))

        try:
            state = self._journal.update(opened, writer=self._name)
        except (TwophaseError, OSError):
            # It may have been published all the same; then it is an empty segment, whose file has to be there.
            for each in created:
                with suppress(OSError):
                    self._journal.storage.posix.close(each.file)
            raise
        self.close()
        self._open = created[0]
        return state

    def _created(self, segment: Segment) -> _Open:
        storage = self._journal.storage
        file = storage.posix.create(self._journal.path(segment))
        # Its name must be durable before a record names it: a segment that is named and not there is lost.
        storage.sync(self._journal.folder)
        return _Open(segment, file)

    def _discard(self, created: list[_Open]) -> None:
        for each in created:
            with suppress(OSError):
                self._journal.storage.posix.close(each.file)
            self._journal.storage.delete(self._journal.path(each.segment))
        created.clear()

    def _give_up(self) -> None:
        """Seal the segment where it was last known to be durable: after an error, what was written behind that may look durable
        to whoever comes next, and not be."""
        assert self._open is not None
        segment, extent = self._open.segment, Extent(self._open.lines, self._open.bytes)

        def sealed(state: State) -> State | None:
            if state.last != segment:
                return None
            return replace(state, segments=(*state.segments[:-1], replace(segment, sealed=extent)))

        with suppress(OSError, TwophaseError):  # the error that is being raised says what is wrong
            self._journal.update(sealed, writer=self._name)


def _end_of(segments: tuple[Segment, ...]) -> int:
    last = segments[-1]
    assert last.sealed is not None
    return last.first_line + last.sealed.lines
