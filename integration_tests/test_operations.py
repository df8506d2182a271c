"""What docs/operations.md tells people to do, done: every row is there once afterwards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration_tests.streams import Place, failure_of, orders, run, write
from integration_tests.tables import compare, rows_of
from tests.markdown import blocks, section

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations.md"


@pytest.fixture
def written(spark: SparkSession, place: Place) -> Place:
    """A query that has written two epochs and was stopped cleanly."""
    place.add_orders(4)
    run(write(orders(spark, place), place))
    return place


def test_restoring_goes_on_when_the_table_is_taken_back_too(spark: SparkSession, written: Place) -> None:
    backup = written.copy_checkpoint("backup")
    written.add_orders(4)
    run(write(orders(spark, written), written))
    written.restore_checkpoint(backup)
    assert "CHECKPOINT_MISMATCH" in failure_of(write(orders(spark, written), written))

    written.restore_checkpoint(backup)
    for number in (3, 2):
        (written.table / f"epoch={number}").rename(written.root / f"was-{number}")
    run(write(orders(spark, written, files_per_epoch=1), written))

    assert not written.difference()


def test_a_new_table_begins_with_a_new_ledger(spark: SparkSession, written: Place) -> None:
    written.add_orders(2)
    second = written.root / "second"
    assert "CHECKPOINT_MISMATCH" in failure_of(write(orders(spark, written), written, table=second))

    run(write(orders(spark, written), written, {"ledger": str(written.root / "ledger-2")}, table=second))

    assert [path.name for path in second.iterdir()] == ["epoch=2"]
    assert sorted(row[0] for row in [*rows_of(written.table), *rows_of(second)]) == written.ids


@pytest.mark.parametrize("way", ["moved", "copied"])
def test_a_table_may_be_moved(spark: SparkSession, written: Place, way: str) -> None:
    there = written.root / "elsewhere" / "table"
    there.parent.mkdir()
    if way == "moved":
        written.table.rename(there)
    else:
        shutil.copytree(written.table, there)
        shutil.rmtree(written.table)
    written.add_orders(2)

    run(write(orders(spark, written), written, table=there))

    assert not written.difference(there)


def test_after_a_clean_stop_a_new_ledger_finds_its_place_by_the_table(spark: SparkSession, written: Place) -> None:
    (written.checkpoint / "twophase").rename(written.root / "ledger-that-is-damaged")
    written.add_orders(2)

    run(write(orders(spark, written), written))

    assert not written.difference()
    assert written.epochs() == [0, 1, 2]


def test_old_epochs_may_be_removed_oldest_first(spark: SparkSession, written: Place) -> None:
    (written.table / "epoch=0").rename(written.root / "removed")
    written.add_orders(2)

    run(write(orders(spark, written), written))

    assert written.epochs() == [1, 2]
    assert sorted(row[0] for row in rows_of(written.table)) == written.ids[100:]


def test_a_second_table_is_compact_and_has_every_row_once(spark: SparkSession, written: Place) -> None:
    (code,) = blocks(section(PAGE.read_text("utf-8"), "File sizes"), "python")
    written.table.rename(written.root / "orders")
    names: dict[str, Any] = {"spark": spark}

    exec(compile(code.replace("/data/", f"{written.root}/"), str(PAGE), "exec"), names)
    run(names["compact"])

    compact = written.root / "orders-compact"
    assert not compare(written.ids, compact)
    assert len(list(compact.rglob("*.parquet"))) == 1


def test_an_owner_that_is_named_later_is_refused(spark: SparkSession, written: Place) -> None:
    written.add_orders(2)

    said = failure_of(write(orders(spark, written), written, {"owner": "orders"}))

    assert "the option owner was changed" in said
    assert written.epochs() == [0, 1]
