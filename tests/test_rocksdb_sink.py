"""RocksDBSink alone: recovery, another number of tasks, damage, retention, readers."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.files_query import WithoutSync, quick
from tests.state_query import StateQuery
from tests.state_under_test import residue_of
from twophase.clients.rocksdb.file_cache import Fetched, FileCache
from twophase.clients.rocksdb.snapshot import open_snapshot
from twophase.errors import DataLost, NotCommitted, OptionError, SchemaMismatch, TableCorrupt
from twophase.identity import Attempt, DecisionId, Generation
from twophase.local_storage import LocalStorage
from twophase.sink import CommitOrder, Task
from twophase.sinks.rocksdb import transaction
from twophase.sinks.rocksdb.sink import RocksDBSink
from twophase.state.key_groups import GroupRange, KeyGroups
from twophase.state.manifest import StateTable
from twophase.testing.sink_steps import voted

KEYS = 3000


@pytest.fixture
def query(tmp_path: Path) -> StateQuery:
    return made(tmp_path)


def made(folder: Path, *, storage: LocalStorage | None = None, **options: Any) -> StateQuery:
    return StateQuery(
        RocksDBSink(
            str(folder / "state"),
            "customer",
            working_dir=str(folder / "working"),
            storage=storage or quick(),
            **options,
        )
    )


def rows(customers: Sequence[int], amount: int, **more: Any) -> pa.RecordBatch:
    names = [f"customer {number}" for number in customers]
    amounts = pa.array([amount] * len(names), pa.int64())
    columns = {"customer": pa.array(names, pa.string()), "amount": amounts, **more}
    return pa.record_batch(columns)


def amounts(folder: Path, epoch: int | None = None) -> dict[str, int]:
    with open_snapshot(str(folder / "state"), epoch) as state:
        return {row["customer"]: row["amount"] for row in state.to_table().to_pylist()}


def moved(order: Any) -> int:
    return sum(share.handle.bytes_moved for share in order.shares)


def uploaded(order: Any) -> int:
    return sum(share.handle.bytes_uploaded for share in order.shares)


def fetched(order: Any) -> int:
    return sum(share.handle.bytes_fetched for share in order.shares)


# ---- recovery and another number of tasks ----


def test_a_task_that_has_its_files_fetches_nothing_and_uploads_what_changed(query: StateQuery, tmp_path: Path) -> None:
    first = query.epoch(0, rows(range(KEYS), 1), 2)
    second = query.epoch(1, rows(range(10), 2), 2)

    assert (fetched(first), fetched(second)) == (0, 0)
    assert uploaded(second) < uploaded(first) / 3
    assert amounts(tmp_path) == {f"customer {n}": 2 if n < 10 else 1 for n in range(KEYS)}


def test_tables_are_uploaded_while_rows_are_written_and_compacted_ones_do_not_stay(
    query: StateQuery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every batch becomes a table: more than RocksDB leaves as they are."""
    query.epoch(0, rows(range(50), 0), 1)
    monkeypatch.setattr(transaction, "FLUSHED_BYTES", 1)
    plan = query.prepare(1, rows([0], 1).schema)
    sink, task = query.sink.placed(1), Task(0, Attempt(plan.prepared.generation, 7))
    task_transaction = sink.begin(plan, task)
    staged = tmp_path / "state" / "staged" / str(query.owner) / str(task.attempt)
    batches = [rows(range(number, number + 30), number) for number in range(12)]
    for batch in batches:
        task_transaction.write(batch)
    assert list(staged.glob("*.sst")), "nothing was uploaded before the last row"

    share = voted(sink, task_transaction, task, *batches)
    order = CommitOrder(
        query.owner, plan.prepared.epoch, DecisionId(query.ledger, 99), plan.prepared.origin, 0, (share,)
    )
    query.sink.commit(order)

    assert residue_of(tmp_path / "state") == []
    expected = {f"customer {n}": 0 for n in range(50)}
    for number, batch in enumerate(batches):
        expected |= {str(name): number for name in batch.column("customer").to_pylist()}
    assert amounts(tmp_path) == expected


