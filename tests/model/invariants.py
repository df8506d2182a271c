"""What must hold in every state of the model, and at the end of a schedule. Each check names the invariant of
docs/protocol.md that it stands for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tests.model.slot_sink import SlotState
from tests.model.spark import value_of
from twophase.identity import Epoch, Owner
from twophase.record import Decide, decode
from twophase.sinks.heap import HeapState


@dataclass(frozen=True)
class Visible:
    """One share that readers see."""

    sink: str
    owner: Owner
    epoch: Epoch
    slot: int
    attempt: str
    values: tuple[int, ...]


class Violation(AssertionError):
    def __init__(self, invariant: str, what: str):
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


def visible_in_line(state: HeapState, sink: str = "a") -> Iterable[Visible]:
    for committed in state.line:
        owner = committed.marker.owner
        for share in committed.shares:
            values = tuple(value for batch in share.batches for value in batch.column(0).to_pylist())
            yield Visible(sink, owner, committed.marker.epoch, share.slot, str(share.attempt), values)


def visible_in_slots(state: SlotState, sink: str = "b") -> Iterable[Visible]:
    for t in state.visible:
        yield Visible(sink, t.owner, t.epoch, t.slot, str(t.attempt), t.values)


def decided_by(record: bytes, path: str) -> frozenset[tuple[str, Epoch, str]]:
    """What a record that is being published decides: (sink, epoch, attempt)."""
    number = int(path.rpartition("/")[2].partition(".")[0])
    content = decode(record, path=path, number=number)
    if not isinstance(content, Decide):
        return frozenset()
    decision = content.decision
    return frozenset((n, decision.epoch, str(s.attempt)) for n, d in decision.sinks.items() for s in d.shares)


def check_line(state: HeapState, sink: str = "a") -> None:
    """2 (a gapless prefix, in order) and 10 (one line, one owner; another begins with an epoch of its own)."""
    for before, after in zip(state.line, state.line[1:], strict=False):
        here, there = before.marker, after.marker
        if there.base + there.epoch.number != here.base + here.epoch.number + 1:
            raise Violation("2 gapless prefix", f"{sink}: {here} is followed by {there}")
        if here.owner != there.owner and after.shares:
            raise Violation("10 one owner", f"{sink}: {there.owner} wrote into the line of {here.owner} without taking it over")


def check_shares(
    shares: Iterable[Visible], decided: frozenset[tuple[str, Epoch, str]], *, deterministic: bool = True
) -> None:
    """1 (nothing visible before it is decided) and 4 (nothing twice), for all that readers see of one sink."""
    seen: set[tuple[Owner, int, int]] = set()
    newest: dict[tuple[Owner, int], int] = {}
    for share in shares:
        if (share.sink, share.epoch, share.attempt) not in decided:
            raise Violation("1 decided before visible", f"{share} was never decided")
        place = (share.owner, share.epoch.number, share.slot)
        if place in seen:
            raise Violation("4 once", f"{share} is visible twice")
        seen.add(place)
        if newest.get((share.owner, share.slot), -1) > share.epoch.number:
            raise Violation("2 in order", f"{share} became visible after a later epoch")
        newest[share.owner, share.slot] = share.epoch.number
        expected = (value_of(share.epoch.number, share.slot, share.epoch.offsets),)
        if deterministic and share.values != expected:
            raise Violation("6 no loss", f"{share} should hold {expected}")


def check_no_gap_by_slot(state: SlotState, slots: int, sink: str = "b") -> None:
    """2 for a target by slot: no slot is at epoch N while another is before N-1."""
    owners = {t.owner for t in state.visible}
    for owner in owners:
        epochs = {s: {t.epoch.number for t in state.visible if t.owner == owner and t.slot == s} for s in range(slots)}
        newest = max(max(e, default=-1) for e in epochs.values())
        first = min(min(e, default=newest) for e in epochs.values())
        for slot, numbers in epochs.items():
            if numbers != set(range(first, newest + 1)) and numbers != set(range(first, newest)):
                raise Violation("2 gapless prefix", f"{sink}: slot {slot} has {sorted(numbers)}, another is at {newest}")


def check_complete(
    shares: Iterable[Visible], sink: str, epochs: Iterable[Epoch], slots: int, *, owner: Owner
) -> None:
    """6 (no silent loss), at the end: every epoch that Spark logged as committed is there, whole."""
    present = {(share.epoch, share.slot) for share in shares if share.owner == owner}
    for epoch in epochs:
        for slot in range(slots):
            if (epoch, slot) not in present:
                raise Violation("6 no loss", f"{sink}: slot {slot} of epoch {epoch} was logged as committed and is missing")
