"""Keyed state: rows by key, in key groups, as a sink writes them and a reader sees them at a committed epoch.

::

    row ─► key columns ─► key group (key_groups.py) ─► the task that owns the group
                      └─► bytes that sort as the keys do (key_encoding.py)
           other columns ─► bytes (row_encoding.py), by the merge mode (merge.py)
    committed epoch ─► manifest: key group → files (manifest.py)

`open` is what a reader begins with. It is resolved at first use, so that this package imports no vendor's client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twophase.clients.rocksdb.difference import difference
    from twophase.clients.rocksdb.snapshot import Snapshot, open_snapshot

    open = open_snapshot

_NAMES = {
    "Snapshot": ("twophase.clients.rocksdb.snapshot", "Snapshot"),
    "difference": ("twophase.clients.rocksdb.difference", "difference"),
    "open": ("twophase.clients.rocksdb.snapshot", "open_snapshot"),
}

__all__ = ["Snapshot", "difference", "open"]


def __getattr__(name: str) -> Any:
    found = _NAMES.get(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(found[0]), found[1])


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
