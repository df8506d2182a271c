"""What must hold in every state of the model, and at the end of a schedule. Each check names the invariant of
docs/protocol.md that it stands for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.model.objects import Op
from tests.model.slot_sink import SlotState
from tests.model.spark import rows_of
from twophase.identity import Epoch, Owner
from twophase.record import Decide, Prepare, decode
from twophase.sinks.heap import HeapState


Decided = frozenset[tuple[str, Epoch, str]]
"""What decisions name: (sink, epoch, attempt)."""


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


def decided_by(record: bytes, path: str) -> Decided:
    """What a record that is being published decides: (sink, epoch, attempt)."""
    number = int(path.rpartition("/")[2].partition(".")[0])
    content = decode(record, path=path, number=number)
    if not isinstance(content, Decide):
        return frozenset()
    decision = content.decision
    return frozenset((n, decision.epoch, str(s.attempt)) for n, d in decision.sinks.items() for s in d.shares)


def check_request(op: Op, before: object, decided: Decided, newest: Decided) -> None:
    """1 and 5, at the moment that a target is asked: commit only what is decided, delete nothing that may be committed."""
    match op.transition.__name__, op.arguments, before:
        case "commit", (order,), HeapState():
            asked = {("a", order.epoch, str(share.attempt)) for share in order.shares}
            if not asked <= decided:
                raise Violation("1 decided before commit", f"a commit was asked for that nobody decided: {asked - decided}")
        case "end", (attempt, True), SlotState():
            if not any(sink == "b" and named == str(attempt) for sink, _, named in decided):
                raise Violation("1 decided before commit", f"a commit was asked for that nobody decided: {attempt}")
        case "end", (attempt, False), SlotState(pending=pending):
            doomed = {str(t.attempt) for t in pending if t.attempt == attempt}
            _check_deletion(doomed, newest, "b")
        case "abort", (marks,), HeapState(staged=staged):
            _check_deletion({str(s.attempt) for s in staged if str(s.attempt) in marks}, newest, "a")
        case _:
            return


def _check_deletion(doomed: set[str], newest: Decided, sink: str) -> None:
    lost = doomed & {attempt for name, _, attempt in newest if name == sink}
    if lost:
        raise Violation("5 delete only when certain", f"{sink}: {sorted(lost)} are decided, and were deleted")


def check_copy_untouched(files: Mapping[str, bytes], root: str) -> None:
    """7: a copied checkpoint is refused, so nothing is ever published after the records that came with the copy."""
    places = set()
    for path, data in files.items():
        if path.startswith(f"{root}/twophase/"):
            record = decode(data, path=path, number=int(path.rpartition("/")[2].partition(".")[0]))
            places |= {record.location} if isinstance(record, Prepare) else set()
    if len(places) > 1:
        raise Violation("7 mismatch is refused", f"the copy {root} was accepted: it has records of {sorted(places)}")


def check_line(state: HeapState, sink: str = "a") -> None:
    """2 (a gapless prefix, in order) and 10 (one line, one owner; another begins with an epoch of its own)."""
    for before, after in zip(state.line, state.line[1:], strict=False):
        here, there = before.marker, after.marker
        if there.base + there.epoch.number != here.base + here.epoch.number + 1:
            raise Violation("2 gapless prefix", f"{sink}: {here} is followed by {there}")
        if here.owner != there.owner and after.shares:
            raise Violation("10 one owner", f"{sink}: {there.owner} wrote into the line of {here.owner} without taking it over")


def check_shares(
    shares: Iterable[Visible], decided: Decided, *, deterministic: bool = True
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
        expected = rows_of(share.epoch.number, share.slot, share.epoch.offsets)
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


def check_same_rows(atomic: HeapState, slots: SlotState) -> None:
    """6: whatever had to be written again, an epoch holds the same rows in every sink."""
    here = {(s.owner.query, s.epoch, s.slot): s.values for s in visible_in_line(atomic)}
    for share in visible_in_slots(slots):
        other = here.get((share.owner.query, share.epoch, share.slot), share.values)
        if other != share.values:
            raise Violation("6 replay matches", f"{share}, and the other sink has {other}")


def check_complete(
    shares: Iterable[Visible], sink: str, epochs: Iterable[Epoch], slots: int, *, owner: Owner
) -> None:
    """6 (no silent loss), at the end: every epoch that Spark logged as committed is there, whole."""
    present = {(share.epoch, share.slot) for share in shares if share.owner == owner}
    for epoch in epochs:
        for slot in range(slots):
            if (epoch, slot) not in present:
                raise Violation("6 no loss", f"{sink}: slot {slot} of epoch {epoch} was logged as committed and is missing")
