"""A file that is read in ranges, each by a request of its own, as a file that can be read at any position."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, BinaryIO, cast


def opened(read: Callable[[int, int], bytes], length: int, *, ahead_bytes: int) -> BinaryIO:
    """The file of this length, of which `read(offset, length)` gives any range; so much is read ahead."""
    return cast(BinaryIO, io.BufferedReader(_Ranges(read, length), ahead_bytes))


class _Ranges(io.RawIOBase):
    def __init__(self, read: Callable[[int, int], bytes], length: int):
        self._read = read
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readall(self) -> bytes:
        """In one request: Python's own would make one for every few kilobytes."""
        return self.read(max(0, self._length - self._position)) or b""

    def readinto(self, buffer: Any, /) -> int:
        length = min(len(buffer), self._length - self._position)
        if length <= 0:
            return 0
        data = self._read(self._position, length)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
