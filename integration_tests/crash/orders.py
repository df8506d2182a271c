"""The rows that a query reads, and the comparison of what it wrote with them."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

ROWS_PER_FILE = 50
_LONG_AGO_S = 1_700_000_000


def write_orders(folder: Path, files: int, *, rows_per_file: int = ROWS_PER_FILE, first: int = 0) -> list[int]:
    """Put files of orders into a folder, each whole at once, in the order of their numbers; returns all ids."""
    folder.mkdir(parents=True, exist_ok=True)
    ids: list[int] = []
    for file in range(first, first + files):
        own = list(range(file * rows_per_file, (file + 1) * rows_per_file))
        table = pa.table({"id": own, "name": [f"order {i} ½" for i in own], "amount": [i / 4 for i in own]})
        hidden = folder / f".{file:06}.parquet"
        pq.write_table(table, hidden)
        # Spark takes files by their time of change, in milliseconds: without this, some have the same, and their order is open.
        os.utime(hidden, (_LONG_AGO_S + file, _LONG_AGO_S + file))
        hidden.rename(folder / f"{file:06}.parquet")
        ids += own
    return ids


@dataclass(frozen=True)
class Difference:
    """How a target differs from its source; nothing, if it holds every row once and as it was."""

    lost: tuple[int, ...]
    duplicated: tuple[int, ...]
    strange: tuple[object, ...]

    def __bool__(self) -> bool:
        return bool(self.lost or self.duplicated or self.strange)


def compare(expected: list[int], table: Path) -> Difference:
    found = rows_of(table)
    counts = Counter(row[0] for row in found)
    right = {i: (i, f"order {i} ½", i / 4) for i in expected}
    return Difference(
        lost=tuple(i for i in expected if i not in counts),
        duplicated=tuple(sorted(i for i, count in counts.items() if count > 1)),
        strange=tuple(row for row in found if right.get(row[0]) != row),
    )


def rows_of(table: Path) -> list[tuple[int, str, float]]:
    """What a reader that knows nothing of twophase sees."""
    if not table.exists():
        return []
    data = ds.dataset(table, format="parquet", partitioning="hive")
    if "id" not in data.schema.names:
        return []
    read = data.to_table(columns=["id", "name", "amount"])
    return list(zip(*(column.to_pylist() for column in read.columns), strict=True))
