"""KafkaSource: records of topics, replayable: the same offsets give the same records, in the same order.

::

    offset      {"topic": {"partition": the next offset to be read}}, as Spark's own source has it
    latest      the last stable offset of each partition: everything before it is decided for ever
    plan        a split for each partition, or several (minPartitions); offsets that are gone are an error with their names
    read        librdkafka, from the first offset of the split to the last

The guarantee: the same (start, end) gives the same records of each partition in the same order, in any process, however it is
split, for as long as the broker keeps them; if it does not, the read fails and names topic, partition and range. Records of
transactions that were aborted are never there, and those of open ones are not there yet (`read_committed`).

New partitions are found while the query runs, and are read from their beginning.

What it can't do: tell that compaction has removed records, or that a topic was deleted and made anew and has as many records again
by the time that it is looked at.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from twophase.clients.kafka import settings
from twophase.clients.kafka.connection import Pauses
from twophase.clients.kafka.connections import control_of
from twophase.clients.kafka.control import ControlClient
from twophase.clients.kafka.partition import EARLIEST, LATEST, Partition
from twophase.errors import DataLost, OptionError, TargetUnavailable
from twophase.log import Log
from twophase.options import PassThrough, parse
from twophase.secret import Secret
from twophase.source import NO_LIMIT, ReadLimit, Source
from twophase.sources.kafka import offsets
from twophase.sources.kafka.columns import HEADERS, Messages
from twophase.sources.kafka.consumer import borrowed
from twophase.sources.kafka.offsets import Offsets
from twophase.sources.kafka.options import COMMITTED, KafkaSourceOptions
from twophase.sources.kafka.split import KafkaSplit, admitted, cut

IGNORED = (
    "checkpointLocation",
    "queryName",
    "path",
    "groupIdPrefix",
    # How Spark's own source waits and tries again; here that is requestTimeoutMs.
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("timestampType", pa.int32()),
]

log = Log("twophase.sources.kafka")


class KafkaSource(Source[KafkaSplit]):
    """Topics of a cluster.

    Parameters
    ----------
    bootstrap_servers:
        Where the cluster is.
    subscribe:
        The topics, with commas between them; `options` may have `subscribe_pattern` or `assign` instead.
    kafka:
        Further settings of the clients, by the names that Java's have, without `kafka.`.
    options:
        The other fields of `KafkaSourceOptions`.
    """

    start_moves = True

    def __init__(
        self,
        bootstrap_servers: str,
        subscribe: str | None = None,
        *,
        kafka: Mapping[str, str | Secret] | None = None,
        **options: Any,
    ):
        told = PassThrough({**(kafka or {}), "bootstrap.servers": bootstrap_servers})
        self._options = KafkaSourceOptions(kafka=told, subscribe=subscribe, **options)
        problems = list(self._options.problems())
        if problems:
            raise OptionError("; ".join(problems), problems=problems)

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> KafkaSource:
        source = cls.__new__(cls)
        source._options = parse(KafkaSourceOptions, given, ignore=IGNORED)
        return source

    def schema(self) -> pa.Schema:
        headers: list[tuple[str, pa.DataType]] = [("headers", HEADERS)] if self._options.include_headers else []
        return pa.schema([*_COLUMNS, *headers])

    # ---- offsets ----

    def earliest(self) -> str:
        """Where `startingOffsets` says, now: for a stream at the latest, unless it says something else."""
        return self._begin("latest")

    def newest(self) -> str:
        return offsets.to_text(self._ends(self._partitions()))

    def latest(self, start: str, limit: ReadLimit = NO_LIMIT, *, until: str | None = None) -> str:
        begun = offsets.from_text(start)
        partitions = self._partitions()
        self._require_there(begun, partitions)
        # If losses are taken, it may be a partition whose loss was told, and that no offset has any more.
        if self._options.fail_on_data_loss:
            self._require_assigned([*partitions, *begun])
        ends = dict(self._ends(partitions))
        # The last stable offset may be behind a beginning that the log does reach: an open transaction holds it back.
        begun |= self._reached({each: begun[each] for each, end in ends.items() if begun.get(each, 0) > end})
        if until is not None:
            bound = offsets.from_text(until)
            ends = {each: min(end, bound.get(each, 0)) for each, end in ends.items()}
        waiting = {each: max(0, end - begun.get(each, 0)) for each, end in ends.items()}
        limits = [most for most in (self._options.max_offsets_per_trigger, limit.rows) if most is not None]
        taken = admitted(waiting, min(limits) if limits else None)
        return offsets.to_text(
            {each: begun.get(each, 0) + taken.get(each, 0) for each in ends if each in begun or taken.get(each)}
        )

    def bounded(self) -> tuple[str, str]:
        """Where a batch begins and ends, by the options, now."""
        begin = self._begin("earliest")
        partitions = self._partitions()
        ends = self._ends(partitions)
        if self._options.ending_timestamp is not None:
            ends = self._at_time(partitions, self._options.ending_timestamp)
        elif self._options.end not in (None, "latest"):
            ends = self._resolved(str(self._options.end), "endingOffsets", partitions)
        begun = offsets.from_text(begin)
        return begin, offsets.to_text({each: max(end, begun.get(each, 0)) for each, end in ends.items()})

    def _begin(self, unless_said: str) -> str:
        partitions = self._partitions()
        self._require_assigned(partitions)
        said = self._options.start or unless_said
        if self._options.starting_timestamp is not None:
            found = self._at_time(partitions, self._options.starting_timestamp)
        elif said == "earliest":
            found = self._control().offsets(partitions, EARLIEST)
        elif said == "latest":
            found = self._ends(partitions)
        else:
            found = self._reached(self._resolved(said, "startingOffsets", partitions))
        return offsets.to_text(found)

    def _resolved(self, said: str, option: str, partitions: Collection[Partition]) -> Offsets:
        given = offsets.from_text(said)
        missing, strange = sorted(set(partitions) - given.keys()), sorted(given.keys() - set(partitions))
        if missing or strange:
            problems = [f"{option} has no offset of {each}" for each in missing]
            problems += [f"{option} has an offset of {each}, which is not there or not read" for each in strange]
            raise OptionError("; ".join(problems), problems=problems)
        earliest = self._control().offsets([each for each in given if given[each] == EARLIEST], EARLIEST)
        ends = self._ends([each for each in given if given[each] == LATEST])
        return {**given, **earliest, **ends}

    def _at_time(self, partitions: Collection[Partition], milliseconds: int) -> Offsets:
        found = self._control().offsets(partitions, milliseconds)
        none = [each for each in partitions if found[each] < 0]
        return {**found, **self._ends(none)}

    def _reached(self, begins: Offsets) -> Offsets:
        """The beginnings. A partition that ends before its own has lost data, and goes on at its end: if the log was cut there, and
        not made anew, what is before the end was read already."""
        last = self._high_watermarks(begins)
        lost = sorted(each for each in begins if begins[each] > last[each])
        if not lost:
            return begins
        first = self._control().offsets(lost, EARLIEST)
        self._report_loss(
            [
                f"{each}: the offsets from {begins[each]} on are to be read, and the broker has "
                + _what_is_there(first[each], last[each])
                for each in lost
            ]
        )
        return {**begins, **{each: min(end, last[each]) for each, end in self._ends(lost).items()}}

    def _high_watermarks(self, expected: Offsets) -> Offsets:
        """Where the partitions end, open transactions and all. One that ends before what is expected is asked again for as long as
        patience lasts: a leader that is new, or not the leader any more, may be behind what another has said."""
        deadline, pauses = time.monotonic() + self._patience_s, Pauses()
        while True:
            last = self._control().offsets(expected, LATEST)
            if all(last[each] >= expected[each] for each in expected) or time.monotonic() > deadline:
                return last
            pauses.take()

    def _ends(self, partitions: Collection[Partition]) -> Offsets:
        return self._control().offsets(partitions, LATEST, committed=self._options.isolation == COMMITTED)

    def _partitions(self) -> list[Partition]:
        options = self._options
        if options.assign is not None:
            wanted = offsets.partitions_from_text(options.assign)
            there = self._of_topics({each.topic for each in wanted})
            return [each for each in wanted if each in there]
        if options.subscribe is not None:
            return self._of_topics({name.strip() for name in options.subscribe.split(",")})
        pattern = re.compile(options.subscribe_pattern or "")
        return sorted(
            Partition(topic, number)
            for topic, count in self._control().topics().items()
            for number in range(count)
            if pattern.fullmatch(topic)
        )

    def _of_topics(self, names: Collection[str]) -> list[Partition]:
        found = self._control().topics(names)
        missing = sorted(set(names) - found.keys())
        if missing:
            raise TargetUnavailable(
                f"there is no topic {', '.join(map(repr, missing))}: it was not created yet, or was deleted"
            )
        return sorted(Partition(topic, number) for topic, count in found.items() for number in range(count))

    def _require_assigned(self, known: Collection[Partition]) -> None:
        wanted = offsets.partitions_from_text(self._options.assign or "{}")
        problems = [f"assign has {each}, which is not there" for each in wanted if each not in known]
        if problems:
            raise OptionError("; ".join(problems), problems=problems)

    def _require_there(self, begun: Offsets, partitions: Collection[Partition]) -> None:
        gone = sorted(begun.keys() - set(partitions))
        if gone:
            self._require_rights(gone)
            self._report_loss([f"{each} is gone, from offset {begun[each]} on" for each in gone])

    def _require_rights(self, gone: Collection[Partition]) -> None:
        """Topics that the user may no longer see match no pattern, as if they were deleted. By their names they are refused."""
        self._control().topics({each.topic for each in gone})

    # ---- ranges ----

    def plan(self, start: str, end: str) -> Sequence[KafkaSplit]:
        begun, ends = offsets.from_text(start), offsets.from_text(end)
        # An end before the beginning was logged when failOnDataLoss was false, and the loss was told then: no rows.
        wanted = [
            KafkaSplit(each, begun.get(each, 0), ends[each]) for each in sorted(ends) if begun.get(each, 0) < ends[each]
        ]
        there = set(self._partitions()) if wanted else set()
        lost = [split for split in wanted if split.partition not in there]
        if lost:
            self._require_rights([split.partition for split in lost])
        gone = [f"{split.partition} is gone, with {_range(split)}" for split in lost]
        wanted = [split for split in wanted if split.partition in there]
        names = [split.partition for split in wanted]
        first = self._control().offsets(names, EARLIEST)
        last = self._high_watermarks({split.partition: split.end for split in wanted})
        kept = []
        for split in wanted:
            begin = max(split.begin, first[split.partition])
            until = min(split.end, last[split.partition])
            if (begin, until) != (split.begin, split.end):
                there_is = _what_is_there(first[split.partition], last[split.partition])
                gone.append(f"{split.partition}: {_range(split)} are to be read, and the broker has {there_is}")
            if begin < until:
                kept.append(KafkaSplit(split.partition, begin, until))
        if gone:
            self._report_loss(gone)
        return cut(kept, self._options.min_partitions)

    def read(self, split: KafkaSplit) -> Iterator[pa.RecordBatch]:
        told = settings.for_librdkafka(self._options.kafka.reveal())
        with borrowed(told, patience_s=self._patience_s) as consumer:
            for messages in consumer.read(split, fail_on_data_loss=self._options.fail_on_data_loss):
                yield self._batch(split, messages)

    def acknowledge(self, end: str) -> None:
        """Nothing: what the broker keeps is its own business."""

    # ---- inside ----

    def _batch(self, split: KafkaSplit, messages: Messages) -> pa.RecordBatch:
        count = len(messages)
        times, kinds = messages.times()
        columns = [
            messages.keys(),
            messages.values(),
            pa.repeat(pa.scalar(split.partition.topic), count),
            pa.repeat(pa.scalar(split.partition.number, pa.int32()), count),
            pa.array(messages.offsets()),
            pa.array(times * np.int64(1000)).view(pa.timestamp("us", "UTC")),
            pa.array(kinds),
        ]
        if self._options.include_headers:
            columns.append(messages.headers())
        return pa.RecordBatch.from_arrays(columns, schema=self.schema())

    def _report_loss(self, gone: Sequence[str]) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(
                "; ".join(gone)
                + ". Retention or somebody has deleted it before it was read, or the topic was made anew. Set failOnDataLoss "
                "to false to go on without it"
            )
        for what in gone:
            log.warning("data is gone, and failOnDataLoss is false", what=what)

    def _control(self) -> ControlClient:
        return control_of(self._options.kafka, patience_s=self._patience_s)

    @property
    def _patience_s(self) -> float:
        return self._options.request_timeout_ms / 1000


def _what_is_there(first: int, end: int) -> str:
    return f"only {first} to {end - 1}" if first < end else "none"


def _range(split: KafkaSplit) -> str:
    return f"the offsets {split.begin} to {split.end - 1}"
