"""librdkafka through ctypes: the library that confluent-kafka brings along, for what its Python classes can't do.

Two things are needed of it. A batch of Arrow columns is handed over by addresses, without a Python object for each row. And a
producer with an open transaction is dropped without ending it: `Producer.close()` of confluent-kafka aborts since 2.16.

This is the only file that knows the library's functions and structures; `tests/test_librdkafka.py` holds it against the version
that is installed. The layout of `rd_kafka_message_t` and the flags are part of the library's public C interface, which has been
compatible for the whole of its version 1 and 2.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from twophase.errors import MissingExtra

PRODUCER, CONSUMER = 0, 1
PARTITION_ANY = -1
F_COPY, F_BLOCK, F_PARTITION = 0x2, 0x4, 0x8
ERROR_CODE_BYTES = 512

MESSAGE = np.dtype(
    {
        "names": ["err", "topic", "partition", "payload", "len", "key", "key_len", "offset", "private"],
        "formats": ["i4", "u8", "i4", "u8", "u8", "u8", "u8", "i8", "u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56, 64],
        "itemsize": 72,
    }
)
"""`rd_kafka_message_t` on a machine with 64 bits."""


class TopicPartition(ctypes.Structure):
    """`rd_kafka_topic_partition_t`."""

    _fields_ = (
        ("topic", ctypes.c_char_p),
        ("partition", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("metadata", ctypes.c_void_p),
        ("metadata_size", ctypes.c_size_t),
        ("opaque", ctypes.c_void_p),
        ("err", ctypes.c_int),
        ("private", ctypes.c_void_p),
    )


class Message(ctypes.Structure):
    """`rd_kafka_message_t`, as a delivery report has it."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


class _Memory(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_void_p), ("size", ctypes.c_ssize_t))


class _Union(ctypes.Union):
    _fields_ = (
        ("topic", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("milliseconds", ctypes.c_int64),
        ("partition", ctypes.c_int32),
        ("memory", _Memory),
        ("header", _Header),
        ("padding", ctypes.c_char * 64),
    )


class Part(ctypes.Structure):
    """`rd_kafka_vu_t`: one part of a record that is produced on its own."""

    _fields_ = (("kind", ctypes.c_int), ("value", _Union))


_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIME, _HEADERS = 2, 3, 4, 5, 7, 8, 9
_PARTS = (_TOPIC, _PARTITION, _VALUE, _KEY, _FLAGS, _TIME)
NOW = 0
"""The time of a record that has none."""


def message_parts(
    topic: Any, partition: int, message: Any, milliseconds: int, headers: Sequence[tuple[bytes, bytes | None]]
) -> Any:
    """One record with a time and headers. Nothing of it is copied before it is produced: the caller keeps names and values until
    then."""
    parts = (Part * (len(_PARTS) + len(headers)))()
    for number, kind in enumerate(_PARTS):
        parts[number].kind = kind
    parts[0].value.topic = topic
    parts[1].value.partition = partition
    parts[2].value.memory = _Memory(int(message["payload"]) or None, int(message["len"]))
    parts[3].value.memory = _Memory(int(message["key"]) or None, int(message["key_len"]))
    parts[4].value.number = F_COPY | F_BLOCK
    parts[5].value.milliseconds = milliseconds
    for number, (name, value) in enumerate(headers, len(_PARTS)):
        parts[number].kind = _HEADERS
        place = None if value is None else ctypes.cast(ctypes.c_char_p(value), ctypes.c_void_p).value
        parts[number].value.header = _Header(name, place, 0 if value is None else len(value))
    return parts


STATISTICS_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
DELIVERY_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Message), ctypes.c_void_p)
ERROR_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
LOG_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p)

