"""SocketSource: lines from a socket, replayable: received, made durable in a journal, and then offered.

::

    offset       {"journal": its id, "line": the number of the next line to be read}
    latest       the lines that are durable now; the first call makes this process receive
    plan, read   from the files of the journal
    acknowledge  files of lines that are all processed are deleted
    stop         nothing more is received

The guarantee: every line that is in the journal is read once, in its order, by the query whose journal it is; the same (start, end)
gives the same lines, with the same times, until it is acknowledged. With `acknowledge` and a sender that speaks the protocol of
`conversation.py`, that holds for every line of the sender. With one that does not, such as `nc`, lines that are under way when
the process dies are lost, and nobody can tell.

What it can't do: give a line without an end; see a lone carriage return as the end of a line; share a journal between two queries.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from twophase.errors import DataLost, OptionError, Unreadable
from twophase.local_storage import LocalStorage
from twophase.options import parse
from twophase.source import NO_LIMIT, ReadLimit, Source
from twophase.sources.socket.frames import frames, payload_of
from twophase.sources.socket.journal import Journal, Segment, State, damaged, not_here
from twophase.sources.socket.options import IGNORED, SocketSourceOptions
from twophase.sources.socket.receiver import Receiver, receiving, running_receiver, stop_receiving
from twophase.sources.socket.rows import batch_of, schema_of
from twophase.storage_of import storage_of
from twophase.vote import canonical_json

_LEAST_SPLIT_BYTES = 1024 * 1024
_BATCH_BYTES = 1024 * 1024


@dataclass(frozen=True)
class SocketOffset:
    journal: str
    line: int

    @classmethod
    def parse(cls, text: str) -> SocketOffset:
        try:
            data = json.loads(text)
            return cls(str(data["journal"]), int(data["line"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"the offset {text!r} is none of a socket: {error!r}") from None

    def to_text(self) -> str:
        return canonical_json({"journal": self.journal, "line": self.line})


@dataclass(frozen=True)
class Piece:
    """Frames of one segment that follow each other, and which of their lines are wanted."""

    segment: Segment
    byte: int
    end_byte: int
    frame_line: int
    """The number of the first line of the first frame."""
    first_line: int
    end_line: int


@dataclass(frozen=True)
class SocketSplit:
    """One task's part of a range."""

    journal: str
    pieces: tuple[Piece, ...]


