"""One task attempt's share: a transaction of its own, left open with all of its events acknowledged.

It is begun with the first rows: a task without any has no transaction. A thread pings it, and goes on after the vote for as long as
the process lives and nobody has ended it, so that the first tasks of a long epoch are still there when the last one votes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from twophase.clients.pravega import routing
from twophase.clients.pravega.appender import Appender
from twophase.clients.pravega.controller import Begun, Controller, Ping, State
from twophase.clients.pravega.events import blocks_of
from twophase.clients.pravega.stream import Stream
from twophase.errors import NotCommitted, ProtocolViolation, TargetUnavailable
from twophase.handle import Handle
from twophase.log import Log
from twophase.sink import Plan, Task, Transaction
from twophase.sinks.pravega import columns, journal
from twophase.sinks.pravega.journal import Journal

_PINGS_A_LEASE = 3
_PINGED_AFTER_THE_VOTE_S = 3600.0
"""At the most: a process may outlive a query that nobody will start again."""

log = Log("twophase.sinks.pravega")


@dataclass(frozen=True)
class PravegaHandle(Handle):
    """What finds the share again, and tells whether all of it is there."""

    transaction: str | None
    """None for a share without events."""
    lengths: dict[str, int]
    """Bytes by segment, for all that the transaction has."""


class Pinger:
    """Keeps one transaction open."""

    def __init__(self, ping: Callable[[], Ping], every_s: float):
        self._ping, self._every_s = ping, every_s
        self._over = threading.Event()
        self._until_s = float("inf")
        self.said = Ping.OK
        threading.Thread(target=self._run, name="twophase-pravega-ping", daemon=True).start()

    def voted(self) -> None:
        self._until_s = time.monotonic() + _PINGED_AFTER_THE_VOTE_S

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._every_s) and self.said is Ping.OK and time.monotonic() < self._until_s:
            try:
                self.said = self._ping()
            except TargetUnavailable as error:
                log.warning("a transaction could not be pinged", why=error.message)


class PravegaTransaction(Transaction[PravegaHandle]):
    def __init__(
        self,
        controller: Controller,
        stream: Stream,
        the_journal: Journal,
        plan: Plan,
        task: Task,
        *,
        key_column: str | None,
        lease_ms: int,
    ):
        self._controller, self._stream, self._journal = controller, stream, the_journal
        self._plan, self._task = plan, task
        self._key_column, self._lease_ms = key_column, lease_ms
        self._schema: pa.Schema | None = None
        self._begun: Begun | None = None
        self._pinger: Pinger | None = None
        self._appenders: dict[int, Appender] = {}
        self._is_over = False

    def write(self, batch: pa.RecordBatch) -> None:
        if self._is_over:
            raise ProtocolViolation("nothing can be written after pre_commit")
        if batch.schema is not self._schema:
            columns.check(batch.schema, self._key_column)
            self._schema = batch.schema
        if batch.num_rows == 0:
            return
        rows = columns.rows_of(batch, self._key_column)
        begun = self._opened()
        self._require_open()
        if len(begun.ranges) == 1:
            self._append(begun.ranges[0].segment, rows.values)
            return
        where = np.random.random(batch.num_rows) if rows.keys is None else routing.positions(rows.keys)
        chosen = routing.segments_of(where, begun.ranges)
        for at in np.unique(chosen):
            self._append(begun.ranges[int(at)].segment, rows.values.filter(pa.array(chosen == at)))

    def pre_commit(self) -> PravegaHandle:
        if self._is_over:
            raise ProtocolViolation("this share was voted for already")
        self._is_over = True
        if self._begun is None:
            return PravegaHandle(None, {})
        for appender in self._appenders.values():
            appender.flush()
        lengths = {
            str(each.segment): self._appenders[each.segment].length if each.segment in self._appenders else 0
            for each in self._begun.ranges
        }
        self._close()
        said = self._ping()
        if said is not Ping.OK:
            raise self._lost(said)
        if self._pinger is not None:
            self._pinger.voted()
        return PravegaHandle(self._begun.transaction, lengths)

    def abort(self) -> None:
        self._is_over = True
        if self._pinger is not None:
            self._pinger.stop()
        self._close()
        if self._begun is None:
            return
        # Only one that is open: a driver may be committing it by now, and an abort in between does harm to others.
        if self._controller.state(self._stream, self._begun.transaction) is State.OPEN:
            self._controller.abort(self._stream, [self._begun.transaction])

    # ---- inside ----

    def _opened(self) -> Begun:
        if self._begun is not None:
            return self._begun
        self._begun = self._controller.begin(self._stream, self._lease_ms)
        # Before anything is written: whoever comes later must find it. If this fails, the task aborts it.
        self._journal.add(
            journal.Begun(
                self._task.attempt, self._begun.transaction, self._plan.prepared.epoch.number, self._task.slot
            )
        )
        self._pinger = Pinger(self._ping, self._lease_ms / 1000 / _PINGS_A_LEASE)
        return self._begun

    def _append(self, segment: int, values: object) -> None:
        if segment not in self._appenders:
            assert self._begun is not None
            name = self._stream.transaction_segment(segment, self._begun.transaction)
            self._appenders[segment] = Appender(self._controller, self._stream, segment, name)
        for block in blocks_of(values):
            self._appenders[segment].append(block)

    def _ping(self) -> Ping:
        assert self._begun is not None
        return self._controller.ping(self._stream, self._begun.transaction, self._lease_ms)

    def _require_open(self) -> None:
        if self._pinger is not None and self._pinger.said is not Ping.OK:
            raise self._lost(self._pinger.said)

    def _lost(self, said: Ping) -> NotCommitted:
        return NotCommitted(
            f"the transaction of this task is gone ({said.name}): somebody has aborted it, or its lease of {self._lease_ms} ms was "
            "over before it could be renewed",
            slot=self._task.slot,
        )

    def _close(self) -> None:
        for appender in self._appenders.values():
            appender.close()
