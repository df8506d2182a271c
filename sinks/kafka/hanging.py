"""Transactions that hang: ended for their coordinator, and open for a partition.

A broker that comes back may for a moment know no leader of a partition. It takes it for deleted, leaves it out when it tells
partitions the end of a transaction, and is done (seen with Kafka 4.3.1 after kill -9: "likely deleted already and hence can be
skipped"). Nobody ends the transaction there any more: consumers of committed records wait at its first record for ever, and its
marker stays in doubt.

The coordinator's word is the truth about it, so what is missing can be written: by the request with which coordinators tell
partitions, and `kafka-transactions.sh abort` too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from twophase.clients.kafka.connection import Pauses
from twophase.clients.kafka.control import ControlClient, OpenThere
from twophase.clients.kafka.partition import LATEST, Partition
from twophase.errors import OutcomeUnknown, TargetUnavailable
from twophase.log import Log

OFFSETS = "__consumer_offsets"
_ENDED = {"CompleteCommit": True, "CompleteAbort": False}
_LOOKS_AGAIN_AFTER_S = 30.0
_COMPARES_AGAIN_AFTER_S = 5.0
_TROUBLE_LASTS_S = 60.0
_A_MOMENT_S = 10.0
_looked: dict[str, float] = {}
_compared: dict[str, float] = {}

log = Log("twophase.sinks.kafka")


def finish_hanging(
    control: ControlClient, prefix: str, topics: Collection[str], *, patience_s: float | None = None
) -> int:
    """Write the ends that are missing of transactions whose ids begin so; how many there were. A partition whose leader is gone
    for longer than a moment is not looked at: nobody could tell it an end.

    What is ended and what is open is asked one after the other, and an id may be used again in between: its producer then has a
    higher epoch than it had when it was ended, and is left alone.
    """
    ended = {each.producer_id: each for each in control.transactions(prefix) if each.state in _ENDED}
    finished = 0
    for there in _open_on(control, {OFFSETS, *topics}, patience_s) if ended else ():
        known = ended.get(there.producer_id)
        # With the newer protocol an end raises the epoch, and so does a time-out with either.
        if known is None or known.producer_epoch - there.producer_epoch not in (0, 1):
            continue
        log.warning(
            "a transaction hangs, and is finished",
            transaction=known.transactional_id,
            topic=there.partition.topic,
            partition=there.partition.number,
            end=known.state,
        )
        _write(control, there, commit=_ENDED[known.state])
        finished += 1
    return finished


def finish_if_stuck(control: ControlClient, prefix: str, topics: Collection[str]) -> None:
    """The same, if topics have something open at all, and nobody has looked for some time: others may write there too. The epoch
    is committed: that it can't be looked, for lack of a right or of a broker, is no reason to call it anything else.

    Whether something is open is asked after trouble with brokers, without which nothing hangs, and otherwise now and then."""
    asked = time.monotonic()
    if (
        asked - control.connection.troubled_at > _TROUBLE_LASTS_S
        and asked - _compared.get(prefix, -math.inf) < _COMPARES_AGAIN_AFTER_S
    ):
        return
    _compared[prefix] = asked
    try:
        if not _is_open(control, topics):
            return
        now = time.monotonic()
        if now - _looked.get(prefix, -_LOOKS_AGAIN_AFTER_S) >= _LOOKS_AGAIN_AFTER_S:
            _looked[prefix] = now
            finish_hanging(control, prefix, topics, patience_s=_brief(control))
    except (OutcomeUnknown, TargetUnavailable) as error:
        log.warning(
            "the epoch is committed; whether transactions hang can't be seen, or mended, now", why=error.message
        )


def _is_open(control: ControlClient, topics: Collection[str]) -> bool:
    partitions, patience_s = control.led(topics), _brief(control)
    ends = control.offsets(partitions, LATEST, patience_s=patience_s)
    return ends != control.offsets(partitions, LATEST, committed=True, patience_s=patience_s)


def _brief(control: ControlClient) -> float:
    return min(_A_MOMENT_S, control.connection.patience_s)


def _open_on(control: ControlClient, topics: Collection[str], patience_s: float | None) -> list[OpenThere]:
    try:
        return control.open_on(_led(control, topics), patience_s=patience_s)
    except TargetUnavailable as error:
        raise OutcomeUnknown(
            f"transactions may hang in {', '.join(sorted(topics))}, and can't be looked for: {error.message}. Give the user the "
            f"right Read on {OFFSETS}, or let an operator run kafka-transactions.sh find-hanging"
        ) from error


def _write(control: ControlClient, there: OpenThere, *, commit: bool) -> None:
    try:
        control.write_end(there, commit=commit)
    except TargetUnavailable as error:
        advice = (
            "give the user the right ClusterAction on the cluster, and start the query again"
            if commit
            else f"kafka-transactions.sh abort --topic {there.partition.topic} --partition {there.partition.number} "
            f"--start-offset {there.first_offset}"
        )
        raise OutcomeUnknown(
            f"a transaction hangs in {there.partition}: its coordinator has ended it, and the partition was not told. It can't be "
            f"finished from here: {error.message}. What helps: {advice}"
        ) from error


def _led(control: ControlClient, topics: Collection[str]) -> list[Partition]:
    """Partitions that have a leader, or get one in a moment."""
    expected = sum(control.topics(topics).values())
    deadline, pauses = time.monotonic() + _brief(control), Pauses()
    while len(found := control.led(topics)) < expected and time.monotonic() < deadline:
        pauses.take()
    return found
