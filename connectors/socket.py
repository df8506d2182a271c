"""`twophase-socket`: lines that come over a socket, as a format of `readStream`."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa

from twophase.connectors.format import Format
from twophase.connectors.stream_reader import AnySource


class SocketFormat(Format):
    """Lines, by way of a journal."""

    @classmethod
    def name(cls) -> str:
        return "twophase-socket"

    @classmethod
    def make_source(cls, options: Mapping[str, str], schema: pa.Schema | None) -> AnySource:
        from twophase.sources import SocketSource

        # A source can't ask Spark how many cores there are; the driver's are the best guess, and right on a laptop.
        return SocketSource.from_options({"parallelism": str(os.cpu_count() or 1), **options})
