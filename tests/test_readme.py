"""README and docs say what is true: examples run, tests and commands that are named exist, and links lead somewhere.

The examples that need Spark are run by integration_tests/test_readme.py.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.markdown import blocks, broken_links, commands, named_tests, section
from twophase import errors
from twophase.errors import TwophaseError
from twophase.record import Decide, Prepare
from twophase.vote import Vote

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def test_the_example_without_spark_runs_and_prints_what_its_page_says(tmp_path: Path) -> None:
    text = section((DOCS / "writing-a-sink.md").read_text("utf-8"), "An epoch by hand")
    (code,), (expected,) = blocks(text, "python"), blocks(text, "text")
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == expected
    assert [line.rpartition(": ")[2] for line in expected.splitlines()] == ["0 rows", "6 rows", "6 rows", "6 rows"]


def test_the_readme_shows_two_commands_and_continuous_integration_runs_the_tests() -> None:
    assert blocks(section(README.read_text("utf-8"), "See it, check it"), "sh") == ["make demo\n", "make test\n"]
    assert "step make test\nstep make test-kit\nstep make test-servers\n" in (ROOT / ".ci" / "run").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_make_target_that_a_page_names_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))

    assert commands(page.read_text("utf-8"), "make") - targets == set()


def test_every_test_that_the_readme_names_is_in_the_file_that_it_links_to() -> None:
    named = named_tests(README.read_text("utf-8"))

    assert len(named) >= 8
    assert [(name, file) for name, file in named if f"def {name}(" not in (ROOT / file).read_text("utf-8")] == []


def test_every_error_condition_has_its_place_in_the_operations_page() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TwophaseError)]
    conditions = {kind.condition for kind in kinds if kind is not TwophaseError}
    text = section((DOCS / "operations.md").read_text("utf-8"), "Errors")

    assert set(re.findall(r"^### `([A-Z_]+)`", text, re.MULTILINE)) == conditions


def test_every_logger_is_in_the_operations_page() -> None:
    modules = [
        file for folder in ("twophase", "sinks", "sources", "connectors") for file in (ROOT / folder).rglob("*.py")
    ]
    named = {
        name for file in modules for name in re.findall(r'^log = Log\("(.+)"\)$', file.read_text("utf-8"), re.MULTILINE)
    }
    text = section((DOCS / "operations.md").read_text("utf-8"), "Logs and metrics")

    assert len(named) >= 5
    assert named == set(re.findall(r"^\| `(twophase\.[a-z_.]+)` \|", text, re.MULTILINE))


def test_the_records_and_votes_in_the_specification_have_the_fields_of_the_code() -> None:
    prepare, decide, vote = (json.loads(block) for block in blocks((DOCS / "protocol.md").read_text("utf-8"), "json"))
    assert Prepare.from_json(prepare).to_json() == prepare
    assert Decide.from_json(decide).to_json() == decide
    assert json.loads(Vote.from_text(json.dumps(vote)).to_text()) == vote


def test_the_specification_numbers_its_invariants_from_1_to_11() -> None:
    text = section((DOCS / "protocol.md").read_text("utf-8"), "2. Invariants")
    numbers = re.findall(r"^(\d+)\. \*\*", text, re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 12)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_something_that_exists(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_piece_of_python_in_a_page_is_python(page: Path) -> None:
    for code in blocks(page.read_text("utf-8"), "python"):
        compile(code, str(page), "exec")


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# 4.7 A heading, or two\n", "utf-8")
    page.write_text(
        "# Here\n[1](other.md) [2](other.md#47-a-heading-or-two) [3](#here) [4](https://example.org/none)\n"
        "[5](none.md) [6](other.md#none) [7](#none)\n```\n[8](none.md)\n# in code\n```\n[9](#in-code)\n",
        "utf-8",
    )
    assert broken_links(page) == ["none.md", "other.md#none", "#none", "#in-code"]


def test_commands_and_tests_that_a_page_names_are_found() -> None:
    text = (
        "`make no-such`, `make` and\n```sh\nmake test ARGS=-x\n```\n| `test_a` and `test_b` in [x](x.py) | `test_c` |\n"
    )

    assert commands(text, "make") == {"no-such", "test"}
    assert named_tests(text) == [("test_a", ""), ("test_b", "x.py"), ("test_c", "")]
