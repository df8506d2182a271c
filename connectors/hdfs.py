"""`twophase-hdfs`: tables of files on HDFS. The same as `twophase-files`, but for paths that it refuses."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from twophase.connectors.files import FilesFormat
from twophase.connectors.stream_reader import AnySource
from twophase.errors import OptionError
from twophase.extras import require
from twophase.query import AnySink
from twophase.storage_of import scheme_of

# Registered only where there is a client: `twophase-files` needs none.
require("hdfs_native", "hdfs")


class HdfsFormat(FilesFormat):
    """A table of files on HDFS."""

    @classmethod
    def name(cls) -> str:
        return "twophase-hdfs"

    @classmethod
    def make_sink(cls, options: Mapping[str, str]) -> AnySink:
        _require_hdfs(options)
        return super().make_sink(options)

    @classmethod
    def make_source(cls, options: Mapping[str, str], schema: pa.Schema | None) -> AnySource:
        _require_hdfs(options)
        return super().make_source(options, schema)


def _require_hdfs(options: Mapping[str, str]) -> None:
    path = next((value for key, value in options.items() if key.lower() == "path"), None)
    if path is not None and scheme_of(path) == "file":
        problem = f"path is {path!r}, which is on a local disk: write hdfs://namenode:8020/…, or use the format twophase-files"
        raise OptionError(f"1 problem with the options: {problem}", problems=[problem])
