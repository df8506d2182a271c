"""Journals of lines, as the tests of the socket source make and read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from twophase.local_storage import LocalStorage, Posix
from twophase.sources.socket.frames import frames, payload_of
from twophase.sources.socket.journal import Journal
from twophase.sources.socket.writer import JournalWriter

SEGMENT_BYTES = 1 << 20


def journal_in(folder: Path, posix: Posix | None = None) -> Journal:
    return Journal(LocalStorage(posix or Posix()), str(folder))


def writer_of(journal: Journal, segment_bytes: int = SEGMENT_BYTES) -> JournalWriter:
    return JournalWriter(journal, segment_bytes=segment_bytes)


def add(writer: JournalWriter, lines: Sequence[str], received_us: int = 0) -> None:
    writer.add("".join(f"{line}\n" for line in lines).encode(), len(lines), received_us)


def lines_of(journal: Journal) -> list[str]:
    """All lines that the journal has, from its oldest on; read as a restart would find it, and without changing it."""
    state = journal.state()
    if state is None:
        return []
    found = bytearray()
    for segment in state.segments:
        extent = segment.sealed or journal.measured(segment)
        with journal.opened(segment) as file:
            for frame in frames(file, byte=0, first_line=segment.first_line, end_byte=extent.bytes):
                payload = payload_of(file, frame, segment.name)
                assert payload is not None, f"{segment.name} is damaged at byte {frame.byte}"
                found += payload
    return found.decode().splitlines()
