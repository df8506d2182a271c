"""A producer with one transaction, which another process ends.

::

    Producer(settings) ─► begin ─► produce … ─► mark ─► identify ─► drop      the transaction stays open at the broker
                                     └───────────────► abort                  it is ended here

A transaction belongs to a producer id and an epoch that the broker gives to each instance, and whoever knows both and the
transactional id can end it. One instance has one transaction: with the older protocol (transaction.version 0) a commit that is
repeated could otherwise commit the next one.

Rows come as Arrow columns, and go to librdkafka by their addresses; it copies them before `produce` returns.
"""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from twophase.clients.kafka import librdkafka
from twophase.clients.kafka.instance import Troubles, name_of, new_instance
from twophase.clients.kafka.librdkafka import library
from twophase.clients.kafka.producing import ProducerIdentity
from twophase.clients.kafka.refusals import GROUP, TOPIC, TRANSACTIONAL_ID
from twophase.clients.kafka.rows import NO_TIME, Rows, addresses
from twophase.errors import TargetUnavailable, TwophaseError

_POLL_MS = 5
_SERVED_MS = 10
_STATISTICS_MS = 20
_ALWAYS: Mapping[str, str] = {
    "statistics.interval.ms": str(_STATISTICS_MS),
    "delivery.report.only.error": "true",
    # Idempotence comes with the transactional id. Without one it is not worth the wait for a producer id, up to a second.
    "acks": "all",
}


class Producer:
    """One instance, one transaction."""

    def __init__(self, settings: Mapping[str, str], *, patience_s: float):
        self._patience_s = patience_s
        self._topics: dict[str, Any] = {}
        self._reports = _Reports()
        # As long as the producer: the library calls them. They know the reports and not the producer, which would otherwise be let
        # go of by the garbage collector only, and go on sending until then.
        self._on_statistics = librdkafka.STATISTICS_CALLBACK(self._reports.statistics)
        self._on_delivery = librdkafka.DELIVERY_CALLBACK(self._reports.delivery)
        self._troubles = Troubles()
        self._needs = {TRANSACTIONAL_ID: f"Write on the transactional id {settings.get('transactional.id')!r}"}
        self._producer = new_instance(librdkafka.PRODUCER, {**settings, **_ALWAYS}, self._troubles, self._configure)
        self._stop = threading.Event()
        self._server = threading.Thread(target=_serve, args=(self._producer, self._stop), daemon=True)
        self._server.start()

    def _configure(self, conf: Any) -> None:
        library().conf_set_stats_cb(conf, self._on_statistics)
        library().conf_set_dr_msg_cb(conf, self._on_delivery)

    # ---- the transaction ----

    def look_up(self, topic: str | None) -> None:
        """Find the brokers, before anything else is asked of them: without one that it knows, the library waits for some hundred
        milliseconds before it looks again."""
        self._ask_for_brokers(None)
        # Twice: the first answer comes over the connection to the bootstrap server, which the library then closes, and for a moment
        # it has none (seen with 2.16: half of all transactions waited for 500 ms). The second comes from a broker.
        self._ask_for_brokers(topic)

    def _ask_for_brokers(self, topic: str | None) -> None:
        found = ctypes.c_void_p()
        handle = None if topic is None else self._topic(topic)
        code = library().metadata(self._producer, 0, handle, ctypes.byref(found), self._ms())
        if found.value:
            library().metadata_destroy(found)
        if code:
            raise self._explained(name_of(code), "the brokers' addresses could not be had")

    def begin(self, topic: str | None) -> None:
        self.look_up(topic)
        self._check(library().init_transactions(self._producer, self._ms()))
        self._check(library().begin_transaction(self._producer))

    def produce(self, topic: str, rows: Rows) -> None:
        """Hand rows over. They are not durable before `flush` or `mark`."""
        if rows.headers is not None or rows.times is not None:
            self._produce_one_by_one(topic, rows)
            return
        messages = messages_of(rows)
        flags = librdkafka.F_COPY | librdkafka.F_BLOCK
        partition = librdkafka.PARTITION_ANY
        if rows.partitions is not None:
            flags |= librdkafka.F_PARTITION
        taken = library().produce_batch(self._topic(topic), partition, flags, messages.ctypes.data, len(messages))
        if taken != len(messages):
            first = int(np.flatnonzero(messages["err"])[0])
            size = int(messages["len"][first] + messages["key_len"][first])
            raise self._explained(
                name_of(int(messages["err"][first])), f"topic {topic!r}, a record of {size:,} bytes", _writing(topic)
            )
        self._raise_failure()

    def _produce_one_by_one(self, topic: str, rows: Rows) -> None:
        """Only so can records have headers, or a time of their own."""
        handle, messages = self._topic(topic), messages_of(rows)
        count = len(messages)
        partitions = [librdkafka.PARTITION_ANY] * count if rows.partitions is None else rows.partitions.tolist()
        times = [librdkafka.NOW] * count if rows.times is None else _times(rows.times)
        headers = [None] * count if rows.headers is None else rows.headers.to_pylist()
        for message, partition, milliseconds, pairs in zip(messages, partitions, times, headers, strict=True):
            kept = [(pair["key"].encode(), pair["value"]) for pair in pairs or ()]
            parts = librdkafka.message_parts(handle, partition, message, milliseconds, kept)
            self._check(library().produceva(self._producer, parts, len(parts)), _writing(topic))
        self._raise_failure()

    def flush(self) -> None:
        """Make everything durable."""
        code = library().flush(self._producer, self._ms())
        self._raise_failure()
        if code:
            raise self._explained(name_of(code), "records could not be delivered")

    def mark(self, group: str, topic: str, partition: int, offset: int, metadata: str) -> None:
        """Make everything durable, and add the marker: an offset that is committed with the transaction."""
        self.flush()
        offsets = library().topic_partition_list_new(1)
        entry = library().topic_partition_list_add(offsets, topic.encode(), partition).contents
        data = metadata.encode()
        entry.offset, entry.metadata_size = offset, len(data)
        entry.metadata = library().mem_malloc(self._producer, len(data))
        ctypes.memmove(entry.metadata, data, len(data))
        members = library().consumer_group_metadata_new(group.encode())
        try:
            needs = {GROUP: f"Read on the group {group!r}", TOPIC: f"Read on the topic {topic!r}"}
            self._check(library().send_offsets_to_transaction(self._producer, offsets, members, self._ms()), needs)
        finally:
            library().topic_partition_list_destroy(offsets)
            library().consumer_group_metadata_destroy(members)

    def identify(self) -> ProducerIdentity:
        """Who the broker takes this instance for. Only its statistics say so, and they come some milliseconds later."""
        deadline = time.monotonic() + self._patience_s
        while True:
            said = json.loads(self._reports.text).get("eos", {})
            if said.get("txn_state") == "InTransaction" and said.get("producer_id", -1) >= 0:
                return ProducerIdentity(said["producer_id"], said["producer_epoch"])
            if time.monotonic() > deadline:
                raise TargetUnavailable(f"the producer is not in its transaction after {self._patience_s:.0f} s")
            self._raise_failure()
            time.sleep(_POLL_MS / 1000)

    def abort(self) -> None:
        """End the transaction here, without its rows."""
        error = library().abort_transaction(self._producer, self._ms())
        # Where no partition could be added, for want of a right, the broker has begun no transaction that it could end.
        if error and library().error_name(error) == b"INVALID_TXN_STATE":
            library().error_destroy(error)
            return
        self._check(error)

    def _raise_failure(self) -> None:
        """What went wrong in the background."""
        if self._reports.failed is not None:
            name, topic = self._reports.failed
            if name == "_PURGE_QUEUE":
                self._check(self._why_ended(), _writing(topic))
            raise self._explained(name, f"topic {topic!r}: a record was not taken", _writing(topic))

    def _why_ended(self) -> Any:
        """What the transaction has failed of; nothing if it has not. A transaction that has failed refuses to be begun, with its
        reason; one that is open refuses too, and says that it is."""
        error = library().begin_transaction(self._producer)
        if error and library().error_name(error) == b"_STATE":
            library().error_destroy(error)
            return None
        return error

    def drop(self) -> None:
        """Let go of the instance, and leave its transaction as it is."""
        if self._producer is None:
            return
        producer, self._producer = self._producer, None
        self._stop.set()
        self._server.join()
        for topic in self._topics.values():
            library().topic_destroy(topic)
        library().destroy(producer)

    def __del__(self) -> None:
        # A task that was neither voted for nor aborted leaves it: its threads would live as long as the process.
        if getattr(self, "_producer", None) is not None:
            self.drop()

    # ---- inside ----

    def _topic(self, name: str) -> Any:
        if name not in self._topics:
            made = library().topic_new(self._producer, name.encode(), None)
            if not made:
                raise self._explained(name_of(library().last_error()), f"topic {name!r}")
            self._topics[name] = made
        return self._topics[name]

    def _check(self, error: Any, needs: Mapping[str, str] | None = None) -> None:
        if not error:
            return
        name = library().error_name(error).decode()
        said = library().error_string(error).decode(errors="replace")
        library().error_destroy(error)
        raise self._explained(name, said, needs)

    def _explained(self, name: str, said: str, needs: Mapping[str, str] | None = None) -> TwophaseError:
        return self._troubles.explained(name, said, needs={**self._needs, **(needs or {})})

    def _ms(self) -> int:
        return int(self._patience_s * 1000)


