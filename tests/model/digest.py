"""16 bytes that stand for a value: the same in every process, and after every start.

What identifies a value within one process (its address, Python's hash of a text) means nothing in another one. The digest of a
value is made of its type and of the digests of its parts; sets are taken in the order of these, since theirs differs from process
to process. Whatever is not known to be made of its parts alone says itself what its digest is, by an attribute of that name.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import operator
from collections.abc import Callable
from hashlib import blake2b
from types import FunctionType
from typing import Any

SIZE = 16
_KEPT = "_digest"
_PLAIN = (type(None), bool, int, str, bytes)

Way = Callable[[Any], bytes]


def digest(value: Any) -> bytes:
    kind = type(value)
    way = _WAYS.get(kind)
    if way is None:
        way = _WAYS[kind] = _way(kind)
    return way(value)


def joined(name: str, *parts: bytes) -> bytes:
    """Of something that is made of parts, each of which is a digest: their number and sizes need no mention."""
    return blake2b(b"".join((name.encode(), b":", *parts)), digest_size=SIZE).digest()


_WAYS: dict[type, Way] = {}


def _way(kind: type) -> Way:
    """How digests of this type are made."""
    name = f"{kind.__module__}.{kind.__qualname__}"
    if hasattr(kind, "digest"):
        return operator.attrgetter("digest")
    if kind in _PLAIN:
        return functools.cache(lambda value: joined(name, repr(value).encode()))
    if issubclass(kind, enum.Enum):
        return lambda value: joined(name, value.name.encode())
    if issubclass(kind, tuple):
        return lambda value: joined(name, *map(digest, value))
    if kind is frozenset:  # the same few, again and again; a frozenset keeps its hash
        return functools.cache(lambda value: joined(name, *sorted(map(digest, value))))
    if issubclass(kind, dict):  # in its order: programs may depend on it
        return lambda value: joined(name, *(digest(part) for item in value.items() for part in item))
    if issubclass(kind, BaseException):
        return lambda error: joined(name, digest(error.args), digest(getattr(error, "dead_slots", None)))
    if issubclass(kind, FunctionType):
        return lambda function: joined(name, f"{function.__module__}.{function.__qualname__}".encode())
    if dataclasses.is_dataclass(kind):
        return _way_of_dataclass(kind, name)
    raise TypeError(f"a {name} has no digest")


def _way_of_dataclass(kind: type, name: str) -> Way:
    fields = [field.name for field in dataclasses.fields(kind)]

    def of(value: Any) -> bytes:
        # Kept in the value, as cached_property does: states share most of their parts, whose hashes are slow.
        kept: dict[str, Any] = value.__dict__
        known: bytes | None = kept.get(_KEPT)
        if known is None:
            known = kept[_KEPT] = joined(name, *(digest(getattr(value, field)) for field in fields))
        return known

    return of
