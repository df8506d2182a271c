"""What is asked of a cluster before anything is written, so that a wrong setting is named at the start and not at 3 a.m."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from twophase.clients.kafka.control import NEW_PROTOCOL, OLD_PROTOCOL, ControlClient
from twophase.errors import OptionError, TargetUnavailable
from twophase.log import Log

MARKER_PARTITIONS = 50
_REPLICATION = {
    "transaction.state.log.replication.factor": "__transaction_state",
    "transaction.state.log.min.isr": "__transaction_state",
    "offsets.topic.replication.factor": "__consumer_offsets",
}
"""How many brokers there must be when a topic of Kafka's own is made: setting → topic."""
_ASKED = ("transaction.max.timeout.ms", "offsets.retention.minutes", "min.insync.replicas", *_REPLICATION)
_TRUE_FOR_S = 300.0

log = Log("twophase.sinks.kafka")


@dataclass(frozen=True)
class Cluster:
    """What brokers said."""

    end_version: int
    marker_partitions: int
    offsets_kept_ms: int | None
    """None if the user may not ask."""


@dataclass(frozen=True)
class _Answer:
    cluster: Cluster
    until: float


_answers: weakref.WeakKeyDictionary[ControlClient, dict[tuple[str, int, str | None], _Answer]] = (
    weakref.WeakKeyDictionary()
)
_lock = threading.Lock()


def checked(control: ControlClient, marker_topic: str, timeout_ms: int, topic: str | None) -> Cluster:
    """Ask, unless this process has asked some minutes ago; raises with the setting to change. `topic` is where rows go, if that is
    known."""
    key = (marker_topic, timeout_ms, topic)
    with _lock:
        known = _answers.setdefault(control, {}).get(key)
    if known is not None and time.monotonic() < known.until:
        return known.cluster
    cluster = _check(control, marker_topic, timeout_ms, topic)
    with _lock:
        _answers[control][key] = _Answer(cluster, time.monotonic() + _TRUE_FOR_S)
    return cluster


def _check(control: ControlClient, marker_topic: str, timeout_ms: int, topic: str | None) -> Cluster:
    told = control.broker_settings(_ASKED)
    kept_ms = None
    if told is None:
        # Nothing is assumed: a wrong guess at how long markers are kept could show records twice.
        log.warning(
            "the brokers' settings can't be read: the user lacks the right DescribeConfigs on the cluster. If a marker is missing, "
            "the query stops"
        )
    else:
        kept_ms = _checked_settings(told, timeout_ms)
        _require_brokers(control, told)
    version = NEW_PROTOCOL if control.transaction_version() >= 2 else OLD_PROTOCOL
    partitions = _marker_partitions(control, marker_topic)
    _check_replicas(control, [marker_topic, *([topic] if topic else [])], told or {})
    return Cluster(version, partitions, kept_ms)


def _checked_settings(told: Mapping[str, str], timeout_ms: int) -> int:
    """How long offsets are kept."""
    longest_ms = int(told.get("transaction.max.timeout.ms", 900_000))
    if timeout_ms > longest_ms:
        problem = (
            f"transactionTimeoutMs is {timeout_ms}, and the brokers allow {longest_ms} (transaction.max.timeout.ms): lower "
            "the one, or raise the other"
        )
        raise OptionError(problem, problems=[problem])
    kept_ms = int(told.get("offsets.retention.minutes", 10_080)) * 60_000
    if kept_ms < 2 * timeout_ms:
        log.warning("brokers forget markers soon", offsets_retention_ms=kept_ms, transaction_timeout_ms=timeout_ms)
    return kept_ms


def _require_brokers(control: ControlClient, told: Mapping[str, str]) -> None:
    """A broker that is alone, with settings for three, waits for the others without a word when the first transaction begins."""
    brokers = control.brokers()
    for setting, topic in _REPLICATION.items():
        wanted = int(told.get(setting, 1))
        if wanted > brokers and not _is_there(control, topic):
            problem = (
                f"{setting} of the brokers is {wanted}, and there are only {brokers}: they can't make {topic}, without which there "
                "are no transactions. Lower the setting, or start more brokers"
            )
            raise OptionError(problem, problems=[problem])


def _is_there(control: ControlClient, topic: str) -> bool:
    try:
        return control.partitions_of(topic) is not None
    except TargetUnavailable:
        return True  # the user may not ask; if it is not, the first transaction will tell


def _check_replicas(control: ControlClient, topics: Sequence[str], told: Mapping[str, str]) -> None:
    in_sync = int(told.get("min.insync.replicas", 1))
    for topic, replicas in control.replicas_of(topics).items():
        if replicas < in_sync:
            log.warning(
                "a topic has fewer replicas than min.insync.replicas of the brokers: nothing can be written, unless it has its own",
                topic=topic,
                replicas=replicas,
                min_insync_replicas=in_sync,
            )
        elif replicas == 1 and control.brokers() > 1:
            log.warning("a topic is on one broker only, and its records go with it", topic=topic)


def _marker_partitions(control: ControlClient, topic: str) -> int:
    found = control.partitions_of(topic)
    if found is None:
        control.create_topic(topic, MARKER_PARTITIONS, {"cleanup.policy": "compact"})
        found = _wait_for(control, topic)
    return found


def _wait_for(control: ControlClient, topic: str) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        found = control.partitions_of(topic)
        if found:
            return found
        time.sleep(0.1)
    raise TargetUnavailable(f"the marker topic {topic!r} was created, and is not there after 30 s")
