"""Text in blocks of whole lines: as much as may be in memory at a time, and never a line cut in two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

BLOCK_BYTES = 16 * 1024 * 1024


def line_blocks(stream: Any) -> Iterator[bytes]:
    """All of a stream; a line that is longer than a block makes its block as long as it needs."""
    rest: list[bytes] = []
    while block := stream.read(BLOCK_BYTES):
        whole, newline, tail = block.rpartition(b"\n")
        if not newline:
            rest.append(block)
            continue
        yield b"".join((*rest, whole, newline))
        rest = [tail]
    if last := b"".join(rest):
        yield last
