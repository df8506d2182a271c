"""Handles: versioned JSON, every field checked when it is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophase.errors import ProtocolViolation
from twophase.handle import Handle


@dataclass(frozen=True)
class Everything(Handle):
    version: ClassVar[int] = 3

    name: str
    rows: int
    share: float
    sealed: bool
    note: str | None
    base: int | None
    lengths: dict[str, int]
    tags: dict[str, str]
    files: tuple[str, ...]
    slots: tuple[int, ...]


@dataclass(frozen=True)
class Nothing(Handle):
    pass


WHOLE = Everything("a", 1, 0.5, True, None, None, {"x": 1}, {"x": "y"}, ("f", "g"), (1, 2))

TEXTS = st.text(max_size=8)
INTEGERS = st.integers()
HANDLES = st.builds(
    Everything,
    TEXTS,
    INTEGERS,
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none() | TEXTS,
    st.none() | INTEGERS,
    st.dictionaries(TEXTS, INTEGERS),
    st.dictionaries(TEXTS, TEXTS),
    st.lists(TEXTS).map(tuple),
    st.lists(INTEGERS).map(tuple),
)


@given(handle=HANDLES)
def test_a_handle_round_trips_through_json_text(handle: Everything) -> None:
    assert Everything.from_json(json.loads(json.dumps(handle.to_json()))) == handle


def test_a_handle_without_fields_is_its_version() -> None:
    assert Nothing().to_json() == {"version": 1}
    assert Nothing.from_json({"version": 1}) == Nothing()


@pytest.mark.parametrize("version", [None, 0, 2, 4, "3", 3.5, [3]])
def test_a_handle_of_another_version_is_refused_and_says_what_to_do(version: object) -> None:
    with pytest.raises(ProtocolViolation, match="finish the open epoch with the release that wrote it"):
        Everything.from_json({**WHOLE.to_json(), "version": version})


def test_a_handle_without_its_version_is_refused() -> None:
    data = WHOLE.to_json()
    del data["version"]
    with pytest.raises(ProtocolViolation, match="of version None"):
        Everything.from_json(data)


def test_a_missing_and_an_unknown_field_are_refused() -> None:
    data = WHOLE.to_json()
    del data["rows"]
    with pytest.raises(ProtocolViolation, match="fields"):
        Everything.from_json(data)
    with pytest.raises(ProtocolViolation, match="fields"):
        Everything.from_json({**WHOLE.to_json(), "extra": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", None),
        ("name", 5),
        ("name", ["a"]),
        ("rows", None),
        ("rows", "1"),
        ("rows", 1.0),
        ("rows", True),
        ("share", "0.5"),
        ("share", True),
        ("sealed", 1),
        ("sealed", "true"),
        ("note", 5),
        ("base", "5"),
        ("base", False),
        ("lengths", [1]),
        ("lengths", None),
        ("tags", "x"),
        ("files", "fg"),
        ("files", {"f": 1}),
        ("slots", 1),
    ],
    ids=str,
)
def test_a_field_of_another_type_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ProtocolViolation, match=rf"Everything\.{name}"):
        Everything.from_json({**WHOLE.to_json(), name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lengths", {"x": "1"}),
        ("lengths", {"x": None}),
        ("lengths", {"x": True}),
        ("tags", {"x": 1}),
        ("files", ["f", 1]),
        ("files", [None]),
        ("slots", ["1"]),
        ("slots", [[1]]),
        ("slots", [True]),
    ],
    ids=str,
)
def test_a_field_with_something_else_inside_is_refused_by_its_name(name: str, value: Any) -> None:
    with pytest.raises(ProtocolViolation, match=rf"Everything\.{name}"):
        Everything.from_json({**WHOLE.to_json(), name: value})


@pytest.mark.parametrize("data", [None, 5, "text", [], [["version", 3]]], ids=str)
def test_what_is_no_object_is_refused(data: Any) -> None:
    with pytest.raises(ProtocolViolation):
        Everything.from_json(data)
