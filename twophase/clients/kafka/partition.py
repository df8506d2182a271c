"""The name of a partition, and of its two ends."""

from __future__ import annotations

from dataclasses import dataclass

EARLIEST, LATEST = -2, -1
"""What Kafka's requests, and people, say instead of an offset."""


@dataclass(frozen=True, order=True)
class Partition:
    topic: str
    number: int

    def __str__(self) -> str:
        return f"topic {self.topic!r}, partition {self.number}"
