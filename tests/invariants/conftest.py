"""A query with two sinks, and a file to arm failpoints in: what the tests of several invariants start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline import Pipeline, Table, Topic
from twophase import failpoints


@pytest.fixture
def both(tmp_path: Path, table: Table, topic: Topic) -> Pipeline:
    """A query with a sink of each kind."""
    return Pipeline(tmp_path / "checkpoint", {"a": table.sink(), "b": topic.sink()})


@pytest.fixture
def arming_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "failpoints"
    monkeypatch.setenv(failpoints.VARIABLE, str(path))
    failpoints.reload()
    yield path
    monkeypatch.undo()
    failpoints.reload()
