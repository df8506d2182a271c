"""Splits: which offsets of which partition a task reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from twophase.clients.kafka.partition import Partition


@dataclass(frozen=True)
class KafkaSplit:
    """The offsets from `begin` on and before `end` of one partition."""

    partition: Partition
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin


def admitted(waiting: Mapping[Partition, int], most: int | None) -> dict[Partition, int]:
    """How many offsets of each partition an epoch takes: in proportion to what waits, and one of each that has any."""
    total = sum(waiting.values())
    if most is None or total <= most:
        return dict(waiting)
    return {partition: min(count, max(1, most * count // total)) for partition, count in waiting.items() if count}


def cut(splits: Sequence[KafkaSplit], at_least: int | None) -> list[KafkaSplit]:
    """About so many, in the order of their offsets: large ones are cut, and none is cut smaller than an offset."""
    total = sum(split.size for split in splits)
    if at_least is None or len(splits) >= at_least or not total:
        return list(splits)
    parts = []
    for split in splits:
        count = max(1, min(split.size, -(-split.size * at_least // total)))
        bounds = [split.begin + split.size * number // count for number in range(count + 1)]
        parts += [KafkaSplit(split.partition, begin, end) for begin, end in pairwise(bounds)]
    return parts
