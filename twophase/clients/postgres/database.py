"""One database, as one user sees it: sessions with the settings that a commit protocol needs, and transactions that try again.

Every transaction is READ COMMITTED, whatever the server's default is; waits for locks no longer than `lock_timeout_ms`; and is on
the server's disk when its commit is answered (`synchronous_commit = on`). These are set in each transaction and not in the
session: behind a pooler a session is not one's own.

A client that goes to sleep in the middle of a transaction holds its locks. The server ends such a transaction when it was idle
for a third of the time that others wait for locks (`idle_in_transaction_session_timeout`), so that whoever comes next gets by.

`run` repeats the whole transaction when its connection was lost. The reply to a COMMIT may have been lost too: so what is run must
look before it acts, and waits for the lost one's end by the locks that it takes first.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from twophase.clients.postgres.dsn import Dsn
from twophase.clients.postgres.refusals import explained, is_passing
from twophase.errors import TwophaseError

R = TypeVar("R")
Connection = psycopg.Connection[tuple[Any, ...]]
Explain = Callable[[psycopg.Error, str], TwophaseError]

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_IDLE_AT_LEAST_MS = 1_000
"""A busy client is no sleeper."""
_SETTINGS = """
SELECT set_config('synchronous_commit', 'on', true), set_config('lock_timeout', %(lock)s, true),
       set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', %(idle)s, true)
"""

_idle: dict[tuple[int, str], Connection] = {}
"""One session a process, database and user: making one takes longer than most questions. Threads take it and give it back by one
step of the dictionary each, and hold no lock that an error could leave held."""


@dataclass(frozen=True)
class Database:
    dsn: Dsn
    patience_s: float
    lock_timeout_ms: int

    def connect(self, *, doing: str) -> Connection:
        """A session; tries again for as long as the patience lasts."""
        return self._patiently(lambda _: self._connected(), doing, explained)

    def begin(self, connection: Connection) -> None:
        """The first statement of every transaction: psycopg begins one with it."""
        idle_ms = max(self.lock_timeout_ms // 3, _IDLE_AT_LEAST_MS)
        connection.execute(_SETTINGS, {"lock": str(self.lock_timeout_ms), "idle": str(idle_ms)})

    def run(self, work: Callable[[Connection], R], *, doing: str, explain: Explain = explained) -> R:
        """What `work` gives, in a transaction that is committed when this returns.

        Parameters
        ----------
        work:
            Must be safe to repeat after it took effect.
        doing:
            For people: what an error is about.
        explain:
            The error to raise for what was said last, when patience is at its end or trying again makes no sense.
        """

        def attempt(is_first: bool) -> R:
            with self._session(fresh=not is_first) as connection, connection.transaction():
                self.begin(connection)
                return work(connection)

        return self._patiently(attempt, doing, explain)

    def run_alone(self, work: Callable[[Connection], R], *, doing: str, explain: Explain = explained) -> R:
        """The same without a transaction around it, for statements that can't be in one: each is one of its own."""

        def attempt(is_first: bool) -> R:
            with self._session(fresh=not is_first) as connection:
                connection.autocommit = True
                result = work(connection)
                connection.autocommit = False
                return result

        return self._patiently(attempt, doing, explain)

    def explained(self, error: psycopg.Error, doing: str, explain: Explain = explained) -> TwophaseError:
        """Our error for this one, with no secret in it; not chained to it, since it may have some."""
        ours = explain(error, doing)
        ours.message = self.dsn.redacted(ours.message)
        ours.args = (ours.message,)
        return ours

    def _patiently(self, attempt: Callable[[bool], R], doing: str, explain: Explain) -> R:
        deadline, pause_s, is_first = time.monotonic() + self.patience_s, 0.0, True
        while True:
            try:
                return attempt(is_first)
            except psycopg.Error as error:
                passing = is_passing(error) and time.monotonic() + pause_s < deadline
                failure = None if passing else self.explained(error, doing, explain)
            if failure is not None:
                raise failure
            # The first try may only have met a session that had died while it was idle.
            time.sleep(pause_s)
            pause_s, is_first = min(max(2 * pause_s, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S), False

    def _connected(self) -> Connection:
        settings = {**self.dsn.settings(), "client_encoding": "utf8"}
        connection: Connection = psycopg.connect(
            **settings,  # type: ignore[arg-type]
            prepare_threshold=None,  # behind a pooler a prepared statement may be another session's
        )
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        connection.read_only = False
        return connection

    @contextmanager
    def _session(self, *, fresh: bool) -> Iterator[Connection]:
        """The idle session of this process, or a new one; kept for the next who asks, if it is whole."""
        key = (os.getpid(), self.dsn.digest())
        connection = _idle.pop(key, None)
        if fresh and connection is not None:
            connection.close()
            connection = None
        if connection is None:
            connection = self._connected()
        try:
            yield connection
        finally:
            # One that an error has left to commit by itself is not whole either.
            is_idle = connection.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
            whole = is_idle and not connection.autocommit
            if not (whole and _idle.setdefault(key, connection) is connection):
                connection.close()


def close_idle() -> None:
    """End the sessions that this process keeps; they are opened again when they are needed."""
    for key in list(_idle):
        connection = _idle.pop(key, None)
        # One of the process that this is a fork of is still in use there: it is let go without a word to the server.
        if connection is not None and key[0] == os.getpid():
            connection.close()
