"""KafkaSink: records in topics, exactly once for consumers that read committed ones.

::

    begin        a producer of its own for each task attempt: transactional id, init, begin
    write        Arrow columns, by their addresses, into record batches
    pre-commit   flush; the marker as an offset inside the transaction; the producer is dropped, the transaction stays open
    commit       EndTxn(commit) by the driver, in the producer's name
    abort        EndTxn(abort)

The mechanism: a transaction belongs to whoever knows its transactional id, producer id and producer epoch. The task's vote carries
the three, so any process can end it, any number of times.

The guarantee: a consumer with `isolation.level=read_committed` sees every record of an epoch once. Slots commit one after the
other, so it may see part of an epoch for some milliseconds, or, after a crash, until the query is started again. Records of one
task keep their order in each partition. Several queries may write to a topic side by side.

What it can't do: keep a share for longer than the broker's `transaction.max.timeout.ms` (15 minutes by default). A query that is
down for longer between its decision and its commit writes what was lost again, if its plan gives the same rows; a query whose
epochs take longer than that can't use it. A consumer of uncommitted records sees aborted ones, as always with Kafka.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from twophase.clients.kafka import settings
from twophase.clients.kafka.connection import Pauses
from twophase.clients.kafka.connections import control_of
from twophase.clients.kafka.control import ControlClient, End, Ending, Listed
from twophase.errors import NotCommitted, OptionError, OutcomeUnknown
from twophase.identity import Generation, Owner
from twophase.options import PassThrough, key_of, option, parse
from twophase.secret import Secret
from twophase.sink import (
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
from twophase.sinks.kafka import records
from twophase.sinks.kafka.hanging import finish_hanging, finish_if_stuck
from twophase.sinks.kafka.markers import MarkerPlace
from twophase.sinks.kafka.preflight import Cluster, checked
from twophase.sinks.kafka.transaction import KafkaHandle, KafkaTransaction, mark_of, parse_mark
from twophase.sinks.kafka.transactional_id import TransactionalId, names_of
from twophase.slot_markers import hidden, require_no_other

FORMAT = "twophase-kafka"
_IGNORED = ("includeHeaders",)
"""Spark's own sink takes it too, and writes the column `headers` wherever it is there."""
_TO_SPARE = 0.1
"""The part of a transaction's time that must be left when an epoch is decided."""
_TOO_LONG = (
    "the epoch takes too long. Raise transactionTimeoutMs, and transaction.max.timeout.ms of the brokers if need be"
)
_SHOWN_WITHIN_S = 5.0
_SETTLES_WITHIN_S = 5.0
_KEPT_AT_LEAST_MS = 60_000
"""No broker can be told to forget offsets sooner."""


@dataclass(frozen=True, kw_only=True)
class KafkaOptions:
    """The options of `twophase-kafka`, for writing."""

    kafka: PassThrough = option(
        doc="Settings of Kafka's clients, as for Spark's own connector: `kafka.bootstrap.servers` is required.",
        prefix="kafka.",
    )
    topic: str | None = option(
        doc="The topic that all rows go to; without it the column `topic` says where.", default=None
    )
    transaction_timeout_ms: int = option(
        doc="How long an epoch may take from its first task to its commit, and how long the query may be down in between. At most "
        "the broker's `transaction.max.timeout.ms`.",
        default=900_000,
        minimum=1_000,
        maximum=2_147_483_647,
    )
    transactional_id_prefix: str = option(
        doc="What the names of transactions and of marker groups begin with.", default="twophase"
    )
    marker_topic: str = option(
        doc="The topic whose partitions the markers are offsets of; it is created if it is not there, and stays empty.",
        default="twophase-markers",
    )
    request_timeout_ms: int = option(
        doc="How long to try again while brokers are gone, coordinators move, or a transaction is in doubt.",
        default=60_000,
        minimum=1_000,
    )

    def problems(self) -> Iterable[str]:
        yield from settings.problems_of(self.kafka)
        if self.topic == "":
            yield "topic is empty"
        # librdkafka strips names: the driver would look for transactions that no broker has.
        if not self.transactional_id_prefix or self.transactional_id_prefix != self.transactional_id_prefix.strip():
            yield "transactionalIdPrefix is empty, or has spaces at its beginning or end"


