"""What all modes are told of the table that they write to."""

from __future__ import annotations

from dataclasses import dataclass

from twophase.sinks.postgres.upsert import Upsert


@dataclass(frozen=True)
class TableOptions:
    upsert: Upsert | None
    """None where rows are added."""
    create_table: bool
    adds_columns: bool
    """Whether the table gets the columns of the rows that it lacks."""
    retain_epochs: int | None
    """How many epochs before the newest an upserted table of versions can be read at; None: all."""
