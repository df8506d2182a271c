"""Rows on their way to a keyed state: each is sent to the task that owns its key group.

Spark's own `xxhash64` over the key columns gives the group, and `repartitionById` sends the row to the slot that owns it; tasks
compute the same number from what arrives (twophase/state/xx_hash.py), and refuse a row that is not theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from twophase.options import texts_of
from twophase.query import AnySink
from twophase.state.key_groups import KeyGroups

KEY_GROUPS = 128


@runtime_checkable
class Keyed(Protocol):
    """A sink whose rows go to tasks by their key group."""

    @property
    def key_columns(self) -> tuple[str, ...]: ...

    @property
    def key_groups(self) -> KeyGroups: ...

    @property
    def tasks(self) -> int | None: ...

    def placed(self, tasks: int) -> Self: ...


def by_key_group(
    df: DataFrame, key_columns: str | Sequence[str], *, tasks: int, key_groups: int = KEY_GROUPS
) -> DataFrame:
    """The same rows, each in the task that owns its key group: for `writeStream.format("twophase-rocksdb")`.

    Parameters
    ----------
    tasks, key_groups:
        As the options `tasks` and `keyGroups` of the format.
    """
    group = sf.pmod(sf.xxhash64(*map(_column, texts_of(key_columns))), sf.lit(key_groups))
    slot = sf.floor(group * sf.lit(tasks) / sf.lit(key_groups)).cast("int")
    return df.repartitionById(tasks, slot)


def sent_by_key_group(sink: AnySink, df: DataFrame) -> tuple[AnySink, DataFrame]:
    """What writes these rows and the rows, sent to its tasks; as they are, if the sink is not keyed."""
    if not isinstance(sink, Keyed):
        return sink, df
    tasks = sink.tasks or min(df.sparkSession.sparkContext.defaultParallelism, sink.key_groups.count)
    sent = by_key_group(df, sink.key_columns, tasks=tasks, key_groups=sink.key_groups.count)
    return sink.placed(tasks), sent


def _column(name: str) -> Column:
    """By its whole name, whatever is in it: Spark takes dots for fields of a struct."""
    quoted = name.replace("`", "``")
    return sf.col(f"`{quoted}`")