_P, _S, _I, _I32, _I64, _N = (
    ctypes.c_void_p,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_size_t,
)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "version_str": (_S, ()),
    "err2str": (_S, (_I,)),
    "err2name": (_S, (_I,)),
    "last_error": (_I, ()),
    "conf_new": (_P, ()),
    "conf_destroy": (None, (_P,)),
    "conf_set": (_I, (_P, _S, _S, _P, _N)),
    "conf_set_stats_cb": (None, (_P, STATISTICS_CALLBACK)),
    "conf_set_dr_msg_cb": (None, (_P, DELIVERY_CALLBACK)),
    "conf_set_error_cb": (None, (_P, ERROR_CALLBACK)),
    "conf_set_log_cb": (None, (_P, LOG_CALLBACK)),
    "new": (_P, (_I, _P, _P, _N)),
    "destroy": (None, (_P,)),
    "topic_new": (_P, (_P, _S, _P)),
    "topic_destroy": (None, (_P,)),
    "topic_name": (_S, (_P,)),
    "metadata": (_I, (_P, _I, _P, _P, _I)),
    "metadata_destroy": (None, (_P,)),
    "produce_batch": (_I, (_P, _I32, _I, _P, _I)),
    "produceva": (_P, (_P, _P, _N)),
    "queue_new": (_P, (_P,)),
    "queue_destroy": (None, (_P,)),
    "consume_start_queue": (_I, (_P, _I32, _I64, _P)),
    "consume_stop": (_I, (_P, _I32)),
    "consume_batch_queue": (ctypes.c_ssize_t, (_P, _I, _P, _N)),
    "message_destroy": (None, (_P,)),
    "message_timestamp": (_I64, (_P, _P)),
    "message_headers": (_I, (_P, _P)),
    "header_get_all": (_I, (_P, _N, _P, _P, _P)),
    "query_watermark_offsets": (_I, (_P, _S, _I32, _P, _P, _I)),
    "flush": (_I, (_P, _I)),
    "poll": (_I, (_P, _I)),
    "init_transactions": (_P, (_P, _I)),
    "begin_transaction": (_P, (_P,)),
    "abort_transaction": (_P, (_P, _I)),
    "send_offsets_to_transaction": (_P, (_P, _P, _P, _I)),
    "consumer_group_metadata_new": (_P, (_S,)),
    "consumer_group_metadata_destroy": (None, (_P,)),
    "topic_partition_list_new": (_P, (_I,)),
    "topic_partition_list_add": (ctypes.POINTER(TopicPartition), (_P, _S, _I32)),
    "topic_partition_list_destroy": (None, (_P,)),
    "error_code": (_I, (_P,)),
    "error_string": (_S, (_P,)),
    "error_name": (_S, (_P,)),
    "error_is_fatal": (_I, (_P,)),
    "error_is_retriable": (_I, (_P,)),
    "error_txn_requires_abort": (_I, (_P,)),
    "error_destroy": (None, (_P,)),
    "fatal_error": (_I, (_P, _P, _N)),
    "mem_malloc": (_P, (_P, _N)),
}


_QUICK = frozenset({"message_destroy", "message_timestamp", "message_headers", "header_get_all"})
"""Called for every message, and never waiting: to give up the interpreter's lock for them would cost more than they do."""


class Library:
    """The functions, each by its name without `rd_kafka_`."""

    def __init__(self, path: str):
        self._library, self._quick = ctypes.CDLL(path), ctypes.PyDLL(path)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._quick if name in _QUICK else self._library, f"rd_kafka_{name}")
            function.restype, function.argtypes = result, arguments

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _FUNCTIONS:
            raise AttributeError(name)
        function: Callable[..., Any] = getattr(self._quick if name in _QUICK else self._library, f"rd_kafka_{name}")
        setattr(self, name, function)
        return function


@cache
def library() -> Library:
    """The one that confluent-kafka has, so that both are one version; loaded once a process."""
    found = importlib.util.find_spec("confluent_kafka")
    if found is None or found.origin is None:
        raise MissingExtra('Kafka needs confluent-kafka: pip install "twophase[kafka]"')
    beside = Path(found.origin).parents[1] / "confluent_kafka.libs"
    bundled = sorted(glob.glob(os.fspath(beside / "librdkafka*.so*")))
    return Library(bundled[0] if bundled else "librdkafka.so.1")
