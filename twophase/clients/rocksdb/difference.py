"""What changed between two epochs of a state: which keys were added, changed or removed.

Groups that both epochs read from the same part are passed over; of the others both sides are walked through in the order of their
keys, and compared.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from twophase.clients.rocksdb.database import Item
from twophase.clients.rocksdb.snapshot import ROWS_AT_ONCE, Snapshot, open_snapshot
from twophase.state.key_encoding import decode_keys
from twophase.state.key_groups import GroupRange

CHANGE = "change"
ADDED, CHANGED, REMOVED = "added", "changed", "removed"


def difference(path: str, before: int, after: int | None = None) -> pa.Table:
    """The keys that differ between two epochs that are kept: the key columns, and `change`: added, changed or removed.

    Parameters
    ----------
    after:
        The newest epoch if None.
    """
    with open_snapshot(path, before) as one, open_snapshot(path, after) as other:
        form = other.form if other.form.schema is not None else one.form
        if form.schema is None:
            return pa.schema([pa.field(CHANGE, pa.string())]).empty_table()
        schema = pa.schema([*(form.schema.field(name) for name in form.key_columns), pa.field(CHANGE, pa.string())])
        batches = []
        keys: list[bytes] = []
        changes: list[str] = []
        for key, change in _changes(one, other, form.key_groups):
            keys.append(key)
            changes.append(change)
            if len(keys) == ROWS_AT_ONCE:
                batches.append(_batch(keys, changes, schema))
                keys, changes = [], []
        return pa.Table.from_batches([*batches, _batch(keys, changes, schema)], schema=schema)


def _batch(keys: list[bytes], changes: list[str], schema: pa.Schema) -> pa.RecordBatch:
    columns = decode_keys(pa.array(keys, pa.large_binary()), [field.type for field in schema][:-1])
    return pa.RecordBatch.from_arrays([*columns, pa.array(changes, pa.string())], schema=schema)


def _changes(before: Snapshot, after: Snapshot, groups: int) -> Iterator[tuple[bytes, str]]:
    for number in range(groups):
        if before.snapshot_of(number) != after.snapshot_of(number):
            group = GroupRange(number, number + 1)
            yield from _compared(before.items(group), after.items(group))


def _compared(before: Iterator[Item], after: Iterator[Item]) -> Iterator[tuple[bytes, str]]:
    old, new = next(before, None), next(after, None)
    while old is not None or new is not None:
        if new is None or (old is not None and old[0] < new[0]):
            assert old is not None
            yield old[0], REMOVED
            old = next(before, None)
        elif old is None or new[0] < old[0]:
            yield new[0], ADDED
            new = next(after, None)
        else:
            if old[1] != new[1]:
                yield new[0], CHANGED
            old, new = next(before, None), next(after, None)
