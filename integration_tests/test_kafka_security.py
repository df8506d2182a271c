"""Kafka with TLS, SASL/SCRAM and ACLs: it works with exactly the documented rights, and says which one is missing."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration_tests.streams import run
from integration_tests.topics import TopicUnderTest, committed_records, create_topic, producer_in_order
from integration_tests.users import Right, User
from tests.markdown import section
from twophase.clients.kafka.partition import LATEST, Partition
from twophase.errors import OptionError, OutcomeUnknown, TargetUnavailable
from twophase.secret import Secret
from twophase.sink import Outcome
from twophase.sinks.kafka.sink import KafkaSink
from twophase.sources import KafkaSource
from twophase.sources.kafka.split import KafkaSplit
from twophase.testing.query_steps import QuerySteps
from twophase.testing.servers import kafka
from twophase.testing.servers.certificates import Certificate, certificate
from twophase.testing.servers.ports import free_ports
from twophase.testing.sink_steps import SinkSteps

pytestmark = pytest.mark.servers

PATIENCE_MS = 10_000
SHORT_MS = 2_000
SAID_WITHIN_S = 45.0
MINUTE_MS = 60_000


# ---- the documented rights ----


@dataclass(frozen=True)
class Documented:
    """A row of docs/kafka.md."""

    operation: str
    resource: str
    which: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.which}"


def documented(heading: str) -> list[Documented]:
    page = (Path(__file__).parents[1] / "docs" / "kafka.md").read_text("utf-8")
    tables = section(page, "Rights").split("### ")
    (table,) = (each for each in tables if each.startswith(heading))
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [Documented(*(cell.strip() for cell in row[:3])) for row in rows if row[0].strip() != "right"]


TO_WRITE, TO_READ = documented("To write"), documented("To read")
OPTIONAL = "DescribeConfigs"


# ---- the broker, and users ----


@dataclass(frozen=True)
class SecureBroker:
    plain: str
    security: kafka.Security
    stranger: Certificate
    """By an authority that did not sign the broker's."""


@pytest.fixture(scope="module")
def secure_kafka_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    folder = tmp_path_factory.mktemp("secure-kafka")
    security = kafka.Security(tuple(free_ports(1)), certificate(folder))
    with kafka.on_this_machine(folder, kafka.Setup(security=security)) as server:
        yield SecureBroker(server.endpoint, security, certificate(tmp_path_factory.mktemp("stranger")))


class SecureTopic(TopicUnderTest):
    """A topic, and a user who has no rights yet."""

    def __init__(self, broker: SecureBroker, *, markers_there: bool = True):
        super().__init__(broker.plain)
        self.broker = broker
        self.markers = f"markers-{uuid.uuid4().hex}"
        if markers_there:
            create_topic(broker.plain, self.markers, partitions=3)
        self.user = User(broker.plain, broker.security)
        self.patience_ms = PATIENCE_MS
        self.told: Mapping[str, str | Secret] = self.user.settings()

    def rights(self, wanted: Collection[Documented]) -> list[Right]:
        places = {
            "the topics that rows go to": self.topic,
            "the topics that are read": self.topic,
            "the marker topic": self.markers,
            "names that begin with `twophase/`": f"{self.prefix}/",
            "the cluster": "",
        }
        return [Right(each.operation, each.resource, places[each.which]) for each in wanted]

    def allow(self, wanted: Collection[Documented]) -> None:
        self.user.may(self.rights(wanted))

    def sink(self) -> KafkaSink:
        return KafkaSink(
            self.broker.security.endpoint,
            self.topic,
            kafka=self.told,
            transactional_id_prefix=self.prefix,
            marker_topic=self.markers,
            request_timeout_ms=self.patience_ms,
        )

    def source(self, **options: Any) -> KafkaSource:
        chosen = {
            "subscribe": self.topic,
            "starting_offsets": "earliest",
            "request_timeout_ms": self.patience_ms,
            **options,
        }
        return KafkaSource(self.broker.security.endpoint, kafka=self.told, **chosen)

    def add(self, *values: bytes) -> None:
        producer = producer_in_order(self.bootstrap, **{"linger.ms": 0})
        for value in values:
            producer.produce(self.topic, value)
        assert producer.flush(30) == 0


@pytest.fixture
def topic(secure_kafka_server: SecureBroker) -> SecureTopic:
    return SecureTopic(secure_kafka_server)


