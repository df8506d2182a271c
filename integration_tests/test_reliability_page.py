"""docs/reliability.md is what `make crash-matrix` found, of the cells that there are today."""

from __future__ import annotations

import pytest

from integration_tests.complaints import ROOT
from integration_tests.tables import FilesTarget
from integration_tests.topics import KafkaTarget
from twophase.testing.crash.cell import Cell
from twophase.testing.crash.matrix import cells
from twophase.testing.crash.report import Findings, from_json, page

WHOLE = {"files": cells(FilesTarget), "kafka": cells(KafkaTarget, ["broker"])}
"""The targets of which all cells were run."""


@pytest.fixture
def recorded() -> list[Findings]:
    return from_json((ROOT / "docs/reliability.json").read_text(encoding="utf-8"))


def test_the_page_says_what_the_record_says(recorded: list[Findings]) -> None:
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")

    assert text == page(recorded)
    assert " 0 failures.**" in text


def test_the_page_lists_exactly_the_cells_that_there_are(recorded: list[Findings]) -> None:
    """A new failpoint, way or victim has no verdict until `make crash-matrix TARGET=…` was run."""
    found: dict[str, list[Cell]] = {each.title: [verdict.cell for verdict in each.verdicts] for each in recorded}

    assert found == WHOLE
