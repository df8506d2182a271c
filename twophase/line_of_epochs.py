"""A line of epochs under one marker: what follows when it is not where somebody wants to move it from.

Every sink with one marker compares before it sets. If the marker is already where the order moves it, the order was carried out
before. If it is neither there nor where the order comes from, this says what that means: the same for every target.
"""

from __future__ import annotations

from typing import Any

from twophase.errors import Fenced, NotCommitted, TwophaseError
from twophase.identity import Generation
from twophase.sink import CommitOrder, Marker, TakeOver


def elsewhere(what: str, marker: Marker | None, order: CommitOrder[Any]) -> TwophaseError:
    """For a commit. `what` is the target, in words: "table"."""
    if marker is not None and marker.owner == order.owner and marker.epoch.number < order.epoch.number:
        # A take-over came in between. Markers never go back, so the order can't be carried out any more.
        slots = [share.slot for share in order.shares]
        return NotCommitted(f"the {what} went on without this decision", dead_slots=slots)
    return Fenced(
        f"the {what} is at {shown(marker)}, and the decision {order.decision} moves it from {shown(order.origin)}"
    )


def not_taken_over(what: str, marker: Marker | None, order: TakeOver) -> Fenced:
    """For a take-over."""
    return Fenced(f"the {what} is at {shown(marker)}, and the take-over moves it from {shown(order.origin)}")


def refuse_restored(what: str, marker: Marker | None, generation: Generation) -> None:
    """Raise Fenced if a later record of the same ledger has moved the marker: then the ledger was restored to before it."""
    if marker is None:
        return
    moved_by = Generation.parse(marker.by)  # a decision, or a take-over's generation: both are records
    if moved_by.ledger == generation.ledger and moved_by.number >= generation.number:
        raise Fenced(f"the {what} was moved by record {moved_by}, and this is generation {generation}")


def shown(marker: Marker | None) -> str:
    return "no epoch" if marker is None else f"epoch {marker.epoch} of {marker.owner}, by {marker.by}"
