"""A producer with one transaction, which another process ends: by record batches of our own.

::

    DirectProducer ─► begin ─► produce … ─► mark ─► identify ─► drop          the transaction stays open at the broker
                                 └───────────────► abort                      it is ended here

    produce     rows ─► batches by partition ─► the pipe ─► brokers
                        (this thread)           (one chunk under way, one that waits)

The same as `Producer`, which leaves all this to librdkafka; per record it takes a fraction of the processor time. A chunk has one
batch for each partition, and the next is sent when the brokers have taken it: so the batches of a partition arrive in their order,
however often one is sent again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from twophase.clients.kafka.control import ControlClient
from twophase.clients.kafka.partition import Partition
from twophase.clients.kafka.producing import Numbered, ProducerClient, ProducerIdentity, Stopped
from twophase.clients.kafka.record_batches import Batch, BatchForm, Columns, batches_of
from twophase.clients.kafka.refusals import explained
from twophase.clients.kafka.rows import Rows, copied, joined
from twophase.errors import ProtocolViolation

_HELD_BYTES = 1 << 20
"""Rows are kept until there are so many: a batch of ten rows costs a broker as much as one of ten thousand."""
_CHUNK_BYTES = 8 << 20
_CHUNKS_WAITING = 1
_WORTH_A_BATCH_BYTES = 16 << 10


class DirectProducer:
    """One transaction; or none, without a transactional id."""

    def __init__(
        self,
        control: ControlClient,
        form: BatchForm,
        transactional_id: str | None = None,
        *,
        timeout_ms: int = 0,
        end_version: int = 0,
    ):
        self._client = ProducerClient(control, form, transactional_id, timeout_ms=timeout_ms)
        self._largest_record = form.largest_record
        self._end_version = end_version
        self._held: dict[str, list[Rows]] = {}
        self._held_bytes = 0
        self._partitions: dict[str, int] = {}
        self._turn = time.monotonic_ns()
        # It knows the client and not the producer, which can so be let go of.
        self._pipe = _Pipe(self._client.send)

    # ---- the transaction ----

    def begin(self, topic: str | None) -> None:
        self._client.begin()

    def produce(self, topic: str, rows: Rows) -> None:
        """Hand rows over. They are not durable before `flush` or `mark`."""
        self._pipe.raise_trouble()
        held = self._held.get(topic)
        if held and not held[-1].is_like(rows):
            self._send_held(topic)
        if topic not in self._held and rows.nbytes >= _HELD_BYTES:
            self._send(topic, rows)
            return
        self._held.setdefault(topic, []).append(copied(rows))
        self._held_bytes += rows.nbytes
        if self._held_bytes >= _HELD_BYTES:
            self._send_all_held()

    def flush(self) -> None:
        """Make everything durable."""
        self._send_all_held()
        self._pipe.flush()

    def mark(self, group: str, topic: str, partition: int, offset: int, metadata: str) -> None:
        """Make everything durable, and add the marker: an offset that is committed with the transaction."""
        self.flush()
        self._client.mark(group, topic, partition, offset, metadata)

    def identify(self) -> ProducerIdentity:
        """Who the broker takes this one for."""
        return self._client.identity

    def abort(self) -> None:
        """End the transaction here, without its rows."""
        self._held.clear()
        self._pipe.stop(self._client.stop)
        self._client.abort(self._end_version)

    def drop(self) -> None:
        """Let go of everything, and leave the transaction as it is."""
        self._held.clear()
        self._pipe.stop(self._client.stop)

    def __del__(self) -> None:
        # A task that was neither voted for nor aborted leaves it: its thread would live as long as the process. Nothing is waited
        # for: this may be called in the very thread that answers come by.
        if hasattr(self, "_pipe"):
            self._client.stop()
            self._pipe.let_go()

    # ---- rows ----

    def _send_all_held(self) -> None:
        for topic in list(self._held):
            self._send_held(topic)
        self._held_bytes = 0

    def _send_held(self, topic: str) -> None:
        self._send(topic, joined(self._held.pop(topic)))

    def _send(self, topic: str, rows: Rows) -> None:
        try:
            self._send_batches(topic, rows)
        except BaseException as error:
            self._pipe.fail(error)  # these rows are not sent: nobody may vote for the rest
            raise

    def _send_batches(self, topic: str, rows: Rows) -> None:
        columns = Columns.of(rows, time.time_ns() // 1_000_000)
        count = self._partitions_of(topic)
        of_partition = columns.by_partition(count, self._any_of(topic, count, rows.nbytes))
        if of_partition and max(of_partition) >= count:
            raise explained("_UNKNOWN_PARTITION", f"topic {topic!r}, partition {max(of_partition)} of {count}")
        batches = [
            [(Partition(topic, number), each) for each in self._batches_of(topic, columns, numbers)]
            for number, numbers in of_partition.items()
        ]
        for together in zip_longest(*batches):
            for chunk in _cut([each for each in together if each is not None]):
                self._pipe.put([self._client.number(*each) for each in chunk])

    def _batches_of(self, topic: str, columns: Columns, rows: npt.NDArray[np.int64]) -> Iterator[Batch]:
        for each in batches_of(columns, rows, self._client.most_bytes(topic)):
            size = len(each.records)
            # What is larger than a batch has one of its own.
            if self._largest_record is not None and each.count == 1 and size > self._largest_record:
                raise explained("MSG_SIZE_TOO_LARGE", f"topic {topic!r}, a record of {size:,} bytes")
            yield each

    def _any_of(self, topic: str, count: int, size: int) -> list[int]:
        """Where rows go that may go anywhere: to as many partitions as there are batches worth sending, others each time."""
        available = [number for number in self._client.available_of(topic) if number < count] or [*range(count)]
        wanted = min(len(available), max(1, size // _WORTH_A_BATCH_BYTES))
        self._turn += wanted
        return [available[(self._turn + each) % len(available)] for each in range(wanted)]

    def _partitions_of(self, topic: str) -> int:
        """As many as there were at first: a topic that gets more meanwhile does not tear a key's rows of one task apart."""
        if topic not in self._partitions:
            self._partitions[topic] = self._client.partitions_of(topic)
        return self._partitions[topic]


