"""The options of the files source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from twophase.options import PassThrough, option

FileFormat = Literal["parquet", "json", "csv", "text"]

_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class FilesSourceOptions:
    """What to read, how much an epoch may take, and how it is cut into tasks."""

    path: str = option(doc="The twophase table; or the folder, on a local disk, that files are moved into.")
    source_kind: Literal["auto", "table", "folder"] = option(
        doc="What lies at the path: a twophase table, or a plain folder. With auto it is a table if an epoch of one is there.",
        default="auto",
    )
    file_format: FileFormat | None = option(
        doc="The format of the files of a plain folder, parquet if not given; a table says it itself.", default=None
    )
    ledger: str | None = option(
        doc="The folder for the journal of taken files, if it can't be `.<folder>.twophase/taken` beside a plain folder. "
        "It must stay the same for as long as the query lives.",
        default=None,
    )
    recursive_file_lookup: bool = option(
        doc="Take the files of all folders below a plain folder. Without it only files in the folder itself and in folders "
        "called `column=value` are taken, which become columns.",
        default=False,
    )
    path_glob_filter: str | None = option(
        doc="Take only files of a plain folder whose name, without its folder, matches this pattern, such as `*.parquet`.",
        default=None,
    )
    max_files_per_trigger: int | None = option(
        doc="How many files of a plain folder an epoch takes.", default=None, minimum=1
    )
    max_epochs_per_trigger: int | None = option(
        doc="How many epochs of a table an epoch takes.", default=None, minimum=1
    )
    max_bytes_per_trigger: int | None = option(
        doc="How many bytes of files an epoch takes; at least one file, or one epoch of a table.",
        default=None,
        minimum=1,
    )
    max_rows_per_trigger: int | None = option(
        doc="How many rows an epoch takes; at least one file, or one epoch of a table. Not for a plain folder of json, csv "
        "or text, where they can't be known before reading.",
        default=None,
        minimum=1,
    )
    reader: str | None = option(
        doc="The name under which the table's retention waits for this query (the sink's option `retainEpochs`). It must stay the "
        "same for as long as the query lives, and be no other query's.",
        default=None,
    )
    include_epoch: bool = option(doc="Add the table's epoch to each row, as the column `epoch`.", default=False)
    split_bytes: int = option(
        doc="About how many bytes of files one task reads. A file is never cut.", default=128 * _MIB, minimum=1
    )
    parallelism: int = option(
        doc="Make at least so many tasks, if there are as many files. Through Spark the default is the number of the driver's "
        "cores.",
        default=1,
        minimum=1,
        maximum=100_000,
    )
    header: bool | None = option(
        doc="Whether csv files begin with the names of their columns. If not given: no in a plain folder. Each epoch of a table "
        "says it itself; where an older release wrote it, this counts, or if it is not given, how each file looks.",
        default=None,
    )
    sep: str = option(doc="What separates the columns of the csv files of a plain folder; `\\t` is a tab.", default=",")
    escape: str | None = option(
        doc="What stands before a quote within quotes in the csv files of a plain folder: a backslash in files that Spark wrote. "
        "Without it a quote is doubled there.",
        default=None,
    )
    null_value: str = option(doc="What an absent value looks like in the csv files of a plain folder.", default="")
    hdfs: PassThrough = option(doc="For a table on HDFS: [how it is spoken to](#hdfs).", prefix="hdfs.")

    @property
    def separator(self) -> str:
        return self.sep.replace("\\t", "\t")

    def problems(self) -> Iterator[str]:
        if len(self.separator) != 1 or not self.separator.isascii() or self.separator in '"\r\n':
            yield f"sep is {self.sep!r}, not one ASCII character other than a quote or the end of a line"
        if self.escape is not None and (len(self.escape) != 1 or not self.escape.isascii()):
            yield f"escape is {self.escape!r}, not one ASCII character"
        if self.include_epoch and self.source_kind == "folder":
            yield "includeEpoch is for tables, and sourceKind is folder"
        countable = self.source_kind == "table" or self.file_format in (None, "parquet")
        if self.max_rows_per_trigger is not None and not countable:
            yield (
                f"maxRowsPerTrigger: how many rows a {self.file_format} file has can't be known before it is read: use "
                "maxBytesPerTrigger or maxFilesPerTrigger"
            )
