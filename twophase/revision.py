"""Which shares a decision names for one sink: the new votes, and what a revision keeps of the decision before. Pure.

A revision is free to take any rows while every share of the decision that it revises is proven dead. As soon as one, in
any sink, may be visible, the new rows must be the old ones: same count and same checksum, by slot where slots matter.
"""

from __future__ import annotations

from collections.abc import Sequence

from twophase.checksum import combine
from twophase.errors import ProtocolViolation, ReplayDiffers
from twophase.vote import Vote, VotedShare


def check_slots(votes: Sequence[Vote]) -> None:
    """One vote a slot, and no slot left out."""
    slots = sorted(vote.slot for vote in votes)
    if slots != list(range(len(slots))):
        raise ProtocolViolation(f"votes for slots {slots}: expected each of 0 to {len(slots) - 1} once")
    for vote in votes:
        if vote.share is not None and vote.share.slot != vote.slot:
            raise ProtocolViolation(
                f"the vote for slot {vote.slot} carries a share of slot {vote.share.slot}", slot=vote.slot
            )


def combined_shares(votes: Sequence[Vote], prior: Sequence[VotedShare]) -> tuple[VotedShare, ...]:
    """New shares, and for the slots that drained those of the decision before."""
    new = {vote.slot: vote.share for vote in votes if vote.share is not None}
    drained = {vote.slot for vote in votes if vote.share is None}
    if not drained:
        return tuple(new[slot] for slot in sorted(new))
    old = {share.slot: share for share in prior}
    if set(old) != set(new) | drained:
        raise slots_differ(prior, votes)
    return tuple(new.get(slot, old[slot]) for slot in sorted(old))


def slots_differ(prior: Sequence[VotedShare], replay: Sequence[Vote] | Sequence[VotedShare]) -> ReplayDiffers:
    return ReplayDiffers(
        f"the decided epoch has slots {sorted(share.slot for share in prior)}, part of which may be visible, and its replay has "
        f"{sorted(part.slot for part in replay)}: start the query with the partitioning that it had"
    )


def check_replay(name: str, shares: Sequence[VotedShare], prior: Sequence[VotedShare], *, atomic: bool) -> None:
    """Raise ReplayDiffers unless `shares` hold the rows of the decision that they revise."""
    if atomic:
        _same(name, "all slots", _total(shares), _total(prior))
        return
    old = {share.slot: share for share in prior}
    if set(old) != {share.slot for share in shares}:
        raise slots_differ(prior, shares)
    for share in shares:
        _same(name, f"slot {share.slot}", _total([share]), _total([old[share.slot]]))


def _total(shares: Sequence[VotedShare]) -> tuple[int, str]:
    rows = sum(share.rows for share in shares)
    try:
        return rows, combine(share.checksum for share in shares)
    except ValueError as error:
        raise ReplayDiffers(
            f"the decided epoch was written by another release, and its checksums can't be compared ({error}): finish it with "
            "that one"
        ) from error


def _same(name: str, where: str, new: tuple[int, str], old: tuple[int, str]) -> None:
    if new != old:
        raise ReplayDiffers(
            f"sink {name!r}, {where}: the decided epoch has {old[0]} rows with checksum {old[1]}, and its replay gave {new[0]} "
            f"with {new[1]}. Part of the epoch may be visible, so other rows can't take the place of those that were lost: the "
            "plan is not deterministic (rand, uuid, current time, an unordered limit), or the source changed"
        )
