"""Sinks: one target a module, each with its vendor's client and without pyspark.

Names are resolved at first use, so that importing one sink never needs another one's extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twophase.sinks.files.sink import FilesSink
    from twophase.sinks.heap import HeapSink
    from twophase.sinks.heap_state import HeapStateSink
    from twophase.sinks.kafka.sink import KafkaSink
    from twophase.sinks.postgres.sink import PostgresSink
    from twophase.sinks.pravega.sink import PravegaSink
    from twophase.sinks.rocksdb.sink import RocksDBSink

_MODULE_OF = {
    "FilesSink": "twophase.sinks.files.sink",
    "HeapSink": "twophase.sinks.heap",
    "HeapStateSink": "twophase.sinks.heap_state",
    "KafkaSink": "twophase.sinks.kafka.sink",
    "PostgresSink": "twophase.sinks.postgres.sink",
    "RocksDBSink": "twophase.sinks.rocksdb.sink",
    "PravegaSink": "twophase.sinks.pravega.sink",
}

__all__ = ["FilesSink", "HeapSink", "HeapStateSink", "KafkaSink", "PostgresSink", "PravegaSink", "RocksDBSink"]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