class _Reports:
    """What the library has reported so far."""

    def __init__(self) -> None:
        self.failed: tuple[str, str] | None = None
        """The first record's that was not taken: why, and its topic."""
        self.text = b"{}"

    def statistics(self, _producer: Any, text: int, size: int, _opaque: Any) -> int:
        self.text = ctypes.string_at(text, size)
        return 0

    def delivery(self, _producer: Any, message: Any, _opaque: Any) -> None:
        if self.failed is None and message.contents.err:
            topic: bytes = library().topic_name(message.contents.topic)
            self.failed = name_of(message.contents.err), topic.decode()


def messages_of(rows: Rows) -> npt.NDArray[Any]:
    """As the library takes them."""
    messages = np.zeros(len(rows.values), librdkafka.MESSAGE)
    messages["payload"], messages["len"] = addresses(rows.values)
    if rows.keys is not None:
        messages["key"], messages["key_len"] = addresses(rows.keys)
    if rows.partitions is not None:
        messages["partition"] = rows.partitions
    return messages


def _times(times: npt.NDArray[np.int64]) -> list[int]:
    """The library takes 0 for now: so a record can't have the first millisecond of 1970 by it."""
    return np.where(times == NO_TIME, librdkafka.NOW, times).tolist()  # type: ignore[no-any-return]


def _serve(producer: Any, stop: threading.Event) -> None:
    """Take what the library reports. In a thread of its own: what waits to be reported takes up places in the queue, so a task
    that hands rows over to a full one would wait for ever; and statistics would pile up while a task waits for its input.

    It knows the producer's address and not the object, which can so be let go of.
    """
    while not stop.is_set():
        library().poll(producer, _SERVED_MS)


def _writing(topic: str) -> dict[str, str]:
    return {TOPIC: f"Write on the topic {topic!r}"}
