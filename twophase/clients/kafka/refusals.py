"""What Kafka's clients say, as errors that say what to do. Both clients name errors alike, but for their case and underscores."""

from __future__ import annotations

from collections.abc import Mapping

from twophase.errors import Fenced, OptionError, SchemaMismatch, TargetUnavailable, TwophaseError

TOPIC = "TOPIC_AUTHORIZATION_FAILED"
GROUP = "GROUP_AUTHORIZATION_FAILED"
TRANSACTIONAL_ID = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
CLUSTER = "CLUSTER_AUTHORIZATION_FAILED"
_LACKING = {
    TOPIC: "a right on a topic",
    GROUP: "a right on a group",
    TRANSACTIONAL_ID: "a right on a transactional id",
    CLUSTER: "a right on the cluster",
}
_ADVICE = {
    "INVALID_TRANSACTION_TIMEOUT": "the broker's transaction.max.timeout.ms is below the option transactionTimeoutMs: lower the "
    "one or raise the other",
    "UNKNOWN_TOPIC_OR_PART": "there is no such topic, and the broker does not create it",
    "_UNKNOWN_TOPIC": "there is no such topic, and the broker does not create it",
    "_UNKNOWN_PARTITION": "the topic has no such partition: look at the column partition",
    "_AUTHENTICATION": "the broker does not accept the user: look at kafka.sasl.mechanism, and at username and password in "
    "kafka.sasl.jaas.config",
    "_SSL": "the secure connection can't be made: look at kafka.ssl.truststore.location, whether it has the authority that signed "
    "the broker's certificate",
    "_MSG_TIMED_OUT": "the broker did not take it in time",
    "_TIMED_OUT": "the broker did not answer in time",
    "_TIMED_OUT_QUEUE": "the broker did not take it in time",
    "_ALL_BROKERS_DOWN": "no broker answers: none can be reached, or kafka.security.protocol is not that of the port",
    "_TRANSPORT": "a broker does not answer: it can't be reached, or kafka.security.protocol is not that of the port",
    "INVALID_TIMESTAMP": "the topic does not take a time so far from the broker's own: look at the column timestamp, and at "
    "message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic",
    "INVALID_RECORD": "the topic does not take such a record: one that is compacted needs the column key, and no null in it",
    "_PURGE_QUEUE": "the transaction was ended meanwhile",
}
_FENCED = frozenset({"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"})
_TOO_LARGE = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE"})


def explained(name: str, said: str, *, needs: Mapping[str, str] | None = None) -> TwophaseError:
    """The error for what a client calls `name`, and said. `needs`: the right that was asked for, by the name of its refusal."""
    if name == "_INVALID_ARG":
        return OptionError(said, problems=[said])
    if name in _FENCED:
        return Fenced(
            f"another producer has this task's transactional id by now, or the broker timed its transaction out ({said})"
        )
    if name in _TOO_LARGE:
        return SchemaMismatch(
            f"{said}: larger than what is allowed. Raise max.message.bytes of the topic, and kafka.max.request.size if it is set"
        )
    if name in _LACKING:
        right = (needs or {}).get(name)
        return TargetUnavailable(
            f"the user lacks the right {right} ({name})"
            if right
            else f"the user lacks {_LACKING[name]} ({name}: {said})"
        )
    advice = _ADVICE.get(name, "Kafka refused")
    return TargetUnavailable(f"{advice} ({name}: {said})")
