"""Transactional ids and `kafka.*` options: what can be told without a broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophase.clients.kafka import settings
from twophase.errors import OptionError
from twophase.identity import Attempt, Generation, Owner
from twophase.secret import Secret
from twophase.sinks.kafka.sink import KafkaSink
from twophase.sinks.kafka.transactional_id import CIRCLE, TransactionalId
from twophase.sources import KafkaSource

OWNER = Owner("a/query", "sink")
HOURS = st.integers(1, 10_000)


@given(number=HOURS, slot=st.integers(0, 5000), task=st.integers(-(2**48), 2**62), behind=st.integers(0, 15))
def test_the_generation_of_an_id_is_told_from_one_that_is_a_little_newer(
    number: int, slot: int, task: int, behind: int
) -> None:
    attempt = Attempt(Generation("l", number), task, "nonce")
    name = TransactionalId.of("twophase", OWNER, slot, attempt)
    read = TransactionalId.parse(str(name), "twophase", OWNER)

    assert read == name
    assert read is not None
    assert read.generation_seen_from(Generation("l", number + behind)) == Generation("l", number)
    assert 0 <= name.task < CIRCLE


@given(number=HOURS, ahead=st.integers(1, 15))
def test_what_is_ahead_of_the_one_that_asks_is_seen_to_be(number: int, ahead: int) -> None:
    name = TransactionalId.of("twophase", OWNER, 0, Attempt(Generation("l", number + ahead), 1))
    assert name.generation_seen_from(Generation("l", number)) == Generation("l", number + ahead)


@pytest.mark.parametrize("stranger", [Owner("a", "query/sink"), Owner("a/query", "sink2"), Owner("a/quer", "y/sink")])
def test_ids_of_others_are_not_taken_for_ones_own(stranger: Owner) -> None:
    name = str(TransactionalId.of("twophase", stranger, 0, Attempt(Generation("l", 1), 1)))
    assert TransactionalId.parse(name, "twophase", OWNER) is None
    assert TransactionalId.parse("twophase/anything", "twophase", OWNER) is None


def test_settings_of_the_java_client_are_translated() -> None:
    given = {
        "bootstrap.servers": "a:1, b:2",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p\\"q";',
        "max.request.size": "5",
        "linger.ms": "20",
    }
    rows = settings.for_librdkafka(given)
    assert {key: rows[key] for key in ("sasl.username", "sasl.password", "message.max.bytes", "linger.ms")} == {
        "sasl.username": "u",
        "sasl.password": 'p"q',
        "message.max.bytes": "5",
        "linger.ms": "20",
    }
    assert rows["partitioner"] == "murmur2_random"
    control = settings.for_kafka_python(given)
    assert (control["bootstrap_servers"], control["sasl_mechanism"]) == (["a:1", "b:2"], "SCRAM-SHA-512")
    assert control["sasl_plain_password"] == 'p"q'
    assert 'p"q' not in str(control)


def test_everything_that_is_wrong_is_said_at_once_and_no_secret() -> None:
    with pytest.raises(OptionError) as caught:
        KafkaSink.from_options(
            {
                "kafka.transactional.id": "mine",
                "kafka.ssl.truststore.location": "/secret/store.jks",
                "kafka.sasl.password": "hunter2",
                "topik": "x",
            }
        )
    said = str(caught.value)
    for problem in (
        "kafka.bootstrap.servers is required",
        "kafka.transactional.id is ours",
        "must be a PEM file",
        "topik",
    ):
        assert problem in said
    assert "hunter2" not in said
    assert "store.jks" not in said


def test_a_literal_secret_is_not_described_and_a_reference_is() -> None:
    """What describes a sink lies in the ledger."""
    literal = KafkaSink("b:1", "t", kafka={"sasl.password": "hunter2"})
    assert literal.describe() is None
    assert "hunter2" not in repr(literal.target)
    reference = KafkaSink("b:1", "t", kafka={"sasl.password": Secret("env:PASSWORD")}).describe()
    assert reference is not None
    assert reference.options["kafka.sasl.password"] == "env:PASSWORD"
    again = KafkaSink.from_options(reference.options)
    assert again.describe() == reference


@pytest.mark.parametrize("quoted", ['"p"', "'p'", "p"])
def test_credentials_are_found_however_they_are_quoted(quoted: str) -> None:
    config = f'Module required username={quoted} truststorepassword="x" password={quoted};'
    rows = settings.for_librdkafka({"sasl.jaas.config": config})
    assert (rows["sasl.username"], rows["sasl.password"]) == ("p", "p")


def test_what_can_be_said_as_it_is_is_not_refused_and_a_key_store_of_pem_files_is_taken() -> None:
    sink = KafkaSink.from_options(
        {
            "kafka.bootstrap.servers": "b:1",
            "kafka.acks": "all",
            "kafka.enable.idempotence": "true",
            "kafka.ssl.keystore.location": "/key.pem",
            "kafka.ssl.keystore.type": "PEM",
        }
    )
    described = sink.describe()
    assert described is not None
    assert described.options["kafka.ssl.keystore.location"] == "/key.pem"


def test_a_sink_made_in_python_is_checked_like_one_made_of_options() -> None:
    with pytest.raises(OptionError) as caught:
        KafkaSink("", "t", kafka={"acks": "0"}, transaction_timeout_ms=-5)
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("prefix", ["", " ", " twophase", "twophase ", "two\tphase\n"])
def test_a_prefix_that_librdkafka_would_change_is_refused(prefix: str) -> None:
    """It strips what it is told; the driver would look for transactions by a name that no broker has."""
    with pytest.raises(OptionError, match="transactionalIdPrefix"):
        KafkaSink("broker:9092", "orders", transactional_id_prefix=prefix)
    with pytest.raises(OptionError, match="transactionalIdPrefix"):
        KafkaSink.from_options({"kafka.bootstrap.servers": "broker:9092", "transactionalIdPrefix": prefix})
    KafkaSink("broker:9092", "orders", transactional_id_prefix="two phase")


def test_options_of_sparks_connector_that_mean_nothing_here_are_taken() -> None:
    """So that changing the format is all that it takes; what would change what is read or written is still refused."""
    brokers = {"kafka.bootstrap.servers": "broker:9092"}
    KafkaSink.from_options({**brokers, "includeHeaders": "true"})
    reading = {"kafkaConsumer.pollTimeoutMs": "1", "fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "10"}
    KafkaSource.from_options({**brokers, "subscribe": "orders", **reading})
    with pytest.raises(OptionError, match="startingOffsetsByTimestampStrategy"):
        KafkaSource.from_options({**brokers, "subscribe": "orders", "startingOffsetsByTimestampStrategy": "error"})


def test_words_for_the_ends_of_a_topic_are_taken_in_any_letters_and_a_time_goes_before_them() -> None:
    told = {"kafka.bootstrap.servers": "broker:9092", "subscribe": "orders"}
    KafkaSource.from_options({**told, "startingOffsets": "Earliest", "endingOffsets": "LATEST"})
    KafkaSource.from_options({**told, "startingOffsets": "latest", "startingTimestamp": "7", "endingTimestamp": "9"})
    with pytest.raises(OptionError, match="endingOffsets can't be earliest"):
        KafkaSource.from_options({**told, "endingOffsets": "Earliest"})
    with pytest.raises(OptionError, match="startingOffsets is not JSON"):
        KafkaSource.from_options({**told, "startingOffsets": "soon"})
