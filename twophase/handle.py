"""Handles: what a task's vote carries, as versioned JSON.

A handle is a frozen dataclass of JSON values that a sink defines; it says enough for another process to commit or abort
the task's share. It travels through Spark and lies in the ledger, so it is data: it is never pickled, and reading one
checks its version and every field.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from twophase.errors import ProtocolViolation

_READERS: Mapping[Any, type | tuple[type, ...]] = {
    str: str,
    int: int,
    float: (int, float),
    bool: bool,
    str | None: (str, type(None)),
    int | None: (int, type(None)),
    dict[str, int]: dict,
    dict[str, str]: dict,
    tuple[str, ...]: (list, tuple),
    tuple[int, ...]: (list, tuple),
}
"""Declared type of a field → what JSON gives for it."""


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
            value, expected = data[name], _READERS.get(declared_type)
            if expected is None:
                raise TypeError(f"{cls.__name__}.{name}: {declared_type} is not a type that a handle can carry")
            if not isinstance(value, expected) or (isinstance(value, bool) and declared_type is not bool):
                raise ProtocolViolation(f"{cls.__name__}.{name} should be {declared_type}")
            values[name] = tuple(value) if isinstance(value, list) else value
        return cls(**values)