class SocketSource(Source[SocketSplit]):
    """Lines that a sender offers at a host and port.

    Parameters
    ----------
    host, port:
        Where the sender listens.
    journal:
        The folder of the journal, which is this query's alone.
    options:
        The other fields of `SocketSourceOptions`.
    """

    def __init__(self, host: str, port: int, journal: str, **options: Any):
        given = SocketSourceOptions(host=host, port=port, journal=journal, **options)
        problems = list(given.problems())
        if problems:
            raise OptionError("; ".join(problems), problems=problems)
        self._set(given)

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> SocketSource:
        source = cls.__new__(cls)
        source._set(parse(SocketSourceOptions, given, ignore=IGNORED))
        return source

    def _set(self, options: SocketSourceOptions) -> None:
        self._options = options
        storage = storage_of(options.journal, option="journal")
        if not isinstance(storage, LocalStorage):
            raise _wrong(
                f"journal is {options.journal!r}, and must be on a local disk, or a mount that all machines share"
            )
        self._journal = Journal(storage, storage.normalise(options.journal).removeprefix("file://"))

    def schema(self) -> pa.Schema:
        return schema_of(include_timestamp=self._options.include_timestamp)

    # ---- offsets ----

    def earliest(self) -> str:
        """The oldest line that is in the journal. Nothing is received before it is known."""
        self._receiver()
        state = self._journal.required()
        return SocketOffset(state.journal, state.first_line).to_text()

    def newest(self) -> str:
        """What is durable now. It does not begin to receive, and makes no journal: with the trigger availableNow Spark asks for it
        before the query has said where it goes on, and so whether this is its journal at all."""
        running = running_receiver(self._journal.folder)
        state = self._journal.state()
        if state is None:
            return SocketOffset("", 0).to_text()
        line = self._journal.durable_lines() if running is None else running.durable
        return SocketOffset(state.journal, line).to_text()

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        begin = SocketOffset.parse(start)
        self._known(begin)  # before a journal is made in the place of the one that is gone
        running = self._receiver()
        if begin.line > running.durable:
            raise DataLost(
                f"this query has read the journal {self._journal.folder} up to line {begin.line}, and it has {running.durable} "
                "lines: it was restored from an older copy, or damaged. Restore it, or begin anew, with a new checkpoint"
            )
        end = running.durable
        if until is not None:
            end = min(end, SocketOffset.parse(until).line)
        for most in (self._options.max_rows_per_trigger, limit.rows):
            if most is not None:
                end = min(end, begin.line + max(1, most))
        if end <= begin.line:
            return start
        limits = [each for each in (self._options.max_bytes_per_trigger, limit.bytes) if each is not None]
        most_bytes = min(limits) if limits else None
        return SocketOffset(begin.journal, self._within(self._known(begin), begin.line, end, most_bytes)).to_text()

    def acknowledge(self, end: str) -> None:
        offset = SocketOffset.parse(end)
        self._known(offset)
        if self._journal.forget(offset.line):
            running = running_receiver(self._journal.folder)
            if running is not None:
                running.more_room()

    def stop(self) -> None:
        stop_receiving(self._journal.folder)

    # ---- ranges ----

    def plan(self, start: str, end: str) -> Sequence[SocketSplit]:
        begin, until = SocketOffset.parse(start), SocketOffset.parse(end)
        if until.line <= begin.line:
            return []
        state = self._known(begin)
        whole = list(self._pieces(state, begin.line, until.line))
        total = sum(piece.end_byte - piece.byte for piece in whole)
        share = max(1, min(self._options.split_bytes, max(total // self._options.parallelism, _LEAST_SPLIT_BYTES)))
        return [SocketSplit(state.journal, pieces) for pieces in _shared_out(whole, share)]

    def read(self, split: SocketSplit) -> Iterator[pa.RecordBatch]:
        state = self._journal.state()
        if state is None or state.journal != split.journal:
            raise not_here(self._journal.folder)
        held: list[tuple[bytes, int, int]] = []
        size = 0
        for piece in split.pieces:
            for payload, received_us, lines in self._lines(piece):
                held.append((payload, received_us, lines))
                size += len(payload)
                if size >= _BATCH_BYTES:
                    yield self._batch(held)
                    held, size = [], 0
        if held:
            yield self._batch(held)

    def _lines(self, piece: Piece) -> Iterator[tuple[bytes, int, int]]:
        """Lines, when they were received, and how many they are."""
        line = piece.first_line
        with self._journal.opened(piece.segment) as file:
            for frame in frames(file, byte=piece.byte, first_line=piece.frame_line, end_byte=piece.end_byte):
                payload = payload_of(file, frame, piece.segment.name)
                if payload is None:
                    break
                first, end = max(piece.first_line, frame.first_line), min(piece.end_line, frame.end_line)
                if first < end:
                    yield _cut(payload, first - frame.first_line, end - first), frame.received_us, end - first
                line = frame.end_line
        if line < piece.end_line:
            raise damaged(self._journal, piece.segment, line)

    def _batch(self, held: Sequence[tuple[bytes, int, int]]) -> pa.RecordBatch:
        payloads, times, counts = zip(*held, strict=True)
        return batch_of(payloads, times, counts, include_timestamp=self._options.include_timestamp)

    # ---- inside ----

    def _receiver(self) -> Receiver:
        return receiving(self._journal, self._options)

    def _known(self, offset: SocketOffset) -> State:
        """The journal, if it is the one that the offset is of."""
        state = self._journal.required()
        if state.journal != offset.journal:
            raise DataLost(
                f"this query has read up to line {offset.line} of the journal {offset.journal}, and the journal in "
                f"{self._journal.folder} is {state.journal}: it was deleted and begun anew, or the option journal was changed. "
                "Restore it, or begin anew, with a new checkpoint"
            )
        return state

    def _within(self, state: State, start: int, end: int, most_bytes: int | None) -> int:
        """The end of a range that has not more than so many bytes of lines, and not more than an epoch may take of the journal;
        but a line at least."""
        if most_bytes is None and self._journal.kept_bytes(state) <= self._options.epoch_bytes:
            return end
        of_lines = of_journal = 0
        for segment, frame in self._journal.walked(state, start, end):
            of_journal += frame.end_byte - frame.byte
            if of_journal > self._options.epoch_bytes and frame.first_line > start:
                return frame.first_line
            skipped = max(0, start - frame.first_line)
            if most_bytes is not None and (skipped or of_lines + frame.payload_bytes > most_bytes):
                payload = self._journal.payload(segment, frame)
                begin = _end_of_lines(payload, 0, skipped)
                fit = payload.rfind(b"\n", begin, max(begin, begin + most_bytes - of_lines)) + 1
                if fit < len(payload):
                    return max(start + 1, min(end, frame.first_line + payload.count(b"\n", 0, max(begin, fit))))
                of_lines -= begin
            of_lines += frame.payload_bytes
        return end

    def _pieces(self, state: State, start: int, end: int) -> Iterator[Piece]:
        """The range, a megabyte or so a piece, which ends with a frame and never goes from one segment to the next."""
        piece: Piece | None = None
        for segment, frame in self._journal.walked(state, start, end):
            if piece is not None and (piece.segment != segment or frame.end_byte - piece.byte > _LEAST_SPLIT_BYTES):
                yield replace(piece, end_line=frame.first_line)
                piece = None
            if piece is None:
                first_line = max(start, frame.first_line)
                piece = Piece(segment, frame.byte, frame.end_byte, frame.first_line, first_line, end)
            else:
                piece = replace(piece, end_byte=frame.end_byte)
        if piece is not None:
            yield piece


def _shared_out(pieces: Sequence[Piece], share_bytes: int) -> Iterator[tuple[Piece, ...]]:
    """Pieces that follow each other, about so many bytes together."""
    held: list[Piece] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += piece.end_byte - piece.byte
        if size >= share_bytes:
            yield tuple(held)
            held, size = [], 0
    if held:
        yield tuple(held)


def _cut(payload: bytes, first: int, lines: int) -> bytes:
    """Some of the lines."""
    begin = _end_of_lines(payload, 0, first)
    return payload[begin : _end_of_lines(payload, begin, lines)]


def _end_of_lines(payload: bytes, begin: int, lines: int) -> int:
    if lines == payload.count(b"\n", begin):
        return len(payload)
    for _ in range(lines):
        begin = payload.index(b"\n", begin) + 1
    return begin


def _wrong(problem: str) -> OptionError:
    return OptionError(f"1 problem with the options: {problem}", problems=[problem])
