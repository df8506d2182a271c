"""Spark's checkpoint, as read from a real folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from twophase.checkpoint import Checkpoint
from twophase.errors import CheckpointMismatch
from twophase.identity import offsets_hash
from twophase.local_storage import LocalStorage


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return Checkpoint(LocalStorage(), str(tmp_path))


def log(tmp_path: Path, path: str, data: bytes = b"v1\n{}") -> None:
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).write_bytes(data)


def test_the_query_id_is_the_one_in_metadata(checkpoint: Checkpoint, tmp_path: Path) -> None:
    log(tmp_path, "metadata", b'{"id":"9cc7ea7b-7e7f-4a3b-8ee2-5a5a4b1a8b3c"}')
    assert checkpoint.query_id() == "9cc7ea7b-7e7f-4a3b-8ee2-5a5a4b1a8b3c"


def test_a_folder_without_metadata_is_no_checkpoint(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointMismatch, match="is not the checkpoint of a query"):
        checkpoint.query_id()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"5",
        b"{}",
        b'{"ID": "x"}',
        b'{"id": null}',
        b'{"id": ""}',
        b'{"id": {}}',
        b"\xff\xfe",
    ],
    ids=repr,
)
def test_metadata_that_names_no_query_is_refused(checkpoint: Checkpoint, tmp_path: Path, data: bytes) -> None:
    log(tmp_path, "metadata", data)
    with pytest.raises(CheckpointMismatch, match=r"metadata (can't be read|names no query)"):
        checkpoint.query_id()


def test_nothing_is_logged_in_a_new_checkpoint(checkpoint: Checkpoint) -> None:
    assert checkpoint.newest() is None
    assert checkpoint.offsets_hash(0) is None
    assert not checkpoint.is_committed(0)


def test_the_newest_epoch_is_the_highest_number(checkpoint: Checkpoint, tmp_path: Path) -> None:
    for number in (0, 2, 9, 10, 8):
        log(tmp_path, f"offsets/{number}")
    assert checkpoint.newest() == 10


@pytest.mark.parametrize(
    "name", [".12.crc", "12.tmp", ".12.5f0c.tmp", "-12", "12 ", "1e3", "12.compact", "_spark_metadata"]
)
def test_other_names_in_the_log_are_no_epochs(checkpoint: Checkpoint, tmp_path: Path, name: str) -> None:
    log(tmp_path, "offsets/3")
    log(tmp_path, f"offsets/{name}")
    assert checkpoint.newest() == 3


def test_a_folder_in_the_log_is_no_epoch(checkpoint: Checkpoint, tmp_path: Path) -> None:
    log(tmp_path, "offsets/3")
    (tmp_path / "offsets" / "12").mkdir()
    assert checkpoint.newest() == 3


def test_the_offsets_hash_is_that_of_the_bytes_on_disk(checkpoint: Checkpoint, tmp_path: Path) -> None:
    data = b"v1\n" + json.dumps({"batchWatermarkMs": 0}).encode() + b"\n\xff\0"
    log(tmp_path, "offsets/7", data)
    assert checkpoint.offsets_hash(7) == offsets_hash(data)
    log(tmp_path, "offsets/7", data + b"\n")
    assert checkpoint.offsets_hash(7) == offsets_hash(data + b"\n") != offsets_hash(data)


def test_an_empty_log_entry_is_an_entry(checkpoint: Checkpoint, tmp_path: Path) -> None:
    log(tmp_path, "offsets/0", b"")
    log(tmp_path, "commits/0", b"")
    assert checkpoint.newest() == 0
    assert checkpoint.offsets_hash(0) == offsets_hash(b"")
    assert checkpoint.is_committed(0)


def test_a_commit_counts_for_its_own_epoch_only(checkpoint: Checkpoint, tmp_path: Path) -> None:
    log(tmp_path, "commits/1")
    assert [checkpoint.is_committed(number) for number in (0, 1, 10, 11)] == [False, True, False, False]


def test_a_checkpoint_is_never_written(checkpoint: Checkpoint, tmp_path: Path) -> None:
    log(tmp_path, "metadata", b'{"id":"q"}')
    log(tmp_path, "offsets/0")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    checkpoint.query_id(), checkpoint.newest(), checkpoint.offsets_hash(0), checkpoint.is_committed(0)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
