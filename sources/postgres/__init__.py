"""What a PostgreSQL database has, replayable: a table of versions, epoch by epoch; or published changes, from the server's log."""

from twophase.sources.postgres.change_log import PostgresLog
from twophase.sources.postgres.versions import PostgresVersions

__all__ = ["PostgresLog", "PostgresVersions"]
