"""The rows that a query reads, and the comparison of what it wrote with them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "id bigint, name string, amount double"
ROWS_PER_FILE = 50
_LONG_AGO_S = 1_700_000_000

Order = tuple[int, str, float]


def order(number: int) -> Order:
    return number, f"order {number} ½", number / 4


def write_orders(folder: Path, files: int, *, rows_per_file: int = ROWS_PER_FILE, first: int = 0) -> list[int]:
    """Put files of orders into a folder, each whole at once, in the order of their numbers; returns all ids."""
    folder.mkdir(parents=True, exist_ok=True)
    ids: list[int] = []
    for file in range(first, first + files):
        own = list(range(file * rows_per_file, (file + 1) * rows_per_file))
        columns = zip(*map(order, own), strict=True)
        table = pa.table(dict(zip(("id", "name", "amount"), map(list, columns), strict=True)))
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


def compare(expected: Sequence[int], found: Iterable[Order]) -> Difference:
    rows = list(found)
    counts = Counter(row[0] for row in rows)
    right = {number: order(number) for number in expected}
    return Difference(
        lost=tuple(number for number in expected if number not in counts),
        duplicated=tuple(sorted(number for number, count in counts.items() if count > 1)),
        strange=tuple(row for row in rows if right.get(row[0]) != row),
    )
