"""SocketSource keeps the contract, with lines that have come over a real socket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.line_sender import LOOPBACK, SpoolingSender
from twophase.sources.socket import SocketSource
from twophase.sources.socket.frames import HEADER_BYTES, frames
from twophase.sources.socket.journal import Journal
from twophase.testing.source_suite import SourceOrigin, SourceSuite


class LinesOrigin(SourceOrigin):
    """Lines of a sender that is told when they are safe. A unit is what comes at once, and so a frame of the journal."""

    limits = frozenset({"rows"})
    """That of bytes is kept line by line, and a unit has two: tests/test_socket_receiver.py."""
    ordered = True
    many_units = 300

    def __init__(self, folder: Path, segment_bytes: int):
        self._sender = SpoolingSender(folder)
        self._folder, self._segment_bytes = folder / "the journal=ä%41", segment_bytes
        self._units: list[int] = []

    def source(self, parallelism: int = 1) -> SocketSource:
        return SocketSource(
            LOOPBACK,
            self._sender.port,
            str(self._folder),
            acknowledge=True,
            include_timestamp=True,
            segment_bytes=self._segment_bytes,
            max_line_bytes=100,
            split_bytes=1 if parallelism > 2 else 10_000_000,
            parallelism=parallelism,
        )

    def split_in(self, tasks: int) -> SocketSource:
        return self.source(tasks)

    def add(self, values: Sequence[int]) -> None:
        self.source().earliest()  # which makes this process receive
        self._units.append(self._sender.spool.following)
        self._sender.put([str(value).encode() for value in values])
        self._sender.wait()

    def lose(self, unit: int) -> str:
        self._overwrite(unit, b"\0")
        return f"line {self._units[unit]} "

    def change(self, unit: int) -> bool:
        self._overwrite(unit, b"7")
        return True

    def _overwrite(self, unit: int, byte: bytes) -> None:
        journal = self.source()._journal
        place = journal.located(journal.required(), self._units[unit])
        with journal.opened(place.segment) as file:
            frame = next(frames(file, byte=place.byte, first_line=place.line, end_byte=1 << 30))
        _write(journal, place.segment.name, frame.byte + HEADER_BYTES, byte)

    def close(self) -> None:
        self.source().stop()
        self._sender.close()


def _write(journal: Journal, name: str, at: int, data: bytes) -> None:
    with open(f"{journal.folder}/{name}", "r+b") as file:
        file.seek(at)
        file.write(data)


class TestLines(SourceSuite):
    @pytest.fixture(params=[4096, 1 << 20], ids=["small segments", "one segment"])
    def origin(self, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LinesOrigin]:
        origin = LinesOrigin(tmp_path, request.param)
        yield origin
        origin.close()
