"""A state as the suite of sinks writes it: any row in any slot.

Rows of a state go to the task that owns their key group, and the suite puts any number into any slot. So here the slot is part of
the key, and says the group; everything else is the sink's own.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.files_query import quick
from twophase.clients.rocksdb.snapshot import Snapshot
from twophase.identity import Owner
from twophase.sink import Description, Plan, PreparedEpoch, Share, Sink, Task, Transaction
from twophase.sinks.heap import HeapTarget, look
from twophase.sinks.heap_state import HeapStateSink
from twophase.sinks.rocksdb.sink import RocksDBSink
from twophase.state.key_groups import KeyGroups
from twophase.state.manifest import StateTable
from twophase.testing.arrow_columns import ARROW_COLUMNS
from twophase.testing.sink_suite import SinkTarget

SLOT = "slot"
SLOTS = 64


class SlotGroups(KeyGroups):
    """The first column of the key is the group."""

    def of(self, columns: Sequence[pa.Array[Any]], rows: int) -> npt.NDArray[np.int64]:
        return np.asarray(columns[0]).astype(np.int64)


class _BySlot(Sink[Any]):
    """Before a sink of states: puts the slot before what a task writes."""

    @property
    def key_groups(self) -> KeyGroups:
        return SlotGroups(SLOTS)

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        return super().prepare(replace(prepared, schema=_with_slot(prepared.schema)))

    def require_fit(self, schema: pa.Schema | None, *, overwrite: bool) -> None:
        super().require_fit(_with_slot(schema), overwrite=overwrite)

    def begin(self, plan: Plan, task: Task) -> Any:
        return WithSlot(super().begin(plan, task), task.slot)  # type: ignore[safe-super]


class BySlot(_BySlot, RocksDBSink):
    pass


class HeapBySlot(_BySlot, HeapStateSink):
    pass


class WithSlot(Transaction[Any]):
    def __init__(self, inner: Transaction[Any], slot: int):
        self._inner, self._slot = inner, slot

    def write(self, batch: pa.RecordBatch) -> None:
        slots = pa.array([self._slot] * batch.num_rows, pa.int32())
        self._inner.write(batch.add_column(0, SLOT, slots))

    def pre_commit(self) -> Any:
        return self._inner.pre_commit()

    def abort(self) -> None:
        self._inner.abort()


def _with_slot(schema: pa.Schema | None) -> pa.Schema | None:
    return None if schema is None else schema.insert(0, pa.field(SLOT, pa.int32()))


class StateUnderTest(SinkTarget):
    failpoints = ("rocksdb.sealed", "rocksdb.published")
    arrow_types = frozenset(name for name, column in ARROW_COLUMNS.items() if not pa.types.is_dictionary(column.type))
    many_slots = 60
    many_batches = 100
    many_failures = 6

    def __init__(self, folder: Path):
        self.path, self.working = folder / "state", folder / "working"

    def sink(self) -> BySlot:
        return BySlot(
            str(self.path),
            [SLOT, "value"],
            key_groups=SLOTS,
            tasks=SLOTS,
            working_dir=str(self.working),
            retain_epochs=20,
            storage=quick(),
        )

    def rebuilt(self, description: Description) -> BySlot:
        return BySlot.from_options(description.options)

    def read(self) -> Sequence[dict[str, Any]]:
        table = StateTable(quick(), str(self.path))
        manifest = table.newest()
        if manifest is None:
            return []
        with Snapshot(table, manifest) as state:
            rows = [row for batch in state.batches() for row in batch.to_pylist()]
        return _without_slot(rows)

    def residue(self) -> list[str]:
        return residue_of(self.path)

    def lose(self, owner: Owner, share: Share[Any]) -> None:
        """What a task has uploaded is gone, as by a broken disk."""
        shutil.rmtree(self.path / "staged" / str(owner) / str(share.attempt), ignore_errors=True)

    def lose_a_row(self, owner: Owner, share: Share[Any]) -> bool:
        """A table is cut short, as by a full disk."""
        (table, *_) = (self.path / "staged" / str(owner) / str(share.attempt)).glob("*.sst")
        with open(table, "rb+") as file:
            file.truncate(table.stat().st_size - 1)
        return True


class HeapStateUnderTest(SinkTarget):
    fences = True
    outlives_process = False
    arrow_types = StateUnderTest.arrow_types
    many_slots = StateUnderTest.many_slots

    def __init__(self, name: str):
        self.name = name

    def sink(self) -> HeapBySlot:
        return HeapBySlot(self.name, [SLOT, "value"], key_groups=SLOTS, tasks=SLOTS)

    def read(self) -> Sequence[dict[str, Any]]:
        return _without_slot(self.sink().state().values())

    def residue(self) -> list[str]:
        return sorted(f"{share.owner} {share.attempt}" for share in HeapTarget.named(self.name).apply(look).staged)


def _without_slot(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != SLOT} for row in rows]


def residue_of(path: Path) -> list[str]:
    """What is in a state that none of its epochs names."""
    table = StateTable(quick(), str(path))
    named = {file.place for manifest in table.kept() for file in manifest.files}
    folders = {place.rpartition("/")[0] for place in named}
    found = list(path.glob("staged/*/*/*"))
    for folder in path.glob("files/*/*/*"):
        if folder.relative_to(path / "files").as_posix() not in folders:
            found.append(folder)
    tables = (each for each in path.glob("files/*/*/*/*.sst") if each.parent not in found)
    found += [each for each in tables if each.relative_to(path / "files").as_posix() not in named]
    found += [each for each in path.glob("manifests/*") if each.suffix != ".manifest"]
    return sorted(str(each.relative_to(path)) for each in found)
