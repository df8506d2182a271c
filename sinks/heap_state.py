"""HeapStateSink: the keyed contract in memory, in its shortest form: what a state is, said without any file.

`HeapSink` keeps the rows of every epoch, by deep copy and under one marker; here they are read as a state: the fold of all rows up
to an epoch, one Python dictionary by key. It is the reference that `RocksDBSink` is compared with, over random histories.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import pyarrow as pa

from twophase.errors import OptionError
from twophase.options import texts_of
from twophase.sink import Plan, PreparedEpoch, Task
from twophase.sinks.heap import HeapSink, HeapTarget, HeapTransaction, look
from twophase.state.form import DELETE_COLUMN, MergeMode, StateForm
from twophase.state.key_groups import GroupRange, KeyGroups

Row = dict[str, Any]


class HeapStateTransaction(HeapTransaction):
    """Takes the rows of its own key groups."""

    def __init__(
        self,
        target: HeapTarget,
        plan: Plan,
        task: Task,
        form: StateForm,
        groups: KeyGroups,
        owned: GroupRange | None,
    ):
        super().__init__(target, plan, task)
        self._form, self._groups, self._owned = form, groups, owned

    def write(self, batch: pa.RecordBatch) -> None:
        self._form = self._form.fitting(self._form, batch.schema)
        columns = [batch.column(name) for name in self._form.key_columns]
        for group in self._groups.of(columns, batch.num_rows).tolist():
            if self._owned is None or group not in self._owned:
                problem = f"a row of key group {group} came to a task that owns {self._owned}: rows go to tasks by their key group"
                raise OptionError(problem, problems=[problem])
        super().write(batch)


class HeapStateSink(HeapSink):
    """A keyed state in memory: one line of epochs, one owner at a time.

    Parameters
    ----------
    target:
        The target, or its name.
    key_columns, key_groups, merge_mode, delete_column, tasks:
        As of `RocksDBSink`.
    """

    capabilities = replace(HeapSink.capabilities, ordered=False, overwrites=False, upserts=True)

    def __init__(
        self,
        target: HeapTarget | str,
        key_columns: str | Sequence[str],
        *,
        key_groups: int = 128,
        merge_mode: MergeMode = "replace",
        delete_column: str = DELETE_COLUMN,
        tasks: int | None = None,
    ):
        super().__init__(target)
        self._form = StateForm(texts_of(key_columns), key_groups, merge_mode, delete_column)
        self._tasks = tasks

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._form.key_columns

    @property
    def key_groups(self) -> KeyGroups:
        return KeyGroups(self._form.key_groups)

    @property
    def tasks(self) -> int | None:
        return self._tasks

    def placed(self, tasks: int) -> Self:
        made = copy.copy(self)
        made._tasks = tasks
        return made

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        return Plan(prepared, {"form": self._fitting(prepared.schema, overwrite=prepared.overwrite)})

    def require_fit(self, schema: pa.Schema | None, *, overwrite: bool) -> None:
        self._fitting(schema, overwrite=overwrite)

    def _fitting(self, schema: pa.Schema | None, *, overwrite: bool) -> StateForm:
        if overwrite:
            problem = (
                "a state can't be replaced by each epoch (complete mode): use update mode, by twophase.exactly_once"
            )
            raise OptionError(problem, problems=[problem])
        first = next(iter(self.batches()), None)
        known = None if first is None else self._form.fitting(None, first.schema)
        return self._form.fitting(known, schema)

    def begin(self, plan: Plan, task: Task) -> HeapTransaction:
        groups = self.key_groups
        owned = None if self._tasks is None else groups.owned(task.slot, self._tasks)
        return HeapStateTransaction(self._target, plan, task, plan.details["form"], groups, owned)

    # ---- reading ----

    def state(self, position: int | None = None) -> dict[tuple[Any, ...], Row]:
        """The rows by key: now, or as they were at a position of the line (0 is the first)."""
        line = self._target.apply(look).line
        rows: dict[tuple[Any, ...], Row] = {}
        for committed in line if position is None else line[: position + 1]:
            for share in committed.shares:
                for batch in share.batches():
                    for row in batch.to_pylist():
                        self._fold(rows, row)
        return rows

    def _fold(self, rows: dict[tuple[Any, ...], Row], row: Row) -> None:
        key = tuple(row[name] for name in self._form.key_columns)
        mode, old = self._form.merge_mode, rows.get(key)
        if mode == "delete-flag" and row.pop(self._form.delete_column):
            rows.pop(key, None)
        elif mode in ("replace", "delete-flag") or old is None:
            rows[key] = row
        else:
            rows[key] = {
                name: row[name] if name in self._form.key_columns else _merged(mode, old[name], row[name])
                for name in row
            }


def _merged(mode: MergeMode, old: Any, new: Any) -> Any:
    if old is None or new is None:
        return new if old is None else old
    return old + new if mode == "sum" else max(old, new)
