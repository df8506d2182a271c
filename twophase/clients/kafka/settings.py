"""`kafka.*` options, as the two clients take them: librdkafka for rows, kafka-python for control.

People bring the options of Spark's own Kafka connector, which are those of the Java client. Most names are the same; those that are
not are translated, and those that can't be are refused with what to use instead.
"""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

from twophase.errors import OptionError
from twophase.secret import Secret

_RENAMED = {
    "max.request.size": "message.max.bytes",
    "sasl.mechanism": "sasl.mechanisms",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "metadata.max.age.ms": "metadata.max.age.ms",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
}
"""The Java client's name → librdkafka's."""
PRODUCER, CONSUMER = "producer", "consumer"
_REFUSED_BY_BOTH = {
    "key.serializer": "has no meaning here: rows are bytes or text",
    "value.serializer": "has no meaning here: rows are bytes or text",
    "key.deserializer": "has no meaning here: rows are bytes or text",
    "value.deserializer": "has no meaning here: rows are bytes or text",
    "interceptor.classes": "can't be loaded by this client",
    "statistics.interval.ms": "is ours",
    "enable.auto.commit": "has no meaning here",
}
_REFUSED_BY_PRODUCER = {
    "transactional.id": "is ours: set transactionalIdPrefix",
    "transaction.timeout.ms": "is ours: set transactionTimeoutMs",
    "enable.idempotence": "is always on",
    "acks": "is always all",
    "partitioner.class": "can't be loaded by this client: set a column partition, or kafka.partitioner",
    "delivery.report.only.error": "is ours",
    "group.id": "is ours",
}
_REFUSED_BY_CONSUMER = {
    "auto.offset.reset": "is ours: set startingOffsets",
    "enable.partition.eof": "is ours",
}
_REFUSED = {
    PRODUCER: _REFUSED_BY_BOTH | _REFUSED_BY_PRODUCER,
    CONSUMER: _REFUSED_BY_BOTH | _REFUSED_BY_CONSUMER,
}
_AS_IT_IS = {"acks": ("all", "-1"), "enable.idempotence": ("true",)}
"""What says the same as we do is no reason to refuse a query."""
_IGNORED = frozenset(
    {
        "max.block.ms",
        "max.poll.records",
        "ssl.truststore.type",
        "ssl.keystore.type",
        "ssl.truststore.password",
        "buffer.memory",
    }
)
"""Settings of the Java client that librdkafka has no need of."""
_JAAS = re.compile(
    r"""\b(?P<key>username|password)\s*=\s*"""
    r"""(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<bare>[^\s;"']+))"""
)


def problems_of(given: Mapping[str, Any], role: str = PRODUCER) -> Iterator[str]:
    """What is wrong with `kafka.*` options that can be told without a broker; no values are shown."""
    if not given.get("bootstrap.servers"):
        yield "kafka.bootstrap.servers is required"
    for key, value in given.items():
        if key in _REFUSED[role] and _plain(value) not in _AS_IT_IS.get(key, ()):
            yield f"kafka.{key} {_REFUSED[role][key]}"
    if "sasl.jaas.config" in given and not _credentials(_plain(given["sasl.jaas.config"])).get("username"):
        yield "kafka.sasl.jaas.config has no username: give kafka.sasl.username and kafka.sasl.password"
    for store in ("truststore", "keystore"):
        kind = _plain(given.get(f"ssl.{store}.type", ""))
        if given.get(f"ssl.{store}.location") and kind != "PEM":
            yield f"kafka.ssl.{store}.location must be a PEM file, with kafka.ssl.{store}.type = PEM: this client reads no JKS"


def for_librdkafka(given: Mapping[str, str]) -> dict[str, str]:
    """The settings of a producer or a consumer, secrets revealed."""
    settings = {
        # The Java client's choice, so that a key stays in the partition where its records were before.
        "partitioner": "murmur2_random",
        "log_level": "3",
        # Not only for those that are lost: a broker that is found is connected to after half of this, 50 ms by default, and every
        # task of a sink is a new client. It doubles for as long as a broker stays away.
        "reconnect.backoff.ms": "20",
    }
    for key, value in given.items():
        if key in _IGNORED:
            continue
        if key == "sasl.jaas.config":
            settings.update({f"sasl.{name}": text for name, text in _credentials(value).items()})
        elif key == "ssl.keystore.location":
            settings["ssl.certificate.location"] = settings["ssl.key.location"] = value
        elif key == "ssl.endpoint.identification.algorithm":
            settings[key] = value or "none"
        else:
            settings[_RENAMED.get(key, key)] = value
    return settings


def for_kafka_python(given: Mapping[str, str]) -> dict[str, Any]:
    """The settings of the control client, secrets revealed."""
    known = for_librdkafka(given)
    settings: dict[str, Any] = {
        "bootstrap_servers": [each.strip() for each in known["bootstrap.servers"].split(",")],
        "security_protocol": known.get("security.protocol", "PLAINTEXT").upper(),
        "client_id": known.get("client.id", "twophase"),
    }
    if known.get("request.timeout.ms", "").isdigit():
        settings["request_timeout_ms"] = int(known["request.timeout.ms"])
    if "sasl.mechanisms" in known:
        settings["sasl_mechanism"] = known["sasl.mechanisms"]
    for ours, theirs in (("sasl.username", "sasl_plain_username"), ("sasl.password", "sasl_plain_password")):
        if ours in known:
            settings[theirs] = _Unprinted(known[ours])
    if settings["security_protocol"].endswith("SSL"):
        settings["ssl_context"] = _context(known)
    return settings


class _Unprinted(str):
    """A text that no repr shows: kafka-python writes its whole configuration to its log, at the level DEBUG."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def in_words_of_java(text: str) -> str:
    """What librdkafka says of its settings, with the names that people have given."""
    for java, ours in _RENAMED.items():
        text = text.replace(ours, f"kafka.{java}")
    return text


def _context(known: Mapping[str, str]) -> ssl.SSLContext:
    try:
        return _loaded(known)
    except OSError as error:  # which errors of ssl are, too
        problem = (
            f"certificates or keys of kafka.ssl.* can't be read, from the truststore or the keystore: {error.strerror}"
        )
        raise OptionError(problem, problems=[problem]) from None


def _loaded(known: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=known.get("ssl.ca.location"), cadata=known.get("ssl.ca.pem"))
    if known.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if known.get("enable.ssl.certificate.verification") == "false":
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    certificate = known.get("ssl.certificate.location")
    if certificate:
        context.load_cert_chain(certificate, known.get("ssl.key.location"), known.get("ssl.key.password"))
    elif "ssl.certificate.pem" in known:
        # Python's ssl takes files only.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{known['ssl.certificate.pem']}\n{known.get('ssl.key.pem', '')}\n")
            file.flush()
            context.load_cert_chain(file.name, password=known.get("ssl.key.password"))
    return context


def _credentials(jaas: str) -> dict[str, str]:
    found = {each["key"]: each["double"] or each["single"] or each["bare"] or "" for each in _JAAS.finditer(jaas)}
    return {key: re.sub(r"\\(.)", r"\1", value) for key, value in found.items()}


def _plain(value: str | Secret) -> str:
    return value.reveal() if isinstance(value, Secret) else value
