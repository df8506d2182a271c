"""librdkafka is what twophase/clients/kafka/librdkafka.py takes it for. No broker is needed for that."""

from __future__ import annotations

import ctypes

import confluent_kafka
import numpy as np
import pyarrow as pa
import pytest

from twophase.clients.kafka import librdkafka
from twophase.clients.kafka.librdkafka import library
from twophase.clients.kafka.rows import Rows, addresses
from twophase.errors import OptionError, SchemaMismatch
from twophase.sinks.kafka.producer import Producer

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}


def texts(column: pa.Array[pa.Scalar[pa.DataType]]) -> list[bytes | None]:
    """What a C program finds at the addresses."""
    places, lengths = addresses(column)
    return [
        None if not place else ctypes.string_at(int(place), int(length))
        for place, length in zip(places, lengths, strict=True)
    ]


def test_it_is_the_library_of_confluent_kafka() -> None:
    assert library().version_str().decode() == confluent_kafka.libversion()[0]


def test_both_views_of_a_message_are_one_layout() -> None:
    fields = {name: getattr(librdkafka.Message, name) for name, _ in librdkafka.Message._fields_}
    assert ctypes.sizeof(librdkafka.Message) == librdkafka.MESSAGE.itemsize
    assert librdkafka.MESSAGE.fields is not None
    assert {name: place.offset for name, place in fields.items()} == {
        name: each[1] for name, each in librdkafka.MESSAGE.fields.items()
    }
    assert ctypes.sizeof(librdkafka.Part) == 72


def test_the_library_reads_what_is_at_the_addresses() -> None:
    """It finds the length of a record, and the error that it writes back is where we look for it."""
    producer = Producer({**NOWHERE, "message.max.bytes": "1000"}, patience_s=1)
    with pytest.raises(SchemaMismatch, match="a record of 2,003 bytes"):
        producer.produce("topic", Rows(values=pa.array(["x" * 2000]), keys=pa.array(["abc"])))
    producer.drop()
    producer.drop()


def test_a_setting_that_does_not_exist_is_named_without_its_value() -> None:
    with pytest.raises(OptionError) as caught:
        Producer({**NOWHERE, "no.such.setting": "hunter2"}, patience_s=1)
    assert "kafka.no.such.setting" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_values_lie_where_their_addresses_say(kind: pa.DataType) -> None:
    column = pa.array(["before", "a", "", None, "ä", "after"], kind)
    assert texts(column) == [b"before", b"a", b"", None, "ä".encode(), b"after"]
    assert texts(column.slice(1, 4)) == [b"a", b"", None, "ä".encode()]
    assert texts(column.slice(2, 1)) == [b""]
    assert texts(column.slice(6)) == []


def test_empty_values_without_any_data_are_not_null() -> None:
    assert texts(pa.array(["", ""])) == [b"", b""]
    assert texts(pa.array([None, ""], pa.binary())) == [None, b""]
    assert np.all(addresses(pa.array([""]))[0] != 0)
