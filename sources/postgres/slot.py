"""A replication slot: where it is in the server's log, what it has, and the messages themselves.

::

    make        the slot, if it is not there
    peeked      where transactions end, and how many changes each has
    opened      the messages up to a position, to be fetched one after the other
    advance     the server forgets what is before

Peeking changes nothing: only `advance` moves the slot. What it gives is checked to be whole, and a position to be one that this
slot, on this server, still has: else it is DATA_LOST, and never a part.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from twophase.clients.postgres.database import Connection
from twophase.errors import DataLost, OptionError, TargetUnavailable, Unreadable
from twophase.sources.postgres.pgoutput import CHANGES, COMMIT
from twophase.sources.postgres.text_form import pin

_PEEK = (
    "pg_logical_slot_peek_binary_changes(%(slot)s, %(until)s::pg_lsn, NULL, 'proto_version', '1', 'publication_names', "
    "%(publication)s)"
)
_OFFSET = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_SKIPPED = "55000"
_PAUSE_S = 0.2


@dataclass(frozen=True)
class LogOffset:
    """A position in the log of one server, on one of its timelines."""

    position: int
    system: str
    timeline: int

    @classmethod
    def parse(cls, text: str) -> LogOffset:
        try:
            data = json.loads(text)
            found = _OFFSET.fullmatch(data["lsn"])
            if found is None:
                raise ValueError(data["lsn"])
            return cls((int(found[1], 16) << 32) | int(found[2], 16), str(data["system"]), int(data["timeline"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable(f"the offset {text!r} is none of a change log: {error!r}") from None

    def to_text(self) -> str:
        return json.dumps({"lsn": shown(self.position), "system": self.system, "timeline": self.timeline})


@dataclass(frozen=True)
class Peeked:
    """What a slot has."""

    start: LogOffset
    written: int
    """Where the server's log ends."""
    commits: list[tuple[int, int]]
    """The ends of transactions, in their order, each with how many changes it has."""

    def at(self, position: int) -> LogOffset:
        return replace(self.start, position=position)