def test_a_task_on_a_new_machine_fetches_its_own_groups(query: StateQuery, tmp_path: Path) -> None:
    query.epoch(0, rows(range(KEYS), 1), 2)
    shutil.rmtree(tmp_path / "working")
    manifest = StateTable(quick(), str(tmp_path / "state")).newest()
    assert manifest is not None

    second = query.epoch(1, rows(range(KEYS), 2), 2)

    by_slot = {share.slot: share.handle.bytes_fetched for share in second.shares}
    assert by_slot == {0: manifest.segments[0].part.bytes, 1: manifest.segments[1].part.bytes}
    assert set(amounts(tmp_path).values()) == {2}


def test_tasks_that_tidy_up_and_fetch_at_once_do_not_get_into_each_others_way(
    query: StateQuery, tmp_path: Path
) -> None:
    """Many tasks of one generation on one machine: each fetches what it needs, and deletes what nobody does."""
    for number in range(3):
        query.epoch(number, rows(range(100), number), 4)
    table = StateTable(quick(), str(tmp_path / "state"))
    old, manifest = table.manifest(0), table.newest()
    assert manifest is not None
    running = Generation(query.ledger, 100)

    def task(number: int) -> None:
        cache = FileCache(table, str(tmp_path / "working"))
        for turn in range(20):
            files = sorted(manifest.files | old.files, key=lambda file: file.place)
            for at, file in enumerate(files):
                folder = tmp_path / "linked" / f"{number}.{turn}.{at}"
                folder.mkdir(parents=True)
                cache.link(file, folder, Fetched())
                assert (folder / file.name).stat().st_size == file.bytes
            cache.keep_only(manifest.files, running)

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(task, range(4))) == [None] * 4


def test_another_number_of_tasks_moves_only_the_groups_that_change_hands(query: StateQuery, tmp_path: Path) -> None:
    """From 2 to 3 to 1: of 128 groups, 43 to 63 go from the first to the second; then 43 to 127 to the first."""
    query.epoch(0, rows(range(KEYS), 1), 2)
    with open_snapshot(str(tmp_path / "state")) as state:
        sizes = [sum(len(k) + len(v) for k, v in state.items(GroupRange(g, g + 1))) for g in range(128)]

    to_three = query.epoch(1, rows(range(KEYS), 1), 3)
    assert {share.slot: share.handle.bytes_moved for share in to_three.shares} == {0: 0, 1: sum(sizes[43:64]), 2: 0}
    assert moved(to_three) < sum(sizes) / 5

    to_one = query.epoch(2, rows(range(10), 2), 1)
    assert moved(to_one) == sum(sizes[43:])
    assert amounts(tmp_path) == {f"customer {n}": 2 if n < 10 else 1 for n in range(KEYS)}


def test_a_key_that_was_taken_away_while_another_task_had_its_group_stays_away(tmp_path: Path) -> None:
    """The first task's files still hold the key when its group comes back: they must not be read."""
    query = made(tmp_path, merge_mode="delete-flag")
    keys = range(200)

    def flagged(deleted: bool) -> pa.RecordBatch:
        return rows(keys, 1, deleted=pa.array([deleted] * len(keys)))

    query.epoch(0, flagged(False), 1)
    query.epoch(1, flagged(True), 4)
    assert amounts(tmp_path) == {}
    for number, tasks in enumerate((1, 2, 1), start=2):
        query.epoch(number, rows([1000 + number], 1, deleted=pa.array([False])), tasks)

    assert set(amounts(tmp_path)) == {"customer 1002", "customer 1003", "customer 1004"}
    assert len(amounts(tmp_path, 0)) == len(keys)


