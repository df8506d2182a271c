"""The control client: what ends transactions, reads markers and asks brokers about themselves. Rows go over its connections too,
where they are put into batches here (producing.py).

kafka-python has the requests and their versions, but no public call that ends somebody else's transaction. What is used of its
insides stays in this file, and `integration_tests/test_kafka_sink.py` holds it against the version that is installed.

Every call tries again for as long as its patience lasts: coordinators move, load and are killed. What was asked may have taken
effect even if no answer came, so all of these requests are ones that can be repeated.
"""

from __future__ import annotations

import enum
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from twophase.clients.kafka.instance import Trouble
from twophase.clients.kafka.partition import Partition
from twophase.clients.kafka.refusals import CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID, explained
from twophase.errors import OutcomeUnknown, TargetUnavailable, TwophaseError
from twophase.extras import require

R = TypeVar("R")

NEW_PROTOCOL = 5
"""The version of EndTxn that belongs to transaction.version 2: the producer's epoch grows with every end."""
OLD_PROTOCOL = 3
_FINISHING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_FIRST_CONNECTION_WITHIN_S = 2.0
_AT_ONCE = 4
"""Requests on one connection: kafka-python fails what comes when five are under way."""
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.2


class Pauses:
    """Between two tries: short at first, since most of what is waited for takes milliseconds."""

    def __init__(self) -> None:
        self._next_s = _SHORTEST_PAUSE_S

    def take(self) -> None:
        time.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, _LONGEST_PAUSE_S)


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
    """A connection to a cluster. `patience_s`: how long a call tries again before it gives up. `trouble`: asked for the reason if
    there is no connection, since kafka-python only writes it to its log."""

    def __init__(self, settings: Mapping[str, Any], *, patience_s: float, trouble: Callable[[], Trouble | None]):
        self._patience_s = patience_s
        self._trouble = trouble
        self.errors = require("kafka.errors", "kafka")
        self._protocol = require("kafka.protocol.producer", "kafka")
        self._transaction = require("kafka.protocol.producer.transaction", "kafka")
        self._metadata = require("kafka.protocol.metadata", "kafka")
        self._consumer = require("kafka.protocol.consumer", "kafka")
        self._admin = self._connected(settings)
        self.troubled_at = time.monotonic()
        """When a request last had to be tried again; at first, when it was connected: what was before is not known."""

    def _connected(self, settings: Mapping[str, Any]) -> Any:
        """In growing steps: what no patience helps against is said after the first."""
        deadline, step_s = time.monotonic() + self._patience_s, _FIRST_CONNECTION_WITHIN_S
        while True:
            left_s = deadline - time.monotonic()
            try:
                return self._opened(settings, min(step_s, max(left_s, 0.1)))
            except self.errors.KafkaError as error:
                trouble = self._trouble()
                if trouble is not None and (trouble.is_certain or left_s <= step_s):
                    raise trouble.explained() from None
                if left_s <= step_s:
                    raise explained("_TRANSPORT", str(error)) from None
            step_s *= 2

    def _opened(self, settings: Mapping[str, Any], within_s: float) -> Any:
        kind = require("kafka", "kafka").KafkaAdminClient
        admin = kind.__new__(kind)
        try:
            admin.__init__(bootstrap_timeout_ms=int(within_s * 1000), **settings)
        except BaseException:
            # It has a thread by now, and thinks that it was never opened.
            if hasattr(admin, "_net"):
                admin._closed = False
                admin.close()
            raise
        return admin

    def close(self) -> None:
        self._admin.close()

    # ---- transactions ----

    def end(self, endings: Sequence[Ending], *, commit: bool) -> list[End]:
        """Commit or abort transactions in the name of their producers. All at once: a query with a hundred tasks has a hundred."""
        outcomes: dict[Ending, End] = {}

        async def ask(some: Sequence[Ending]) -> list[tuple[Ending, Any]]:
            nodes = await self.coordinators([each.transactional_id for each in some])
            asked = [
                (each, self.send(self._end_request(each, commit=commit), nodes[each.transactional_id])) for each in some
            ]
            return [(each, await answer) for each, answer in asked]

        def end_those_left() -> None:
            left = [each for each in endings if each not in outcomes]
            not_yet: list[Any] = []
            for start in range(0, len(left), _AT_ONCE):
                for each, answer in self.run(ask, left[start : start + _AT_ONCE]):
                    error = self.errors.for_code(answer.error_code)
                    if error is self.errors.NoError:
                        outcomes[each] = End.DONE
                    elif issubclass(error, self._refusing):
                        outcomes[each] = End.REFUSED
                    else:
                        not_yet.append(error())
            if not_yet:
                raise not_yet[0]

        if endings:
            ids = [each.transactional_id for each in endings]
            self.patiently(end_those_left, ids, needs=_transactions(ids))
        return [outcomes[each] for each in endings]

    def _end_request(self, ending: Ending, *, commit: bool) -> Any:
        return self._protocol.EndTxnRequest(
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
            self.errors.InvalidProducerEpochError,
            self.errors.ProducerFencedError,
            self.errors.InvalidTxnStateError,
            self.errors.InvalidProducerIdMappingError,
            self.errors.UnknownProducerIdError,
        )

    def describe(self, transactional_ids: Collection[str]) -> dict[str, Listed]:
        """The transactions of these ids; an id that the broker does not know is not among them."""
        return self.patiently(
            lambda: self._describe(transactional_ids), transactional_ids, needs=_transactions(transactional_ids)
        )

    def _describe(self, transactional_ids: Collection[str]) -> dict[str, Listed]:
        found = {}
        by_node: dict[Any, list[str]] = defaultdict(list)
        for key, node in self.run(self.coordinators, transactional_ids).items():
            by_node[node].append(key)
        for node, keys in by_node.items():
            answer = self.run(self.send, self._admin._describe_transactions_request(keys), node)
            for each in answer.transaction_states:
                error = self.errors.for_code(each.error_code)
                if error is self.errors.TransactionalIdNotFoundError:
                    continue
                if error is not self.errors.NoError:
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
        listed = self.patiently(lambda: self._admin.list_transactions(state_filters=states), ())
        ids = [each.transactional_id for of_broker in listed.values() for each in of_broker]
        named = self.describe([each for each in ids if each.startswith(prefix)])
        return [each for each in named.values() if each.state in states]

    def transactions(self, prefix: str) -> list[Listed]:
        """Every transaction whose id begins so and that brokers remember, ended or not."""
        listed = self.patiently(self._admin.list_transactions, ())
        ids = [each.transactional_id for of_broker in listed.values() for each in of_broker]
        return list(self.describe([each for each in ids if each.startswith(prefix)]).values())

    def open_on(self, partitions: Collection[Partition]) -> list[OpenThere]:
        """What is open for these partitions, whatever its coordinator says."""
        if not partitions:
            return []
        kind = require("kafka", "kafka").TopicPartition
        wanted = [kind(each.topic, each.number) for each in partitions]
        answer = self.patiently(lambda: self._admin.describe_producers(wanted), ())
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
        place = require("kafka", "kafka").TopicPartition(there.partition.topic, there.partition.number)

        async def ask() -> Any:
            (leader,) = await self._admin._async_get_leader_for_partitions([place])
            return await self._admin._manager.send(request, node_id=leader)

        def judge(answer: Any) -> None:
            for each in answer.markers:
                for written in each.topics:
                    for partition in written.partitions:
                        self.raise_for(partition.error_code)

        self.patiently(lambda: judge(self.run(ask)), ())

    def wait_until_finished(self, transactional_ids: Collection[str]) -> None:
        """Until the broker is not about to finish a transaction of these ids; OutcomeUnknown if that takes too long."""
        deadline, pauses = time.monotonic() + self._patience_s, Pauses()
        while any(each.state in _FINISHING for each in self.describe(transactional_ids).values()):
            if time.monotonic() > deadline:
                raise OutcomeUnknown(
                    f"transactions are not finished by the broker after {self._patience_s:.0f} s: try again"
                )
            pauses.take()

    # ---- markers ----

    def committed(
        self, groups: Collection[str], topic: str, *, stable: bool, patience_s: float | None = None
    ) -> dict[str, dict[int, Committed]]:
        """The committed offsets of groups, by partition of the topic. With `stable`, waits until no transaction is about to change
        one; raises OutcomeUnknown if that takes longer than the patience lasts."""
        needs = {GROUP: f"Read on the group {next(iter(groups))!r}", TOPIC: f"Read on the topic {topic!r}"}
        return self.patiently(
            lambda: self._committed(groups, topic, stable=stable),
            groups,
            kind="GROUP",
            needs=needs,
            patience_s=patience_s,
        )

    def _committed(self, groups: Collection[str], topic: str, *, stable: bool) -> dict[str, dict[int, Committed]]:
        by_node: dict[Any, list[str]] = defaultdict(list)
        for key, node in self.run(self.coordinators, groups, "GROUP").items():
            by_node[node].append(key)
        request = self._consumer.OffsetFetchRequest
        of_group = request.OffsetFetchRequestGroup
        found: dict[str, dict[int, Committed]] = {key: {} for key in groups}
        for node, keys in by_node.items():
            asked = [of_group(group_id=key, topics=None) for key in keys]
            # Who asks for all topics is not told of those that the user may not see: a marker would look as if it were not there.
            # Who asks for one by its name is refused.
            named = of_group.OffsetFetchRequestTopics(name=topic, partition_indexes=[0])
            asked.append(of_group(group_id=keys[0], topics=[named]))
            answer = self.run(
                self.send, request(groups=asked, require_stable=stable, min_version=8, max_version=8), node
            )
            for group in answer.groups:
                found[group.group_id].update(self._offsets_of(group, topic))
        return found

    def _offsets_of(self, group: Any, topic: str) -> dict[int, Committed]:
        self.raise_for(group.error_code)
        offsets = {}
        for partition in (each for of_topic in group.topics if of_topic.name == topic for each in of_topic.partitions):
            self.raise_for(partition.error_code)
            if partition.committed_offset >= 0:
                offsets[partition.partition_index] = Committed(partition.committed_offset, partition.metadata or "")
        return offsets

    # ---- the cluster ----

    def transaction_version(self) -> int:
        """The level of the feature transaction.version; 0 where brokers do not know it."""
        features = self.patiently(self._admin.describe_features, ())
        return int(features.get("transaction.version", {}).get("finalized", (0, 0))[1])

    def broker_settings(self, names: Collection[str]) -> dict[str, str] | None:
        """Settings of one broker, those that it has; None if the user may not read them (DescribeConfigs on the cluster)."""
        node = next(iter(self._admin._manager.cluster.brokers())).node_id
        kinds = require("kafka.admin", "kafka")
        resource = kinds.ConfigResource(kinds.ConfigResourceType.BROKER, str(node), configs=dict.fromkeys(names))
        # kafka-python's own call gives no settings for a refusal, and does not say that it was one.
        request = self._admin._describe_configs_request([resource])
        (answer,) = self.patiently(lambda: self.run(self.send, request, node), ()).results
        error = self.errors.for_code(answer.error_code)
        if error is self.errors.ClusterAuthorizationFailedError:
            return None
        self.raise_for(answer.error_code)
        return {each.name: each.value for each in answer.configs if each.name in names}

    def topics(self, names: Collection[str] | None = None) -> dict[str, int]:
        """How many partitions each of these topics has; one that is not there is not in it. Or of every topic that people made and
        the user may see."""
        described = self.patiently(lambda: self._admin.describe_topics(None if names is None else sorted(names)), ())
        refused = self.errors.TopicAuthorizationFailedError.errno
        hidden = sorted(each["name"] for each in described if each["error_code"] == refused)
        if hidden:
            raise explained(TOPIC, "", needs=_topics(hidden))
        return {
            each["name"]: len(each["partitions"])
            for each in described
            if not each["error_code"] and (names is not None or not each["is_internal"])
        }

    def replicas_of(self, topics: Collection[str]) -> dict[str, int]:
        """On how many brokers the partitions of these topics are, at the least; of those that are there."""
        described = self.patiently(lambda: self._admin.describe_topics(sorted(topics)), ())
        return {
            each["name"]: min((len(partition["replica_nodes"]) for partition in each["partitions"]), default=0)
            for each in described
            if not each["error_code"]
        }

    def brokers(self) -> int:
        """How many there are now."""
        return len(self._admin._manager.cluster.brokers())

    def partitions_of(self, topic: str) -> int | None:
        """How many partitions a topic has; None if there is no such topic."""
        return self.topics([topic]).get(topic)

    def offsets(self, partitions: Collection[Partition], when: int, *, committed: bool = False) -> dict[Partition, int]:
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
                return self._admin.list_partition_offsets(wanted, isolation_level=level)
            except self.errors.UnknownTopicOrPartitionError:
                # So is one called that the user may not see any more. Asked for by its name, it is refused.
                self.topics(names)
                raise

        answer = self.patiently(ask, (), needs=_topics(names))
        return {each: int(answer[kind(each.topic, each.number)].offset) for each in partitions}

    def create_topic(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        kinds = require("kafka.admin", "kafka")
        wanted = kinds.NewTopic(topic, num_partitions=partitions, replication_factor=-1, topic_configs=dict(settings))
        try:
            self._admin.create_topics([wanted])
        except self.errors.TopicAlreadyExistsError:
            return
        except self.errors.KafkaError as error:
            right = f"Create on the topic {topic!r}, which is not there"
            raise self._refused(error, {TOPIC: right, CLUSTER: right}) from None

    # ---- inside ----

    def run(self, question: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        """What a coroutine gives that sends requests."""
        answer: R = self._admin._manager.run(question, *arguments)
        return answer

    def send(self, request: Any, node: Any) -> Awaitable[Any]:
        """The answer of a broker: in a coroutine of `run` only. Of more than `_AT_ONCE` at a time to one broker, some fail."""
        answer: Awaitable[Any] = self._admin._manager.send(request, node_id=node)
        return answer

    async def coordinators(self, keys: Collection[str], kind: str = "TRANSACTION") -> dict[str, Any]:
        """Which broker keeps each of these transactional ids, or groups."""
        found: dict[str, Any] = await self._admin._find_coordinator_ids(
            list(keys), key_type=getattr(self._metadata.CoordinatorType, kind)
        )
        return found

    async def leaders(self, topic: str) -> dict[int, Any]:
        """Which broker takes the records of each partition of a topic; -1 if there is none now. A topic that is not there is
        created by this question, if brokers do that: as for any producer."""
        request = self._metadata.MetadataRequest
        wanted = [request.MetadataRequestTopic(name=topic)]
        answer = await self._admin._manager.send(
            request(topics=wanted, allow_auto_topic_creation=True, min_version=4, max_version=9)
        )
        (found,) = answer.topics
        self.raise_for(found.error_code, f"topic {topic!r}")
        return {each.partition_index: each.leader_id for each in found.partitions}

    def raise_for(self, code: int, about: str = "") -> None:
        error = self.errors.for_code(code)
        if error is not self.errors.NoError:
            raise error(about) if about else error()

    def look_around(self) -> None:
        """Ask for the brokers again: one that is not known may be new, and one that is may be gone."""
        self._admin._manager.cluster.request_update()

    def patiently(
        self,
        call: Callable[[], R],
        keys: Iterable[str],
        *,
        kind: str = "TRANSACTION",
        needs: Mapping[str, str] | None = None,
        patience_s: float | None = None,
    ) -> R:
        """Try until it works, or patience ends. Where a coordinator may have moved, it is looked up again."""
        patience_s = self._patience_s if patience_s is None else patience_s
        deadline, pauses = time.monotonic() + patience_s, Pauses()
        while True:
            try:
                return call()
            except self.errors.KafkaError as error:
                if not self._may_pass(error):
                    raise self._refused(error, needs) from None
                if time.monotonic() > deadline:
                    raise self._gave_up(error, patience_s) from None
            self.troubled_at = time.monotonic()
            self._forget(keys, kind)
            pauses.take()

    def _may_pass(self, error: Any) -> bool:
        lost = (
            self.errors.KafkaConnectionError,
            self.errors.KafkaTimeoutError,
            self.errors.RequestTimedOutError,
            self.errors.NodeNotReadyError,
            self.errors.UnknownBrokerIdError,
            self.errors.Cancelled,
        )
        return isinstance(error, lost) or bool(getattr(error, "retriable", False))

    def _forget(self, keys: Iterable[str], kind: str) -> None:
        cluster = self._admin._manager.cluster
        for key in keys:
            cluster._coordinators.pop((getattr(self._metadata.CoordinatorType, kind), key), None)

    def _gave_up(self, error: Any, patience_s: float) -> TwophaseError:
        about = "".join(f", {each}" for each in error.args if isinstance(each, str))
        what = f"{type(error).__name__} for {patience_s:.0f} s{about}"
        if isinstance(error, self.errors.UnstableOffsetCommitError):
            return OutcomeUnknown(
                f"a transaction that moves a marker is still in doubt at the broker ({what}): try again"
            )
        if isinstance(error, self.errors.UnknownTopicOrPartitionError):
            return explained("_UNKNOWN_TOPIC", what)
        is_answer = isinstance(error, self.errors.BrokerResponseError)
        if is_answer and not isinstance(error, self.errors.RequestTimedOutError):
            return TargetUnavailable(f"the brokers can't do it now, and patience is over ({what})")
        trouble = self._trouble()
        return TargetUnavailable(f"the brokers do not answer ({what})") if trouble is None else trouble.explained()

    def _refused(self, error: Any, needs: Mapping[str, str] | None = None) -> TwophaseError:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).upper()
        return explained(name, str(error) or name, needs=needs)


def _transactions(ids: Collection[str]) -> dict[str, str]:
    return {TRANSACTIONAL_ID: f"Write on the transactional id {_listed(ids)}"}


def _topics(names: Collection[str]) -> dict[str, str]:
    return {TOPIC: f"Read on the topic {_listed(names)}"}


def _listed(names: Collection[str]) -> str:
    """The first, and how many more."""
    first = repr(min(names, default=""))
    return first if len(names) < 2 else f"{first} (or on one of {len(names) - 1} more)"
