"""Offsets of partitions, as Spark's own Kafka source spells them: ``{"orders": {"0": 23, "1": 42}}``.

In what people set, -2 stands for the earliest and -1 for the latest; an offset that a query has logged has neither.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from twophase.clients.kafka.partition import EARLIEST, Partition

Offsets = Mapping[Partition, int]
"""The next offset to be read of each partition."""


def to_text(offsets: Offsets) -> str:
    topics: dict[str, dict[str, int]] = {}
    for partition in sorted(offsets):
        topics.setdefault(partition.topic, {})[str(partition.number)] = offsets[partition]
    return json.dumps(topics, separators=(",", ":"))


def from_text(text: str) -> dict[Partition, int]:
    """ValueError, as the end of a sentence, if it is not spelled so."""
    return {
        Partition(topic, _whole(number, f"the partition {number!r} of {topic!r}")): _offset(offset, topic)
        for topic, numbers in _object(text).items()
        for number, offset in _mapping(numbers, topic).items()
    }


def partitions_from_text(text: str) -> list[Partition]:
    """``{"orders": [0, 1]}``, as the option `assign` has it."""
    found = []
    for topic, numbers in _object(text).items():
        if not isinstance(numbers, list) or not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"has no list of partitions for {topic!r}")
        found += [Partition(topic, number) for number in numbers]
    return sorted(found)


def _object(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except ValueError:
        raise ValueError("is not JSON") from None
    if not isinstance(read, dict):
        raise ValueError("is no JSON object")
    return read


def _mapping(numbers: object, topic: str) -> dict[str, Any]:
    if not isinstance(numbers, dict):
        raise ValueError(f"has no offsets by partition for {topic!r}")
    return numbers


def _offset(offset: object, topic: str) -> int:
    if type(offset) is not int or offset < EARLIEST:
        raise ValueError(f"has an offset of {topic!r} that is no whole number from -2 on")
    return offset


def _whole(text: str, what: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"has no number for {what}")
    return int(text)
