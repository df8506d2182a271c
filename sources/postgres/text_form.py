"""How values are written as text: the same in every session, whatever a server, a database, a role or a client sets."""

from __future__ import annotations

from twophase.clients.postgres.database import Connection

_PINNED = {
    "DateStyle": "ISO, YMD",
    "TimeZone": "UTC",
    "IntervalStyle": "iso_8601",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "search_path": "pg_catalog",  # names of types and tables are written with their schemas
}


def pin(connection: Connection, **more: str) -> None:
    """For the transaction that is open: these, and other settings by name."""
    settings = {**_PINNED, **more}
    pinned = ", ".join("set_config(%s, %s, true)" for _ in settings)
    connection.execute(f"SELECT {pinned}".encode(), [text for setting in settings.items() for text in setting])
