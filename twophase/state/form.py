"""The form of a state: its columns, which of them are the key, how many key groups it has and how rows are merged.

All of it is fixed when the state is made, but for the columns of one that has no rows yet: those come with the first.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from twophase.errors import OptionError, SchemaMismatch
from twophase.state.row_encoding import is_storable
from twophase.state.xx_hash import is_hashable

MergeMode = Literal["replace", "sum", "max", "delete-flag"]
DELETE_COLUMN = "deleted"


@dataclass(frozen=True)
class StateForm:
    key_columns: tuple[str, ...]
    key_groups: int
    merge_mode: MergeMode
    delete_column: str = DELETE_COLUMN
    """Of the merge mode delete-flag: the column that says whether a row takes its key away. It is not stored."""
    schema: pa.Schema | None = None
    """Of what is stored, key columns first; None if it is not known yet."""

    @property
    def key_types(self) -> list[pa.DataType]:
        return [self.known_schema.field(name).type for name in self.key_columns]

    @property
    def value_columns(self) -> tuple[str, ...]:
        return tuple(self.known_schema.names[len(self.key_columns) :])

    @property
    def value_types(self) -> list[pa.DataType]:
        return [self.known_schema.field(name).type for name in self.value_columns]

    @property
    def known_schema(self) -> pa.Schema:
        if self.schema is None:
            raise SchemaMismatch("the columns of the state are not known yet: it has no rows")
        return self.schema

    def fitting(self, known: StateForm | None, rows: pa.Schema | None) -> StateForm:
        """This form with the columns of these rows, if they may go into a state of the form `known`."""
        if known is not None:
            self._require_same_settings(known)
        if rows is None:
            return self if known is None else known
        found = replace(self, schema=self._stored(rows))
        if known is None or known.schema is None:
            return found
        _require_same_columns(known.schema, found.known_schema)
        return known

    def _require_same_settings(self, known: StateForm) -> None:
        names = {"key_columns": "keyColumns", "key_groups": "keyGroups", "merge_mode": "mergeMode"}
        if self.merge_mode == "delete-flag":
            names["delete_column"] = "deleteColumn"
        problems = [
            f"{option} is {_shown(getattr(self, name))}, and the state was made with {_shown(getattr(known, name))}, for good"
            for name, option in names.items()
            if getattr(self, name) != getattr(known, name)
        ]
        if problems:
            raise OptionError("; ".join(problems), problems=problems)

    def _stored(self, rows: pa.Schema) -> pa.Schema:
        problems = list(self._problems(rows))
        if problems:
            raise SchemaMismatch("; ".join(problems))
        others = [field.name for field in rows if field.name not in (*self.key_columns, self._flag)]
        return pa.schema([pa.field(name, rows.field(name).type) for name in (*self.key_columns, *others)])

    @property
    def _flag(self) -> str | None:
        return self.delete_column if self.merge_mode == "delete-flag" else None

    def _problems(self, rows: pa.Schema) -> Iterator[str]:
        if len(set(rows.names)) < len(rows.names):
            yield "two columns have the same name"
            return
        for name in self.key_columns:
            if name not in rows.names:
                yield f"there is no column {name!r}, which is in keyColumns"
            elif not is_hashable(rows.field(name).type):
                yield f"the key column {name!r} is {rows.field(name).type}, which can't be a key: texts, integers, dates can"
        flag = self._flag
        if flag is not None and (flag not in rows.names or not pa.types.is_boolean(rows.field(flag).type)):
            yield f"there is no column {flag!r} of booleans, by which deleteColumn says what to delete"
        for field in rows:
            if field.name not in (*self.key_columns, flag):
                yield from self._problems_of_value(field)

    def _problems_of_value(self, field: Any) -> Iterator[str]:
        kind = field.type
        if not is_storable(kind):
            yield f"the column {field.name!r} is {kind}, which a state can't hold"
        elif self.merge_mode == "sum" and not _is_number(kind):
            yield f"the column {field.name!r} is {kind}, which has no sum"
        elif self.merge_mode == "max" and not (_is_number(kind) or _has_order(kind)):
            yield f"the column {field.name!r} is {kind}, which has no maximum"

    def to_json(self) -> dict[str, Any]:
        schema = None if self.schema is None else base64.b64encode(self.schema.serialize()).decode()
        return {
            "key_columns": list(self.key_columns),
            "key_groups": self.key_groups,
            "merge_mode": self.merge_mode,
            "delete_column": self.delete_column,
            "schema": schema,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StateForm:
        text = data["schema"]
        schema = None if text is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
        return cls(
            tuple(map(str, data["key_columns"])),
            int(data["key_groups"]),
            data["merge_mode"],
            str(data["delete_column"]),
            schema,
        )


def _require_same_columns(known: pa.Schema, rows: pa.Schema) -> None:
    one, other = ({field.name: field.type for field in schema} for schema in (known, rows))
    if one != other:
        raise SchemaMismatch(
            f"the state has the columns {_columns(known)}, and the rows have {_columns(rows)}: the columns of a state never change"
        )


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)


def _has_order(kind: pa.DataType) -> bool:
    return (
        pa.types.is_temporal(kind) or pa.types.is_boolean(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind)
    )


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _shown(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
