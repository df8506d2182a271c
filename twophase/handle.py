"""Handles: what a task's vote carries, as versioned JSON.

A handle is a frozen dataclass of JSON values that a sink defines; it says enough for another process to commit or abort
the task's share. It travels through Spark and lies in the ledger, so it is data: it is never pickled, and reading one
checks its version and every field.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from twophase.errors import ProtocolViolation


def _is(kind: type | tuple[type, ...]) -> Callable[[Any], bool]:
    """A bool is an int to Python, and not to anybody who reads a handle."""
    return lambda value: isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


def _all(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list | tuple) and all(map(_is(kind), value))


def _named(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, dict) and all(isinstance(k, str) and _is(kind)(v) for k, v in value.items())


_FITS: Mapping[Any, Callable[[Any], bool]] = {
    str: _is(str),
    int: _is(int),
    float: _is((int, float)),
    bool: _is(bool),
    str | None: _is((str, type(None))),
    int | None: _is((int, type(None))),
    dict[str, int]: _named(int),
    dict[str, str]: _named(str),
    tuple[str, ...]: _all(str),
    tuple[int, ...]: _all(int),
}
"""Declared type of a field → whether a JSON value fits it."""


@dataclass(frozen=True)
class Handle:
    """Base of every sink's handle. Subclasses are frozen dataclasses and raise `version` when their fields change."""

    version: ClassVar[int] = 1

    def to_json(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"version": self.version} | {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read a handle; raises ProtocolViolation naming what is wrong with it."""
        if not isinstance(data, Mapping):
            raise ProtocolViolation(f"a {cls.__name__} should be a JSON object, and is {type(data).__name__}")
        if data.get("version") != cls.version:
            raise ProtocolViolation(
                f"a {cls.__name__} of version {data.get('version')!r} can't be read by this release (it reads "
                f"{cls.version}): finish the open epoch with the release that wrote it"
            )
        declared = {f.name for f in fields(cls)}
        given = set(data) - {"version"}
        if given != declared:
            raise ProtocolViolation(f"a {cls.__name__} has fields {sorted(given)}, expected {sorted(declared)}")
        values: dict[str, Any] = {}
        for name, declared_type in typing.get_type_hints(cls).items():
            if name not in declared:
                continue
            value, fits = data[name], _FITS.get(declared_type)
            if fits is None:
                raise TypeError(f"{cls.__name__}.{name}: {declared_type} is not a type that a handle can carry")
            if not fits(value):
                raise ProtocolViolation(f"{cls.__name__}.{name} should be {declared_type}")
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)
