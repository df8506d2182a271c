"""One task attempt's share: a transaction that is left open, with its marker inside."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twophase.clients.kafka.control import ControlClient, Ending
from twophase.clients.kafka.record_batches import BatchForm
from twophase.errors import Fenced, ProtocolViolation
from twophase.handle import Handle
from twophase.sink import Plan, Task, Transaction
from twophase.sinks.kafka import records
from twophase.sinks.kafka.direct_producer import DirectProducer
from twophase.sinks.kafka.markers import MarkerPlace, metadata_of
from twophase.sinks.kafka.producer import Producer
from twophase.sinks.kafka.transactional_id import TransactionalId

_MARK = re.compile(r"(?P<id>.*)#(?P<producer>[0-9]+)#(?P<epoch>[0-9]+)", re.DOTALL)


@dataclass(frozen=True)
class KafkaHandle(Handle):
    """What ends the transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    end_version: int
    """Of the request that ends it: a replay must use the same, whatever the cluster was raised to in between."""
    begun_ms: int
    topics: tuple[str, ...]
    """Where its records are."""

    @property
    def ending(self) -> Ending:
        return Ending(self.transactional_id, self.producer_id, self.producer_epoch, self.end_version)


def mark_of(ending: Ending) -> str:
    """What identifies a transaction among leftovers, and with the version of the request is enough to end it."""
    return f"{ending.transactional_id}#{ending.producer_id}#{ending.producer_epoch}"


def parse_mark(mark: str, version: int) -> Ending | None:
    """What ends the transaction by a request of this version; None if it is nobody's mark."""
    found = _MARK.fullmatch(mark)
    return None if found is None else Ending(found["id"], int(found["producer"]), int(found["epoch"]), version)


class KafkaTransaction(Transaction[KafkaHandle]):
    def __init__(
        self,
        settings: Mapping[str, str],
        place: MarkerPlace,
        topic: str | None,
        plan: Plan,
        task: Task,
        *,
        timeout_ms: int,
        patience_s: float,
        abort: Callable[[KafkaHandle], object],
        control: Callable[[], ControlClient],
    ):
        """`abort` ends a transaction whose producer is gone; `control` gives the connection that this process has."""
        self._abort_voted = abort
        self._voted: KafkaHandle | None = None
        self._place = place
        self._topic = topic
        self._plan = plan
        self._task = task
        self._id = str(TransactionalId.of(place.prefix, place.owner, task.slot, task.attempt))
        self._schema: pa.Schema | None = None
        self._topics: set[str] = set()
        place.require_room(task.slot)
        self._begun_ms = time.time_ns() // 1_000_000
        self._producer: Producer | DirectProducer | None = self._new_producer(
            settings, control, timeout_ms=timeout_ms, patience_s=patience_s
        )
        try:
            self._producer.begin(topic)
        except BaseException:
            self._producer.drop()
            raise

    def _new_producer(
        self, settings: Mapping[str, str], control: Callable[[], ControlClient], *, timeout_ms: int, patience_s: float
    ) -> Producer | DirectProducer:
        form = BatchForm.of(settings)
        if form is not None:
            version = int(self._plan.details["endVersion"])
            return DirectProducer(control(), form, self._id, timeout_ms=timeout_ms, end_version=version)
        told = {**settings, "transactional.id": self._id, "transaction.timeout.ms": str(timeout_ms)}
        return Producer(told, patience_s=patience_s)

    def write(self, batch: pa.RecordBatch) -> None:
        if self._producer is None:
            raise ProtocolViolation("nothing can be written after pre_commit")
        if batch.schema is not self._schema:
            records.check(batch.schema, self._topic)
            self._schema = batch.schema
        for topic, rows in records.rows_by_topic(batch, self._topic):
            self._topics.add(topic)
            self._producer.produce(topic, rows)

    def pre_commit(self) -> KafkaHandle:
        if self._producer is None:
            raise ProtocolViolation("this share was voted for already")
        slot, prepared = self._task.slot, self._plan.prepared
        self._producer.mark(
            self._place.group(slot),
            self._place.topic,
            self._place.partition(slot),
            prepared.epoch.number,
            metadata_of(prepared.epoch, slot, self._task.attempt),
        )
        identity = self._producer.identify()
        self._drop()
        details: Mapping[str, Any] = self._plan.details
        self._voted = KafkaHandle(
            transactional_id=self._id,
            producer_id=identity.producer_id,
            producer_epoch=identity.producer_epoch,
            end_version=int(details["endVersion"]),
            begun_ms=self._begun_ms,
            topics=tuple(sorted(self._topics)),
        )
        return self._voted

    def abort(self) -> None:
        if self._voted is not None:
            self._abort_voted(self._voted)
        if self._producer is None:
            return
        try:
            # Fenced: somebody has ended it, or the broker has.
            with suppress(Fenced):
                self._producer.abort()
        finally:
            self._drop()

    def _drop(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.drop()