def test_a_working_state_of_an_attempt_that_was_never_committed_is_not_used(query: StateQuery, tmp_path: Path) -> None:
    query.epoch(0, rows(range(100), 1), 1)
    query.decided(1, rows(range(100), 99), 1)  # and its driver dies
    query.sweep()

    query.epoch(1, rows([0], 2), 1)

    assert amounts(tmp_path) == {f"customer {n}": 2 if n == 0 else 1 for n in range(100)}
    assert residue_of(tmp_path / "state") == []


def test_a_row_that_came_to_the_wrong_task_is_refused_with_the_way_to_send_it(query: StateQuery) -> None:
    plan = query.prepare(0, rows([1], 1).schema)
    group = KeyGroups(128).of([pa.array(["customer 1"])], 1).tolist()[0]
    wrong = 1 - KeyGroups(128).slot_of(group, 2)

    with pytest.raises(OptionError, match=r"twophase\.by_key_group\(df, \['customer'\], tasks=N, key_groups=128\)"):
        _write(query, plan, rows([1], 1), wrong, 2)


def test_rows_are_refused_when_nobody_has_said_how_many_tasks_there_are(query: StateQuery) -> None:
    plan = query.prepare(0, rows([1], 1).schema)
    with pytest.raises(OptionError, match="nobody has said how many tasks write"):
        _write(query, plan, rows([1], 1), 0, None)


def _write(query: StateQuery, plan: Any, batch: pa.RecordBatch, slot: int, tasks: int | None) -> None:
    sink = query.sink if tasks is None else query.sink.placed(tasks)
    begun = sink.begin(plan, Task(slot, Attempt(plan.prepared.generation, 0)))
    try:
        begun.write(batch)
    finally:
        begun.abort()


# ---- damage ----


def _tables(folder: Path) -> list[Path]:
    return sorted((folder / "state" / "files").glob("*/*/*/*.sst"))


@pytest.mark.parametrize("damage", ["torn", "altered", "missing"])
def test_a_committed_table_that_is_damaged_stops_the_task_that_needs_it(
    query: StateQuery, tmp_path: Path, damage: str
) -> None:
    query.epoch(0, rows(range(KEYS), 1), 1)
    shutil.rmtree(tmp_path / "working")
    table = _tables(tmp_path)[0]
    data = table.read_bytes()
    table.unlink()
    if damage != "missing":
        table.write_bytes(data[:-1] if damage == "torn" else data[:100] + bytes([data[100] ^ 1]) + data[101:])

    error = DataLost if damage == "missing" else TableCorrupt
    with pytest.raises(error, match=r"\.sst"):
        query.decided(1, rows([0], 2), 1)


def test_a_reader_is_told_that_a_table_is_damaged(query: StateQuery, tmp_path: Path) -> None:
    query.epoch(0, rows(range(KEYS), 1), 1)
    table = _tables(tmp_path)[0]
    data = table.read_bytes()
    table.write_bytes(data[:200] + bytes(100) + data[300:])

    with pytest.raises(TableCorrupt, match="damaged"):
        amounts(tmp_path)
    with open_snapshot(str(tmp_path / "state")) as state, pytest.raises(TableCorrupt, match="damaged"):
        state.multi_get([f"customer {number}" for number in range(KEYS)])


def test_a_staged_table_that_was_cut_short_is_a_dead_share(query: StateQuery, tmp_path: Path) -> None:
    query.epoch(0, rows(range(100), 1), 2)
    order = query.decided(1, rows(range(100), 2), 2)
    owner = tmp_path / "state" / "staged" / str(query.owner)
    table = next((owner / str(order.shares[1].attempt)).glob("*.sst"))
    table.write_bytes(table.read_bytes()[:-1])

    assert set(query.sink.alive(order)) == {1}
    with pytest.raises(NotCommitted) as caught:
        query.sink.commit(order)
    assert caught.value.dead_slots == (1,)
    assert set(amounts(tmp_path).values()) == {1}
    query.sweep()
    assert residue_of(tmp_path / "state") == []


