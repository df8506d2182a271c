"""`twophase inspect` and `twophase recover` on the checkpoints of real queries, running and dead."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration_tests.streams import Place, orders, run, write
from integration_tests.tables import FILES, compare, residue_of
from twophase.connectors.command_line import main
from twophase.failpoints import Fault, arm
from twophase.testing.crash.orders import write_orders
from twophase.testing.crash.program import QueryDescription
from twophase.testing.crash.victim import TIMEOUT_S, run_to_the_end, victim


def said_by(*arguments: str) -> str:
    out = io.StringIO()
    assert main(arguments, out=out) == 0
    return out.getvalue()


def inspected(checkpoint: Path) -> dict[str, Any]:
    return dict(json.loads(said_by("inspect", str(checkpoint), "--json")))


def test_inspect_shows_epochs_markers_and_sparks_logs(spark: SparkSession, place: Place) -> None:
    place.add_orders(4)
    run(write(orders(spark, place), place))

    found = inspected(place.checkpoint)

    assert found["newest_offsets"] == found["newest_commit"] == 1
    assert [(line["epoch"], line["state"], line["rows"]) for line in found["epochs"]] == [
        (0, "committed", 100),
        (1, "committed", 100),
    ]
    [sink] = found["sinks"]
    assert sink["format"] == "twophase-files"
    assert sink["options"]["path"] == f"file://{place.table}"
    assert sink["marker"].startswith("epoch 1 of ")
    assert (sink["open"], sink["staged"], sink["problem"]) == (False, [], None)
    text = said_by("inspect", str(place.checkpoint))
    assert "Epoch 1 is committed everywhere, and Spark has logged it." in text
    assert str(place.table) in text


def test_inspect_says_that_a_table_was_emptied_and_that_a_checkpoint_was_copied(
    spark: SparkSession, place: Place
) -> None:
    place.add_orders(2)
    run(write(orders(spark, place), place))
    copy = place.copy_checkpoint("copy")

    assert said_by("inspect", str(copy)).startswith(
        f"The checkpoint was copied or moved from file://{place.checkpoint}"
    )

    shutil.rmtree(place.table)
    assert said_by("inspect", str(place.checkpoint)).startswith("A target lacks epoch 0, which is logged as committed")


def test_inspect_changes_nothing(spark: SparkSession, place: Place) -> None:
    place.add_orders(2)
    run(write(orders(spark, place), place))
    before = sorted((path, path.stat().st_mtime_ns) for path in place.root.rglob("*"))

    said_by("inspect", str(place.checkpoint))

    assert sorted((path, path.stat().st_mtime_ns) for path in place.root.rglob("*")) == before


@pytest.mark.timeout(600)
def test_recover_settles_a_dead_query_so_that_nothing_is_left_to_do(tmp_path: Path) -> None:
    told = QueryDescription(FILES, str(tmp_path))
    expected = write_orders(told.input, 4)
    table, checkpoint, failpoints = tmp_path / "table", Path(told.checkpoint), tmp_path / "failpoints"
    arm(failpoints, Fault("files.sealed", "pause", 2, timeout_s=300))
    with victim(told, failpoints=failpoints) as driver:
        driver.wait_for_hit(failpoints, "files.sealed", "pause", timeout_s=TIMEOUT_S)
        alive = inspected(checkpoint)
    dead = inspected(checkpoint)
    assert alive == dead
    assert dead["epochs"][-1]["state"] == "decided"
    assert dead["sinks"][0]["open"] is True
    assert len(compare(expected, table).lost) == 100

    said = said_by("recover", str(checkpoint))

    assert said.startswith("Epoch 1 is committed everywhere; Spark has not logged it")
    assert not compare(expected, table)
    assert residue_of(table) == []
    assert inspected(checkpoint)["sinks"][0]["open"] is False

    result = run_to_the_end(told)
    assert "error" not in result, result["error"]
    assert not compare(expected, table)


def test_a_folder_that_is_no_checkpoint_is_an_error_of_one_line(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "twophase.connectors.command_line", "inspect", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.count("\n") == 1
    assert "metadata is not there" in ran.stderr


def test_a_query_that_never_wrote_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id": "a-query"}')

    assert "has written nothing through twophase yet" in said_by("inspect", str(tmp_path))
    assert "has written nothing through twophase yet" in said_by("recover", str(tmp_path))