@dataclass(frozen=True)
class Slot:
    """By its name, with the publication whose changes it is asked for."""

    name: str
    publication: str

    # ---- looking ----

    def found(self, connection: Connection) -> LogOffset:
        """Where the slot is."""
        slot = self._looked_up(connection)
        if slot is None:
            raise DataLost(
                f"the slot {self.name} is gone, and with it what was not read yet: begin anew, with a new checkpoint"
            )
        return slot

    def _looked_up(self, connection: Connection) -> LogOffset | None:
        found = connection.execute(
            "SELECT slot_type, plugin, database = current_database(), two_phase, (confirmed_flush_lsn - '0/0')::text, "
            "coalesce(wal_status = 'lost', false), (SELECT system_identifier::text FROM pg_control_system()), "
            # The name of the file that is being written begins with the timeline; the control file lags behind a promotion.
            "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int "
            "FROM pg_replication_slots WHERE slot_name = %s",
            (self.name,),
        ).fetchone()
        if found is None:
            return None
        kind, plugin, is_here, two_phase, position, lost, system, timeline = found
        if (kind, plugin, is_here, two_phase) != ("logical", "pgoutput", True, False):
            raise _wrong(
                f"slot {self.name!r} is there, and is no logical slot of this database with the plugin pgoutput and without "
                "two_phase"
            )
        if lost:
            raise DataLost(
                f"the server has given the slot {self.name} up (see wal_status in pg_replication_slots, and "
                "max_slot_wal_keep_size): what was not read is gone. Begin anew, with a new slot and a new checkpoint"
            )
        if position is None:
            raise TargetUnavailable(
                f"the slot {self.name} is just being made, which waits for every transaction that is open (pg_stat_activity, "
                "pg_prepared_xacts)"
            )
        return LogOffset(int(position), system, timeline)

    def peeked(self, connection: Connection) -> Peeked:
        self.require_published(connection)
        self.found(connection)
        with _warnings_of(connection) as told:
            connection.execute("SELECT set_config('client_min_messages', 'warning', true)")
            found = connection.execute(
                f"""
                SELECT max(encode(substring(data FROM 11 FOR 8), 'hex')) FILTER (WHERE get_byte(data, 0) = {COMMIT}),
                       count(*) FILTER (WHERE get_byte(data, 0) = ANY (%(changes)s))
                FROM {_PEEK} WITH ORDINALITY AS peeked (lsn, xid, data, place)
                GROUP BY xid::text ORDER BY max(place)
                """.encode(),
                {**self._asked(None), "changes": list(CHANGES)},
            ).fetchall()
        self._require_whole(told)
        # Asked after the peek: what was moved before it is not in it.
        slot, end = self.found(connection), end_of_log(connection)
        return Peeked(slot, end, [(int(place, 16), changes) for place, changes in found if changes])

    # ---- reading ----

    @contextmanager
    def opened(
        self, connection: Connection, until: int, *, patience_s: float
    ) -> Iterator[psycopg.ServerCursor[tuple[Any, ...]]]:
        """The messages up to there, of which none is fetched yet. A slot has one reader at a time: a reader that was killed is one
        for as long as its server process has not noticed."""
        deadline = time.monotonic() + patience_s
        while True:
            # A consumer that takes its time between two batches is not asleep.
            pin(
                connection,
                statement_timeout="0",
                idle_in_transaction_session_timeout="0",
                client_min_messages="warning",
            )
            cursor = connection.cursor(name="twophase_changes", scrollable=True)
            try:
                with _warnings_of(connection) as told:
                    cursor.execute(f"SELECT xid::text::bigint, data FROM {_PEEK}".encode(), self._asked(until))
                    cursor.fetchone()  # the function runs to its end before it gives its first row
                    cursor.scroll(0, mode="absolute")
            except psycopg.errors.ObjectInUse:
                connection.rollback()
                cursor.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
                continue
            self._require_whole(told)
            break
        with cursor:
            yield cursor

    # ---- changing ----

    def make(self, connection: Connection) -> None:
        """If it is not there."""
        (level,) = connection.execute("SELECT current_setting('wal_level')").fetchall()[0]
        if level != "logical":
            raise TargetUnavailable(f"wal_level of the server is {level}: set it to logical, and restart the server")
        self.require_published(connection)
        if self._looked_up(connection) is None:
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self.name,))

    def advance(self, connection: Connection, position: int) -> None:
        """To there, if it is not there yet."""
        if self.found(connection).position < position:
            connection.execute("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (self.name, shown(position)))

    # ---- what must be so ----

    def require_published(self, connection: Connection) -> None:
        published = connection.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", (self.publication,))
        if published.fetchone() is None:
            raise TargetUnavailable(
                f"there is no publication {self.publication!r}: CREATE PUBLICATION … FOR TABLE …, before the slot is made"
            )

    def _require_whole(self, told: Sequence[str]) -> None:
        """A server tells by a warning that it leaves out changes of a time in which the publication was not there."""
        if told:
            raise DataLost(
                f"the publication {self.publication!r} was not there when some of the changes were made, and nobody can tell "
                f"which ({told[0]}). Begin anew, with a new slot and a new checkpoint"
            )

    def require_kept(self, begin: LogOffset, slot: LogOffset, written: int) -> None:
        if (begin.system, begin.timeline) != (slot.system, slot.timeline):
            raise DataLost(
                f"the log was read up to {shown(begin.position)} on the timeline {begin.timeline} of the server {begin.system}, "
                f"and this is the timeline {slot.timeline} of {slot.system}: a standby has taken over, a backup was restored, or "
                "it is another server. Positions mean something else here. Begin anew, with a new checkpoint"
            )
        if begin.position > written:
            raise DataLost(
                f"the server's log ends at {shown(written)}, and was read up to {shown(begin.position)}: it was set back"
            )
        if begin.position < slot.position:
            raise DataLost(
                f"the slot {self.name} is at {shown(slot.position)}, and changes from {shown(begin.position)} on are to be "
                "read: somebody else reads from it, or a checkpoint was restored. Begin anew, with a slot of its own and a "
                "new checkpoint"
            )

    def _asked(self, until: int | None) -> dict[str, str | None]:
        quoted = '"' + self.publication.replace('"', '""') + '"'
        return {"slot": self.name, "until": None if until is None else shown(until), "publication": quoted}


def shown(position: int) -> str:
    """As PostgreSQL writes it."""
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


@contextmanager
def _warnings_of(connection: Connection) -> Iterator[list[str]]:
    """What the server says that it has left out, within the context."""
    told: list[str] = []

    def hear(notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == _SKIPPED:
            told.append(notice.message_primary or "")  # now: afterwards the notice is empty

    connection.add_notice_handler(hear)
    try:
        yield told
    finally:
        connection.remove_notice_handler(hear)


def end_of_log(connection: Connection) -> int:
    """Where the server's log ends."""
    ((position,),) = connection.execute("SELECT (pg_current_wal_flush_lsn() - '0/0')::text").fetchall()
    return int(position)


def _wrong(problem: str) -> OptionError:
    return OptionError(problem, problems=[problem])
