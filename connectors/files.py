"""`twophase-files`: tables of files, as a format of `writeStream` and `readStream`."""

from __future__ import annotations

import os
from collections.abc import Mapping

import pyarrow as pa

from twophase.connectors.format import Format
from twophase.connectors.stream_reader import AnySource
from twophase.query import AnySink


class FilesFormat(Format):
    """A table of files, one folder an epoch; or, for reading, a plain folder of files too."""

    in_storage = True

    @classmethod
    def name(cls) -> str:
        return "twophase-files"

    @classmethod
    def make_sink(cls, options: Mapping[str, str]) -> AnySink:
        from twophase.sinks import FilesSink

        return FilesSink.from_options(options)

    @classmethod
    def make_source(cls, options: Mapping[str, str], schema: pa.Schema | None) -> AnySource:
        from twophase.sources import FilesSource

        # A source can't ask Spark how many cores there are; the driver's are the best guess, and right on a laptop.
        return FilesSource.from_options({"parallelism": str(os.cpu_count() or 1), **options}, schema)
