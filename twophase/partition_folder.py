"""The folders of partitionBy: `column=value`, spelled as Spark spells them.

A null and an empty text both are `__HIVE_DEFAULT_PARTITION__`, as with Spark, which reads both back as null.
"""

from __future__ import annotations

import re

from twophase.errors import SchemaMismatch

NULL = "__HIVE_DEFAULT_PARTITION__"
# Spark's list (ExternalCatalogUtils), and the zero character, which no path can hold.
_ESCAPED = re.compile("[\\x00-\\x1f\\x7f\"#%'*/:=?\\\\{\\[\\]^]")


def component(column: str, value: str | None) -> str:
    """One level of a path: column=value."""
    if value == NULL:
        raise SchemaMismatch(
            f"the column {column!r} has the text {NULL}, which readers of folders take for null: replace it"
        )
    return f"{_escape(column)}={NULL if not value else _escape(value)}"


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