class FullDisk(WithoutSync):
    """Takes so many bytes, and no more."""

    left = 0

    def write(self, file: int, data: memoryview) -> int:
        if type(self).left < len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        type(self).left -= len(data)
        return super().write(file, data)


def test_a_full_disk_stops_the_upload_and_nothing_is_visible_of_it(tmp_path: Path) -> None:
    FullDisk.left = 1 << 30
    query = made(tmp_path, storage=LocalStorage(FullDisk()))
    query.epoch(0, rows(range(100), 1), 1)
    FullDisk.left = 500
    with pytest.raises(OSError, match="No space left"):
        query.decided(1, rows(range(100), 2), 1)
    assert set(amounts(tmp_path).values()) == {1}

    FullDisk.left = 1 << 30
    query.sweep()
    query.epoch(1, rows(range(100), 2), 1)
    assert set(amounts(tmp_path).values()) == {2}
    assert residue_of(tmp_path / "state") == []


# ---- epochs that are kept ----


def test_old_epochs_are_dropped_with_the_files_that_nobody_needs(tmp_path: Path) -> None:
    query = made(tmp_path, retain_epochs=2)
    for number in range(8):
        query.epoch(number, rows(range(100), number), 1 + number % 2)
    table = StateTable(quick(), str(tmp_path / "state"))

    assert table.positions() == [5, 6, 7]  # the oldest goes before the next epoch
    assert residue_of(tmp_path / "state") == []
    for epoch in table.positions():
        assert set(amounts(tmp_path, epoch).values()) == {epoch}
    with pytest.raises(OptionError, match="keeps 5 to 7"):
        amounts(tmp_path, 4)


def test_epochs_stay_by_their_age_too(tmp_path: Path) -> None:
    query = made(tmp_path, retain_epochs=2, retain_hours=1.0)
    for number in range(5):
        query.epoch(number, rows([number], number), 1)

    assert StateTable(quick(), str(tmp_path / "state")).positions() == [0, 1, 2, 3, 4]


def test_a_drop_that_died_halfway_is_finished_by_the_next(tmp_path: Path) -> None:
    query = made(tmp_path, retain_epochs=2)
    for number in range(3):
        query.epoch(number, rows(range(100), number), 1)
    oldest = Path(StateTable(quick(), str(tmp_path / "state")).manifest_path(0).removeprefix("file://"))
    oldest.rename(f"{oldest}.dropped")
    assert residue_of(tmp_path / "state") != []

    query.epoch(3, rows(range(100), 3), 1)

    assert residue_of(tmp_path / "state") == []


def test_an_open_snapshot_stays_what_it_was_when_its_epoch_is_dropped(tmp_path: Path) -> None:
    query = made(tmp_path, retain_epochs=2)
    query.epoch(0, rows(range(100), 0), 1)
    with open_snapshot(str(tmp_path / "state")) as state:
        for number in range(1, 12):
            query.epoch(number, rows(range(100), number), 1)
        assert state.epoch == 0
        assert {row["amount"] for row in state.to_table().to_pylist()} == {0}
        assert state.get("customer 7") == {"customer": "customer 7", "amount": 0}


# ---- what may not change ----


def test_the_key_groups_and_columns_of_a_state_never_change(query: StateQuery, tmp_path: Path) -> None:
    query.epoch(0, rows([1], 1), 1)

    for options in ({"key_groups": 64}, {"merge_mode": "sum"}):
        with pytest.raises(OptionError, match="for good"):
            made(tmp_path, **options).sink.require_fit(None, overwrite=False)
    with pytest.raises(SchemaMismatch, match="never change"):
        query.prepare(1, rows([1], 1).schema.append(pa.field("more", pa.int64())))


def test_a_sum_that_its_column_can_not_hold_is_refused(tmp_path: Path) -> None:
    query = made(tmp_path, merge_mode="sum")
    query.epoch(0, rows([1], 2**62), 1)
    with pytest.raises(SchemaMismatch, match="too large"):
        query.decided(1, rows([1], 2**62), 1)
