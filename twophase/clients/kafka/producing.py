"""What a producer asks of the brokers: to begin a transaction, to take batches, and to note an offset in it.

All by the connection that the control client has. Whatever is asked may be asked again: a batch has a number in its partition, by
which the broker knows one that it has already; everything else says what is to be so, and not what is to change.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twophase.clients.kafka.connection import NO_LEADER
from twophase.clients.kafka.control import ControlClient, End, Ending
from twophase.clients.kafka.partition import Partition
from twophase.clients.kafka.record_batches import Batch, BatchForm
from twophase.clients.kafka.refusals import GROUP, TOPIC, TRANSACTIONAL_ID, explained
from twophase.extras import require

_ALL_REPLICAS = -1
_WITHOUT_PARTITIONS = 11
"""The newest version of Produce that does not add the partition to the transaction by itself: that is asked for, and so works with
transaction.version 0 and 2."""
_REPLICATED_WITHIN_MS = 20_000
"""Less than the client waits for an answer: else it would not hear it."""
_SEQUENCES = 1 << 31
_NO_SEQUENCE = -1


class Stopped(Exception):
    """Somebody has let go of the producer while its batches were on their way."""


@dataclass(frozen=True)
class ProducerIdentity:
    """What ends a transaction, with its transactional id."""

    producer_id: int
    producer_epoch: int


NOBODY = ProducerIdentity(-1, -1)
"""Who produces outside of transactions."""


@dataclass(frozen=True)
class Numbered:
    """A batch, with the place of its first record among all that the producer sends to the partition."""

    partition: Partition
    batch: Batch
    sequence: int


class ProducerClient:
    """One producer's questions. Without a transactional id, what it sends is there at once, and twice if it is sent again."""

    def __init__(self, control: ControlClient, form: BatchForm, transactional_id: str | None, *, timeout_ms: int):
        self._control = control
        self._connection = control.connection
        self._form = form
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._requests = require("kafka.protocol.producer", "kafka")
        self._needs = {TRANSACTIONAL_ID: f"Write on the transactional id {transactional_id!r}"}
        self._leaders: dict[str, dict[int, Any]] = {}
        self._added: set[Partition] = set()
        self._sent: dict[Partition, int] = {}
        self._most_bytes: dict[str, int] = {}
        """Topics that take no larger batches."""
        self._stop = threading.Event()
        self.identity = NOBODY

    @property
    def transactional_id(self) -> str:
        return self._id or ""

    def stop(self) -> None:
        """Nothing is sent from here on; what waits to be sent again raises Stopped."""
        self._stop.set()

    # ---- the transaction ----

    def begin(self) -> None:
        """Become the one producer of the transactional id: what any other left open under it is aborted."""
        request = self._requests.InitProducerIdRequest
        given = {"transactional_id": self._id, "transaction_timeout_ms": self._timeout_ms}

        def ask() -> ProducerIdentity:
            answer = self._of_coordinator(self.transactional_id, request(**given, max_version=4))
            return ProducerIdentity(answer.producer_id, answer.producer_epoch)

        self.identity = self._patiently(ask, [self.transactional_id], self._needs)

    def mark(self, group: str, topic: str, partition: int, offset: int, metadata: str) -> None:
        """Note an offset of a group, which becomes its own with the transaction's end."""
        needs = {**self._needs, GROUP: f"Read on the group {group!r}", TOPIC: f"Read on the topic {topic!r}"}
        add = self._requests.AddOffsetsToTxnRequest
        own = {
            "transactional_id": self._id,
            "producer_id": self.identity.producer_id,
            "producer_epoch": self.identity.producer_epoch,
            "group_id": group,
        }
        self._patiently(
            lambda: self._of_coordinator(self.transactional_id, add(**own, max_version=3)),
            [self.transactional_id],
            needs,
        )
        commit = self._requests.TxnOffsetCommitRequest
        of_topic = commit.TxnOffsetCommitRequestTopic
        entry = of_topic.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata
        )
        told = {
            **own,
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [of_topic(name=topic, partitions=[entry])],
        }

        def note() -> None:
            answer = self._asked(group, commit(**told, min_version=3, max_version=3), "GROUP")
            for each in answer.topics:
                for noted in each.partitions:
                    self._connection.raise_for(noted.error_code)

        self._patiently(note, [group], needs, kind="GROUP")

    def abort(self, version: int) -> None:
        """End the transaction here, without its rows. One that was never begun at the broker is not there to be ended."""
        ending = Ending(self.transactional_id, self.identity.producer_id, self.identity.producer_epoch, version)
        (end,) = self._control.end([ending], commit=False)
        if end is End.REFUSED and self._added:
            raise explained("PRODUCER_FENCED", "the broker would not abort the transaction")

    # ---- records ----

    def partitions_of(self, topic: str) -> int:
        """How many there are."""
        return len(self._leaders_of(topic))

    def available_of(self, topic: str) -> list[int]:
        """Those that somebody takes records for now; all of them, if there are none."""
        leaders = self._leaders_of(topic)
        return sorted(each for each, leader in leaders.items() if leader != NO_LEADER) or sorted(leaders)

    def most_bytes(self, topic: str) -> int:
        """How large batches for this topic may be."""
        return min(self._form.most_bytes, self._most_bytes.get(topic, self._form.most_bytes))

    def number(self, partition: Partition, batch: Batch) -> Numbered:
        """The next batch for a partition. In the order in which they are numbered, they have to be sent."""
        if self.identity is NOBODY:
            return Numbered(partition, batch, _NO_SEQUENCE)
        sequence = self._sent.get(partition, 0)
        self._sent[partition] = (sequence + batch.count) % _SEQUENCES
        return Numbered(partition, batch, sequence)

    def send(self, batches: Sequence[Numbered]) -> None:
        """Until the brokers have them all; of each partition one."""
        self._add([each.partition for each in batches])
        left = {each.partition: each for each in batches}
        needs = {TOPIC: f"Write on the topic {batches[0].partition.topic!r}", **self._needs}
        self._patiently(lambda: self._send(left), (), needs)

    def _add(self, partitions: Iterable[Partition]) -> None:
        """To the transaction, those that are not in it."""
        new = [each for each in partitions if each not in self._added]
        if not new or self.identity is NOBODY:
            return
        request = self._requests.AddPartitionsToTxnRequest
        of_topic = request.AddPartitionsToTxnTopic
        topics: dict[str, list[int]] = {}
        for each in new:
            topics.setdefault(each.topic, []).append(each.number)
        told = {
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": self.identity.producer_id,
            "v3_and_below_producer_epoch": self.identity.producer_epoch,
            "v3_and_below_topics": [of_topic(name=name, partitions=numbers) for name, numbers in topics.items()],
        }

        def ask() -> None:
            answer = self._asked(self.transactional_id, request(**told, max_version=3), "TRANSACTION")
            results = [
                result.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            ]
            # One that is refused makes the others "not attempted", which says nothing.
            not_attempted = self._connection.errors.OperationNotAttemptedError.errno
            for code in sorted(results, key=lambda each: each == not_attempted):
                self._connection.raise_for(code)

        needs = {TOPIC: f"Write on the topic {new[0].topic!r}", **self._needs}
        self._patiently(ask, [self.transactional_id], needs)
        self._added.update(new)

    def _send(self, left: dict[Partition, Numbered]) -> None:
        """Once; what was taken is not left any more."""
        by_leader: dict[Any, list[Numbered]] = {}
        for each in left.values():
            leader = self._leaders_of(each.partition.topic).get(each.partition.number, NO_LEADER)
            if leader == NO_LEADER:
                self._leaders.pop(each.partition.topic, None)
                raise self._connection.errors.LeaderNotAvailableError(str(each.partition))
            by_leader.setdefault(leader, []).append(each)
        # Here, and not in the connection's thread: batches are compressed by it.
        requests = {leader: self._request(batches) for leader, batches in by_leader.items()}
        trouble: Exception | None = None
        for answer in self._connection.run(self._answers, requests):
            if isinstance(answer, Exception):
                trouble = answer
                continue
            for topic in answer.responses:
                for each in topic.partition_responses:
                    trouble = self._taken(left, Partition(topic.name, each.index), each.error_code) or trouble
        if left and trouble is None:
            trouble = self._connection.errors.RequestTimedOutError(f"no answer about {min(left)}")
        if trouble is not None:
            # Wherever it came from, what was known of leaders may be why.
            for partition in left:
                self._leaders.pop(partition.topic, None)
            if isinstance(trouble, self._connection.errors.UnknownBrokerIdError):
                self._connection.look_around()
            raise trouble

    async def _answers(self, requests: Mapping[Any, Any]) -> list[Any]:
        """Of each broker its answer, or what went wrong with it: some of that is raised at once, before anything is sent."""
        asked: list[Any] = []
        for leader, request in requests.items():
            try:
                asked.append(self._connection.send(request, leader))
            except self._connection.errors.KafkaError as error:
                asked.append(error)
        answers: list[Any] = []
        for answer in asked:
            try:
                answers.append(answer if isinstance(answer, Exception) else await answer)
            except self._connection.errors.KafkaError as error:
                answers.append(error)
        return answers

    def _taken(self, left: dict[Partition, Numbered], partition: Partition, code: int) -> Exception | None:
        """What came of one batch; nothing if the broker has it."""
        errors = self._connection.errors
        error = errors.for_code(code)
        if error in (errors.NoError, errors.DuplicateSequenceNumberError):
            left.pop(partition, None)
            return None
        if error in (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError):
            return self._halved(left, partition)
        trouble: Exception = error(f"{partition}")
        return trouble

    def _halved(self, left: dict[Partition, Numbered], partition: Partition) -> Exception | None:
        """Nothing of the batch was taken: send it in pieces, one after the other, each before anything else for the partition."""
        whole = left[partition]
        self._most_bytes[partition.topic] = max(len(whole.batch.records) // 2, 1)
        if whole.batch.count == 1:
            size = len(whole.batch.records)
            return explained("MSG_SIZE_TOO_LARGE", f"topic {partition.topic!r}, a record of {size:,} bytes")
        sequence = whole.sequence
        for piece in whole.batch.halves():
            self._send_alone(Numbered(partition, piece, sequence))
            if sequence != _NO_SEQUENCE:
                sequence = (sequence + piece.count) % _SEQUENCES
        del left[partition]
        return None

    def _send_alone(self, piece: Numbered) -> None:
        left = {piece.partition: piece}
        self._patiently(lambda: self._send(left), (), self._needs)

    def _request(self, batches: Sequence[Numbered]) -> Any:
        request = self._requests.ProduceRequest
        of_topic = request.TopicProduceData
        topics: dict[str, list[Any]] = {}
        for each in batches:
            sealed = each.batch.sealed(
                self._form, self.identity.producer_id, self.identity.producer_epoch, each.sequence
            )
            topics.setdefault(each.partition.topic, []).append(
                of_topic.PartitionProduceData(index=each.partition.number, records=sealed)
            )
        return request(
            transactional_id=self._id,
            acks=_ALL_REPLICAS,
            timeout_ms=_REPLICATED_WITHIN_MS,
            topic_data=[of_topic(name=name, partition_data=each) for name, each in topics.items()],
            max_version=_WITHOUT_PARTITIONS,
        )

    # ---- asking ----

    def _leaders_of(self, topic: str) -> dict[int, Any]:
        known = self._leaders.get(topic)
        if known is None:
            needs = {TOPIC: f"Write on the topic {topic!r}"}
            known = self._patiently(lambda: self._connection.run(self._connection.leaders, topic), (), needs)
            self._leaders[topic] = known
        return known

    def _of_coordinator(self, key: str, request: Any) -> Any:
        answer = self._asked(key, request, "TRANSACTION")
        self._connection.raise_for(answer.error_code)
        return answer

    def _asked(self, key: str, request: Any, kind: str) -> Any:
        async def ask() -> Any:
            nodes = await self._connection.coordinators([key], kind)
            return await self._connection.send(request, nodes[key])

        return self._connection.run(ask)

    def _patiently(self, call: Any, keys: Sequence[str], needs: Mapping[str, str], kind: str = "TRANSACTION") -> Any:
        def unless_stopped() -> Any:
            if self._stop.is_set():
                raise Stopped
            return call()

        return self._connection.patiently(unless_stopped, keys, kind=kind, needs=needs)
