"""RocksDBSink: a keyed state, exactly once, that other programs read at a consistent epoch.

::

    begin, write     a RocksDB database in a folder of the attempt: the key groups of the task, restored and written to
    pre-commit       flush, snapshot by hard links, upload of what the committed epoch lacks      (transaction.py)
    commit           seal ─► compare ─► manifest published exclusively                            (below)
    abort            rename away, then delete                                                     (staging.py)

The mechanism: files of a state never change, and an epoch is a manifest that says which key groups are in which files. Publishing
it under the next number, if that is free, is the commit; the highest number is current, and its manifest is the marker.

The guarantee: a reader sees the state after some committed epoch, whole, whatever the writer does meanwhile; the state at epoch e
is what the merge mode makes of all rows up to e, each counted once. One owner at a time; a second one is refused.

What it can't do: change its columns, its key or the number of its key groups; take rows that went to the wrong task.
"""

from __future__ import annotations

import copy
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self, get_args

import pyarrow as pa

from twophase import failpoints
from twophase.clients.rocksdb.file_cache import FileCache
from twophase.clients.rocksdb.snapshot import table_at
from twophase.errors import Fenced, NotCommitted, OptionError, OutcomeUnknown
from twophase.identity import Attempt, Generation, Owner
from twophase.line_of_epochs import elsewhere, not_taken_over, refuse_restored, shown
from twophase.options import key_of, option, parse, texts_of
from twophase.sink import (
    WHOLE,
    Capabilities,
    CommitOrder,
    Description,
    Leftover,
    Marker,
    Outcome,
    Plan,
    PreparedEpoch,
    Share,
    Sink,
    Status,
    TakeOver,
    Task,
)
from twophase.sinks.rocksdb import staging
from twophase.sinks.rocksdb.retention import Retention
from twophase.sinks.rocksdb.transaction import RocksDBHandle, RocksDBTransaction, StatePlan, form_of
from twophase.state.form import DELETE_COLUMN, MergeMode, StateForm
from twophase.state.key_encoding import MAX_GROUPS
from twophase.state.key_groups import KeyGroups
from twophase.state.manifest import FILES, STAGED, Part, StateManifest, StateTable
from twophase.storage import FileStorage

KEY_GROUPS = 128
RETAINED_EPOCHS = 10
TEMPORARY_LIVES_S = 3600.0
_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class RocksDBOptions:
    """The options of `twophase-rocksdb`, for writing."""

    path: str = option(doc="The state's folder: a local path, or `file:///…`.")
    key_columns: tuple[str, ...] = option(doc="The columns of the key, in the order by which ranges are read.")
    working_dir: str | None = option(
        doc="A folder on the local disk of each machine that runs tasks, for working states and for files that were fetched; by "
        "default one in the system's folder for temporary files.",
        default=None,
    )
    key_groups: int = option(
        doc="Into how many groups keys are cut: the most tasks that can share the work. Fixed when the state is made.",
        default=KEY_GROUPS,
        minimum=1,
        maximum=MAX_GROUPS,
    )
    merge_mode: MergeMode = option(
        doc="What becomes of rows of one key: the last one counts (`replace`); each column is added up (`sum`) or the largest "
        "value counts (`max`); the last one counts, and takes the key away if `deleteColumn` is true in it (`delete-flag`).",
        default="replace",
    )
    delete_column: str = option(
        doc="For `delete-flag`: the column of booleans that says so; it is not stored.", default=DELETE_COLUMN
    )
    tasks: int | None = option(
        doc="How many tasks write. The format needs it, and rows that `twophase.by_key_group` has sent to as many; "
        "`twophase.exactly_once` sends them by itself, by default to as many tasks as Spark runs at once.",
        default=None,
        minimum=1,
        maximum=MAX_GROUPS,
    )
    retain_epochs: int = option(doc="How many of the newest epochs stay readable.", default=RETAINED_EPOCHS, minimum=2)
    retain_hours: float | None = option(
        doc="Epochs that are younger than this stay readable too, however many they are.", default=None, minimum=0
    )

    def problems(self) -> Iterable[str]:
        if not self.key_columns:
            yield "keyColumns is empty: name at least one column"
        if len(set(self.key_columns)) < len(self.key_columns):
            yield "keyColumns names a column twice"
        if self.merge_mode == "delete-flag" and self.delete_column in self.key_columns:
            yield f"deleteColumn is {self.delete_column!r}, which is in keyColumns"

    @property
    def form(self) -> StateForm:
        return StateForm(self.key_columns, self.key_groups, self.merge_mode, self.delete_column)


