"""Markers: offsets that are committed inside of the transactions, one for each slot.

::

    group      twophase/<query>/<sink>/<slot div P>
    partition  <slot mod P> of the marker topic, which has P partitions and no records
    offset     the epoch's number
    metadata   the rest of the marker, as JSON: which epoch and slot it was, and by which attempt

An offset that is sent to a transaction is committed if and only if the transaction is: that is what makes it a marker. The topic is
there because brokers take offsets of existing partitions only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from twophase.clients.kafka.control import Committed, ControlClient
from twophase.errors import CheckpointMismatch, TargetUnavailable
from twophase.identity import Attempt, Epoch, Owner
from twophase.sink import Marker
from twophase.sinks.kafka.transactional_id import names_of

FORMAT = 1
GROUPS = 64


@dataclass(frozen=True)
class MarkerPlace:
    """Where an owner's markers are."""

    prefix: str
    owner: Owner
    topic: str
    partitions: int

    def group(self, slot: int) -> str:
        return f"{names_of(self.prefix, self.owner)}{slot // self.partitions}"

    def partition(self, slot: int) -> int:
        return slot % self.partitions

    def require_room(self, slot: int) -> None:
        if slot >= GROUPS * self.partitions:
            raise TargetUnavailable(
                f"an epoch may have {GROUPS * self.partitions} tasks, {GROUPS} for each partition of the marker topic "
                f"{self.topic!r}: coalesce, or give the topic more partitions while no query runs",
                slot=slot,
            )

    def read(self, control: ControlClient, *, stable: bool, patience_s: float | None = None) -> dict[int, Marker]:
        """Every slot's newest marker. All groups are asked at once: any of them may be empty, where its slots have died."""
        markers: dict[int, Marker] = {}
        begins = names_of(self.prefix, self.owner)
        groups = [f"{begins}{number}" for number in range(GROUPS)]
        for group, offsets in control.committed(groups, self.topic, stable=stable, patience_s=patience_s).items():
            for committed in offsets.values():
                slot, marker = self._marker(committed, group)
                known = markers.get(slot)
                # Two, if the topic was given more partitions: the slot is at another place since then.
                if known is None or known.epoch.number < marker.epoch.number:
                    markers[slot] = marker
        return markers

    def _marker(self, committed: Committed, group: str) -> tuple[int, Marker]:
        try:
            said = json.loads(committed.metadata)
            if said["format"] != FORMAT:
                raise ValueError(f"its format is {said['format']!r}")
            return int(said["slot"]), Marker(self.owner, Epoch(committed.offset, said["offsets"]), said["by"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointMismatch(
                f"the group {group!r} has an offset that is no marker of this release ({error}): somebody else commits offsets to "
                "it, or a newer release did",
                owner=str(self.owner),
            ) from None


def metadata_of(epoch: Epoch, slot: int, attempt: Attempt) -> str:
    return json.dumps({"format": FORMAT, "offsets": epoch.offsets, "slot": slot, "by": str(attempt)})
