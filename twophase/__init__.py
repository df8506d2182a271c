"""Exactly-once sources and sinks for PySpark Structured Streaming.

Public names are resolved at first use, so that `import twophase` imports neither pyspark nor a vendor's client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twophase import state
    from twophase.connectors.by_key_group import by_key_group
    from twophase.connectors.for_each_batch import exactly_once
    from twophase.connectors.registration import register
    from twophase.coordinator import Coordinator
    from twophase.errors import (
        AlreadyDecided,
        CheckpointMismatch,
        DataLost,
        Fenced,
        LedgerCorrupt,
        MissingExtra,
        NotCommitted,
        OptionError,
        OutcomeUnknown,
        ProtocolViolation,
        ReplayDiffers,
        SchemaMismatch,
        TableCorrupt,
        TargetUnavailable,
        TwophaseError,
        Unreadable,
    )
    from twophase.ledger import Ledger
    from twophase.sink import Capabilities, Sink, Transaction
    from twophase.source import Source

    __version__: str

_NAMES_OF = {
    "twophase.connectors.by_key_group": ("by_key_group",),
    "twophase.connectors.for_each_batch": ("exactly_once",),
    "twophase.connectors.registration": ("register",),
    "twophase.coordinator": ("Coordinator",),
    "twophase.errors": (
        "AlreadyDecided",
        "CheckpointMismatch",
        "DataLost",
        "Fenced",
        "LedgerCorrupt",
        "MissingExtra",
        "NotCommitted",
        "OptionError",
        "OutcomeUnknown",
        "ProtocolViolation",
        "ReplayDiffers",
        "SchemaMismatch",
        "TableCorrupt",
        "TargetUnavailable",
        "TwophaseError",
        "Unreadable",
    ),
    "twophase.ledger": ("Ledger",),
    "twophase.sink": ("Capabilities", "Sink", "Transaction"),
    "twophase.source": ("Source",),
}
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

__all__ = [
    "AlreadyDecided",
    "Capabilities",
    "CheckpointMismatch",
    "Coordinator",
    "DataLost",
    "Fenced",
    "Ledger",
    "LedgerCorrupt",
    "MissingExtra",
    "NotCommitted",
    "OptionError",
    "OutcomeUnknown",
    "ProtocolViolation",
    "ReplayDiffers",
    "SchemaMismatch",
    "Sink",
    "Source",
    "TableCorrupt",
    "TargetUnavailable",
    "Transaction",
    "TwophaseError",
    "Unreadable",
    "__version__",
    "by_key_group",
    "exactly_once",
    "register",
    "state",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # importlib.metadata costs more than all the rest of this import.
        from importlib.metadata import version

        return version("twophase")
    if name == "state":
        return importlib.import_module("twophase.state")
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