def _cut(batches: Sequence[tuple[Partition, Batch]]) -> list[list[tuple[Partition, Batch]]]:
    """A topic may have a thousand partitions, and a request has to end somewhere."""
    chunks: list[list[tuple[Partition, Batch]]] = []
    room = 0
    for each in batches:
        size = len(each[1].records)
        if size > room:
            chunks.append([])
            room = _CHUNK_BYTES
        chunks[-1].append(each)
        room -= size
    return chunks


class _Pipe:
    """Sends chunk after chunk in a thread of its own, which lives as long as there is anything to send."""

    def __init__(self, send: Callable[[Sequence[Numbered]], None]):
        self._send = send
        self._chunks: queue.Queue[Sequence[Numbered] | None] = queue.Queue(_CHUNKS_WAITING)
        self._trouble: list[BaseException] = []
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def put(self, chunk: Sequence[Numbered]) -> None:
        self.raise_trouble()
        if self._stopped.is_set():
            raise ProtocolViolation("nothing can be written to a transaction that was let go of")
        if self._thread is None:
            arguments = (self._send, self._chunks, self._trouble, self._stopped)
            self._thread = threading.Thread(target=_sending, args=arguments, name="twophase-kafka-pipe", daemon=True)
            self._thread.start()
        self._chunks.put(chunk)

    def flush(self) -> None:
        self.raise_trouble()
        if self._stopped.is_set():
            raise ProtocolViolation("a transaction that was let go of can't be made durable")
        self._chunks.join()
        self.raise_trouble()

    def raise_trouble(self) -> None:
        if self._trouble:
            raise self._trouble[0]

    def fail(self, error: BaseException) -> None:
        if not self._trouble:
            self._trouble.append(error)

    def stop(self, hurry: Callable[[], None]) -> None:
        """End the thread. What waits to be sent is not sent."""
        thread, self._thread = self._thread, None
        hurry()
        self.let_go()
        if thread is not None:
            thread.join()

    def let_go(self) -> None:
        """The same, without waiting for its end."""
        self._stopped.set()
        with suppress(queue.Full):  # then it has something to take, and looks after it
            self._chunks.put_nowait(None)


def _sending(
    send: Callable[[Sequence[Numbered]], None],
    chunks: queue.Queue[Sequence[Numbered] | None],
    trouble: list[BaseException],
    stopped: threading.Event,
) -> None:
    while not stopped.is_set() and (chunk := chunks.get()) is not None:
        try:
            if not trouble and not stopped.is_set():  # else the rest is not wanted any more
                send(chunk)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - it is raised where the rows come from
            trouble.append(error)
        finally:
            chunks.task_done()
