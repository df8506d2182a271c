"""PravegaSink: events in a stream, exactly once, an epoch at a time.

::

    begin        a transaction of its own for each task attempt, noted in the owner's journal
    write        Arrow columns as blocks of events, to the segments that their routing keys belong to
    pre-commit   every block acknowledged; the transaction stays open, and is pinged
    commit       the driver merges the transactions of all tasks into the first one; the intent in the journal; then that one
                 is committed: all tasks' events at once
    abort        the transactions are aborted

The mechanism: segments of one transaction can be merged into those of another, which costs the same for any length. So one
transaction decides an epoch. Its state is the truth about what is visible, and the journal says which transaction it is.

The guarantee: every reader sees every event of an epoch once, and those of all tasks or of none; while the controller
merges the segments of the transaction, for some milliseconds, only those of some segments. Events of one task with the
same routing key keep their order. Several queries, and anybody else, may write to the stream side by side.

What it can't do: keep a share for longer than its lease when nobody pings it. A query that is down for longer between its decision
and its commit writes the epoch again. One that was down for longer than the controller remembers transactions (24 hours), and died
within a commit, stops: nobody can tell any more whether it happened. If the stream was scaled between the first and the last task's
first row, the epoch is written again.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from twophase import failpoints
from twophase.clients.pravega.access import Access
from twophase.clients.pravega.connections import controller_of
from twophase.clients.pravega.controller import Controller, Pauses, Ping, State
from twophase.clients.pravega.refusals import Refusal, SegmentRefused
from twophase.clients.pravega.segment_store import SegmentStores
from twophase.clients.pravega.stream import Stream, problem_with
from twophase.errors import Fenced, NotCommitted, OptionError, OutcomeUnknown, TargetUnavailable, TwophaseError
from twophase.identity import Generation, Owner
from twophase.line_of_epochs import elsewhere
from twophase.log import Log
from twophase.options import key_of, option, parse
from twophase.secret import Secret
from twophase.sink import (
    WHOLE,
    Capabilities,
    CommitOrder,
    Description,
    Leftover,
    Marker,
    Outcome,
    Plan,
    PreparedEpoch,
    Share,
    Sink,
    Status,
    Task,
)
from twophase.sinks.pravega import columns
from twophase.sinks.pravega.journal import Begun, History, Intent, Journal
from twophase.sinks.pravega.transaction import PravegaHandle, PravegaTransaction

FORMAT = "twophase-pravega"
_FORGOTTEN = (
    "the controller does not know the transaction any more: it was committed, or expired, longer ago than the controller remembers "
    "(controller.transaction.ttl.hours, 24 by default). Whether the epoch is visible can't be told: look for its events by hand"
)
_SCALED = "the stream was scaled between the first rows of its tasks, so that their events can't be merged"
_REST_S = 3.0
"""How long a transaction that was merged with others is left alone before it is aborted."""

log = Log("twophase.sinks.pravega")


@dataclass(frozen=True, kw_only=True)
class PravegaOptions:
    """The options of `twophase-pravega`, for writing."""

    controller: str = option(doc="Where the controller is: a host and a port, as in `controller:9090`.")
    scope: str = option(doc="The scope of the stream.")
    stream: str = option(doc="The stream that rows go to.")
    routing_key_column: str | None = option(
        doc="The column whose text is an event's routing key: events with the same one keep their order. Without it, events go to "
        "any segment.",
        default=None,
    )
    lease_ms: int = option(
        doc="How long a transaction lives when nobody pings it: how long the query may be down between an epoch's decision and its "
        "commit without writing it again. At most what the controller allows.",
        default=600_000,
        minimum=10_000,
        maximum=86_400_000,
    )
    create_stream: bool = option(doc="Whether scope and stream are created, if they are not there.", default=False)
    segments: int = option(doc="How many segments a stream that is created has.", default=1, minimum=1, maximum=10_000)
    tls: bool = option(doc="Whether controller and segment stores are spoken to by TLS.", default=False)
    tls_trust: str | None = option(
        doc="A file with the certificates to trust, if they are not the machine's own; the same path on every machine.",
        default=None,
    )
    user: str | None = option(doc="The user, for Basic authentication.", default=None)
    password: Secret | None = option(doc="The user's password, best as `env:NAME` or `file:PATH`.", default=None)
    request_timeout_ms: int = option(
        doc="How long to wait for an answer, to try again while the controller is gone, and for a transaction to come to its end.",
        default=60_000,
        minimum=1_000,
    )

    @property
    def access(self) -> Access:
        return Access(self.controller, self.tls, self.tls_trust, self.user, self.password)

    def problems(self) -> Iterable[str]:
        yield from self.access.problems()
        for name in ("scope", "stream"):
            if problem := problem_with(getattr(self, name)):
                yield f"{name} {problem}"


class PravegaSink(Sink[PravegaHandle]):
    """A stream.

    Parameters
    ----------
    controller, scope, stream:
        Where it is.
    options:
        The other fields of `PravegaOptions`.
    """

    handle_type = PravegaHandle

    def __init__(self, controller: str, scope: str, stream: str, **options: object):
        self._set(PravegaOptions(controller=controller, scope=scope, stream=stream, **options))  # type: ignore[arg-type]
        problems = [*self._options.problems()]
        if self._options.lease_ms < 10_000:
            problems.append(f"{key_of('lease_ms')} is {self._options.lease_ms}, below the minimum of 10000")
        if problems:
            raise OptionError("; ".join(problems), problems=problems)

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> PravegaSink:
        sink = cls.__new__(cls)
        sink._set(parse(PravegaOptions, given))
        return sink

    def _set(self, options: PravegaOptions) -> None:
        self._options = options
        self._stream = Stream(options.scope, options.stream)
        self.capabilities = Capabilities(
            atomic=True, several_owners=True, ordered=True, share_lives_ms=options.lease_ms
        )

    @property
    def target(self) -> str:
        return f"pravega {self._options.controller} {self._stream}"

    def describe(self) -> Description | None:
        if self._options.password is not None and self._options.password.reference is None:
            return None  # a literal secret must not be kept; without it nobody can connect
        told: dict[str, str] = {}
        for each in fields(self._options):
            value = getattr(self._options, each.name)
            if isinstance(value, Secret):
                value = value.reference
            if value is not None:
                told[key_of(each.name)] = str(value).lower() if isinstance(value, bool) else str(value)
        return Description(FORMAT, told)

    # ---- before the tasks ----

    def fence(self, owner: Owner, generation: Generation) -> None:
        """Nothing is kept out: Pravega knows no generations. What an older one begins is in the journal, and is swept."""
        if self._options.create_stream:
            self._controller.create_scope(self._stream.scope)
        journal = self._journal(owner)
        journal.create()
        self._try_to_settle(journal)

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        if prepared.schema is not None:
            columns.check(prepared.schema, self._options.routing_key_column)
        if self._options.create_stream:
            self._controller.create_stream(self._stream, self._options.segments)
        if not self._controller.is_there(self._stream):
            raise TargetUnavailable(f"there is no stream {self._stream}: create it, or set createStream")
        return Plan(prepared)

    # ---- tasks ----

    def begin(self, plan: Plan, task: Task) -> PravegaTransaction:
        return PravegaTransaction(
            self._controller,
            self._stream,
            self._journal(plan.prepared.owner),
            plan,
            task,
            key_column=self._options.routing_key_column,
            lease_ms=self._options.lease_ms,
        )

    # ---- after the tasks ----

    def alive(self, order: CommitOrder[PravegaHandle]) -> Mapping[int, str]:
        full = _full(order)
        if not full:
            return {}
        # In this order: an order that is committed in between has no segments any more, and is in the marker.
        with SegmentStores(self._controller, self._stream) as stores:
            if not _strangers(full) and self._lengths(stores, full[0].handle) == _expected(full):
                said = self._ping(str(full[0].handle.transaction))
                lost = {} if said is Ping.OK else {each.slot: _not_open(said) for each in full}
            else:
                lost = {each.slot: why for each in full if (why := self._ailment(stores, each, full[0]))}
        if lost and self._marker(self._journal(order.owner).read(), settled=False) == order.marker:
            return {}
        return lost

    def commit(self, order: CommitOrder[PravegaHandle]) -> Outcome:
        journal = self._journal(order.owner)
        journal.create()
        intent = self._intended(order, journal)
        if intent is None:
            self._tidy(order, journal)
            return Outcome.ALREADY_COMMITTED
        if intent.transaction:
            self._finish(order, journal, intent)
        failpoints.hit("pravega.committed", owner=str(order.owner), epoch=order.epoch.number)
        self._tidy(order, journal)
        return Outcome.COMMITTED

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[PravegaHandle]]) -> None:
        history = self._journal(owner).read()
        marks = {leftover.mark for leftover in leftovers if leftover.owner in (None, owner)}
        if history is None:
            return
        named = [each.transaction for each in history.begun if str(each.attempt) in marks]
        if {*named} & {each for into, sources in history.merging.items() for each in (into, *sources)}:
            # A segment store that has not moved merged events to its storage yet, and is to delete what they were merged into or
            # came from, stumbles over it, and may have to start its container again (Pravega 0.13: seen).
            time.sleep(_REST_S)
        self._end(named)

    def status(self, owner: Owner, *, settled: bool) -> Status:
        marker = self._marker(self._journal(owner).read(), settled=settled)
        return Status({} if marker is None else {WHOLE: marker})

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> Iterable[Leftover[PravegaHandle]]:
        history = self._journal(owner).read()
        return [
            Leftover(
                generation=each.attempt.generation,
                mark=str(each.attempt),
                what=f"the transaction {each.transaction} for slot {each.slot} of epoch {each.epoch}",
                owner=owner,
            )
            for each in self._open(history.begun if history else ())
        ]

    # ---- merging ----

    def _merged(self, order: CommitOrder[PravegaHandle], journal: Journal) -> str:
        """The transaction that has the events of all shares from here on; empty if there are none.

        NotCommitted, if there can never be one. Called again, by anybody, it goes on where it was left: what was merged is gone
        from where it was, and merging it again does nothing.
        """
        full = _full(order)
        if not full:
            return ""
        if _strangers(full):
            raise _dead(order, _SCALED)
        into, expected = full[0].handle, _expected(full)
        with SegmentStores(self._controller, self._stream) as stores:
            if len(full) > 1 and self._lengths(stores, into) != expected:
                journal.merge(str(into.transaction), [str(share.handle.transaction) for share in full[1:]])
                for share in full[1:]:
                    self._merge(stores, into, share.handle)
                    failpoints.hit("pravega.merged", owner=str(order.owner), epoch=order.epoch.number)
            # What was not there to be merged was merged before, or is lost: looked at after it, the lengths tell which.
            found = self._lengths(stores, into)
        if found != expected:
            self._refuse(order, str(into.transaction), found, expected)
        return str(into.transaction)

    def _refuse(
        self,
        order: CommitOrder[PravegaHandle],
        transaction: str,
        found: Mapping[str, int | None],
        expected: Mapping[str, int],
    ) -> None:
        """Raise what follows from a transaction that has not what all shares together have; nothing, if others commit it now."""
        state = self._settled(transaction)
        if state is State.OPEN:
            raise _dead(order, f"the transaction has {found} bytes by segment, not {expected}: shares are lost")
        if state in (State.ABORTED, State.ABORTING):
            raise _dead(order, _not_open(Ping.ABORTED))
        if state is State.UNKNOWN:
            raise OutcomeUnknown(_FORGOTTEN, owner=str(order.owner), epoch=order.epoch.number)

    def _merge(self, stores: SegmentStores, into: PravegaHandle, handle: PravegaHandle) -> None:
        """Nothing, where it was merged before."""
        for text, length in handle.lengths.items():
            if not length:
                continue
            segment = int(text)
            target = self._stream.transaction_segment(segment, str(into.transaction))
            source = self._stream.transaction_segment(segment, str(handle.transaction))
            try:
                stores.of(segment).merge(target, source, stores.token)
            except SegmentRefused as error:
                if error.refusal is not Refusal.NO_SEGMENT:
                    raise

    def _lengths(self, stores: SegmentStores, handle: PravegaHandle) -> dict[str, int | None]:
        return {
            text: stores.of(int(text)).length(
                self._stream.transaction_segment(int(text), str(handle.transaction)), stores.token
            )
            for text in handle.lengths
        }

    def _ailment(self, stores: SegmentStores, share: Share[PravegaHandle], first: Share[PravegaHandle]) -> str:
        """Why a share could not be merged into the first one's transaction; nothing if it can."""
        if _strangers([first, share]):
            return _SCALED
        said = self._ping(str(share.handle.transaction))
        if said is not Ping.OK:
            return _not_open(said)
        if self._lengths(stores, share.handle) != share.handle.lengths:
            return "its events are not those that it voted for"
        return ""

    # ---- committing ----

    def _intended(self, order: CommitOrder[PravegaHandle], journal: Journal) -> Intent | None:
        """The intent of this order, in the journal; None if the epoch is visible already."""
        for history in self._histories(journal):
            known = history.intent_for(order.marker)
            others = [each for each in history.intents if each.marker != order.marker]
            marker = self._marker(History(history.marker, tuple(others)), settled=True)
            if marker == order.marker:
                return None
            if marker != order.origin:
                raise elsewhere("stream", marker, order)
            self._require_over(others)
            if known is not None:
                return None if self._is_visible(known) else known
            transaction = self._merged(order, journal)
            newest = journal.read()
            assert newest is not None, "it was created"
            # Merging has added to the journal; nothing that this follows from may have been.
            if (newest.marker, newest.intents) != (history.marker, history.intents):
                continue
            intent = Intent(order.marker, transaction)
            if not transaction:
                # An epoch without events is visible when the marker has moved.
                if journal.settle(newest, order.marker, self._open(newest.begun)):
                    return intent
            elif journal.intend(newest, intent):
                failpoints.hit("pravega.intended", owner=str(order.owner), epoch=order.epoch.number)
                return intent
        raise AssertionError("histories do not end")

    def _finish(self, order: CommitOrder[PravegaHandle], journal: Journal, intent: Intent) -> None:
        """Commit the intent's transaction, and wait until that is done."""
        while True:
            self._move(order, intent)
            state, asked = self._settled(intent.transaction), False
            if state is State.OPEN:
                # A commit that comes when the lease is over leaves others of the stream in COMMITTING, so that it is renewed first.
                said = self._ping(intent.transaction)
                if said is Ping.OK:
                    asked = self._controller.commit(self._stream, intent.transaction)
                    failpoints.hit("pravega.asked", owner=str(order.owner), epoch=order.epoch.number)
                state = self._settled(intent.transaction)
            if state is State.COMMITTED or (asked and state is State.UNKNOWN):
                return  # one that is COMMITTING can only be committed: if it is forgotten at once, it was
            if state is State.UNKNOWN:
                raise OutcomeUnknown(_FORGOTTEN, owner=str(order.owner), epoch=order.epoch.number)
            if state in (State.ABORTED, State.ABORTING):
                raise self._aborted(order, intent)
            if state is State.COMMITTING:
                intent = self._moved(order, journal, intent)
            elif not asked:
                raise TargetUnavailable(f"the transaction {intent.transaction} is open, and can't be committed")

    def _aborted(self, order: CommitOrder[PravegaHandle], intent: Intent) -> TwophaseError:
        if intent.replaces is None:
            return _dead(order, _not_open(Ping.ABORTED))
        return OutcomeUnknown(
            f"the controller did not finish the transaction {intent.replaces}; what it had not shown yet was moved to "
            f"{intent.transaction}, whose lease is over: part of the epoch may be visible. Look for its events by hand",
            owner=str(order.owner),
            epoch=order.epoch.number,
        )

    def _moved(self, order: CommitOrder[PravegaHandle], journal: Journal, stuck: Intent) -> Intent:
        """Move what a transaction that stays in COMMITTING has not shown into a new one, and intend that in its place.

        Its segments are in the stream, or where they were, or in the new transaction: each in one of these.
        """
        log.warning("stays in COMMITTING, and is moved", transaction=stuck.transaction, epoch=order.epoch.number)
        full = _full(order)
        segments = full[0].handle.lengths
        intent = stuck
        for history in self._histories(journal):
            newest = history.intent_for(order.marker)
            if newest is None:
                raise Fenced("another driver has committed this decision, and gone on")
            if newest != stuck:
                intent = newest  # another driver has moved it, or is doing so
                break
            begun = self._controller.begin(self._stream, self._options.lease_ms)
            if {str(each.segment) for each in begun.ranges} != segments.keys():
                self._controller.abort(self._stream, [begun.transaction])
                raise OutcomeUnknown(
                    f"the controller does not finish the transaction {stuck.transaction}, and the stream was scaled since, so that "
                    "it can't be moved to another. Start again when the controller has finished it",
                    owner=str(order.owner),
                    epoch=order.epoch.number,
                )
            intent = Intent(order.marker, begun.transaction, replaces=stuck.transaction)
            if journal.intend(history, intent):
                break
            self._controller.abort(self._stream, [begun.transaction])
        return intent

    def _move(self, order: CommitOrder[PravegaHandle], intent: Intent) -> None:
        """Whoever finds an intent that replaces another can't know how far its driver came: moving again moves the rest."""
        if intent.replaces is None:
            return
        expected = _expected(_full(order))
        source, target = PravegaHandle(intent.replaces, expected), PravegaHandle(intent.transaction, expected)
        with SegmentStores(self._controller, self._stream) as stores:
            self._merge(stores, target, source)

    def _tidy(self, order: CommitOrder[PravegaHandle], journal: Journal) -> None:
        """The order is visible: settle the journal, and end what is left of its shares. What fails here the next epoch does."""
        try:
            self._settle(journal)
        except TwophaseError as error:
            log.warning("left to the next epoch", owner=order.owner, epoch=order.epoch.number, why=error.message)

    def _try_to_settle(self, journal: Journal) -> None:
        try:
            self._settle(journal)
        except OutcomeUnknown as error:
            log.warning("the journal can't be settled", journal=journal.stream, why=error.message)

    def _settle(self, journal: Journal) -> None:
        """Cut the journal off, if what it intended is certain by now."""
        for history in self._histories(journal):
            if not history.intents:
                return
            states = self._states(history.newest_intents).values()
            if any(state in (State.OPEN, State.COMMITTING) for state in states):
                return
            self._end_spent(history)
            if journal.settle(history, self._marker(history, settled=True), self._open(history.begun)):
                return

    def _end_spent(self, history: History) -> None:
        """Transactions whose events are visible by another one are committed too, which shows nothing: to abort them would delete
        segments that the store may not have moved to its storage yet."""
        states = self._controller.states(self._stream, [*history.merging])
        visible = [into for into, state in states.items() if state is State.COMMITTED]
        spent = [source for into in visible for source in history.merging[into]]
        still_open = [
            each for each, state in self._controller.states(self._stream, spent).items() if state is State.OPEN
        ]
        self._controller.commit_all(self._stream, still_open)

    # ---- asking ----

    def _marker(self, history: History | None, *, settled: bool) -> Marker | None:
        """The newest one that is visible."""
        if history is None:
            return None
        newest, marker = history.newest_intents, history.marker
        states = self._states(newest, settled=settled)
        for intent in newest:
            state = states[intent.transaction]
            if state is State.COMMITTED:
                marker = intent.marker
            elif settled and state is State.UNKNOWN:
                raise OutcomeUnknown(_FORGOTTEN, owner=str(intent.marker.owner), epoch=intent.marker.epoch.number)
            elif settled and state is State.COMMITTING:
                raise _in_doubt(intent, state)
        return marker

    def _require_over(self, others: Sequence[Intent]) -> None:
        """Nobody else's decision may be committed while this one is: it can't be known whose is first."""
        states = self._states(others)
        for intent in others:
            if states[intent.transaction] is State.OPEN:
                raise _in_doubt(intent, State.OPEN)

    def _is_visible(self, intent: Intent) -> bool:
        return self._controller.state(self._stream, intent.transaction) is State.COMMITTED

    def _states(self, intents: Sequence[Intent], *, settled: bool = False) -> dict[str, State]:
        names = [each.transaction for each in intents]
        if not names:
            return {}
        within_s = self._patience_s if settled else 0.0
        return self._controller.settled(self._stream, names, within_s=within_s)

    def _settled(self, transaction: str) -> State:
        return self._controller.settled(self._stream, [transaction], within_s=self._patience_s)[transaction]

    def _open(self, begun: Iterable[Begun]) -> list[Begun]:
        known = list(begun)
        if not known:
            return []
        states = self._controller.states(self._stream, [each.transaction for each in known])
        return [each for each in known if states[each.transaction] is State.OPEN]

    def _end(self, transactions: Sequence[str]) -> None:
        """Abort those that are open, and wait until they are gone."""
        if not transactions:
            return
        states = self._controller.states(self._stream, transactions)
        doomed = [each for each, state in states.items() if state is State.OPEN]
        if doomed:
            self._controller.abort(self._stream, doomed)
        left = self._controller.settled(self._stream, transactions, within_s=self._patience_s) if doomed else {}
        if still := [each for each, state in left.items() if state in (State.OPEN, State.ABORTING)]:
            raise TargetUnavailable(f"the controller does not abort the transactions {still}")

    def _ping(self, transaction: str) -> Ping:
        return self._controller.ping(self._stream, transaction, self._options.lease_ms)

    def _histories(self, journal: Journal) -> Iterable[History]:
        """The journal, again and again, until what was concluded from it could be added."""
        deadline, pauses = time.monotonic() + self._patience_s, Pauses()
        while True:
            history = journal.read()
            if history is None:
                raise TargetUnavailable(
                    f"the journal {journal.stream} is gone: it was there when the epoch was prepared"
                )
            yield history
            if time.monotonic() > deadline:
                raise TargetUnavailable(f"the journal {journal.stream} is written to all the time")
            pauses.take()

    def _journal(self, owner: Owner) -> Journal:
        return Journal(self._controller, self._stream, owner)

    @property
    def _controller(self) -> Controller:
        return controller_of(self._options.access, patience_s=self._patience_s)

    @property
    def _patience_s(self) -> float:
        return self._options.request_timeout_ms / 1000


def _full(order: CommitOrder[PravegaHandle]) -> list[Share[PravegaHandle]]:
    """The shares that have events."""
    return [share for share in order.shares if share.handle.transaction is not None]


def _strangers(full: Sequence[Share[PravegaHandle]]) -> bool:
    """Whether some have other segments than the first: those of a stream that was scaled in between."""
    return any(share.handle.lengths.keys() != full[0].handle.lengths.keys() for share in full)


def _expected(full: Sequence[Share[PravegaHandle]]) -> dict[str, int]:
    """Bytes by segment, of all shares together, which have the same segments."""
    return {text: sum(share.handle.lengths[text] for share in full) for text in full[0].handle.lengths}


def _not_open(said: Ping) -> str:
    return (
        f"its transaction is gone ({said.name}): its lease was over, or somebody aborted it. Raise leaseMs if need be"
    )


def _in_doubt(intent: Intent, state: State) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"the transaction {intent.transaction} of decision {intent.marker.by} is {state.name}, and may be committed",
        owner=str(intent.marker.owner),
        epoch=intent.marker.epoch.number,
    )


def _dead(order: CommitOrder[PravegaHandle], why: str) -> NotCommitted:
    return NotCommitted(why, dead_slots=[share.slot for share in order.shares])
