"""Names: every text becomes one harmless path component, and no two become the same."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from twophase.names import LONGEST, escape, unescape

HOSTILE = [
    "",
    ".",
    "..",
    "...",
    "../..",
    "../../etc/passwd",
    "/",
    "//",
    "a/b",
    "a\\b",
    "\0",
    "a\0b",
    "\n",
    "a\r\nb",
    "\x7f",
    "\x1b[31m",
    "%",
    "%%",
    "%-",
    "%2e",
    "%2E",
    "%2F",
    "%2f",
    ".hidden",
    "trailing.",
    "inner.dot",
    " ",
    " a ",
    "~",
    "$HOME",
    "*",
    "a:b",
    "CON",
    "nul.txt",
    "-rf",
    "é",
    "e\u0301",
    "名前",
    "😀",
    "\u2028",
    "\u202e",
    "\ud800",
    "\ud83d\ude00",
    "A",
    "a",
    "x" * LONGEST,
    "x" * (LONGEST + 1),
    "x" * LONGEST + "y",
    "é" * 1000,
    "." * 1000,
]

# Text with lone surrogates too, and texts dense in the characters that matter.
NAMES = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.text("./\\%-_?aA0\0é\ud800\udfff", max_size=12),
    st.text("aé.", min_size=60, max_size=260),
)


def is_one_safe_component(text: str) -> bool:
    return (
        0 < len(text) <= LONGEST
        and re.fullmatch(r"[A-Za-z0-9_.%-]+", text) is not None
        and not text.startswith(".")
        and not text.endswith(".")
        and os.path.basename(text) == text
    )


@given(NAMES)
def test_any_name_becomes_one_safe_path_component(name: str) -> None:
    assert is_one_safe_component(escape(name))


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_becomes_one_safe_path_component(name: str) -> None:
    assert is_one_safe_component(escape(name))


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_stays_in_its_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / escape(name)).write_text("here")
    assert [entry.name for entry in folder.iterdir()] == [escape(name)]
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


@given(NAMES, NAMES)
@example("%2e", ".")
@example("", "%")
@example("é", "e\u0301")
@example("\ud83d\ude00", "😀")
def test_names_that_differ_never_collide(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


def test_hostile_names_never_collide() -> None:
    assert len({escape(name) for name in HOSTILE}) == len(HOSTILE)


def assert_comes_back_or_is_refused(name: str) -> None:
    escaped = escape(name)
    if "%-" in escaped:
        with pytest.raises(ValueError, match="was cut"):
            unescape(escaped)
    else:
        assert unescape(escaped) == name
        assert escape(unescape(escaped)) == escaped


@given(NAMES)
def test_unescape_gives_the_name_back_or_refuses_a_cut_one(name: str) -> None:
    assert_comes_back_or_is_refused(name)


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_unescape_gives_a_hostile_name_back_or_refuses_a_cut_one(name: str) -> None:
    assert_comes_back_or_is_refused(name)


@given(NAMES)
def test_an_escaped_name_is_a_name_like_any_other(name: str) -> None:
    once = escape(name)
    twice = escape(once)
    if "%-" not in twice:
        assert unescape(twice) == once


@given(st.text("aA%-.0123456789ABCDEFabcdef/é", max_size=12))
def test_unescape_accepts_nothing_that_escape_does_not_give(text: str) -> None:
    try:
        name = unescape(text)
    except ValueError:
        return
    assert escape(name) == text


@pytest.mark.parametrize("text", ["", ".", "..", ".a", "a.", "a/b", "%41", "%2e", "%C3", "%%", "%G0", "a%", "é", "\0"])
def test_unescape_refuses_a_text_that_is_nobody_s_escape(text: str) -> None:
    with pytest.raises(ValueError, match="not an escaped name"):
        unescape(text)


@pytest.mark.parametrize("name", ["orders", "Orders_2", "a-b", "v1.2", "0"])
def test_an_ordinary_name_stays_readable(name: str) -> None:
    assert escape(name) == name


def test_names_are_cut_only_above_the_limit_and_then_differ_by_their_hash() -> None:
    assert escape("x" * LONGEST) == "x" * LONGEST
    longer, other = escape("x" * (LONGEST + 1)), escape("x" * LONGEST + "y")
    assert len(longer) == len(other) == LONGEST
    assert longer != other
    assert longer.startswith("x" * 100)
    assert re.fullmatch(r"x+%-[0-9a-f]{32}", longer)


def test_a_cut_never_leaves_half_an_escape() -> None:
    for padding in range(4):
        assert re.fullmatch(r"x*(%[0-9A-F]{2})+%-[0-9a-f]{32}", escape("x" * padding + "é" * 200))


def test_the_form_is_fixed_because_folders_made_by_it_outlive_a_release() -> None:
    assert escape("a/b") == "a%2Fb"
    assert escape("..") == "%2E%2E"
    assert escape("") == "%"
    assert escape("é") == "%C3%A9"
    assert escape("100%") == "100%25"
    assert escape("z" * 300) == "z" * 166 + "%-" + "7cf7dc7f99e7185a1536245f8e30ced7"
