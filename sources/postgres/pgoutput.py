"""The messages of PostgreSQL's output plugin pgoutput, protocol version 1, as changes.

A decoding session sends a relation's columns before the first change of it, so messages must be read from a session's first on.
Values are text, as PostgreSQL writes them. In JSON, numbers, truth values and json are what they are, everything else is text.

Source of the format: PostgreSQL's documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from twophase.errors import Unreadable

INSERT, UPDATE, DELETE, TRUNCATE = "insert", "update", "delete", "truncate"
CHANGES = b"IUDT"
"""The first bytes of messages that are changes; a truncation may be one of several tables."""
COMMIT = ord("C")
_BOOLEAN, _JSON = 16, (114, 3802)
_NUMBERS = (20, 21, 23, 26, 700, 701, 1700)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
"""As JSON has them: not NaN, and nothing infinite."""


@dataclass(frozen=True)
class Relation:
    schema: str
    name: str
    columns: tuple[tuple[str, int], ...]
    """Names, and the object ids of their types."""


@dataclass(frozen=True)
class Change:
    operation: str
    schema: str
    table: str
    old: str | None
    """What the row was, as JSON: its key, or all of it, as the table's replica identity says."""
    new: str | None


@dataclass(frozen=True)
class Transaction:
    end: int
    """The position after its commit."""
    committed_us: int
    """Microseconds since 2000."""
    changes: tuple[Change, ...]


@dataclass
class Decoder:
    """Of one session."""

    _relations: dict[int, Relation] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)

    def take(self, message: bytes) -> Transaction | None:
        """The transaction that this message ends, if it does."""
        kind, body = message[:1], _Bytes(message, 1)
        if kind == b"C":
            _, _, end, committed = body.unpack("!BQQq")
            changes, self._changes = tuple(self._changes), []
            return Transaction(end, committed, changes)
        if kind == b"B":
            self._changes = []
        elif kind == b"R":
            number, relation = self._relation(body)
            self._relations[number] = relation
        elif kind in (b"I", b"U", b"D"):
            self._changes.append(self._change(kind, body))
        elif kind == b"T":
            self._changes.extend(self._truncated(body))
        elif kind not in (b"O", b"Y", b"M"):  # origins, types and messages to others
            raise Unreadable(f"the server sent a message {kind!r}, which is none of pgoutput's first version")
        return None

    def _relation(self, body: _Bytes) -> tuple[int, Relation]:
        (number,) = body.unpack("!I")
        schema, name = body.text(), body.text()
        _, count = body.unpack("!cH")
        columns = []
        for _ in range(count):
            body.unpack("!B")
            column = body.text()
            kind, _ = body.unpack("!Ii")
            columns.append((column, kind))
        return number, Relation(schema or "pg_catalog", name, tuple(columns))

    def _change(self, kind: bytes, body: _Bytes) -> Change:
        (number,) = body.unpack("!I")
        relation, old, new = self._known(number), None, None
        while not body.at_end:
            (which,) = body.unpack("!c")
            if which == b"N":
                new = self._row(relation, body, only_keys=False)
            else:  # K is its key, and has nulls for all other columns; O is all of it
                old = self._row(relation, body, only_keys=which == b"K")
        operation = {b"I": INSERT, b"U": UPDATE, b"D": DELETE}[kind]
        return Change(operation, relation.schema, relation.name, old, new)

    def _truncated(self, body: _Bytes) -> Iterator[Change]:
        count, _ = body.unpack("!IB")
        for _ in range(count):
            (number,) = body.unpack("!I")
            relation = self._known(number)
            yield Change(TRUNCATE, relation.schema, relation.name, None, None)

    def _known(self, number: int) -> Relation:
        try:
            return self._relations[number]
        except KeyError:
            raise Unreadable(f"the server sent a change of the relation {number} before its columns") from None

    def _row(self, relation: Relation, body: _Bytes, *, only_keys: bool) -> str:
        (count,) = body.unpack("!H")
        if count != len(relation.columns):
            raise Unreadable(f"{relation.name} has {len(relation.columns)} columns, and a change of it has {count}")
        members = []
        for name, kind in relation.columns:
            (form,) = body.unpack("!c")
            if form == b"t":
                members.append(f"{json.dumps(name)}: {_as_json(body.value(), kind)}")
            elif form == b"n" and not only_keys:
                members.append(f"{json.dumps(name)}: null")
            elif form not in (b"n", b"u"):  # u is a large value that was not changed, and is not sent
                raise Unreadable(f"the server sent a value in the form {form!r}")
        return "{" + ", ".join(members) + "}"


def _as_json(text: str, kind: int) -> str:
    if kind == _BOOLEAN:
        return "true" if text == "t" else "false"
    if kind in _JSON or (kind in _NUMBERS and _NUMBER.fullmatch(text)):
        return text
    return json.dumps(text, ensure_ascii=False)


class _Bytes:
    """A message that is read from its beginning to its end."""

    def __init__(self, data: bytes, at: int):
        self._data, self._at = data, at

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._data)

    def unpack(self, form: str) -> tuple[Any, ...]:
        try:
            values = struct.unpack_from(form, self._data, self._at)
        except struct.error as error:
            raise Unreadable(f"a message of the server is cut: {error}") from None
        self._at += struct.calcsize(form)
        return values

    def text(self) -> str:
        end = self._data.index(b"\0", self._at)
        text, self._at = self._data[self._at : end].decode(), end + 1
        return text

    def value(self) -> str:
        (length,) = self.unpack("!I")
        text = self._data[self._at : self._at + length].decode()
        self._at += length
        return text
