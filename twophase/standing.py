"""Where a sink stands, seen from the epoch that is about to be written. Pure: markers and ledger in, verdict out.

::

    newest marker of this owner            verdict for epoch N
    ─────────────────────────────────      ─────────────────────────────────────────────
    none, never decided                    write: the sink joins at N
    forgotten, N-1 logged by Spark         write, where the target keeps markers for a time only
    N-1, with the hash of offsets/N-1      write
    N, with the hash of offsets/N          done: tasks drain their input
    anything else                          CheckpointMismatch, with both sides

The number alone never says "done": a rewound checkpoint that logged other offsets has the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from twophase.decision import Decision
from twophase.errors import CheckpointMismatch
from twophase.identity import Epoch, Owner
from twophase.record import Enrolment
from twophase.sink import Capabilities, Marker, Status


@dataclass(frozen=True)
class Standing:
    done: bool
    origin: Marker | None
    joined: int
    base: int
    dead: frozenset[int] | None = None
    """Slots that a revision writes again; None: all of them."""


def _never() -> bool:
    return False


@dataclass(frozen=True)
class View:
    """What is known about one sink when its standing is judged."""

    owner: Owner
    name: str
    capabilities: Capabilities
    epoch: Epoch
    decision: Decision | None
    enrolment: Enrolment | None
    forgotten: Callable[[], bool] = _never
    """Whether Spark has logged the newest decision as committed, and the target may have forgotten its markers since. Asked only
    where one is missing: to answer, the handles of the decision must be read."""

    def decided(self, number: int) -> Decision | None:
        """The newest decision, if it is about this epoch number and this sink."""
        decision = self.decision
        return decision if decision and decision.epoch.number == number and self.name in decision.sinks else None


def newest_marker(status: Status) -> Marker | None:
    return max(status.markers.values(), key=lambda marker: marker.epoch.number, default=None)


def is_closed(view: View, status: Status) -> bool:
    """Whether the target shows that the newest decision is visible in this sink, whole."""
    decision = view.decision
    if decision is None or view.name not in decision.sinks:
        return True
    atomic = view.capabilities.atomic
    for slot, by in decision.sinks[view.name].expected(atomic).items():
        marker = status.markers.get(slot)
        # One that is forgotten is not there; an older one in its place says that this one never was.
        if marker is None and view.forgotten():
            continue
        if marker is None or marker.owner != view.owner or marker.epoch.number < decision.epoch.number:
            return False
        if marker.epoch.number > decision.epoch.number:
            continue  # epochs commit in order, so this one is there too; the ledger is an older copy
        # One step committed the whole epoch, whichever decision it was: a revision, or that of a copied checkpoint. Of a
        # slot alone that can't be said: another decision may have cut the rows differently.
        if marker.epoch != decision.epoch or not (atomic or marker.by == by):
            return False
    return True


def judge(view: View, status: Status, *, previous: str | None, dead: Set[int] | None) -> Standing:
    """The verdict for `view.epoch`.

    Parameters
    ----------
    previous:
        Offsets hash of epoch N-1: "" before epoch 0, None if neither Spark's log nor the ledger has it any more.
    dead:
        Slots of the newest decision that the target proved dead in this sink; None if there are none.
    """
    number = view.epoch.number
    marker = newest_marker(status)
    joined = number if view.enrolment is None else view.enrolment.joined
    is_behind = marker is None or (marker.owner == view.owner and marker.epoch.number < number - 1)
    if is_behind and view.decided(number - 1) and is_closed(view, status):
        return Standing(False, None, joined, 0)
    if marker is None:
        if view.enrolment is not None and not (dead and view.enrolment.joined == number):
            raise _mismatch(view, "the target has no marker of this owner: it was emptied, replaced or restored")
        return Standing(False, None, joined, 0, _rewritten(view, dead))
    if marker.owner != view.owner:
        raise _mismatch(
            view, f"the target is owned by {marker.owner} (set the option takeOver to that, to replace it)", marker
        )
    if marker.epoch.number == number:
        return _judge_same(view, status, marker, joined, dead)
    if marker.epoch.number == number - 1:
        if previous is None:
            raise _mismatch(
                view, f"offsets/{number - 1} is gone, and no decision of that epoch is in the ledger", marker
            )
        if marker.epoch.offsets != previous:
            raise _mismatch(view, f"offsets/{number - 1} has the hash {previous!r}", marker)
        if view.decided(number - 1) and not is_closed(view, status):
            raise _mismatch(view, "part of the decided epoch is missing in the target", marker)
        return Standing(False, marker, joined, marker.base, _rewritten(view, dead))
    raise _mismatch(view, f"Spark is about to write epoch {number}", marker)


def _judge_same(view: View, status: Status, marker: Marker, joined: int, dead: Set[int] | None) -> Standing:
    """The target shows epoch N in some slot at least."""
    number = view.epoch.number
    for other in status.markers.values():
        if other.epoch.number == number and other.epoch != view.epoch:
            raise _mismatch(view, f"offsets/{number} has the hash {view.epoch.offsets!r}", other)
    if dead:
        return Standing(False, marker, joined, marker.base, _rewritten(view, dead))
    if view.decided(number):
        if is_closed(view, status):
            return Standing(True, marker, joined, marker.base)
        raise _mismatch(view, "part of the decided epoch is missing in the target", marker)
    if view.capabilities.atomic:
        return Standing(True, marker, joined, marker.base)
    raise _mismatch(
        view, "the ledger has no decision of this epoch, so it is unknown whether all slots are there", marker
    )


def _rewritten(view: View, dead: Set[int] | None) -> frozenset[int] | None:
    """Only a sink by slot can keep some of its shares; and if it has none to keep, it is written again whole too."""
    decision = view.decided(view.epoch.number)
    if dead is None or decision is None or view.capabilities.atomic:
        return None
    every = {share.slot for share in decision.sinks[view.name].shares}
    return None if every <= dead else frozenset(dead)


def refuse_visible_without_decision(view: View, status: Status) -> None:
    """A marker at N or beyond proves that it was decided: without that decision, nothing of it may be swept."""
    marker = newest_marker(status)
    if marker is None or marker.owner != view.owner or marker.epoch.number < view.epoch.number:
        return
    decision = view.decided(marker.epoch.number)
    if view.capabilities.atomic and (decision or marker.epoch == view.epoch):
        return
    if decision is not None:
        named = decision.sinks[view.name].expected(atomic=False)
        strange = [
            m for s, m in status.markers.items() if m.epoch.number == marker.epoch.number and m.by != named.get(s)
        ]
        if not strange:
            return
        raise _mismatch(
            view, f"the ledger's decision of it (revision {decision.revision}) names other shares", strange[0]
        )
    raise _mismatch(view, f"Spark is about to write epoch {view.epoch}, and the ledger knows nothing newer", marker)


def _mismatch(view: View, checkpoint_says: str, marker: Marker | None = None) -> CheckpointMismatch:
    where = "nothing" if marker is None else f"epoch {marker.epoch} of {marker.owner}"
    return CheckpointMismatch(
        f"the checkpoint does not belong to the target: the target has {where}; {checkpoint_says}. The checkpoint may have been "
        "deleted, copied, rewound or restored, or the target restored; or exactly_once was not called for an epoch that Spark has "
        "logged. Nothing was written. docs/operations.md says what to do.",
        owner=str(view.owner),
        epoch=view.epoch.number,
    )
