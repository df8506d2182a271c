"""The control client: what ends transactions, reads markers and asks brokers about themselves.

All of its questions can be asked again: they say what is to be so, and not what is to change.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twophase.clients.kafka.connection import AT_ONCE, NO_LEADER, Connection, Pauses
from twophase.clients.kafka.partition import Partition
from twophase.clients.kafka.refusals import CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, explained
from twophase.errors import OutcomeUnknown
from twophase.extras import require

NEW_PROTOCOL = 5
"""The version of EndTxn that belongs to transaction.version 2: the producer's epoch grows with every end."""
OLD_PROTOCOL = 3
_FINISHING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


class End(enum.Enum):
    """What the broker says to the end of a transaction."""

    DONE = "done"
    """It is ended in this way, by this request or by an earlier one."""
    REFUSED = "refused"
    """The producer is fenced, unknown, or not in a state to be ended so: the marker tells what became of it."""


@dataclass(frozen=True)
class Listed:
    """A transaction that the broker has open."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    started_ms: int
    timeout_ms: int


@dataclass(frozen=True)
class Ending:
    """What ends a transaction: whoever knows this can."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    version: int
    """Of the request."""


@dataclass(frozen=True)
class OpenThere:
    """A transaction that a partition has not seen the end of."""

    partition: Partition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    first_offset: int


@dataclass(frozen=True)
class Committed:
    """A committed offset with its metadata."""

    offset: int
    metadata: str


