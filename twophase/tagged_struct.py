"""Types of Spark that Arrow has none for: they come as structs of bytes, and a field of these says what they are."""

from __future__ import annotations

from typing import Any

from pyarrow import types

_TAGS = (b"variant", b"geometry", b"geography")


def spark_type_of(kind: Any) -> str | None:
    """What a struct stands for; None for one that is only a struct, and for anything else."""
    if not types.is_struct(kind):
        return None
    tags = [tag for field in kind for tag in _TAGS if tag in (field.metadata or {})]
    return tags[0].decode() if tags else None
