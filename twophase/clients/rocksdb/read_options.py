"""The options of `twophase-rocksdb` for reading."""

from __future__ import annotations

from dataclasses import dataclass

from twophase.options import option


@dataclass(frozen=True, kw_only=True)
class RocksDBReadOptions:
    """The options of `twophase-rocksdb`, for reading."""

    path: str = option(doc="The state's folder: a local path, or `file:///…`.")
    as_of_epoch: int | None = option(
        doc="The epoch of the state's line to read, of those that are kept; by default the newest.",
        default=None,
        minimum=0,
    )
