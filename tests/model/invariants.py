"""What must hold in every state of the model, and at the end of a schedule. Each check names the invariant of
docs/protocol.md that it stands for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.model.objects import Op
from tests.model.slot_sink import SlotState
from tests.model.spark import rows_of
from twophase.identity import Epoch, Owner
from twophase.record import Decide, Prepare, decode
from twophase.sinks.heap import HeapState, StagedShare


class Named(NamedTuple):
    """A share that a decision names."""

    query: str
    sink: str
    epoch: Epoch
    turn: int
    """The how-manieth decision it is, of all that were ever taken: a restored ledger decides an epoch anew."""
    slot: int
    attempt: str


Decided = frozenset[Named]


@functools.cache
def _attempts(decided: Decided) -> frozenset[tuple[str, Epoch, str]]:
    return frozenset((named.sink, named.epoch, named.attempt) for named in decided)


@functools.cache
def _final_slots(decided: Decided) -> Mapping[tuple[str, str, Epoch], frozenset[int]]:
    """(query, sink, epoch) → the slots that its newest decision has."""
    newest: dict[tuple[str, str, Epoch], int] = {}
    for named in decided:
        place = (named.query, named.sink, named.epoch)
        newest[place] = max(newest.get(place, 0), named.turn)
    return {
        place: frozenset(n.slot for n in decided if (n.query, n.sink, n.epoch) == place and n.turn == turn)
        for place, turn in newest.items()
    }


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
        self.invariant, self.what = invariant, what


def visible_in_line(state: HeapState, sink: str = "a") -> Iterable[Visible]:
    for committed in state.line:
        owner = committed.marker.owner
        for share in committed.shares:
            yield Visible(sink, owner, committed.marker.epoch, share.slot, str(share.attempt), _values(share))


@functools.cache
def _values(share: StagedShare) -> tuple[int, ...]:
    columns = (batch.column(0).to_pylist() for batch in share.batches())
    return tuple(int(value) for column in columns for value in column if value is not None)


def visible_in_slots(state: SlotState) -> Iterable[Visible]:
    for t in state.visible:
        yield Visible(t.owner.sink, t.owner, t.epoch, t.slot, str(t.attempt), t.values)


def decided_by(record: bytes, path: str, before: Decided) -> Decided:
    """What a record that is being published decides."""
    number = int(path.rpartition("/")[2].partition(".")[0])
    content = decode(record, path=path, number=number)
    if not isinstance(content, Decide):
        return frozenset()
    decision = content.decision
    query = "q2" if path.startswith("/t") else "q"
    turn = 1 + max((named.turn for named in before), default=0)
    return frozenset(
        Named(query, name, decision.epoch, turn, share.slot, str(share.attempt))
        for name, sink in decision.sinks.items()
        for share in sink.shares
    )


def check_request(op: Op, before: object, decided: Decided, newest: Decided) -> None:
    """1 and 5, at the moment that a target is asked: commit only what is decided, delete nothing that may be committed."""
    match op.transition.__name__, op.arguments, before:
        case "commit", (order,), HeapState():
            asked = {("a", order.epoch, str(share.attempt)) for share in order.shares}
            if not asked <= _attempts(decided):
                raise Violation("1 decided before commit", f"a commit was asked for that nobody decided: {asked}")
        case "end", (owner, attempt, True), SlotState():
            if not any(named == str(attempt) and sink == owner.sink for sink, _, named in _attempts(decided)):
                raise Violation("1 decided before commit", f"a commit was asked for that nobody decided: {attempt}")
        case "end", (owner, attempt, False), SlotState(pending=pending):
            # One that was begun again after its death, and is not voted for, can't be committed.
            doomed = {str(t.attempt) for t in pending if t.attempt == attempt and t.owner == owner and t.voted}
            _check_deletion(doomed, newest, owner.sink)
        case "abort", (marks,), HeapState(staged=staged, line=line):
            visible = {str(share.attempt) for committed in line for share in committed.shares}
            doomed = {str(s.attempt) for s in staged if (s.owner, str(s.attempt)) in marks}
            # All or nothing: without one of its shares the decision can't be committed, and so none of the others.
            if {named.attempt for named in newest if named.sink == "a"} <= {str(s.attempt) for s in staged} | visible:
                _check_deletion(doomed - visible, newest, "a")
        case _:
            return


def _check_deletion(doomed: set[str], newest: Decided, sink: str) -> None:
    lost = doomed & {named.attempt for named in newest if named.sink == sink}
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
            raise Violation(
                "10 one owner", f"{sink}: {there.owner} wrote into the line of {here.owner} without taking it over"
            )


def check_shares(shares: Iterable[Visible], decided: Decided, *, deterministic: bool = True) -> None:
    """1 (nothing visible before it is decided) and 4 (nothing twice), for all that readers see of one sink."""
    attempts = _attempts(decided)
    seen: set[tuple[Owner, int, int]] = set()
    newest: dict[tuple[Owner, int], int] = {}
    for share in shares:
        if (share.sink, share.epoch, share.attempt) not in attempts:
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


def check_no_gap_by_slot(state: SlotState, decided: Decided) -> None:
    """2 for a target by slot: nothing of an epoch is visible before all of the one before it is."""
    for owner in {t.owner for t in state.visible}:
        slots: dict[Epoch, set[int]] = {}
        for t in state.visible:
            if t.owner == owner:
                slots.setdefault(t.epoch, set()).add(t.slot)
        epochs = sorted(slots)
        numbers = [epoch.number for epoch in epochs]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            raise Violation("2 gapless prefix", f"{owner} has epochs {numbers}")
        for epoch in epochs[:-1]:
            whole = _final_slots(decided)[owner.query, owner.sink, epoch]
            if slots[epoch] != whole:
                raise Violation(
                    "2 gapless prefix",
                    f"{owner}: {epoch} has slots {slots[epoch]} of {whole}, and a later one is visible",
                )


def check_same_rows(atomic: HeapState, slots: SlotState) -> None:
    """6: whatever had to be written again, an epoch holds the same rows in every sink."""
    here = {(s.owner.query, s.epoch, s.slot): s.values for s in visible_in_line(atomic)}
    for share in visible_in_slots(slots):
        other = here.get((share.owner.query, share.epoch, share.slot), share.values)
        if other != share.values:
            raise Violation("6 replay matches", f"{share}, and the other sink has {other}")


def check_complete(shares: Iterable[Visible], epochs: Sequence[Epoch], decided: Decided, owner: Owner) -> None:
    """6 (no silent loss), at the end: every epoch that Spark logged as committed is there, whole, since the sink joined."""
    present: dict[Epoch, set[int]] = {}
    for share in shares:
        if share.owner == owner:
            present.setdefault(share.epoch, set()).add(share.slot)
    joined = min((epoch.number for epoch in present), default=0)
    for epoch in epochs:
        whole = _final_slots(decided).get((owner.query, owner.sink, epoch))
        if epoch.number >= joined and (whole is None or present.get(epoch, set()) != set(whole)):
            raise Violation(
                "6 no loss", f"{epoch} was logged as committed, and {owner} has {present.get(epoch)} of {whole}"
            )
