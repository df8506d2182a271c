"""Recovery: how a generation enters. The first half of every prepare, and all of `recover`.

::

    read the ledger     refuse what is foreign, rewound, owned by another, or would not fit what it takes over
    publish             a generation: everything older is fenced from here on
    fence               older generations out of the targets, as far as those can
    read markers        what is visible, in doubt or not
    sweep               what older generations staged and no open decision names
    roll forward        the newest decision, where a sink lacks it; sweep what was proven dead
    take over           targets that another owner has, if asked to

The order is the point. Sweeping before the generation is published would delete what a live driver is about to decide; rolling
forward before the markers are read could not tell a finished decision from a lost one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from twophase import failpoints
from twophase.decision import Decision
from twophase.errors import CheckpointMismatch, Fenced, NotCommitted
from twophase.identity import Epoch, Generation
from twophase.ledger import Tail
from twophase.log import Log
from twophase.query import Query
from twophase.record import Prepare
from twophase.sink import Leftover, Status
from twophase.standing import is_closed, refuse_visible_without_decision
from twophase.take_over import due_take_overs, replaced_ledgers, require_fit, take_over

Dead = Mapping[str, frozenset[int]]
"""Sink name → slots of the newest decision that its target proved dead."""
Found = Mapping[str, Sequence[Leftover[Any]]]

log = Log("twophase.recovery")


@dataclass(frozen=True)
class Entered:
    """A generation that has published itself and recovered what was before it."""

    prepare: Prepare
    dead: Dead

    @property
    def tail(self) -> Tail:
        return Tail(self.prepare, None)


def enter(
    query: Query,
    epoch: Epoch,
    *,
    tasks: bool,
    schemas: Mapping[str, pa.Schema] | None = None,
    overwrite: bool = False,
) -> Entered:
    """Publish a generation for this epoch and settle everything before it.

    Parameters
    ----------
    schemas, overwrite:
        What the tasks are about to write, by sink name, as far as it is known.
    """
    tail = query.ledger.read()
    query.ledger.refuse_if_foreign(tail, query=query.name, moved_from=query.moved_from)
    refuse_rewound(query, tail, epoch)
    refuse_swallowed(query, tail, epoch)
    due = due_take_overs(query, tail, epoch)
    if tasks:
        require_fit(query, due, schemas or {}, overwrite=overwrite)
    replaces = replaced_ledgers(query, due) if tasks else ()
    failpoints.hit("prepare.before_publish", owner=query.name, epoch=epoch.number)
    prepare, found = publish_generation(query, tail, epoch, tasks=tasks, replaces=replaces)
    failpoints.hit("prepare.fenced", owner=query.name, epoch=epoch.number)
    statuses = query.statuses(settled=False)
    for name in query.sinks:
        refuse_visible_without_decision(query.view(name, epoch, Tail(prepare, None)), statuses[name])
    failpoints.hit("prepare.markers_read", owner=query.name, epoch=epoch.number)
    sweep(query, prepare, statuses, found)
    failpoints.hit("prepare.swept", owner=query.name, epoch=epoch.number)
    dead = finish_decision(query, prepare, statuses, skip=due.keys())
    sweep_dead(query, prepare, dead)
    if tasks:  # only an epoch that is about to be written can follow a take-over
        dead |= take_over(query, prepare, due)
    failpoints.hit("prepare.rolled_forward", owner=query.name, epoch=epoch.number)
    return Entered(prepare, dead)


def refuse_rewound(query: Query, tail: Tail | None, epoch: Epoch) -> None:
    """Raise CheckpointMismatch if the newest decision can't be before, or of, this epoch."""
    decision = None if tail is None else tail.decision
    if decision is None:
        return
    if decision.epoch.number < epoch.number:
        logged = query.checkpoint.offsets_hash(decision.epoch.number)
        if logged is not None and logged != decision.epoch.offsets:
            raise CheckpointMismatch(
                f"the ledger has decided epoch {decision.epoch}, and offsets/{decision.epoch.number} has the hash {logged!r}: "
                "Spark's part of the checkpoint was rewound, and offsets were logged anew. Restore the checkpoint as a whole.",
                owner=query.name,
                epoch=epoch.number,
            )
        return
    if decision.epoch != epoch:
        raise CheckpointMismatch(
            f"the ledger has decided epoch {decision.epoch}, and Spark is about to write {epoch}: Spark's part of the checkpoint "
            "was rewound, or offsets were logged anew. Restore the checkpoint folder as a whole.",
            owner=query.name,
            epoch=epoch.number,
        )
    gone = [name for name in decision.sinks if name not in query.sinks]
    if gone and not query.checkpoint.is_committed(epoch.number):
        raise CheckpointMismatch(
            f"epoch {epoch.number} was decided for the sinks {gone} too, which are no longer configured: start the query once "
            "with the old sinks, so that the epoch is finished everywhere",
            owner=query.name,
            epoch=epoch.number,
        )


