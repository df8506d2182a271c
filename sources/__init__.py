"""Replayable sources: one origin a module, each with its vendor's client and without pyspark.

Names are resolved at first use, so that importing one source never needs another one's extra.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twophase.sources.files import FilesSource
    from twophase.sources.kafka import KafkaSource
    from twophase.sources.postgres import PostgresLog, PostgresVersions
    from twophase.sources.pravega import PravegaSource
    from twophase.sources.socket import SocketSource

_MODULE_OF = {
    "FilesSource": "twophase.sources.files",
    "KafkaSource": "twophase.sources.kafka",
    "PostgresLog": "twophase.sources.postgres",
    "PostgresVersions": "twophase.sources.postgres",
    "SocketSource": "twophase.sources.socket",
    "PravegaSource": "twophase.sources.pravega",
}

__all__ = ["FilesSource", "KafkaSource", "PostgresLog", "PostgresVersions", "PravegaSource", "SocketSource"]


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
