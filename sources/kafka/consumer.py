"""A consumer of ranges: from an offset to an offset of one partition, no group, nothing committed.

Instances are kept and used again, since a new one has to find the brokers first. A range ends with the record before its end, or
where the library says that the partition has nothing more: the last offsets of a range may be those of ends of transactions, of
aborted records, or of records that compaction has removed, and no message ever tells of these.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from twophase.clients.kafka import librdkafka
from twophase.clients.kafka.instance import Troubles, name_of, new_instance
from twophase.clients.kafka.librdkafka import library
from twophase.clients.kafka.refusals import TOPIC, explained
from twophase.errors import DataLost, TargetUnavailable
from twophase.log import Log
from twophase.sources.kafka.columns import Messages, destroy
from twophase.sources.kafka.split import KafkaSplit

_AT_ONCE = 20_000
_WAITED_MS = 20
_BYTES_AT_ONCE = 64 * 1024 * 1024
_END_OF_PARTITION = -191
_GONE = frozenset({"OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET"})
_NOWHERE = frozenset({"UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"})
_DEFAULTS: Mapping[str, str] = {
    # What is fetched beyond the end of a range was fetched in vain.
    "queued.min.messages": "50000",
    # How long the library does not fetch when it has so many: a second by default, in which a task empties the queue and waits.
    "fetch.queue.backoff.ms": "5",
    "queued.max.messages.kbytes": "131072",
    "fetch.message.max.bytes": "4194304",
    # The end of a partition is told when a fetch has waited in vain.
    "fetch.wait.max.ms": "20",
    "check.crcs": "true",
    "isolation.level": "read_committed",
}
_ALWAYS: Mapping[str, str] = {
    "enable.partition.eof": "true",
    "auto.offset.reset": "error",
    "enable.auto.commit": "false",
    "group.id": "",
}

log = Log("twophase.sources.kafka")


class Consumer:
    """Reads one range at a time."""

    def __init__(self, settings: Mapping[str, str], *, patience_s: float):
        self._patience_s = patience_s
        told = {**_DEFAULTS, **settings, **_ALWAYS}
        del told["group.id"], told["partitioner"]
        self._troubles = Troubles()
        self._consumer = new_instance(librdkafka.CONSUMER, told, self._troubles)
        self._topics: dict[str, Any] = {}

    def read(self, split: KafkaSplit, *, fail_on_data_loss: bool) -> Iterator[Messages]:
        """The messages of a range, in their order. They are destroyed when the next ones are asked for."""
        topic, number = self._topic(split.partition.topic), split.partition.number
        # A queue of its own: what an earlier range has left on its way can't come here.
        queue = library().queue_new(self._consumer)
        try:
            yield from self._ranges(split, topic, number, queue, fail_on_data_loss)
        finally:
            library().consume_stop(topic, number)
            library().queue_destroy(queue)

    def _ranges(
        self, split: KafkaSplit, topic: Any, number: int, queue: Any, fail_on_data_loss: bool
    ) -> Iterator[Messages]:
        begin: int | None = split.begin
        while begin is not None:
            if library().consume_start_queue(topic, number, begin, queue) != 0:
                raise explained(name_of(library().last_error()), str(split.partition))
            try:
                yield from self._range(split, begin, queue)
                return
            except DataLost:
                if fail_on_data_loss:
                    raise
            library().consume_stop(topic, number)
            begin = self._next_there(split, begin)

    def _range(self, split: KafkaSplit, begin: int, queue: Any) -> Iterator[Messages]:
        pointers = np.zeros(_AT_ONCE, np.uint64)
        position, progress = begin, time.monotonic()
        while position < split.end:
            most = min(_AT_ONCE, split.end - position)
            got = library().consume_batch_queue(queue, _WAITED_MS, pointers.ctypes.data, most)
            if got <= 0:
                library().poll(self._consumer, 0)  # its troubles do not come by the queue
                self._require_patience(split, position, progress)
                continue
            taken = pointers[:got].copy()
            try:
                messages = Messages(taken)
                position, records = _judged(split, position, messages)
                yield from _in_parts(records)
            finally:
                destroy(taken)
            progress = time.monotonic()

    def _require_patience(self, split: KafkaSplit, position: int, progress: float) -> None:
        if time.monotonic() - progress < self._patience_s:
            return
        trouble = self._troubles.recent()
        if trouble is not None and trouble.is_certain:
            raise trouble.explained()
        low, high = self._bounds(split)
        if high < split.end:
            raise DataLost(_lost(split, max(position, high), split.end))
        raise TargetUnavailable(
            f"no record of {split.partition} from offset {position} on came within {self._patience_s:.0f} s; the broker has "
            f"{low} to {high}"
        )

    def _next_there(self, split: KafkaSplit, begin: int) -> int | None:
        """Where to go on after a loss; None if nothing of the range is there any more."""
        low, _ = self._bounds(split)
        gone = min(low, split.end)
        log.warning(
            "offsets are gone", topic=split.partition.topic, partition=split.partition.number, begin=begin, end=gone
        )
        return low if begin < low < split.end else None

    def _bounds(self, split: KafkaSplit) -> tuple[int, int]:
        low, high = ctypes.c_int64(), ctypes.c_int64()
        code = library().query_watermark_offsets(
            self._consumer,
            split.partition.topic.encode(),
            split.partition.number,
            ctypes.byref(low),
            ctypes.byref(high),
            int(self._patience_s * 1000),
        )
        if code:
            library().poll(self._consumer, 0)
            raise self._troubles.explained(name_of(code), f"the bounds of {split.partition}", needs=_reading(split))
        return low.value, high.value

    def _topic(self, name: str) -> Any:
        if name not in self._topics:
            made = library().topic_new(self._consumer, name.encode(), None)
            if not made:
                raise explained(name_of(library().last_error()), f"topic {name!r}")
            self._topics[name] = made
        return self._topics[name]

    def close(self) -> None:
        if self._consumer is None:
            return
        consumer, self._consumer = self._consumer, None
        for topic in self._topics.values():
            library().topic_destroy(topic)
        library().destroy(consumer)


def _judged(split: KafkaSplit, position: int, messages: Messages) -> tuple[int, Messages]:
    """Where the range stands after these, and those of them that are records of it."""
    errors, offsets, begun = messages.errors(), messages.offsets(), position
    for code, offset in zip(errors[errors != 0].tolist(), offsets[errors != 0].tolist(), strict=True):
        if code == _END_OF_PARTITION:
            # It is said of an offset that the log does not reach yet, too, where a leader has just changed.
            position = max(position, min(offset, split.end))
            continue
        name = name_of(code)
        if name in _GONE:
            raise DataLost(_lost(split, position, split.end))
        if name in _NOWHERE:
            raise DataLost(f"{split.partition} is gone, with the offsets {position} to {split.end - 1}")
        raise explained(name, str(split.partition), needs=_reading(split))
    records = messages.where(errors == 0)
    there = offsets[errors == 0]
    # Each offset is taken once, going up: whatever the library gives again.
    reached = np.maximum.accumulate(np.concatenate(([begun], there + 1)))
    return max(position, int(reached[-1])), records.where((there >= reached[:-1]) & (there < split.end))


def _lost(split: KafkaSplit, begin: int, end: int) -> str:
    return (
        f"{split.partition}: of the offsets {begin} to {end - 1} some are gone. Retention or somebody has deleted them before they "
        "were read, or the topic was made anew. Set failOnDataLoss to false to go on without them"
    )


def _in_parts(records: Messages) -> Iterator[Messages]:
    """As they are, unless they are too large for one batch."""
    if not len(records):
        return
    ends = np.cumsum(records.sizes())
    if int(ends[-1]) <= _BYTES_AT_ONCE:
        yield records
        return
    part = ends // np.uint64(_BYTES_AT_ONCE)
    for number in np.unique(part):
        yield records.where(part == number)


def _reading(split: KafkaSplit) -> dict[str, str]:
    return {TOPIC: f"Read on the topic {split.partition.topic!r}"}


# ---- those that wait for their next range ----

_idle: dict[tuple[int, str], list[Consumer]] = {}
_lock = threading.Lock()


@contextmanager
def borrowed(settings: Mapping[str, str], *, patience_s: float) -> Iterator[Consumer]:
    """A consumer for one range; after an error it is not used again."""
    key = (os.getpid(), repr((sorted(settings.items()), patience_s)))
    with _lock:
        waiting = _idle.setdefault(key, [])
        consumer = waiting.pop() if waiting else None
    consumer = consumer or Consumer(settings, patience_s=patience_s)
    try:
        yield consumer
    except BaseException:
        consumer.close()
        raise
    with _lock:
        if not waiting:
            waiting.append(consumer)
            return
    consumer.close()


def close_idle() -> None:
    """End those that this process keeps."""
    with _lock:
        kept = [consumer for (pid, _), all_of in _idle.items() if pid == os.getpid() for consumer in all_of]
        _idle.clear()
    for consumer in kept:
        consumer.close()