def refuse_swallowed(query: Query, tail: Tail | None, epoch: Epoch) -> None:
    """Raise CheckpointMismatch if a sink's first epoch was begun and never decided, and Spark has gone on all the same.

    For later epochs the marker shows it. Before the first one a sink that has nothing looks like one that joins now.
    """
    for name, begun in () if tail is None else tail.begun.items():
        if begun < epoch.number and _is_missing(query, tail, name):
            raise CheckpointMismatch(
                f"epoch {begun} was begun for the sink {name!r} and never decided, and Spark has logged it as committed: an "
                "error was swallowed around exactly_once, and its rows are missing. Let errors through. If that epoch was written "
                f"by another sink on purpose, delete the ledger {query.ledger.location}: nothing was decided in it for this one",
                owner=query.name,
                epoch=epoch.number,
            )


def _is_missing(query: Query, tail: Tail | None, name: str) -> bool:
    """Whether nothing of this owner ever came to the target of a sink that was begun."""
    if name not in query.sinks:
        # It may have been taken out on purpose, after an epoch was decided without it; but not if none ever was.
        return tail is None or tail.decision is None
    owner = query.owner(name)
    status = query.sinks[name].status(owner, settled=False)
    # A line with one owner has a marker that may be somebody else's: of whom a take-over was due.
    return status.own is None and all(marker.owner != owner for marker in status.markers.values())


def publish_generation(
    query: Query, tail: Tail | None, epoch: Epoch, *, tasks: bool, replaces: tuple[str, ...] = ()
) -> tuple[Prepare, Found]:
    """Publish, and fence older generations out of every target. Also returns what is staged there."""
    targets, writes = query.targets(), tuple(query.sinks)
    prepare = query.ledger.prepare(
        tail, query=query.name, epoch=epoch, tasks=tasks, replaces=replaces, targets=targets, writes=writes
    )
    failpoints.hit("prepare.published", owner=query.name, epoch=epoch.number)
    if fence(query, prepare) and not _is_ahead(prepare, found := leftovers(query, prepare.generation)):
        return prepare, found
    # A target has met a generation of this ledger that the ledger has not had: an older copy of it was restored.
    # Generations would repeat, and attempts with them. A new id makes all names new again.
    require_newest(query, prepare)
    log.warning("the ledger was restored from an older copy", owner=query.name, generation=prepare.generation)
    restored = Tail(prepare, None)
    prepare = query.ledger.prepare(
        restored,
        query=query.name,
        epoch=epoch,
        tasks=tasks,
        replaces=(prepare.ledger,),
        targets=targets,
        writes=writes,
    )
    fence(query, prepare)
    return prepare, leftovers(query, prepare.generation)


def fence(query: Query, prepare: Prepare) -> bool:
    """False if a target knows a newer generation."""
    try:
        for name, sink in query.sinks.items():
            sink.fence(query.owner(name), prepare.generation)
    except Fenced:
        return False
    return True


def leftovers(query: Query, seen_from: Generation | None) -> Found:
    found = {name: tuple(sink.leftovers(query.owner(name), seen_from=seen_from)) for name, sink in query.sinks.items()}
    failpoints.hit("sweep.listed", owner=query.name)
    return found


def sweep(query: Query, prepare: Prepare, statuses: Mapping[str, Status], found: Found) -> None:
    """Abort what older generations staged, except what an open decision names.

    What to abort was listed before, and the ledger is read again here: a generation that has been overtaken in between may not
    abort, because some targets reuse names after a number of generations.
    """
    for name, sink in query.sinks.items():
        open_marks = _open_marks(query, name, prepare.decision, statuses[name])
        doomed = [
            leftover
            for leftover in found[name]
            if _may_sweep(prepare, leftover.generation) and leftover.mark not in open_marks
        ]
        if not doomed:
            continue
        require_newest(query, prepare)
        failpoints.hit("sweep.before_abort", owner=query.name, epoch=prepare.epoch.number)
        sink.abort(query.owner(name), doomed)
        log.info("swept", owner=query.owner(name), epoch=prepare.epoch.number, leftovers=len(doomed))


