"""What a PostgreSQL database has, replayable: epoch by epoch of a table of versions."""

from twophase.sources.postgres.versions import PostgresVersions

__all__ = ["PostgresVersions"]
