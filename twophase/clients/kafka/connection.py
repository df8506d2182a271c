"""The connection to a cluster: what is used of kafka-python's insides, and how long one tries again.

kafka-python has the requests and their versions, but no public call that ends somebody else's transaction, none that sends a batch
which somebody else has made, and none that says whom to ask. What is used of its insides stays in this file, and
`integration_tests/test_kafka_connection.py` holds it against the version that is installed.

Every call tries again for as long as its patience lasts: coordinators move, load and are killed. What was asked may have taken
effect even if no answer came, so all requests are ones that can be repeated.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from twophase.clients.kafka.instance import Trouble
from twophase.clients.kafka.partition import Partition
from twophase.clients.kafka.refusals import explained
from twophase.errors import OutcomeUnknown, TargetUnavailable, TwophaseError
from twophase.extras import require

R = TypeVar("R")

AT_ONCE = 4
"""Requests on one connection: kafka-python fails what comes when five are under way."""
NO_LEADER = -1
_FIRST_CONNECTION_WITHIN_S = 2.0
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.2


class Pauses:
    """Between two tries: short at first, since most of what is waited for takes milliseconds."""

    def __init__(self) -> None:
        self._next_s = _SHORTEST_PAUSE_S

    def take(self) -> None:
        time.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, _LONGEST_PAUSE_S)


class Connection:
    """To a cluster. `patience_s`: how long a call tries again before it gives up. `trouble`: asked for the reason if
    there is no connection, since kafka-python only writes it to its log."""

    def __init__(self, settings: Mapping[str, Any], *, patience_s: float, trouble: Callable[[], Trouble | None]):
        self.patience_s = patience_s
        self._trouble = trouble
        self.errors = require("kafka.errors", "kafka")
        self._metadata = require("kafka.protocol.metadata", "kafka")
        self.admin = self._connected(settings)
        """kafka-python's own client, for the calls that it has for everybody."""
        self.troubled_at = time.monotonic()
        """When a request last had to be tried again; at first, when it was connected: what was before is not known."""

    def _connected(self, settings: Mapping[str, Any]) -> Any:
        """In growing steps: what no patience helps against is said after the first."""
        deadline, step_s = time.monotonic() + self.patience_s, _FIRST_CONNECTION_WITHIN_S
        while True:
            left_s = deadline - time.monotonic()
            try:
                return self._opened(settings, min(step_s, max(left_s, 0.1)))
            except self.errors.KafkaError as error:
                trouble = self._trouble()
                if trouble is not None and trouble.is_certain:
                    raise trouble.explained() from None
                if left_s <= step_s:
                    raise explained("_ALL_BROKERS_DOWN", str(error) if trouble is None else trouble.said) from None
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
        self.admin.close()

    # ---- asking ----

    def run(self, question: Callable[..., Awaitable[R]], *arguments: Any) -> R:
        """What a coroutine gives that sends requests."""
        answer: R = self.admin._manager.run(question, *arguments)
        return answer

    def send(self, request: Any, node: Any) -> Awaitable[Any]:
        """The answer of a broker: in a coroutine of `run` only. Of more than `AT_ONCE` at a time to one broker, some fail."""
        answer: Awaitable[Any] = self.admin._manager.send(request, node_id=node)
        return answer

    async def coordinators(self, keys: Collection[str], kind: str = "TRANSACTION") -> dict[str, Any]:
        """Which broker keeps each of these transactional ids, or groups."""
        found: dict[str, Any] = await self.admin._find_coordinator_ids(
            list(keys), key_type=getattr(self._metadata.CoordinatorType, kind)
        )
        return found

    def by_coordinator(self, keys: Collection[str], kind: str = "TRANSACTION") -> dict[Any, list[str]]:
        """The same the other way round: what each broker keeps."""
        kept: dict[Any, list[str]] = defaultdict(list)
        for key, node in self.run(self.coordinators, keys, kind).items():
            kept[node].append(key)
        return kept

    async def leaders(self, topic: str) -> dict[int, Any]:
        """Which broker takes the records of each partition of a topic; -1 if there is none now. A topic that is not there is
        created by this question, if brokers do that: as for any producer."""
        request = self._metadata.MetadataRequest
        wanted = [request.MetadataRequestTopic(name=topic)]
        answer = await self.admin._manager.send(
            request(topics=wanted, allow_auto_topic_creation=True, min_version=4, max_version=9)
        )
        (found,) = answer.topics
        self.raise_for(found.error_code, f"topic {topic!r}")
        return {each.partition_index: each.leader_id for each in found.partitions}

    async def leader(self, partition: Partition) -> Any:
        """Which broker takes what is written to a partition; nothing is created by this question."""
        place = require("kafka", "kafka").TopicPartition(partition.topic, partition.number)
        (found,) = await self.admin._async_get_leader_for_partitions([place])
        return found

    def brokers(self) -> list[Any]:
        """Those that are known now."""
        return [each.node_id for each in self.admin._manager.cluster.brokers()]

    def describe_transactions_request(self, transactional_ids: Collection[str]) -> Any:
        return self.admin._describe_transactions_request(transactional_ids)

    def describe_configs_request(self, resource: Any) -> Any:
        return self.admin._describe_configs_request([resource])

    def raise_for(self, code: int, about: str = "") -> None:
        error = self.errors.for_code(code)
        if error is not self.errors.NoError:
            raise error(about) if about else error()

    def look_around(self) -> None:
        """Ask for the brokers again: one that is not known may be new, and one that is may be gone."""
        self.admin._manager.cluster.request_update()

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
        patience_s = self.patience_s if patience_s is None else patience_s
        deadline, pauses = time.monotonic() + patience_s, Pauses()
        while True:
            try:
                return call()
            except self.errors.KafkaError as error:
                if not self._may_pass(error):
                    raise self.refused(error, needs) from None
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
        cluster = self.admin._manager.cluster
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

    def refused(self, error: Any, needs: Mapping[str, str] | None = None) -> TwophaseError:
        """What an answer means that no patience helps against."""
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(error).__name__.removesuffix("Error")).upper()
        return explained(name, str(error) or name, needs=needs)
