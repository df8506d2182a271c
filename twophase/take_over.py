"""Take-over: how a target with one line of epochs passes from one owner to another.

The new owner publishes an *empty epoch* at the line's next position, by the same compare-and-set as any epoch: whatever the old
owner has decided and not committed can't be committed any more. The empty epoch says where the new owner is, so that its
next one follows like any other::

    line     … │ 7: old owner's rows │ 8: empty, new owner at N-1 │ 9: new owner's epoch N │ …
                                           base = 8 - (N-1)            = base + N

An owner that had the line before and takes it back may find that its epoch N is in it already, from before: it is then at N, and
writes nothing twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pyarrow as pa

from twophase import failpoints
from twophase.errors import CheckpointMismatch
from twophase.identity import Epoch
from twophase.ledger import Tail
from twophase.log import Log
from twophase.query import Query
from twophase.record import Prepare
from twophase.sink import Marker, TakeOver
from twophase.standing import newest_marker

log = Log("twophase.take_over")


def due_take_overs(query: Query, tail: Tail | None, epoch: Epoch) -> Mapping[str, TakeOver]:
    """Targets that another owner has and that this query was told to take over; refuses those that it was not."""
    due = {}
    for name, sink in query.sinks.items():
        if sink.capabilities.several_owners:
            continue
        owner = query.owner(name)
        status = sink.status(owner, settled=False)
        origin = newest_marker(status)
        if origin is None or origin.owner == owner:
            continue
        replaced = query.take_over.get(name)
        if replaced != str(origin.owner):
            raise CheckpointMismatch(
                f"the target of sink {name!r} is owned by {origin.owner} (at epoch {origin.epoch}), and this query is {owner}. "
                f"If that query will never run again, set the option takeOver to {str(origin.owner)!r}"
                + ("" if replaced is None else f" (it is {replaced!r})"),
                owner=str(owner),
                epoch=epoch.number,
            )
        at = _taken_at(query, name, tail, epoch, status.own)
        position = origin.base + origin.epoch.number + 1
        due[name] = TakeOver(origin, Marker(owner, at, by="", base=position - at.number))
    return due


def require_fit(
    query: Query, due: Mapping[str, TakeOver], schemas: Mapping[str, pa.Schema], *, overwrite: bool
) -> None:
    """Raise if what is about to be written does not fit a target that is due: it then stays its owner's.

    The target can't change unnoticed between this look and the take-over, which is a compare-and-set from the marker seen before.
    """
    for name in due:
        query.sinks[name].require_fit(schemas.get(name), overwrite=overwrite)


def replaced_ledgers(query: Query, due: Mapping[str, TakeOver]) -> tuple[str, ...]:
    """The ledgers of the owners that are replaced: those that moved their newest markers, and those that staged something.

    Decisions, generations and attempts all begin with the ledger's id.
    """
    found = []
    for name, order in due.items():
        staged = query.sinks[name].leftovers(query.owner(name))
        found.append(order.origin.by.partition(".")[0])
        found.extend(left.generation.ledger for left in staged if left.owner == order.origin.owner)
    return tuple(found)


def take_over(query: Query, prepare: Prepare, due: Mapping[str, TakeOver]) -> dict[str, frozenset[int]]:
    """Publish the empty epochs.

    Returns what this query had decided for its epoch in these sinks: it is void, because the line went on without it.
    """
    void = {}
    for name, order in due.items():
        failpoints.hit("take_over.before", owner=query.name, epoch=prepare.epoch.number)
        marker = dataclasses.replace(order.marker, by=str(prepare.generation))
        query.sinks[name].take_over(TakeOver(order.origin, marker))
        failpoints.hit("take_over.after", owner=query.name, epoch=prepare.epoch.number)
        log.warning("took over", owner=marker.owner, replaced=order.origin.owner, epoch=prepare.epoch.number)
        decision = prepare.decision
        if decision is not None and decision.epoch == prepare.epoch != marker.epoch and name in decision.sinks:
            void[name] = frozenset(share.slot for share in decision.sinks[name].shares)
    return void


def _taken_at(query: Query, name: str, tail: Tail | None, epoch: Epoch, own: Marker | None) -> Epoch:
    """The epoch that the new owner is at: the one before, or this one if it is in the line already, from before.

    Anything else would hide a gap: an owner that had the line is at N-1 or at N, or the checkpoint is not its own.
    """
    if own is not None and own.epoch == epoch:
        return epoch
    before = query.previous(epoch, tail)
    if before is None:
        raise CheckpointMismatch(
            f"offsets/{epoch.number - 1} is gone, so the take-over could not be recognised afterwards",
            owner=str(query.owner(name)),
            epoch=epoch.number,
        )
    enrolled = None if tail is None else tail.sinks.get(name)
    never_visible = own is None and (enrolled is None or enrolled.joined == epoch.number)
    if not never_visible and (own is None or own.epoch != Epoch(epoch.number - 1, before)):
        had = "nothing" if own is None else f"epoch {own.epoch}"
        raise CheckpointMismatch(
            f"the target has {had} of this owner, from before another took it over, and Spark is about to write {epoch} (after "
            f"{before!r}): epochs in between would be missing, or twice",
            owner=str(query.owner(name)),
            epoch=epoch.number,
        )
    return Epoch(epoch.number - 1, before)
