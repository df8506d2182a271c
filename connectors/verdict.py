"""One sentence about a query, which may not be running: what a person at 3 a.m. needs to know first.

What the next start would be refused with is asked of the functions that would refuse it, as far as they can know by now: the
offsets of an epoch that Spark has not logged yet are not known.
"""

from __future__ import annotations

from collections.abc import Mapping

from twophase.errors import CheckpointMismatch
from twophase.identity import Epoch
from twophase.ledger import Tail
from twophase.query import Query
from twophase.recovery import refuse_rewound, refuse_swallowed
from twophase.sink import Status
from twophase.standing import judge, newest_marker, refuse_visible_without_decision

_NOT_LOGGED = "not logged yet"


def verdict(query: Query, tail: Tail | None, is_open: Mapping[str, bool | None]) -> str:
    """
    Parameters
    ----------
    is_open:
        Sink name → whether the newest decision is not visible there; None if the target could not be asked.
    """
    if tail is None:
        return "The query has written nothing through twophase yet."
    if tail.prepare.location != query.ledger.location:
        return f"The checkpoint was copied or moved from {tail.prepare.location}: the query is refused here without movedFrom."
    if None in is_open.values():
        return "Part of it can't be seen from here: see the problems below."
    decision, checkpoint = tail.decision, query.checkpoint
    statuses = query.statuses(settled=False)
    if taken := _taken_over(query, statuses):
        return taken
    if decision is not None and any(is_open.values()) and checkpoint.is_committed(decision.epoch.number):
        number = decision.epoch.number
        return f"A target lacks epoch {number}, which is logged as committed: it was emptied, moved or restored."
    if refused := _refused(query, tail, statuses, is_open):
        return refused
    if decision is not None and any(is_open.values()):
        number = decision.epoch.number
        return f"Epoch {number} is decided, and not visible everywhere: starting the query, or `twophase recover`, makes it so."
    number = tail.prepare.epoch.number
    if checkpoint.is_committed(number):
        return f"Epoch {number} is committed everywhere, and Spark has logged it."
    if decision is not None and decision.epoch == tail.prepare.epoch:
        return f"Epoch {number} is committed everywhere; Spark has not logged it, and will replay it without writing it again."
    return f"Epoch {number} was begun and not decided: nothing of it is visible, and Spark will run it again."


def _taken_over(query: Query, statuses: Mapping[str, Status]) -> str | None:
    for name, status in statuses.items():
        marker = newest_marker(status)
        if marker is not None and marker.owner != query.owner(name):
            return (
                f"The target of sink {name!r} is owned by {marker.owner} now, at epoch {marker.epoch.number}: this query is "
                "refused unless it takes the target over (takeOver)."
            )
    return None


def _refused(
    query: Query, tail: Tail, statuses: Mapping[str, Status], is_open: Mapping[str, bool | None]
) -> str | None:
    newest, decision = query.checkpoint.newest(), tail.decision
    if decision is not None and decision.epoch.number > (-1 if newest is None else newest):
        ends = "are empty" if newest is None else f"end at epoch {newest}"
        return (
            f"Spark's logs {ends}, and epoch {decision.epoch.number} is decided: the checkpoint was emptied, rewound or restored "
            "in part, and the query is refused. Restore the checkpoint as a whole."
        )
    try:
        epoch = _next(query, newest)
        refuse_rewound(query, tail, epoch)
        refuse_swallowed(query, tail, epoch)
        for name, status in statuses.items():
            view = query.view(name, epoch, tail)
            refuse_visible_without_decision(view, status)
            if not is_open[name]:  # what is open is finished first, and then the marker is elsewhere
                judge(view, status, previous=query.previous(epoch, tail), dead=None)
    except CheckpointMismatch as refusal:
        return f"The query is refused when it starts: {refusal.message}"
    return None


def _next(query: Query, newest: int | None) -> Epoch:
    """The epoch that Spark runs when it starts."""
    if newest is None:
        return Epoch(0, _NOT_LOGGED)
    if query.checkpoint.is_committed(newest):
        return Epoch(newest + 1, _NOT_LOGGED)
    return Epoch(newest, query.checkpoint.offsets_hash(newest) or _NOT_LOGGED)
