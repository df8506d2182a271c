"""Markers by slot: what those of a target that commits slot by slot say about an order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twophase.errors import Fenced
from twophase.sink import CommitOrder, Marker, Share


def hidden(order: CommitOrder[Any], markers: Mapping[int, Marker]) -> list[Share[Any]]:
    """The shares of which the markers do not say that they are visible.

    Epochs commit in order: a slot whose marker is at a later one has shown this one.
    """
    return [share for share in order.shares if not _is_shown(share, markers.get(share.slot), order.epoch.number)]


def require_no_other(order: CommitOrder[Any], markers: Mapping[int, Marker]) -> None:
    """Fenced if a slot of this epoch is visible by an attempt that the order does not name."""
    for share in order.shares:
        marker = markers.get(share.slot)
        if marker is not None and marker.epoch.number == order.epoch.number and marker.by != str(share.attempt):
            raise Fenced(
                f"slot {share.slot} of this epoch is visible already, by {marker.by}: another decision was committed",
                owner=str(order.owner),
                epoch=order.epoch.number,
                slot=share.slot,
            )


def _is_shown(share: Share[Any], marker: Marker | None, number: int) -> bool:
    return marker is not None and (marker.by == str(share.attempt) or marker.epoch.number > number)
