"""Markdown pages, as far as tests need them: their code blocks, sections, headings and links."""

from __future__ import annotations

import re
from pathlib import Path

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


def named_tests(text: str) -> list[tuple[str, str]]:
    """Each test that a page names in backticks, with the file that is linked to next."""
    found = []
    for name, rest in re.findall(r"`(test_\w+)`(?=([^|`]*))", text):
        link = _LINK.search(rest)
        found.append((name, link[1] if link else ""))
    return found


def commands(text: str, program: str) -> set[str]:
    """The first word after the program wherever a page calls it: in backticks, in a block of sh, after a prompt."""
    code = [*re.findall(r"`([^`\n]+)`", prose(text)), *blocks(text, "sh")]
    called = [word for piece in code for word in re.findall(rf"^{program} ([a-z][a-z-]*)", piece, re.MULTILINE)]
    return {*called, *re.findall(rf"^\$ {program} ([a-z][a-z-]*)", text, re.MULTILINE)}
