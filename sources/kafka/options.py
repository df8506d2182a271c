"""The options of the Kafka source: those of Spark's own, with the same meaning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from twophase.clients.kafka import settings
from twophase.clients.kafka.partition import EARLIEST
from twophase.options import PassThrough, key_of, option
from twophase.sources.kafka import offsets

COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


@dataclass(frozen=True, kw_only=True)
class KafkaSourceOptions:
    """The options of `twophase-kafka`, for reading."""

    kafka: PassThrough = option(
        doc="Settings of Kafka's clients, as for Spark's own connector: `kafka.bootstrap.servers` is required. "
        "`kafka.isolation.level` is `read_committed` unless it is set.",
        prefix="kafka.",
    )
    subscribe: str | None = option(
        doc="The topics to read, with commas between them. One of these three is needed.", default=None
    )
    subscribe_pattern: str | None = option(doc="A pattern that the names of the topics match, whole.", default=None)
    assign: str | None = option(doc='The partitions to read, as JSON: `{"orders": [0, 1]}`.', default=None)
    starting_offsets: str | None = option(
        doc='Where a new query begins: `earliest`, `latest`, or JSON by partition, `{"orders": {"0": 23, "1": -2}}`, where -2 is '
        "the earliest and -1 the latest. A query that goes on takes what its checkpoint says. By default `latest` for a stream, "
        "`earliest` for a batch.",
        default=None,
    )
    starting_timestamp: int | None = option(
        doc="Begin with the first record of each partition that is not older than this, in milliseconds since 1970; before "
        "`startingOffsets`. A partition that has none begins at its end.",
        default=None,
        minimum=0,
    )
    ending_offsets: str | None = option(
        doc="Where a batch ends: `latest`, or JSON by partition, where -1 is the latest.", default=None
    )
    ending_timestamp: int | None = option(
        doc="End a batch before the first record of each partition that is not older than this; before `endingOffsets`.",
        default=None,
        minimum=0,
    )
    max_offsets_per_trigger: int | None = option(
        doc="How many offsets an epoch takes at most, of all partitions together, by their backlog; but one of each that has any.",
        default=None,
        minimum=1,
    )
    min_partitions: int | None = option(
        doc="How many tasks an epoch should have at least: partitions are cut into several.", default=None, minimum=1
    )
    fail_on_data_loss: bool = option(
        doc="Fail, with topic, partition and range, if offsets are gone that were not read yet. If false they are logged and left "
        "out.",
        default=True,
    )
    include_headers: bool = option(doc="Add the column `headers`. Costs a loop over the records.", default=False)
    request_timeout_ms: int = option(
        doc="How long to try again while brokers are gone or partitions have no leader.", default=60_000, minimum=1_000
    )

    @property
    def isolation(self) -> str:
        return str(self.kafka.get("isolation.level", COMMITTED))

    @property
    def start(self) -> str | None:
        """`starting_offsets`, a word in small letters: Spark takes it in any."""
        return _word(self.starting_offsets)

    @property
    def end(self) -> str | None:
        """`ending_offsets` in the same way."""
        return _word(self.ending_offsets)

    def problems(self) -> Iterator[str]:
        yield from settings.problems_of(self.kafka, settings.CONSUMER)
        given = [name for name in ("subscribe", "subscribe_pattern", "assign") if getattr(self, name) is not None]
        if len(given) != 1:
            yield f"exactly one of subscribe, subscribePattern and assign must be set, not {len(given)}"
        if self.subscribe is not None and not all(name.strip() for name in self.subscribe.split(",")):
            yield "subscribe has an empty name of a topic"
        if self.isolation not in (COMMITTED, UNCOMMITTED):
            yield f"kafka.isolation.level must be {COMMITTED} or {UNCOMMITTED}"
        if self.subscribe_pattern is not None:
            try:
                re.compile(self.subscribe_pattern)
            except re.error as error:
                yield f"subscribePattern is no regular expression of Python's: {error}"
        if self.assign is not None:
            yield from _wrong("assign", self.assign, offsets.partitions_from_text)
        if self.start not in (None, "earliest", "latest"):
            yield from _wrong("starting_offsets", self.start, offsets.from_text)
        if self.end == "earliest":
            yield "endingOffsets can't be earliest: nothing would be read"
        elif self.end not in (None, "latest"):
            yield from self._wrong_end(self.end)

    def _wrong_end(self, given: str) -> Iterator[str]:
        problems = list(_wrong("ending_offsets", given, offsets.from_text))
        yield from problems
        if not problems and EARLIEST in offsets.from_text(given).values():
            yield "endingOffsets has -2, the earliest: nothing would be read"


def _word(given: str | None) -> str | None:
    return given.lower() if given is not None and given.lower() in ("earliest", "latest") else given


def _wrong(name: str, given: str | None, read: object) -> Iterator[str]:
    assert callable(read)
    try:
        read(given)
    except ValueError as error:
        yield f"{key_of(name)} {error}"
