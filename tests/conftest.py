"""Targets and a query that several test files start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline import Pipeline, Table, Target, Topic


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture(params=["atomic", "by slot"])
def target(request: pytest.FixtureRequest, table: Table, topic: Topic) -> Target:
    return table if request.param == "atomic" else topic


@pytest.fixture
def pipeline(tmp_path: Path, target: Target) -> Pipeline:
    """A query with one sink, of either kind."""
    return Pipeline(tmp_path / "checkpoint", {"s": target.sink()})
