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
IGNORED = ("checkpointLocation", "queryName", "path")
_MIB = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class PostgresSourceOptions:
    """The options of `twophase-postgres`, for reading."""

    dsn: Secret = option(
        doc="The database, as libpq takes it: `postgresql://user@host:5432/database`, or `host=… dbname=…`. With a password in it, "
        "give `env:NAME` or `file:PATH`."
    )
    versions_of: str | None = option(
        doc="The table to follow, as SQL names it: one that a query of twophase writes with `mode` mvcc. This, or `publication` "
        "and `slot`, is needed.",
        default=None,
    )
    publication: str | None = option(
        doc="The publication whose tables' changes are read, from the server's log.", default=None
    )
    slot: str | None = option(
        doc="The logical replication slot that keeps them until they are read: of small letters, digits and _. It is made if it is "
        "not there, and is this query's alone.",
        default=None,
    )
    starting_epoch: str = option(
        doc="With `versionsOf`: where a new query begins: `earliest`, `latest` (what is committed from then on), or the first "
        "epoch to read. A query that goes on takes what its checkpoint says.",
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
    delete_column: str | None = option(
        doc="For a stream of an upserted table, which needs it: a boolean column of this name is added, which is true where a key "
        "was deleted.",
        default=None,
    )
    reader: str | None = option(
        doc="With `versionsOf`: the name under which the vacuum of an upserted table waits for this query (the sink's option "
        "`retainEpochs`), which needs one there. It must stay the same for as long as the query lives, and be no other query's.",
        default=None,
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
        if (self.versions_of is None) == (self.publication is None):
            yield "one of versionsOf and publication is needed, and not both"
        if (self.publication is None) != (self.slot is None):
            yield "publication and slot go together"
        for name in ("publication", "reader"):
            if getattr(self, name) == "":
                yield f"{name} is empty"
        if self.slot is not None and not re.fullmatch("[a-z0-9_]{1,63}", self.slot):
            yield f"slot is {self.slot!r}: small letters, digits and _ are what PostgreSQL takes, 63 at the most"
        if self.publication is not None:
            yield from self._for_versions_only()
        if self.versions_of is not None:
            try:
                TableName.parse(self.versions_of)
            except BadName as reason:
                yield f"versionsOf {reason}"
        if self.starting_epoch not in (EARLIEST, LATEST) and not re.fullmatch("[0-9]{1,18}", self.starting_epoch):
            yield f"startingEpoch is {self.starting_epoch!r}, neither {EARLIEST} nor {LATEST} nor a number"
        if problem := Dsn(self.dsn).problem():
            yield problem

    def _for_versions_only(self) -> Iterator[str]:
        given = {
            "startingEpoch": self.starting_epoch != EARLIEST,
            "asOfEpoch": self.as_of_epoch is not None,
            "maxEpochsPerTrigger": self.max_epochs_per_trigger is not None,
            "includeEpoch": self.include_epoch,
            "deleteColumn": self.delete_column is not None,
            "reader": self.reader is not None,
        }
        yield from (f"{key} is for versionsOf" for key, is_given in given.items() if is_given)