class KafkaSink(Sink[KafkaHandle]):
    """Topics of a cluster.

    Parameters
    ----------
    bootstrap_servers:
        Where the cluster is.
    topic:
        Where all rows go; if None, each row's column `topic` says it.
    kafka:
        Further settings of the clients, by the names that Java's have, without `kafka.`.
    transaction_timeout_ms, transactional_id_prefix, marker_topic, request_timeout_ms:
        As the options of `KafkaOptions`.
    """

    handle_type = KafkaHandle

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str | None = None,
        *,
        kafka: Mapping[str, str | Secret] | None = None,
        transaction_timeout_ms: int = 900_000,
        transactional_id_prefix: str = "twophase",
        marker_topic: str = "twophase-markers",
        request_timeout_ms: int = 60_000,
    ):
        options = KafkaOptions(
            kafka=PassThrough({**(kafka or {}), "bootstrap.servers": bootstrap_servers}),
            topic=topic,
            transaction_timeout_ms=transaction_timeout_ms,
            transactional_id_prefix=transactional_id_prefix,
            marker_topic=marker_topic,
            request_timeout_ms=request_timeout_ms,
        )
        problems = [*options.problems()]
        problems += [
            f"{key_of(name)} is {getattr(options, name)}, below the minimum of 1000"
            for name in ("transaction_timeout_ms", "request_timeout_ms")
            if getattr(options, name) < 1000
        ]
        if problems:
            raise OptionError("; ".join(problems), problems=problems)
        self._set(options)

    @classmethod
    def from_options(cls, given: Mapping[str, str]) -> KafkaSink:
        sink = cls.__new__(cls)
        sink._set(parse(KafkaOptions, given, ignore=_IGNORED))
        return sink

    def _set(self, options: KafkaOptions) -> None:
        self._options = options
        self.capabilities = Capabilities(
            atomic=False, several_owners=True, ordered=True, share_lives_ms=options.transaction_timeout_ms
        )

    @property
    def target(self) -> str:
        return f"kafka {self._options.kafka['bootstrap.servers']} {self._options.topic or '(topics by column)'}"

    def describe(self) -> Description | None:
        options, kafka = self._options, self._options.kafka
        described = {}
        for key, value in kafka.items():
            told = value.reference if isinstance(value, Secret) else value
            if told is None:
                return None  # a literal secret must not be kept; without it nobody can connect
            described[f"kafka.{key}"] = told
        for name in (
            "topic",
            "transaction_timeout_ms",
            "transactional_id_prefix",
            "marker_topic",
            "request_timeout_ms",
        ):
            value = getattr(options, name)
            if value is not None:
                described[key_of(name)] = str(value)
        return Description(FORMAT, described)

    # ---- before the tasks ----

    def fence(self, owner: Owner, generation: Generation) -> None:
        """Nothing: brokers know no generations. What an older one begins is never ended by a decision, and is swept."""

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        if prepared.schema is not None:
            records.check(prepared.schema, self._options.topic)
        cluster = self._cluster()
        details = {"endVersion": cluster.end_version, "markerPartitions": cluster.marker_partitions}
        return Plan(prepared, details)

    # ---- tasks ----

    def begin(self, plan: Plan, task: Task) -> KafkaTransaction:
        return KafkaTransaction(
            settings.for_librdkafka(self._options.kafka.reveal()),
            self._place(plan.prepared.owner, int(plan.details["markerPartitions"])),
            self._options.topic,
            plan,
            task,
            timeout_ms=self._options.transaction_timeout_ms,
            patience_s=self._patience_s,
            abort=self._abort,
            control=self._control,
        )

    # ---- after the tasks ----

    def alive(self, order: CommitOrder[KafkaHandle]) -> Mapping[int, str]:
        found = self._control().describe([share.handle.transactional_id for share in order.shares])
        timeout_ms, now_ms = self._options.transaction_timeout_ms, time.time_ns() // 1_000_000
        ailing = {
            share.slot: why
            for share in order.shares
            if (why := _ailment(share.handle, found.get(share.handle.transactional_id), timeout_ms, now_ms))
        }
        if not ailing:
            return {}
        # What a revision keeps is visible, and its transaction long ended.
        waiting = {share.slot for share in hidden(order, self._markers(order.owner, stable=False))}
        return {slot: why for slot, why in ailing.items() if slot in waiting}

    def commit(self, order: CommitOrder[KafkaHandle]) -> Outcome:
        losers = self._losers(order)  # before the markers are read: see there
        markers = self._markers(order.owner, stable=False)
        open_shares = hidden(order, markers)
        if not open_shares:
            return Outcome.ALREADY_COMMITTED
        require_no_other(order, markers)
        ends = self._control().end([share.handle.ending for share in open_shares], commit=True)
        refused = [share for share, end in zip(open_shares, ends, strict=True) if end is End.REFUSED]
        self._control().end(losers, commit=False)
        if refused:
            self._require_shown(order, refused)
        self._wait_until_shown(order)
        return Outcome.COMMITTED

    def abort(self, owner: Owner, leftovers: Sequence[Leftover[KafkaHandle]]) -> None:
        prefix, version = self._options.transactional_id_prefix, self._cluster().end_version
        named = [found for leftover in leftovers if (found := parse_mark(leftover.mark, version)) is not None]
        # Another owner's may have the same attempt, and is not this one's to end.
        own = [each for each in named if TransactionalId.parse(each.transactional_id, prefix, owner) is not None]
        self._control().end(own, commit=False)

    def status(self, owner: Owner, *, settled: bool) -> Status:
        if not settled:
            return Status(self._markers(owner, stable=False))
        try:
            self._wait_until_finished(owner)
            return Status(self._markers(owner, stable=True, patience_s=min(_SETTLES_WITHIN_S, self._patience_s)))
        except OutcomeUnknown:
            unfinished = self._try_to_finish_hanging(owner)
        try:
            return Status(self._markers(owner, stable=True))
        except OutcomeUnknown as error:
            raise unfinished or error from None

    def _wait_until_finished(self, owner: Owner) -> None:
        """Until brokers have written what they were told to end. A slot's first marker is not in doubt to them before it is there:
        who asks for all offsets of a group is told only of partitions that have one."""
        found = self._control().open_transactions(self._names(owner))
        self._control().wait_until_finished([each.transactional_id for each in found if each.state != "Ongoing"])

    def _try_to_finish_hanging(self, owner: Owner) -> OutcomeUnknown | None:
        """Why it could not be done, if it could not: what is in doubt may settle by itself all the same, so this is told last."""
        topics = [] if self._options.topic is None else [self._options.topic]
        try:
            finish_hanging(self._control(), self._names(owner), topics)
        except OutcomeUnknown as error:
            return error
        return None

    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> Iterable[Leftover[KafkaHandle]]:
        version = self._cluster().end_version
        for listed in self._open(owner):
            name = TransactionalId.parse(listed.transactional_id, self._options.transactional_id_prefix, owner)
            if name is not None:
                ending = Ending(listed.transactional_id, listed.producer_id, listed.producer_epoch, version)
                yield Leftover(
                    generation=name.generation_seen_from(seen_from),
                    mark=mark_of(ending),
                    what=f"the transaction {listed.transactional_id} of slot {name.slot}",
                    owner=owner,
                )

    def forgets(self, order: CommitOrder[KafkaHandle]) -> bool:
        # Where that can't be known, a marker that is missing stays a reason to stop.
        known = self._cluster().offsets_kept_ms is not None
        return known and any(self._may_be_forgotten(share) for share in order.shares)

    def mark(self, share: Share[KafkaHandle]) -> str:
        return mark_of(share.handle.ending)

    # ---- inside ----

    def _abort(self, handle: KafkaHandle) -> None:
        self._control().end([handle.ending], commit=False)

    def _require_shown(self, order: CommitOrder[KafkaHandle], refused: Sequence[Share[KafkaHandle]]) -> None:
        """The broker would not end these: either it did before, or it never will. The markers tell, as soon as whatever their ids
        were last used for has come to its end. (Not before all markers are stable: another attempt at a slot may be open.)"""
        self._control().wait_until_finished([share.handle.transactional_id for share in refused])
        markers = self._markers(order.owner, stable=False)
        dead = [share for share in hidden(order, markers) if share in refused]
        if not dead:
            return
        self._refuse_if_forgotten(order, dead)
        raise NotCommitted(
            "the broker has ended the transactions without their records: they timed out",
            dead_slots=[share.slot for share in dead],
        )

    def _refuse_if_forgotten(self, order: CommitOrder[KafkaHandle], without: Iterable[Share[KafkaHandle]]) -> None:
        """Where the marker of an old share is not there, that says nothing about the share."""
        for share in without:
            if self._may_be_forgotten(share):
                raise OutcomeUnknown(
                    f"slot {share.slot} has no marker, and whether it is visible can't be told: {self._forgetting()}. Look for its "
                    "records by hand",
                    owner=str(order.owner),
                    epoch=order.epoch.number,
                    slot=share.slot,
                )

    def _may_be_forgotten(self, share: Share[KafkaHandle]) -> bool:
        """Brokers forget an offset some time after it was committed. Half of that, since their clocks and ours may differ."""
        kept_ms = self._cluster().offsets_kept_ms
        age_ms = time.time_ns() // 1_000_000 - share.handle.begun_ms
        return age_ms > (_KEPT_AT_LEAST_MS if kept_ms is None else kept_ms) / 2

    def _forgetting(self) -> str:
        kept_ms = self._cluster().offsets_kept_ms
        if kept_ms is None:
            return (
                "how long brokers keep markers (offsets.retention.minutes) is not known. Give the user the right DescribeConfigs "
                "on the cluster and start again"
            )
        return f"it was decided long ago, and brokers keep markers for {kept_ms / 3_600_000:.1f} h only (offsets.retention.minutes)"

    def _wait_until_shown(self, order: CommitOrder[KafkaHandle]) -> None:
        """The commit is certain; that readers see it takes some milliseconds more, for which whoever asks next would wait."""
        pauses = Pauses()
        deadline = time.monotonic() + _SHOWN_WITHIN_S
        topics = sorted({topic for share in order.shares for topic in share.handle.topics})
        while waiting := self._hidden(order):
            if time.monotonic() > deadline:
                if finish_hanging(self._control(), self._names(order.owner), topics):
                    waiting = self._hidden(order)
                self._refuse_if_forgotten(order, waiting)
                break
            pauses.take()
        finish_if_stuck(self._control(), self._names(order.owner), topics)

    def _hidden(self, order: CommitOrder[KafkaHandle]) -> list[Share[KafkaHandle]]:
        return hidden(order, self._markers(order.owner, stable=False))

    def _losers(self, order: CommitOrder[KafkaHandle]) -> list[Ending]:
        """What other attempts of the order's generations have open: readers wait for it, and no decision can name it any more.

        Ids are used again after some generations. If the order turns out to be open *after* these were listed, no later epoch had
        begun when they were, so none of them is a task's that runs now. (A driver that slept here for long enough would otherwise
        end such a task's transaction; with transaction.version 0 the task would not even notice, and vote for the rest.)
        """
        prefix = self._options.transactional_id_prefix
        named = {mark_of(share.handle.ending) for share in order.shares}
        generations = {
            (
                share.attempt.generation.ledger,
                TransactionalId.of(prefix, order.owner, share.slot, share.attempt).generation,
            )
            for share in order.shares
        }
        version, found = self._cluster().end_version, []
        for listed in self._open(order.owner):
            name = TransactionalId.parse(listed.transactional_id, prefix, order.owner)
            ending = Ending(listed.transactional_id, listed.producer_id, listed.producer_epoch, version)
            if name is not None and (name.ledger, name.generation) in generations and mark_of(ending) not in named:
                found.append(ending)
        return found

    def _open(self, owner: Owner) -> list[Listed]:
        """Those that can still be ended either way; the broker is finishing the others."""
        found = self._control().open_transactions(self._names(owner))
        return [each for each in found if each.state == "Ongoing"]

    def _markers(self, owner: Owner, *, stable: bool, patience_s: float | None = None) -> dict[int, Marker]:
        place = self._place(owner, self._cluster().marker_partitions)
        return place.read(self._control(), stable=stable, patience_s=patience_s)

    def _names(self, owner: Owner) -> str:
        return names_of(self._options.transactional_id_prefix, owner)

    def _place(self, owner: Owner, partitions: int) -> MarkerPlace:
        return MarkerPlace(self._options.transactional_id_prefix, owner, self._options.marker_topic, partitions)

    def _cluster(self) -> Cluster:
        options = self._options
        return checked(self._control(), options.marker_topic, options.transaction_timeout_ms, options.topic)

    def _control(self) -> ControlClient:
        return control_of(self._options.kafka, patience_s=self._patience_s)

    @property
    def _patience_s(self) -> float:
        return self._options.request_timeout_ms / 1000


def _ailment(handle: KafkaHandle, listed: Listed | None, timeout_ms: int, now_ms: int) -> str:
    """Why a share could not be committed, with time to spare; nothing if it can."""
    is_ours = listed is not None and (listed.producer_id, listed.producer_epoch) == (
        handle.producer_id,
        handle.producer_epoch,
    )
    if listed is not None and is_ours and listed.state == "Ongoing":
        left_ms = listed.started_ms + listed.timeout_ms - now_ms
        if left_ms >= _TO_SPARE * listed.timeout_ms:
            return ""
        return f"its transaction has {max(left_ms, 0) / 1000:.0f} of {listed.timeout_ms / 1000:.0f} s left: {_TOO_LONG}"
    # Before all else: a broker that ends a transaction whose time is over gives its producer another epoch, too.
    if now_ms - handle.begun_ms >= timeout_ms:
        return (
            f"its transaction was begun {(now_ms - handle.begun_ms) / 1000:.0f} s ago, and has timed out: {_TOO_LONG}"
        )
    if listed is None:
        return "the broker does not know its transaction"
    if not is_ours:
        return "its transactional id is another producer's by now"
    return f"its transaction is {listed.state}"