class ControlClient:
    """Questions to a cluster, over a connection that whoever produces may use as well."""

    def __init__(self, connection: Connection):
        self.connection = connection
        self._errors = connection.errors
        self._producer = require("kafka.protocol.producer", "kafka")
        self._transaction = require("kafka.protocol.producer.transaction", "kafka")
        self._consumer = require("kafka.protocol.consumer", "kafka")

    def close(self) -> None:
        self.connection.close()

    # ---- transactions ----

    def end(self, endings: Sequence[Ending], *, commit: bool) -> list[End]:
        """Commit or abort transactions in the name of their producers. All at once: a query with a hundred tasks has a hundred."""
        outcomes: dict[Ending, End] = {}

        async def ask(some: Sequence[Ending]) -> list[tuple[Ending, Any]]:
            nodes = await self.connection.coordinators([each.transactional_id for each in some])
            asked = [
                (each, self.connection.send(self._end_request(each, commit=commit), nodes[each.transactional_id]))
                for each in some
            ]
            return [(each, await answer) for each, answer in asked]

        def end_those_left() -> None:
            left = [each for each in endings if each not in outcomes]
            not_yet: list[Any] = []
            for start in range(0, len(left), AT_ONCE):
                for each, answer in self.connection.run(ask, left[start : start + AT_ONCE]):
                    error = self._errors.for_code(answer.error_code)
                    if error is self._errors.NoError:
                        outcomes[each] = End.DONE
                    elif issubclass(error, self._refusing):
                        outcomes[each] = End.REFUSED
                    else:
                        not_yet.append(error())
            if not_yet:
                raise not_yet[0]

        if endings:
            ids = [each.transactional_id for each in endings]
            self.connection.patiently(end_those_left, ids, needs=_transactions(ids))
        return [outcomes[each] for each in endings]

    def _end_request(self, ending: Ending, *, commit: bool) -> Any:
        return self._producer.EndTxnRequest(
            transactional_id=ending.transactional_id,
            producer_id=ending.producer_id,
            producer_epoch=ending.producer_epoch,
            committed=commit,
            min_version=ending.version,
            max_version=ending.version,
        )

    @property
    def _refusing(self) -> tuple[type[Exception], ...]:
        """How brokers say that a transaction is not the producer's to end, or not any more."""
        return (
            self._errors.InvalidProducerEpochError,
            self._errors.ProducerFencedError,
            self._errors.InvalidTxnStateError,
            self._errors.InvalidProducerIdMappingError,
            self._errors.UnknownProducerIdError,
        )

    def describe(self, transactional_ids: Collection[str]) -> dict[str, Listed]:
        """The transactions of these ids; an id that the broker does not know is not among them."""
        return self.connection.patiently(
            lambda: self._describe(transactional_ids), transactional_ids, needs=_transactions(transactional_ids)
        )

    def _describe(self, transactional_ids: Collection[str]) -> dict[str, Listed]:
        found = {}
        for node, keys in self.connection.by_coordinator(transactional_ids).items():
            answer = self.connection.run(
                self.connection.send, self.connection.describe_transactions_request(keys), node
            )
            for each in answer.transaction_states:
                error = self._errors.for_code(each.error_code)
                if error is self._errors.TransactionalIdNotFoundError:
                    continue
                if error is not self._errors.NoError:
                    raise error()
                found[each.transactional_id] = Listed(
                    each.transactional_id,
                    each.producer_id,
                    each.producer_epoch,
                    each.transaction_state,
                    each.transaction_start_time_ms,
                    each.transaction_timeout_ms,
                )
        return found

    def open_transactions(self, prefix: str) -> list[Listed]:
        """Every transaction whose id begins so and that is not ended yet."""
        states = ("Ongoing", *_FINISHING)
        listed = self.connection.patiently(lambda: self.connection.admin.list_transactions(state_filters=states), ())
        ids = [each.transactional_id for of_broker in listed.values() for each in of_broker]
        named = self.describe([each for each in ids if each.startswith(prefix)])
        return [each for each in named.values() if each.state in states]

    def transactions(self, prefix: str) -> list[Listed]:
        """Every transaction whose id begins so and that brokers remember, ended or not."""
        listed = self.connection.patiently(self.connection.admin.list_transactions, ())
        ids = [each.transactional_id for of_broker in listed.values() for each in of_broker]
        return list(self.describe([each for each in ids if each.startswith(prefix)]).values())

    def open_on(self, partitions: Collection[Partition], *, patience_s: float | None = None) -> list[OpenThere]:
        """What is open for these partitions, whatever its coordinator says."""
        if not partitions:
            return []
        kind = require("kafka", "kafka").TopicPartition
        wanted = [kind(each.topic, each.number) for each in partitions]
        answer = self.connection.patiently(
            lambda: self.connection.admin.describe_producers(wanted), (), patience_s=patience_s
        )
        return [
            OpenThere(
                Partition(place.topic, place.partition),
                each.producer_id,
                each.producer_epoch,
                each.coordinator_epoch,
                each.current_transaction_start_offset,
            )
            for place, state in answer.items()
            for each in state.active_producers
            if each.current_transaction_start_offset >= 0
        ]

    def write_end(self, there: OpenThere, *, commit: bool) -> None:
        """Tell one partition the end of a transaction, as its coordinator should have done."""
        marker = self._transaction.WriteTxnMarkersRequest.WritableTxnMarker
        topic = marker.WritableTxnMarkerTopic(name=there.partition.topic, partition_indexes=[there.partition.number])
        told = marker(
            producer_id=there.producer_id,
            producer_epoch=there.producer_epoch,
            transaction_result=commit,
            topics=[topic],
            coordinator_epoch=max(there.coordinator_epoch, 0),
        )
        request = self._transaction.WriteTxnMarkersRequest(markers=[told], max_version=1)

        async def ask() -> Any:
            return await self.connection.send(request, await self.connection.leader(there.partition))

        def judge(answer: Any) -> None:
            for each in answer.markers:
                for written in each.topics:
                    for partition in written.partitions:
                        self.connection.raise_for(partition.error_code)

        self.connection.patiently(lambda: judge(self.connection.run(ask)), ())

    def wait_until_finished(self, transactional_ids: Collection[str]) -> None:
        """Until the broker is not about to finish a transaction of these ids; OutcomeUnknown if that takes too long."""
        deadline, pauses = time.monotonic() + self.connection.patience_s, Pauses()
        while any(each.state in _FINISHING for each in self.describe(transactional_ids).values()):
            if time.monotonic() > deadline:
                raise OutcomeUnknown(
                    f"transactions are not finished by the broker after {self.connection.patience_s:.0f} s: try again"
                )
            pauses.take()

    # ---- markers ----

    def committed(
        self, groups: Collection[str], topic: str, *, stable: bool, patience_s: float | None = None
    ) -> dict[str, dict[int, Committed]]:
        """The committed offsets of groups, by partition of the topic. With `stable`, waits until no transaction is about to change
        one; raises OutcomeUnknown if that takes longer than the patience lasts."""
        needs = {GROUP: f"Read on the group {next(iter(groups))!r}", TOPIC: f"Read on the topic {topic!r}"}
        return self.connection.patiently(
            lambda: self._committed(groups, topic, stable=stable),
            groups,
            kind="GROUP",
            needs=needs,
            patience_s=patience_s,
        )

    def _committed(self, groups: Collection[str], topic: str, *, stable: bool) -> dict[str, dict[int, Committed]]:
        request = self._consumer.OffsetFetchRequest
        of_group = request.OffsetFetchRequestGroup
        found: dict[str, dict[int, Committed]] = {key: {} for key in groups}
        for node, keys in self.connection.by_coordinator(groups, "GROUP").items():
            asked = [of_group(group_id=key, topics=None) for key in keys]
            # Who asks for all topics is not told of those that the user may not see: a marker would look as if it were not there.
            # Who asks for one by its name is refused.
            named = of_group.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
            asked.append(of_group(group_id=keys[0], topics=[named]))
            answer = self.connection.run(
                self.connection.send, request(groups=asked, require_stable=stable, min_version=8, max_version=8), node
            )
            for group in answer.groups:
                found[group.group_id].update(self._offsets_of(group, topic))
        return found

    def _offsets_of(self, group: Any, topic: str) -> dict[int, Committed]:
        self.connection.raise_for(group.error_code)
        offsets = {}
        for partition in (each for of_topic in group.topics if of_topic.name == topic for each in of_topic.partitions):
            self.connection.raise_for(partition.error_code)
            if partition.committed_offset >= 0:
                offsets[partition.partition_index] = Committed(partition.committed_offset, partition.metadata or "")
        return offsets

    # ---- the cluster ----

    def transaction_version(self) -> int:
        """The level of the feature transaction.version; 0 where brokers do not know it."""
        features = self.connection.patiently(self.connection.admin.describe_features, ())
        return int(features.get("transaction.version", {}).get("finalized", (0, 0))[1])

    def broker_settings(self, names: Collection[str]) -> dict[str, str] | None:
        """Settings of one broker, those that it has; None if the user may not read them (DescribeConfigs on the cluster)."""
        node = self.connection.brokers()[0]
        kinds = require("kafka.admin", "kafka")
        resource = kinds.ConfigResource(kinds.ConfigResourceType.BROKER, str(node), configs=dict.fromkeys(names))
        # kafka-python's own call gives no settings for a refusal, and does not say that it was one.
        request = self.connection.describe_configs_request(resource)
        (answer,) = self.connection.patiently(
            lambda: self.connection.run(self.connection.send, request, node), ()
        ).results
        error = self._errors.for_code(answer.error_code)
        if error is self._errors.ClusterAuthorizationFailedError:
            return None
        self.connection.raise_for(answer.error_code)
        return {each.name: each.value for each in answer.configs if each.name in names}

    def topics(self, names: Collection[str] | None = None) -> dict[str, int]:
        """How many partitions each of these topics has; one that is not there is not in it. Or of every topic that people made and
        the user may see."""
        described = self.connection.patiently(
            lambda: self.connection.admin.describe_topics(None if names is None else sorted(names)), ()
        )
        refused = self._errors.TopicAuthorizationFailedError.errno
        hidden = sorted(each["name"] for each in described if each["error_code"] == refused)
        if hidden:
            raise explained(TOPIC, "", needs=_topics(hidden))
        return {
            each["name"]: len(each["partitions"])
            for each in described
            if not each["error_code"] and (names is not None or not each["is_internal"])
        }

    def led(self, topics: Collection[str]) -> list[Partition]:
        """The partitions of these topics that have a leader now: nobody answers for the others."""
        if not topics:
            return []
        described = self.connection.patiently(lambda: self.connection.admin.describe_topics(sorted(topics)), ())
        return [
            Partition(each["name"], partition["partition_index"])
            for each in described
            if not each["error_code"]
            for partition in each["partitions"]
            if partition["leader_id"] != NO_LEADER
        ]

    def replicas_of(self, topics: Collection[str]) -> dict[str, int]:
        """On how many brokers the partitions of these topics are, at the least; of those that are there."""
        described = self.connection.patiently(lambda: self.connection.admin.describe_topics(sorted(topics)), ())
        return {
            each["name"]: min((len(partition["replica_nodes"]) for partition in each["partitions"]), default=0)
            for each in described
            if not each["error_code"]
        }

    def brokers(self) -> int:
        """How many there are now."""
        return len(self.connection.brokers())

    def partitions_of(self, topic: str) -> int | None:
        """How many partitions a topic has; None if there is no such topic."""
        return self.topics([topic]).get(topic)

    def offsets(
        self,
        partitions: Collection[Partition],
        when: int,
        *,
        committed: bool = False,
        patience_s: float | None = None,
    ) -> dict[Partition, int]:
        """The earliest (-2) or the latest (-1) offset of each, or that of the first record that is not older than a time (-1 if
        there is none). With `committed` the latest is the last stable one: before it nothing is in doubt."""
        if not partitions:
            return {}
        kind = require("kafka", "kafka").TopicPartition
        wanted = {kind(each.topic, each.number): when for each in partitions}
        level = "read_committed" if committed else "read_uncommitted"
        names = {each.topic for each in partitions}

        def ask() -> Any:
            try:
                return self.connection.admin.list_partition_offsets(wanted, isolation_level=level)
            except self._errors.UnknownTopicOrPartitionError:
                # So is one called that the user may not see any more. Asked for by its name, it is refused.
                self.topics(names)
                raise

        answer = self.connection.patiently(ask, (), needs=_topics(names), patience_s=patience_s)
        return {each: int(answer[kind(each.topic, each.number)].offset) for each in partitions}

    def create_topic(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        kinds = require("kafka.admin", "kafka")
        wanted = kinds.NewTopic(topic, num_partitions=partitions, replication_factor=-1, topic_configs=dict(settings))
        try:
            self.connection.admin.create_topics([wanted])
        except self._errors.TopicAlreadyExistsError:
            return
        except self._errors.KafkaError as error:
            right = f"Create on the topic {topic!r}, which is not there"
            raise self.connection.refused(error, {TOPIC: right, CLUSTER: right}) from None


def _transactions(ids: Collection[str]) -> dict[str, str]:
    return {TRANSACTIONAL_ID: f"Write on the transactional id {_listed(ids)}"}


def _topics(names: Collection[str]) -> dict[str, str]:
    return {TOPIC: f"Read on the topic {_listed(names)}"}


def _listed(names: Collection[str]) -> str:
    """The first, and how many more."""
    first = repr(min(names, default=""))
    return first if len(names) < 2 else f"{first} (or on one of {len(names) - 1} more)"