@pytest.fixture
def writable(topic: SecureTopic) -> Iterator[SecureTopic]:
    topic.allow(TO_WRITE)
    yield topic
    assert topic.residue() == []


def without(rights: Sequence[Documented], *operations: str) -> list[Documented]:
    return [each for each in rights if each.operation not in operations]


def values_of(source: KafkaSource) -> list[Any]:
    splits = source.plan(source.earliest(), source.newest())
    return [value for split in splits for batch in source.read(split) for value in batch["value"].to_pylist()]


@contextmanager
def refused(*says: str) -> Iterator[None]:
    began = time.monotonic()
    with pytest.raises(TargetUnavailable) as caught:
        yield
    assert time.monotonic() - began < SAID_WITHIN_S
    for words in says:
        assert words in str(caught.value)


# ---- to write ----


@pytest.mark.parametrize("markers_there", [True, False], ids=["the marker topic is there", "it must be created"])
def test_a_query_runs_and_recovers_with_the_documented_rights(
    secure_kafka_server: SecureBroker, tmp_path: Path, markers_there: bool
) -> None:
    topic = SecureTopic(secure_kafka_server, markers_there=markers_there)
    topic.allow(without(TO_WRITE, "Create") if markers_there else TO_WRITE)
    query = QuerySteps(tmp_path / "query", topic)
    query.epoch(0, [1], [2])
    query.log(1)
    query.decided(tmp_path, [3], [4])
    query = query.restart()
    query.finish([3], [4])
    query.log(2)
    query.prepare()
    query.run([5])
    query.abort()
    query.restart().finish([5])

    assert query.restart().findings() == []
    assert topic.values() == [1, 2, 3, 4, 5]
    assert topic.residue() == []


@pytest.mark.parametrize("missing", without(TO_WRITE, OPTIONAL), ids=str)
def test_an_epoch_fails_without_a_right_and_names_it(secure_kafka_server: SecureBroker, missing: Documented) -> None:
    topic = SecureTopic(secure_kafka_server, markers_there=missing.operation != "Create")
    topic.allow([each for each in TO_WRITE if each != missing])
    (right,) = topic.rights([missing])

    with refused(f"the user lacks the right {right.operation} on the {right.resource} '{right.prefix}"):
        SinkSteps(topic).epoch(0, [1], [2])

    assert topic.values() == []
    assert topic.residue() == []


@pytest.mark.parametrize("which", ["the topics that rows go to", "the marker topic"])
def test_to_see_a_topic_is_not_enough(topic: SecureTopic, which: str) -> None:
    """Describe alone: the refusal comes later then, from another request."""
    (missing,) = (each for each in without(TO_WRITE, "Create") if each.which == which)
    topic.allow(
        [*(each for each in without(TO_WRITE, "Create") if each != missing), replace(missing, operation="Describe")]
    )
    (right,) = topic.rights([missing])

    with refused(f"the user lacks the right {right.operation} on the topic '{right.prefix}'"):
        SinkSteps(topic).epoch(0, [1])

    assert topic.values() == []
    assert topic.residue() == []


def test_a_commit_that_is_refused_can_be_made_when_the_right_is_back(writable: SecureTopic) -> None:
    steps = SinkSteps(writable)
    order = steps.decided(0, [1], [2])
    (right,) = writable.rights([each for each in TO_WRITE if each.resource == "transactional id"])

    writable.user.may_no_longer(right)
    with refused(f"the user lacks the right Write on the transactional id '{right.prefix}"):
        steps.commit(order)
    assert writable.values() == []

    writable.user.may([right])
    assert steps.commit(order) is Outcome.COMMITTED
    assert writable.values() == [1, 2]


def test_markers_that_the_user_may_not_see_any_more_are_not_taken_for_missing(writable: SecureTopic) -> None:
    """Brokers leave them out of a list of all, without a word; and a slot without a marker would be written again."""
    steps = SinkSteps(writable)
    order = steps.epoch(0, [1])
    (right,) = writable.rights(
        [each for each in TO_WRITE if each.which == "the marker topic" and each.operation == "Read"]
    )
    (create,) = writable.rights([each for each in TO_WRITE if each.operation == "Create"])

    writable.user.may_no_longer(right)
    writable.user.may_no_longer(create)
    for ask in (lambda: steps.sink().status(steps.owner, settled=True), lambda: steps.commit(order)):
        with refused(f"the user lacks the right Read on the topic '{writable.markers}'"):
            ask()


