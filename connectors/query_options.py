"""The options that belong to the query rather than to its target, and the query that they describe.

Every format and `exactly_once` take them: where the checkpoint is, where the ledger is, who owns the target.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, fields

from twophase.checkpoint import Checkpoint
from twophase.errors import CheckpointMismatch, OptionError
from twophase.ledger import Ledger
from twophase.options import PassThrough, key_of, option
from twophase.query import AnySink, Query
from twophase.storage import Storage
from twophase.storage_of import storage_of

HDFS = "hdfs."
SINK = "sink"
"""The name of a query's only sink, where none was given: the same for a format and for `exactly_once`, so that a query may
change from one to the other."""
_TEMPORARY = re.compile(r"temporary-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""How Spark names the checkpoint that it makes, and deletes, for a query without a checkpoint location."""


@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    checkpoint_location: str | None = option(
        doc="Where Spark keeps the query's progress. Must be set as an option of the query, and not by configuration only.",
        default=None,
    )
    owner: str | None = option(
        doc="The name under which the query owns what it writes. By default the query's id, which lies in the checkpoint: with "
        "a name of its own, a query whose checkpoint was deleted is recognised, and refused.",
        default=None,
    )
    ledger: str | None = option(
        doc="The folder of the ledger. By default `twophase` in the checkpoint location.",
        default=None,
    )
    take_over: str | None = option(
        doc="The owner that this query replaces, as the error names it. For a target that takes one owner at a time. Remove it "
        "when it is done: if that owner takes the target back, it acts again.",
        default=None,
    )
    moved_from: str | None = option(
        doc="The ledger's former place, as the error names it, if the checkpoint was moved on purpose.",
        default=None,
    )
    hdfs: PassThrough = option(doc="For a checkpoint or a ledger on HDFS: [how it is spoken to](#hdfs).", prefix=HDFS)


KEYS = frozenset(key_of(each.name).lower() for each in fields(QueryOptions))


def is_of_query(key: str) -> bool:
    return key.lower() in KEYS or is_of_storage(key)


def is_of_storage(key: str) -> bool:
    """Whether it says how HDFS is spoken to: by the query, about its checkpoint and ledger, and by a sink that lies there."""
    return key.lower().startswith(HDFS)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_id() -> str:
    return uuid.uuid4().hex


def checkpoint_of(location: str | None, hdfs: PassThrough | None = None) -> Checkpoint:
    """The checkpoint at this location, as far as it can be reached from this process."""
    if location is None:
        raise _refused(
            "checkpointLocation is missing. Set it as an option of the query: a location that is set by the configuration "
            "spark.sql.streaming.checkpointLocation only is not told to sinks"
        )
    if "://" not in location and not location.startswith(("/", "file:")):
        location = os.path.abspath(location)  # as Spark does; it runs this process in the driver's folder
    storage = _checkpoint_storage(location, hdfs)
    root = storage.normalise(location)
    if _TEMPORARY.fullmatch(root.rpartition("/")[2]):
        raise _refused(
            "checkpointLocation is missing: Spark has made a temporary checkpoint, which it deletes when the query stops. Set "
            "the option to a folder that stays"
        )
    checkpoint = Checkpoint(storage, root)
    try:
        checkpoint.query_id()
    except CheckpointMismatch as error:
        raise _refused(
            f"checkpointLocation {location!r} can't be reached as it is given ({error.message}). If Spark's default file "
            "system is not this machine's, write the location as a full URI, such as file:///data/checkpoint"
        ) from None
    return checkpoint


def _checkpoint_storage(location: str, hdfs: PassThrough | None) -> Storage:
    try:
        return storage_of(location, option="checkpointLocation", hdfs=hdfs)
    except OptionError as error:
        raise _refused(
            f"{'; '.join(error.problems)}. The option ledger puts the ledger elsewhere, and does not help here: Spark's logs are "
            "read from the checkpoint itself"
        ) from None


def query_of(options: QueryOptions, sinks: Mapping[str, AnySink], take_over: Mapping[str, str] | None = None) -> Query:
    """The query as the protocol sees it: its checkpoint, its ledger and its sinks."""
    checkpoint = checkpoint_of(options.checkpoint_location, options.hdfs)
    place = options.ledger or f"{checkpoint.root}/twophase"
    storage = storage_of(place, option="ledger", hdfs=options.hdfs)
    only = {} if options.take_over is None else {SINK: options.take_over}
    return Query(
        name=options.owner or checkpoint.query_id(),
        checkpoint=checkpoint,
        ledger=Ledger(storage, storage.normalise(place), new_id=new_id, now_ms=now_ms),
        sinks=sinks,
        now_ms=now_ms,
        take_over=only if take_over is None else take_over,
        moved_from=options.moved_from,
    )


def _refused(problem: str) -> OptionError:
    return OptionError(problem, problems=[problem])
