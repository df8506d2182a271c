"""Names of tables, as people write them and as SQL must have them.

`orders` and `sales.orders` are read as SQL reads them: letters outside of quotes are made small, anything else needs quotes, as
in `"Sales"."orders of 2026"`. A name without a schema is in `public`: the search path of whoever connects must not decide where
rows go.

The guarantee: whatever a name holds, in SQL it is one quoted identifier. A name that PostgreSQL would cut is refused: two long
names would otherwise be one table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CONTROL_SCHEMA = "twophase"
"""Where a database keeps what it knows of the queries that write to it."""
LONGEST_BYTES = 63
_PART = re.compile(r'"(?P<quoted>(?:[^"]|"")*)"|(?P<plain>[^\W\d][\w$]*)')
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


class BadName(ValueError):
    """What is wrong with a name, as the end of a sentence that begins with it."""


@dataclass(frozen=True)
class TableName:
    schema: str
    name: str

    @classmethod
    def parse(cls, text: str) -> TableName:
        parts, at = list[str](), 0
        while True:
            found = _PART.match(text, at)
            if found is None:
                raise BadName("is not a table's name: write anything but letters, digits and _ in double quotes")
            quoted = found["quoted"]
            parts.append(found["plain"].lower() if quoted is None else quoted.replace('""', '"'))
            at = found.end()
            if at == len(text):
                break
            if text[at] != ".":
                raise BadName("is not a table's name: write anything but letters, digits and _ in double quotes")
            at += 1
        for part in parts:
            require_name(part)
        if len(parts) > 2:
            raise BadName("has too many parts: a schema and a name are what there can be; the database is said by dsn")
        return cls(*parts) if len(parts) == 2 else cls("public", *parts)

    def __str__(self) -> str:
        """As `parse` reads it, with quotes only where they are needed."""
        return f"{_shown(self.schema)}.{_shown(self.name)}"

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def sql_beside_parameters(self) -> str:
        """The same in a statement that has parameters, where psycopg takes a percent sign for the beginning of one."""
        return self.sql.replace("%", "%%")


def require_name(name: str) -> None:
    """Raise BadName if PostgreSQL can't have something of this name, or would cut it."""
    if not name:
        raise BadName("has an empty part")
    if "\0" in name:
        raise BadName("has a zero byte")
    if len(name.encode("utf-8", "surrogatepass")) > LONGEST_BYTES:
        raise BadName(f"is longer than the {LONGEST_BYTES} bytes that PostgreSQL keeps of a name")


def quoted(name: str) -> str:
    """An identifier for SQL."""
    return '"' + name.replace('"', '""') + '"'


def _shown(part: str) -> str:
    return part if _PLAIN.fullmatch(part) else quoted(part)