def test_without_the_brokers_settings_a_missing_marker_stops_the_query(
    topic: SecureTopic, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody knows then how long markers are kept: it may have been there."""
    topic.allow(without(TO_WRITE, OPTIONAL))
    steps = SinkSteps(topic)
    with caplog.at_level(logging.WARNING):
        steps.epoch(0, [1])
    assert "lacks the right DescribeConfigs on the cluster" in caplog.text

    plan = steps.prepare(1)
    share = steps.share(plan, 0, [2])
    topic.lose(steps.owner, share)
    older = replace(share, handle=replace(share.handle, begun_ms=share.handle.begun_ms - MINUTE_MS))
    with pytest.raises(OutcomeUnknown, match="DescribeConfigs on the cluster"):
        steps.commit(steps.order(plan, older))
    assert not steps.sink().forgets(steps.order(plan, older))
    assert topic.values() == [1]
    assert topic.residue() == []


# ---- to read ----


@pytest.mark.parametrize("by", ["subscribe", "subscribe_pattern"])
def test_records_are_read_with_the_documented_rights(topic: SecureTopic, by: str) -> None:
    topic.allow(TO_READ)
    topic.add(b"1", b"2")
    assert values_of(topic.source(**{"subscribe": None, by: topic.topic})) == [b"1", b"2"]


@pytest.mark.parametrize("has", [(), ("Describe",)], ids=["nothing", "Describe"])
@pytest.mark.parametrize("missing", TO_READ, ids=str)
def test_a_read_fails_without_a_right_and_names_it(topic: SecureTopic, missing: Documented, has: Sequence[str]) -> None:
    topic.allow([*(each for each in TO_READ if each != missing), *(replace(missing, operation=each) for each in has)])
    topic.add(b"1")
    with refused(f"the user lacks the right {missing.operation} on the {missing.resource} '{topic.topic}'"):
        values_of(topic.source())


def test_a_topic_that_the_user_may_not_see_any_more_is_not_taken_for_deleted(topic: SecureTopic) -> None:
    """It matches no pattern then; with failOnDataLoss false the query would go on without it, and read it anew when it is back."""
    topic.allow(TO_READ)
    topic.add(b"1")
    source = topic.source(subscribe=None, subscribe_pattern=topic.topic, fail_on_data_loss=False)
    start, end = source.earliest(), source.newest()
    (right,) = topic.rights(TO_READ)
    topic.user.may_no_longer(right)
    for ask in (lambda: source.latest(end), lambda: source.plan(start, end)):
        with refused(f"the user lacks the right Read on the topic '{topic.topic}'"):
            ask()


def test_a_right_that_goes_between_two_questions_is_named(topic: SecureTopic) -> None:
    """The partitions are known, and brokers call a topic unknown by then that the user may not see."""
    topic.allow(TO_READ)
    topic.add(b"1")
    control = topic.source(subscribe=None, subscribe_pattern=topic.topic)._control()
    partitions = [Partition(topic.topic, number) for number in range(control.topics()[topic.topic])]
    assert control.offsets(partitions, LATEST)
    (right,) = topic.rights(TO_READ)
    topic.user.may_no_longer(right)
    with refused(f"the user lacks the right Read on the topic '{topic.topic}'"):
        control.offsets(partitions, LATEST)


# ---- who does not get in ----

WRONG: dict[str, tuple[str, ...]] = {
    "the password": ("the broker does not accept the user", "kafka.sasl.jaas.config"),
    "the mechanism": ("the broker does not accept the user", "SCRAM-SHA-512"),
    "the authority": ("the secure connection can't be made", "kafka.ssl.truststore.location"),
    "the protocol": ("no broker answers", "kafka.security.protocol is not that of the port"),
}


def wrong_settings(topic: SecureTopic, wrong: str) -> dict[str, str]:
    user = topic.user
    return {
        "the password": user.settings(**{"sasl.jaas.config": user.jaas(f"not {user.password}")}),
        "the mechanism": user.settings(**{"sasl.mechanism": "SCRAM-SHA-256"}),
        "the authority": user.settings(**{"ssl.truststore.location": str(topic.broker.stranger.authority)}),
        "the protocol": user.settings(**{"security.protocol": "PLAINTEXT"}),
    }[wrong]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_said_by_every_client_and_no_password(
    writable: SecureTopic, wrong: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = SinkSteps(writable).prepare(0)
    task = SinkSteps(writable).task(plan, 0)
    writable.add(b"1")
    writable.told, writable.patience_ms = wrong_settings(writable, wrong), SHORT_MS
    sink, source = writable.sink(), writable.source()
    asked: dict[str, Callable[[], object]] = {
        "control": lambda: sink.status(SinkSteps.owner, settled=False),
        "producer": lambda: sink.begin(plan, task),
        "consumer": lambda: list(source.read(KafkaSplit(Partition(writable.topic, 0), 0, 1))),
    }
    shown = [repr(sink), repr(sink.__dict__), repr(source.__dict__), sink.target, repr(sink.describe())]
    with caplog.at_level(logging.DEBUG):
        for ask in asked.values():
            began = time.monotonic()
            with pytest.raises(TargetUnavailable) as caught:
                ask()
            assert time.monotonic() - began < SAID_WITHIN_S
            for words in WRONG[wrong]:
                assert words in str(caught.value)
            shown += [str(caught.value), repr(caught.value.__dict__), repr(caught.value.__cause__)]
    printed = capfd.readouterr()
    for text in (*shown, caplog.text, printed.out, printed.err):
        assert not writable.user.is_betrayed_by(text)


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["not there", "no PEM"])
def test_a_trust_store_that_can_not_be_read_is_a_wrong_option(
    topic: SecureTopic, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "store.pem"
    if content is not None:
        file.write_text(content)
    topic.told = topic.user.settings(**{"ssl.truststore.location": str(file)})
    with pytest.raises(OptionError, match="truststore"):
        topic.sink().status(SinkSteps.owner, settled=False)
    with pytest.raises(OptionError, match=r"kafka\.ssl\.truststore\.location"):
        list(topic.source().read(KafkaSplit(Partition(topic.topic, 0), 0, 1)))


# ---- secrets ----


@pytest.mark.parametrize("kept", ["env", "file", "literal"])
def test_a_secret_is_found_where_it_is_kept_and_is_never_in_the_ledger(
    writable: SecureTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    user = writable.user
    (tmp_path / "password").write_text(f"{user.password}\n")
    monkeypatch.setenv("TWOPHASE_TEST_PASSWORD", user.password)
    given = {"env": "env:TWOPHASE_TEST_PASSWORD", "file": f"file:{tmp_path / 'password'}", "literal": user.password}
    settings = user.settings(**{"sasl.username": user.name, "sasl.password": given[kept]})
    del settings["sasl.jaas.config"]
    writable.told = settings

    QuerySteps(tmp_path / "query", writable).epoch(0, [1])

    assert writable.values() == [1]
    described = writable.sink().describe()
    if kept == "literal":
        assert described is None
    else:
        assert described is not None
        assert described.options["kafka.sasl.password"] == given[kept]
        assert KafkaSink.from_options(described.options).status(SinkSteps.owner, settled=True).markers
    files = [Path(folder) / name for folder, _, names in os.walk(tmp_path / "query") for name in names]
    assert any("twophase" in file.parts for file in files)
    assert not any(user.is_betrayed_by(file.read_bytes().decode(errors="replace")) for file in files)


def test_a_stream_through_spark_reads_and_writes_with_the_documented_rights(
    secure_kafka_server: SecureBroker, spark: SparkSession, tmp_path: Path
) -> None:
    topic, target = SecureTopic(secure_kafka_server), SecureTopic(secure_kafka_server)
    topic.allow(TO_READ)
    target.allow(without(TO_WRITE, "Create"))
    topic.add(b"1", b"2")
    where = {"kafka.bootstrap.servers": secure_kafka_server.security.endpoint}
    reading = {f"kafka.{key}": value for key, value in topic.user.settings().items()} | where
    (tmp_path / "jaas").write_text(target.user.jaas())
    told = target.user.settings(**{"sasl.jaas.config": f"file:{tmp_path / 'jaas'}"})
    writing = {f"kafka.{key}": value for key, value in told.items()} | where

    rows = (
        spark.readStream.format("twophase-kafka")
        .options(**reading, subscribe=topic.topic, startingOffsets="earliest")
        .load()
    )
    run(
        rows.select("value")
        .writeStream.format("twophase-kafka")
        .options(**writing, topic=target.topic, markerTopic=target.markers, transactionalIdPrefix=target.prefix)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )

    target.residue()
    assert [record.value() for record in committed_records(target.bootstrap, target.topic)] == [b"1", b"2"]
