"""The options of the PostgreSQL source."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from twophase.clients.postgres.dsn import Dsn
from twophase.clients.postgres.table_name import BadName, TableName
from twophase.options import option
from twophase.secret import Secret

EARLIEST, LATEST = "earliest", "latest"
_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class PostgresSourceOptions:
    """The options of `twophase-postgres`, for reading."""

    dsn: Secret = option(
        doc="The database, as libpq takes it: `postgresql://user@host:5432/database`, or `host=… dbname=…`. With a password in it, "
        "give `env:NAME` or `file:PATH`."
    )
    versions_of: str = option(
        doc="The table to follow, as SQL names it: one that a query of twophase writes with `mode` mvcc."
    )
    starting_epoch: str = option(
        doc="Where a new query begins: `earliest`, `latest` (what is committed from then on), or the first epoch to read. A query "
        "that goes on takes what its checkpoint says.",
        default=EARLIEST,
    )
    as_of_epoch: int | None = option(
        doc="For a batch: read the table as it was after this epoch; by default as it is now.", default=None, minimum=0
    )
    max_epochs_per_trigger: int | None = option(
        doc="How many epochs of the table an epoch takes.", default=None, minimum=1
    )
    max_rows_per_trigger: int | None = option(
        doc="How many rows an epoch takes; at least one epoch of the table.", default=None, minimum=1
    )
    include_epoch: bool = option(doc="Add the table's epoch to each row, as the column `epoch`.", default=False)
    split_bytes: int = option(doc="About how many bytes of the table one task reads.", default=64 * _MIB, minimum=1)
    parallelism: int = option(
        doc="Make at least so many tasks, if the rows lie in as many pages. Through Spark the default is the number of the "
        "driver's cores.",
        default=1,
        minimum=1,
        maximum=100_000,
    )
    lock_timeout_ms: int = option(
        doc="How long to wait for a lock that somebody else holds.", default=30_000, minimum=100, maximum=2_147_483_647
    )
    request_timeout_ms: int = option(
        doc="How long to try again while the server is gone, or starts.", default=60_000, minimum=0
    )

    def problems(self) -> Iterator[str]:
        try:
            TableName.parse(self.versions_of)
        except BadName as reason:
            yield f"versionsOf {reason}"
        if self.starting_epoch not in (EARLIEST, LATEST) and not re.fullmatch("[0-9]{1,18}", self.starting_epoch):
            yield f"startingEpoch is {self.starting_epoch!r}, neither {EARLIEST} nor {LATEST} nor a number"
        if problem := Dsn(self.dsn).problem():
            yield problem
