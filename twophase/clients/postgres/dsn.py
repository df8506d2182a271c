"""A connection string, which may hold a password: it is parsed here, and shown nowhere.

The guarantee: no error of this module shows any of it. What libpq says about a string that it can't read quotes pieces of the
string, so that is never passed on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import psycopg
from psycopg.conninfo import conninfo_to_dict

from twophase.errors import OptionError
from twophase.secret import Secret

_SECRET_SETTINGS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_DEFAULTS = {
    "application_name": "twophase",
    "connect_timeout": "10",
    # A server's machine that is gone answers nothing, and says nothing either: without these a client waits for hours.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}


@dataclass(frozen=True)
class Dsn:
    secret: Secret

    def problem(self) -> str:
        """What is wrong with it that can be told without looking a reference up; nothing if it is fine."""
        if self.secret.is_reference:
            return ""
        try:
            self.settings()
        except OptionError as error:
            return error.problems[0]
        return ""

    def settings(self) -> dict[str, str]:
        """What a connection is opened with, secrets included."""
        try:
            told = conninfo_to_dict(self.secret.reveal())
        except psycopg.Error:
            told = None
        if told is None:  # outside of the handler: what libpq said must not be a cause either
            problem = "dsn is no connection string: postgresql://user@host:5432/database is one"
            raise OptionError(problem, problems=[problem])
        return _DEFAULTS | {key: str(value) for key, value in told.items() if value is not None}

    def secrets(self) -> list[str]:
        """The values that may be shown to nobody."""
        told = self.settings()
        return [told[key] for key in _SECRET_SETTINGS if told.get(key)]

    def public(self) -> str | None:
        """What may be written down, and is enough to connect: the reference, or a string without secrets. None if there is no
        such."""
        if self.secret.is_reference:
            return self.secret.reference
        return None if self.secrets() else self.secret.reveal()

    def place(self) -> str:
        """For people: which database it is."""
        if self.secret.is_reference:
            return f"the database of {self.secret.reference}"
        told = self.settings()
        return f"{told.get('host', 'localhost')}:{told.get('port', '5432')}/{told.get('dbname', '')}"

    def digest(self) -> str:
        """Tells connections apart, also after a secret was changed where it is kept."""
        return hashlib.sha256(repr(sorted(self.settings().items())).encode()).hexdigest()

    def redacted(self, text: str) -> str:
        for value in self.secrets():
            text = text.replace(value, "***")
        return text