def finish_decision(
    query: Query, prepare: Prepare, statuses: Mapping[str, Status], *, skip: Set[str]
) -> dict[str, frozenset[int]]:
    """Roll the newest decision forward; refuse if that is impossible and it can't be written again either."""
    decision, number = prepare.decision, prepare.epoch.number
    if decision is None:
        return {}
    try:
        dead = roll_forward(query, decision, statuses, skip=skip)
    except Fenced as error:
        require_newest(query, prepare)
        raise CheckpointMismatch(
            f"epoch {decision.epoch} was decided and can't be committed any more: {error.message}. The target was emptied, "
            "restored, or written by another. Nothing was written.",
            owner=query.name,
            epoch=number,
        ) from error
    if dead and (decision.epoch.number < number or query.checkpoint.is_committed(number)):
        raise CheckpointMismatch(
            f"epoch {decision.epoch} was decided, and Spark has logged it as committed, but the target lost the shares of "
            f"{describe(dead)}: it was emptied or restored, or the query was pointed at another one. Nothing was written. Restore "
            "it, or point the query at the one that it wrote to.",
            owner=query.name,
            epoch=number,
        )
    return dead


def sweep_dead(query: Query, prepare: Prepare, dead: Dead) -> None:
    """Abort what is left of decided shares that were proven dead: no sweep before could, because a decision names them.

    What is left are the others of an atomic decision, which can't be committed without the dead one; and what a request that
    came twice brought back, for which a target by slot would be in doubt until it expires.
    """
    decision = prepare.decision
    for name, slots in dead.items():
        assert decision is not None, "only a decision's shares can be proven dead"
        sink = query.sinks[name]
        marks = {sink.mark(share) for share in query.order(name, decision).shares if share.slot in slots}
        listed = sink.leftovers(query.owner(name), seen_from=prepare.generation)
        doomed = [left for left in listed if left.mark in marks]
        if not doomed:
            continue
        require_newest(query, prepare)
        failpoints.hit("sweep.before_abort", owner=query.name, epoch=prepare.epoch.number)
        sink.abort(query.owner(name), doomed)
        log.info("swept after their death", owner=query.owner(name), epoch=prepare.epoch.number, leftovers=len(doomed))


def roll_forward(
    query: Query, decision: Decision, statuses: Mapping[str, Status], *, skip: Set[str] = frozenset()
) -> dict[str, frozenset[int]]:
    """Commit the decision in every sink that lacks it: what can be committed is, whatever is dead elsewhere.

    Returns the slots that the targets proved dead.
    """
    dead = {}
    for name, sink in query.sinks.items():
        if name in skip or is_closed(query.decision_view(name, decision), statuses[name]):
            continue
        owner = query.owner(name)
        failpoints.hit("commit.before_sink", owner=str(owner), epoch=decision.epoch.number)
        try:
            outcome = sink.commit(query.order(name, decision))
            log.info(outcome.value, owner=owner, epoch=decision.epoch.number, revision=decision.revision)
        except NotCommitted as error:
            every = frozenset(share.slot for share in decision.sinks[name].shares)
            dead[name] = every if sink.capabilities.atomic else frozenset(error.dead_slots)
            log.warning("dead after the decision", owner=owner, epoch=decision.epoch.number, why=error.message)
        failpoints.hit("commit.after_sink", owner=str(owner), epoch=decision.epoch.number)
    return dead


def require_newest(query: Query, prepare: Prepare) -> None:
    if not query.ledger.is_newest(prepare.generation):
        raise Fenced(
            f"generation {prepare.generation} was overtaken: another driver of this query runs. Only one may.",
            owner=query.name,
            epoch=prepare.epoch.number,
        )


def describe(dead: Dead) -> str:
    return ", ".join(f"{name} (slots {sorted(slots)})" for name, slots in sorted(dead.items()))


def _open_marks(query: Query, name: str, decision: Decision | None, status: Status) -> Set[str]:
    if decision is None or is_closed(query.decision_view(name, decision), status):
        return frozenset()
    return {query.sinks[name].mark(share) for share in query.order(name, decision).shares}


def _may_sweep(prepare: Prepare, generation: Generation) -> bool:
    """Only what is older: of this ledger, or of one that it continues."""
    return generation.is_older_than(prepare.generation) or generation.ledger in prepare.replaces


def _is_ahead(prepare: Prepare, found: Found) -> bool:
    return any(
        leftover.generation.ledger == prepare.ledger and leftover.generation.number >= prepare.number
        for staged in found.values()
        for leftover in staged
    )
