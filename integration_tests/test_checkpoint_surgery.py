"""What people do to checkpoints: delete, copy, rewind, empty, restore. A row is never lost or doubled; what can't be is refused,
and `twophase inspect` foresees it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration_tests.streams import Place, failure_of, orders, run, write
from integration_tests.tables import rows_of
from twophase.connectors.inspection import inspect
from twophase.testing.crash.orders import write_orders


@pytest.fixture
def written(spark: SparkSession, place: Place) -> Place:
    """A query that has written three epochs and was stopped."""
    place.add_orders(6)
    run(write(orders(spark, place), place))
    assert place.epochs() == [0, 1, 2]
    return place


def foreseen(place: Place) -> str:
    """What `twophase inspect` says of it."""
    return inspect(str(place.checkpoint)).verdict


def refused(spark: SparkSession, place: Place, says: str, **options: str) -> str:
    """Start the query, which must say this, and leave the table as it was."""
    before = place.rows(), place.epochs()
    said = failure_of(write(orders(spark, place), place, options))
    assert says in said, said
    assert (place.rows(), place.epochs()) == before
    return said


def test_the_last_commit_deleted_is_a_replay_that_writes_nothing(spark: SparkSession, written: Place) -> None:
    written.forget_commit(2)
    assert "Epoch 2 is committed everywhere; Spark has not logged it" in foreseen(written)

    run(write(orders(spark, written), written))

    assert not written.difference()
    assert written.epochs() == [0, 1, 2]


def test_the_last_two_commits_deleted_doubles_nothing(spark: SparkSession, written: Place) -> None:
    """Spark takes the newest offsets for the epoch that was running, whatever is missing below."""
    written.forget_commit(2)
    written.forget_commit(1)
    assert "Epoch 2 is committed everywhere; Spark has not logged it" in foreseen(written)

    run(write(orders(spark, written), written))

    assert not written.difference()
    assert written.epochs() == [0, 1, 2]


def test_a_copied_checkpoint_is_refused_until_it_is_said_to_have_moved(spark: SparkSession, written: Place) -> None:
    copy = written.copy_checkpoint("copy")
    written.add_orders(2)
    settings = {"checkpointLocation": str(copy)}

    said = failure_of(write(orders(spark, written), written, settings))
    assert "movedFrom" in said
    assert len(written.ids) - written.rows() == 100

    run(write(orders(spark, written), written, {**settings, "movedFrom": str(written.checkpoint)}))
    assert not written.difference()


def test_a_checkpoint_restored_from_an_older_backup_is_refused(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)
    run(write(orders(spark, place), place))
    backup = place.copy_checkpoint("backup")
    place.add_orders(2)
    run(write(orders(spark, place), place))
    place.restore_checkpoint(backup)
    write_orders(place.input, 1, first=50)  # so that other rows come under the same number
    before = rows_of(place.table)
    assert "is refused when it starts: the checkpoint does not belong to the target" in foreseen(place)

    said = failure_of(write(orders(spark, place), place))

    assert "CHECKPOINT_MISMATCH" in said
    assert rows_of(place.table) == before


def test_sparks_part_rewound_without_the_ledger_is_refused(spark: SparkSession, written: Place) -> None:
    for folder in ("offsets", "commits"):
        for name in ("2", ".2.crc"):
            (written.checkpoint / folder / name).unlink(missing_ok=True)
    assert "Spark's logs end at epoch 1, and epoch 2 is decided" in foreseen(written)
    written.add_orders(1)  # the same number is logged with other offsets

    refused(spark, written, "CHECKPOINT_MISMATCH")


def test_sparks_logs_emptied_without_the_ledger_are_refused(spark: SparkSession, written: Place) -> None:
    for folder in ("offsets", "commits"):
        shutil.rmtree(written.checkpoint / folder)
        (written.checkpoint / folder).mkdir()
    assert "Spark's logs are empty, and epoch 2 is decided" in foreseen(written)

    refused(spark, written, "CHECKPOINT_MISMATCH")


def test_an_emptied_checkpoint_is_another_owner_and_refused(spark: SparkSession, written: Place) -> None:
    shutil.rmtree(written.checkpoint)

    said = refused(spark, written, "is owned by")

    assert "takeOver" in said


def test_an_emptied_checkpoint_of_a_named_owner_is_refused(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)
    run(write(orders(spark, place), place, {"owner": "orders"}))
    shutil.rmtree(place.checkpoint)

    refused(spark, place, "CHECKPOINT_MISMATCH", owner="orders")


def test_a_take_over_that_names_the_owner_goes_on_after_its_epochs(spark: SparkSession, written: Place) -> None:
    owner = json.loads((written.checkpoint / "metadata").read_text())["id"]
    second = Place(written.root / "second")
    second.add_orders(2)
    before = written.rows()

    settings = {"takeOver": f"{owner}/sink", "checkpointLocation": str(second.checkpoint)}
    run(write(orders(spark, second), written, settings))

    assert written.rows() == before + 100
    assert written.epochs() == [0, 1, 2, 3, 4]  # 3 is the empty epoch of the take-over
    assert "Epoch 0 is committed everywhere, and Spark has logged it" in foreseen(second)
    new = json.loads((second.checkpoint / "metadata").read_text())["id"]
    assert f"is owned by {new}/sink now, at epoch 0: this query is refused" in foreseen(written)
    written.add_orders(2)
    refused(spark, written, f"set the option takeOver to '{new}/sink'")


def test_a_table_that_was_deleted_under_the_query_is_refused(spark: SparkSession, written: Place) -> None:
    shutil.rmtree(written.table)
    assert "A target lacks epoch 2, which is logged as committed" in foreseen(written)
    written.add_orders(2)

    said = failure_of(write(orders(spark, written), written))

    assert "CHECKPOINT_MISMATCH" in said
    assert not list(Path(written.table).glob("epoch=*"))


@pytest.mark.parametrize("damage", ["torn", "altered", "foreign"])
def test_a_damaged_ledger_record_is_explained_and_nothing_is_written(
    spark: SparkSession, written: Place, damage: str
) -> None:
    newest = max((written.checkpoint / "twophase").glob("*.record"))
    data = newest.read_bytes()
    newest.write_bytes(
        {"torn": data[: len(data) // 2], "altered": data.replace(b"kind", b"kinb"), "foreign": b"hello\n"}[damage]
    )
    written.add_orders(2)

    refused(spark, written, "LEDGER_CORRUPT")
