"""The options of the socket source: those of Spark's own, and what a journal needs beside them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from twophase.options import option

IGNORED = ("checkpointLocation", "queryName", "path")
_MIB = 1024 * 1024
SEGMENTS_AT_LEAST = 8
"""Only whole segments are deleted: with fewer of them in a full journal, one that is half read would hold up too much."""


@dataclass(frozen=True, kw_only=True)
class SocketSourceOptions:
    """The options of `twophase-socket`."""

    host: str = option(doc="Where the sender listens; the driver connects to it.")
    port: int = option(doc="The port that the sender listens on.", minimum=1, maximum=65_535)
    journal: str = option(
        doc="The folder for what was received and is not processed yet: on a disk of the driver's machine that executors see under "
        "the same path. It is this query's alone, and must stay the same for as long as the query lives."
    )
    include_timestamp: bool = option(
        doc="Add the column `timestamp`: when the line was received. A replay gives the same time.", default=False
    )
    acknowledge: bool = option(
        doc="Speak with the sender: it is told what is safe, and what to send again. Without it the source only listens, and what "
        "is under way when the query dies is lost.",
        default=False,
    )
    max_rows_per_trigger: int | None = option(doc="How many lines an epoch takes.", default=None, minimum=1)
    max_bytes_per_trigger: int | None = option(
        doc="How many bytes of lines an epoch takes; at least one line. An epoch never takes more than half of `maxJournalBytes`.",
        default=None,
        minimum=1,
    )
    max_journal_bytes: int = option(
        doc="How large the journal may become. When it is full, nothing more is received until the query has processed some of it: "
        "the sender has to wait.",
        default=1024 * _MIB,
        minimum=_MIB,
    )
    segment_bytes: int = option(
        doc=f"How large one file of the journal becomes. At most 1/{SEGMENTS_AT_LEAST} of `maxJournalBytes`; files are deleted "
        "whole, when all of their lines are processed.",
        default=16 * _MIB,
        minimum=4096,
        maximum=1024 * _MIB,
    )
    max_line_bytes: int = option(
        doc="How long a line may be. A longer one stops the query. At most as long as a file of the journal, `segmentBytes`.",
        default=4 * _MIB,
        minimum=16,
    )
    split_bytes: int = option(doc="About how many bytes of lines one task reads.", default=32 * _MIB, minimum=1)
    parallelism: int = option(
        doc="Make at least so many tasks, if there is a megabyte for each. Through Spark the default is the number of the driver's "
        "cores.",
        default=1,
        minimum=1,
        maximum=100_000,
    )
    connect_timeout_ms: int = option(
        doc="How long to try to reach the sender, at the start and whenever the connection is lost, before the query fails. With 0 "
        "it tries for ever, and only the log tells.",
        default=60_000,
        minimum=0,
    )

    @property
    def epoch_bytes(self) -> int:
        """The most that an epoch takes of the journal. Spark acknowledges an epoch when it has found rows for the next one: if a
        single one could hold all that a full journal has, nothing would ever be deleted, and nothing received."""
        return self.max_journal_bytes // 2

    def problems(self) -> Iterator[str]:
        if self.segment_bytes > self.max_journal_bytes // SEGMENTS_AT_LEAST:
            yield (
                f"segmentBytes is {self.segment_bytes}, more than 1/{SEGMENTS_AT_LEAST} of maxJournalBytes, which is "
                f"{self.max_journal_bytes}"
            )
        if self.max_line_bytes > self.segment_bytes:
            yield f"maxLineBytes is {self.max_line_bytes}, more than segmentBytes, which is {self.segment_bytes}"
        if not self.host.strip():
            yield "host is empty"
