"""Rows for one topic: columns of what records are made of, and where in memory their values lie."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Addresses = npt.NDArray[np.uint64]
NO_TIME = -(1 << 63)
"""Not 0, which is a time too."""


@dataclass(frozen=True)
class Rows:
    """The columns of rows for one topic."""

    values: pa.Array[Any]
    keys: pa.Array[Any] | None = None
    partitions: npt.NDArray[np.int32] | None = None
    """-1 is any."""
    headers: pa.Array[Any] | None = None
    """Lists of structs of `key` and `value`."""
    times: npt.NDArray[np.int64] | None = None
    """Milliseconds since 1970; `NO_TIME` is now."""

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in (self.values, self.keys, self.headers) if column is not None)

    def is_like(self, other: Rows) -> bool:
        """Whether both have the same columns, so that they can be joined."""
        return self._form() == other._form()

    def _form(self) -> tuple[object, ...]:
        arrays = (self.values, self.keys, self.headers)
        return (*(None if each is None else each.type for each in arrays), self.partitions is None, self.times is None)


def copied(rows: Rows) -> Rows:
    """The same in memory of its own: what a task is handed may be overwritten by what comes next."""
    every = np.arange(len(rows.values))
    return Rows(
        values=rows.values.take(every),
        keys=None if rows.keys is None else rows.keys.take(every),
        partitions=rows.partitions,
        headers=None if rows.headers is None else rows.headers.take(every),
        times=rows.times,
    )


def joined(rows: Sequence[Rows]) -> Rows:
    """One after the other; all are alike."""
    if len(rows) == 1:
        return rows[0]
    first = rows[0]
    return Rows(
        values=pa.concat_arrays([each.values for each in rows]),
        keys=None if first.keys is None else pa.concat_arrays([each.keys for each in rows if each.keys is not None]),
        partitions=None
        if first.partitions is None
        else np.concatenate([each.partitions for each in rows if each.partitions is not None]),
        headers=None
        if first.headers is None
        else pa.concat_arrays([each.headers for each in rows if each.headers is not None]),
        times=None if first.times is None else np.concatenate([each.times for each in rows if each.times is not None]),
    )


def addresses(column: Any) -> tuple[Addresses, Addresses]:
    """Where each value of a string or binary column lies, and how long it is. A null has the address 0, an empty one has not."""
    wide = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
    _, offsets_buffer, data = column.buffers()
    kind = np.dtype(np.int64 if wide else np.int32)
    if offsets_buffer is None:  # which a column without values need not have
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    offsets = np.frombuffer(offsets_buffer, kind, len(column) + 1, column.offset * kind.itemsize)
    # A column of empty values may have no data: any address but 0 says that they are there.
    start = offsets_buffer.address if data is None or not data.address else data.address
    places = offsets[:-1].astype(np.uint64) + np.uint64(start)
    lengths = np.diff(offsets).astype(np.uint64)
    if column.null_count:
        null = column.is_null().to_numpy(zero_copy_only=False)
        places[null] = lengths[null] = 0
    return places, lengths
