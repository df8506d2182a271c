"""README and docs say what is true: the example runs, the records are those of the code, and links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from twophase.record import Decide, Prepare
from twophase.vote import Vote

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PROTOCOL = ROOT / "docs" / "protocol.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def blocks(text: str, language: str) -> list[str]:
    return [body for tag, body in _FENCED.findall(text) if tag == language]


def prose(text: str) -> str:
    return _FENCED.sub("", text)


def section(text: str, heading: str) -> str:
    """What is below a heading of the second level, up to the next one."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))[heading]


def anchors(text: str) -> set[str]:
    """The names under which a page's headings can be linked to, made as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(prose(text))}


def broken_links(page: Path) -> list[str]:
    """Relative links to a file or a heading that is not there."""
    broken = []
    for link in _LINK.findall(prose(page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target.read_text("utf-8"))):
            broken.append(link)
    return broken


def test_the_readme_example_runs_and_prints_what_the_readme_says(tmp_path: Path) -> None:
    text = README.read_text("utf-8")
    (code,) = blocks(text, "python")
    (expected,) = blocks(section(text, "Try it"), "text")
    command = [sys.executable, "-W", "error", "-c", code]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == expected
    assert [line.rpartition(": ")[2] for line in expected.splitlines()] == ["0 rows", "6 rows", "6 rows", "6 rows"]


def test_the_readme_has_one_test_command_and_continuous_integration_runs_it() -> None:
    commands = [body for _, body in _FENCED.findall(section(README.read_text("utf-8"), "Test"))]
    assert commands == ["make test\n"]
    assert "step make test\n" in (ROOT / ".ci" / "run").read_text("utf-8")


def test_the_records_and_votes_in_the_specification_have_the_fields_of_the_code() -> None:
    prepare, decide, vote = (json.loads(block) for block in blocks(PROTOCOL.read_text("utf-8"), "json"))
    assert Prepare.from_json(prepare).to_json() == prepare
    assert Decide.from_json(decide).to_json() == decide
    assert json.loads(Vote.from_text(json.dumps(vote)).to_text()) == vote


def test_the_specification_numbers_its_invariants_from_1_to_11() -> None:
    numbers = re.findall(r"^(\d+)\. \*\*", section(PROTOCOL.read_text("utf-8"), "2. Invariants"), re.MULTILINE)
    assert numbers == [str(number) for number in range(1, 12)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_something_that_exists(page: Path) -> None:
    assert broken_links(page) == []


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "other.md").write_text("# 4.7 A heading, or two\n", "utf-8")
    page.write_text(
        "# Here\n[1](other.md) [2](other.md#47-a-heading-or-two) [3](#here) [4](https://example.org/none)\n"
        "[5](none.md) [6](other.md#none) [7](#none)\n```\n[8](none.md)\n# in code\n```\n[9](#in-code)\n",
        "utf-8",
    )
    assert broken_links(page) == ["none.md", "other.md#none", "#none", "#in-code"]