class RocksDBSink(Sink[RocksDBHandle]):
    """A keyed state: one line of epochs, one owner at a time.

    Parameters
    ----------
    path:
        The state's folder. A relative one is taken from the current folder, now.
    key_columns, key_groups, merge_mode, delete_column, working_dir, tasks, retain_epochs, retain_hours:
        As the options of `RocksDBOptions`.
    storage:
        What the path is in; chosen by the path if None.
    """

    capabilities = Capabilities(atomic=True, several_owners=False, upserts=True)
    handle_type = RocksDBHandle

    def __init__(
        self,
        path: str,
        key_columns: str | Sequence[str],
        *,
        key_groups: int = KEY_GROUPS,
        merge_mode: MergeMode = "replace",
        delete_column: str = DELETE_COLUMN,
        working_dir: str | None = None,
        tasks: int | None = None,
        retain_epochs: int = RETAINED_EPOCHS,
        retain_hours: float | None = None,
        storage: FileStorage | None = None,
    ):
        self._table = table_at(path) if storage is None else StateTable(storage, path)
        self._options = RocksDBOptions(
            path=self._table.path,
            key_columns=texts_of(key_columns),
            working_dir=working_dir,
            key_groups=key_groups,
            merge_mode=merge_mode,
            delete_column=delete_column,
            tasks=tasks,
            retain_epochs=retain_epochs,
            retain_hours=retain_hours,
        )
        problems = list(self._options.problems())
        if merge_mode not in get_args(MergeMode):
            problems.append(f"mergeMode is {merge_mode!r}, not one of {', '.join(get_args(MergeMode))}")
        if not 1 <= key_groups <= MAX_GROUPS:
            problems.append(f"keyGroups is {key_groups}, not between 1 and {MAX_GROUPS}")
        if tasks is not None and tasks < 1:
            problems.append(f"tasks is {tasks}, and at least one has to write")
        if retain_epochs < 2:
            problems.append(f"retainEpochs is {retain_epochs}, and at least 2 have to stay")
        if problems:
            raise OptionError("; ".join(problems), problems=problems)

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """By options as Spark hands them over: text, with keys in any case."""
        given = parse(RocksDBOptions, options, ignore=("checkpointLocation", "queryName"))
        return cls(
            given.path,
            given.key_columns,
            key_groups=given.key_groups,
            merge_mode=given.merge_mode,
            delete_column=given.delete_column,
            working_dir=given.working_dir,
            tasks=given.tasks,
            retain_epochs=given.retain_epochs,
            retain_hours=given.retain_hours,
        )

    def describe(self) -> Description:
        options = self._options
        given = {
            "path": options.path,
            "key_columns": ",".join(options.key_columns),
            "working_dir": options.working_dir or "",
            "key_groups": str(options.key_groups),
            "merge_mode": options.merge_mode,
            "delete_column": options.delete_column if options.merge_mode == "delete-flag" else "",
            "tasks": "" if options.tasks is None else str(options.tasks),
            "retain_epochs": str(options.retain_epochs),
            "retain_hours": "" if options.retain_hours is None else str(options.retain_hours),
        }
        return Description("twophase-rocksdb", {key_of(name): text for name, text in given.items() if text})

    @property
    def table(self) -> StateTable:
        return self._table

    @property
    def target(self) -> str:
        return self._table.path

    # ---- rows by key group ----

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._options.key_columns

    @property
    def key_groups(self) -> KeyGroups:
        return KeyGroups(self._options.key_groups)

    @property
    def tasks(self) -> int | None:
        return self._options.tasks

    def placed(self, tasks: int) -> Self:
        """The same, for rows that were sent to so many tasks by their key group."""
        made = copy.copy(self)
        made._options = replace(self._options, tasks=tasks)
        return made

    # ---- driver, before the tasks ----

    def fence(self, owner: Owner, generation: Generation) -> None:
        """Nothing to do: what tasks of older generations upload from here on is swept before the next epoch.

        But a state that was moved by a later record of the same ledger knows that the ledger was restored.
        """
        staging.refuse_cut_name(owner)
        newest = self._table.newest()
        refuse_restored("state", None if newest is None else newest.marker, generation)

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        newest = self._table.newest()
        form = self._fitting(newest, prepared.schema, overwrite=prepared.overwrite)
        storage = self._table.storage
        if newest is None:
            self._table.require_own_folder()
            storage.make_folder(self._table.manifests)
        storage.sweep_temporary(self._table.manifests, TEMPORARY_LIVES_S)
        Retention(self._options.retain_epochs, self._options.retain_hours).drop_old(self._table, _now_ms())
        return Plan(prepared, {"state": StatePlan(newest, form)})

    def require_fit(self, schema: pa.Schema | None, *, overwrite: bool) -> None:
        self._fitting(self._table.newest(), schema, overwrite=overwrite)

    def _fitting(self, newest: StateManifest | None, schema: pa.Schema | None, *, overwrite: bool) -> StateForm:
        if overwrite:
            problem = (
                "a state can't be replaced by each epoch (complete mode): use update mode, by twophase.exactly_once"
            )
            raise OptionError(problem, problems=[problem])
        return self._options.form.fitting(None if newest is None else newest.form, schema)

    # ---- executor ----

    def begin(self, plan: Plan, task: Task) -> RocksDBTransaction:
        tasks, groups = self._options.tasks, self.key_groups
        owned = None if tasks is None else groups.owned(task.slot, tasks)
        state: StatePlan = plan.details["state"]
        return RocksDBTransaction(self._table, self._cache(), plan.prepared, state, groups, owned, task)

    def _cache(self) -> FileCache:
        folder = self._options.working_dir or os.path.join(tempfile.gettempdir(), f"twophase-rocksdb-{os.getuid()}")
        return FileCache(self._table, folder)

    # ---- driver, after the votes ----

    def alive(self, order: CommitOrder[RocksDBHandle]) -> Mapping[int, str]:
        dead: dict[int, str] = {}
        for share in _with_rows(order):
            found = staging.part_of(self._table, order.owner, share, STAGED)
            if isinstance(found, str):  # or its committer has moved it already
                found = staging.part_of(self._table, order.owner, share, FILES)
            if isinstance(found, str):
                dead[share.slot] = found
        return {} if dead and self._shows(order.marker) else dead

    def _shows(self, marker: Marker) -> bool:
        """Whether the epoch is in the line by this decision. Asked after staging: what is visible is not staged any more."""
        position = marker.base + marker.epoch.number
        try:
            return position in self._table.positions() and self._table.manifest(position).marker == marker
        except FileNotFoundError:
            return False

    def commit(self, order: CommitOrder[RocksDBHandle]) -> Outcome:
        if not order.shares:
            raise NotCommitted("a decision without shares can't be committed")
        newest = self._table.newest()
        marker = None if newest is None else newest.marker
        if marker != order.origin:
            refusal = elsewhere("state", marker, order)
            # Before the look at its position: an owner that took the line back finds the other's epoch there.
            if isinstance(refusal, NotCommitted):
                raise refusal
            if self._shows(order.marker):
                self._make_durable(order.marker)
                return Outcome.ALREADY_COMMITTED
            if marker is None:
                raise Fenced(f"the state {self._table.path} is gone or empty: it was deleted, moved away or replaced")
            raise refusal
        return self._publish(order, newest)

    def _publish(self, order: CommitOrder[RocksDBHandle], newest: StateManifest | None) -> Outcome:
        owner, number = str(order.owner), order.epoch.number
        for share in _with_rows(order):
            self._seal(order.owner, share)
        failpoints.hit("rocksdb.sealed", owner=owner, epoch=number)
        parts = self._parts(order)
        if parts is None:
            return Outcome.ALREADY_COMMITTED
        form = self._form_after(order, newest)
        before = StateManifest(order.marker, form) if newest is None else newest
        manifest = StateManifest(
            order.marker, form, before.after(parts), former=_former(newest, order.owner), written_ms=_now_ms()
        )
        outcome = self._show(manifest)
        failpoints.hit("rocksdb.published", owner=owner, epoch=number)
        return outcome

    def _parts(self, order: CommitOrder[RocksDBHandle]) -> list[Part] | None:
        """What the shares add; None if another committer has made the epoch visible."""
        found = {share.slot: staging.part_of(self._table, order.owner, share, FILES) for share in _with_rows(order)}
        lost = {slot: why for slot, why in found.items() if isinstance(why, str)}
        if not lost:
            return [part for part in found.values() if isinstance(part, Part)]
        if self._shows(order.marker):
            return None
        said = "; ".join(list(lost.values())[:3])
        raise NotCommitted(f"what was staged is gone, or not as it was voted for: {said}", dead_slots=sorted(lost))

    def _form_after(self, order: CommitOrder[RocksDBHandle], newest: StateManifest | None) -> StateForm:
        said = [form for share in order.shares if (form := form_of(share.handle)) is not None]
        return said[0] if said else self._options.form if newest is None else newest.form

    def _show(self, manifest: StateManifest) -> Outcome:
        """Publish it; the truth if somebody was first, or the reply was lost."""
        path = self._table.manifest_path(manifest.position)
        data = manifest.encode()
        silence: TimeoutError | None = None
        for _ in range(_TRIES):
            try:
                self._table.storage.publish(path, data)
                return self._landed(manifest)
            except FileExistsError:
                if self._shows(manifest.marker):
                    self._make_durable(manifest.marker)
                    return Outcome.ALREADY_COMMITTED if silence is None else Outcome.COMMITTED
                raise Fenced(
                    f"epoch {manifest.position} of {self._table.path} was committed by another decision"
                ) from None
            except FileNotFoundError as error:
                raise Fenced(f"the state {self._table.path} is gone: it was deleted or moved away") from error
            except TimeoutError as error:
                silence = error
        raise OutcomeUnknown(f"could not publish {path} in {_TRIES} tries, and storage gave no answer: {silence}")

    def _landed(self, manifest: StateManifest) -> Outcome:
        """A number below the kept range is free again: what lands there counts for nothing, and is taken away."""
        if manifest.position in self._table.positions():
            return Outcome.COMMITTED
        self._table.storage.delete(self._table.manifest_path(manifest.position))
        raise Fenced(f"the line of {self._table.path} has gone on, far beyond epoch {manifest.position}")

    def _seal(self, owner: Owner, share: Share[RocksDBHandle]) -> None:
        silence: TimeoutError | None = None
        for _ in range(_TRIES):
            try:
                return staging.seal(self._table, owner, share)
            except TimeoutError as error:
                silence = error
        raise OutcomeUnknown(f"could not seal a share in {_TRIES} tries, and storage gave no answer: {silence}")

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[RocksDBHandle]]) -> None:
        for whose, mark in {(left.owner or owner, left.mark): None for left in leftovers}:
            staging.drop(self._table, whose, Attempt.parse(mark))

    # ---- recovery ----

    def status(self, owner: Owner, *, settled: bool) -> Status:
        newest = self._table.newest()
        if newest is None:
            return Status()
        self._make_durable(newest.marker)
        if newest.marker.owner == owner:
            return Status({WHOLE: newest.marker})
        return Status({WHOLE: newest.marker}, own=newest.former.get(owner))

    def _make_durable(self, marker: Marker) -> None:
        """Whoever published it may have died before it was certain to stay. Before anybody acts on it."""
        try:
            self._table.storage.sync(self._table.manifests)
        except OSError as error:
            raise OutcomeUnknown(
                f"{shown(marker)} is in {self._table.path}, but not known to be durable: {error}"
            ) from error

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> Iterable[Leftover[RocksDBHandle]]:
        return [
            Leftover(
                generation=folder.attempt.generation,
                mark=str(folder.attempt),
                what=f"folder {folder.path(self._table)}",
                owner=folder.owner,
            )
            for folder in staging.unnamed_folders(self._table)
        ]

    def take_over(self, order: TakeOver) -> None:
        newest = self._table.newest()
        if newest is None or newest.marker != order.origin:
            if self._shows(order.marker):
                return
            raise not_taken_over("state", None if newest is None else newest.marker, order)
        owner, number = str(order.marker.owner), order.marker.epoch.number
        failpoints.hit("rocksdb.sealed", owner=owner, epoch=number)
        manifest = replace(
            newest,
            marker=order.marker,
            replaced=order.origin.owner,
            former=_former(newest, order.marker.owner),
            written_ms=_now_ms(),
        )
        self._show(manifest)
        failpoints.hit("rocksdb.published", owner=owner, epoch=number)


def _with_rows(order: CommitOrder[RocksDBHandle]) -> list[Share[RocksDBHandle]]:
    return [share for share in order.shares if share.handle.part_bytes]


def _former(newest: StateManifest | None, owner: Owner) -> Mapping[Owner, Marker]:
    """Where everybody was who had the line before this owner."""
    if newest is None:
        return {}
    every = {**newest.former, newest.marker.owner: newest.marker}
    return {other: marker for other, marker in every.items() if other != owner}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
