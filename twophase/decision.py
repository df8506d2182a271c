"""The decision: which shares make up an epoch, in every sink, and where each marker moves from.

Once its record is published it is never undone, only revised: when the target proves a decided share dead, a revision
of the same epoch names new shares in its place and keeps all the others, because a kept share may be visible already, or
may be made so at any moment by a driver that is slow to die.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from twophase.identity import DecisionId, Epoch, Generation, Owner
from twophase.sink import WHOLE, CommitOrder, H, Marker
from twophase.vote import VotedShare


@dataclass(frozen=True)
class SinkDecision:
    """One sink's part of a decision."""

    decided_by: DecisionId
    """The decision that named these shares first; a revision that keeps them keeps it."""
    joined: int
    """The first epoch of this sink in this query."""
    base: int
    origin: Marker | None
    shares: tuple[VotedShare, ...]

    def expected(self, atomic: bool) -> Mapping[int, str]:
        """The markers by which the target shows that all of this is visible: slot → who moved it there."""
        if atomic:
            return {WHOLE: str(self.decided_by)}
        return {share.slot: str(share.attempt) for share in self.shares}

    def order(self, owner: Owner, epoch: Epoch, handle_type: type[H]) -> CommitOrder[H]:
        shares = tuple(share.read(handle_type) for share in self.shares)
        return CommitOrder(owner, epoch, self.decided_by, self.origin, self.base, shares)

    def to_json(self) -> dict[str, Any]:
        return {
            "decided_by": str(self.decided_by),
            "joined": self.joined,
            "base": self.base,
            "origin": None if self.origin is None else marker_to_json(self.origin),
            "shares": [share.to_json() for share in self.shares],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SinkDecision:
        return cls(
            DecisionId.parse(data["decided_by"]),
            int(data["joined"]),
            int(data["base"]),
            None if data["origin"] is None else marker_from_json(data["origin"]),
            tuple(VotedShare.from_json(share) for share in data["shares"]),
        )


@dataclass(frozen=True)
class Decision:
    id: DecisionId
    generation: Generation
    epoch: Epoch
    revision: int
    sinks: Mapping[str, SinkDecision]

    def to_json(self) -> dict[str, Any]:
        return {
            "id": str(self.id),
            "generation": str(self.generation),
            "epoch": str(self.epoch),
            "revision": self.revision,
            "sinks": {name: sink.to_json() for name, sink in self.sinks.items()},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decision:
        return cls(
            DecisionId.parse(data["id"]),
            Generation.parse(data["generation"]),
            Epoch.parse(data["epoch"]),
            int(data["revision"]),
            {str(name): SinkDecision.from_json(sink) for name, sink in data["sinks"].items()},
        )


def marker_to_json(marker: Marker) -> dict[str, Any]:
    # The owner's parts, and not its text form: that one cuts long names, and can't be read back.
    owner = {"query": marker.owner.query, "sink": marker.owner.sink}
    return {"owner": owner, "epoch": str(marker.epoch), "by": marker.by, "base": marker.base}


def marker_from_json(data: Mapping[str, Any]) -> Marker:
    owner = Owner(str(data["owner"]["query"]), str(data["owner"]["sink"]))
    return Marker(owner, Epoch.parse(data["epoch"]), str(data["by"]), int(data["base"]))
