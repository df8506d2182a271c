"""The contract of a sink: what a target must be able to do to take part in the epoch commit protocol.

::

    driver     prepare ──► plan
    executor              begin ─► write … ─► pre_commit ──► handle (the vote: durable, invisible)
                            └────────────────► abort
    driver                                     alive? ─► (decide) ─► commit ─► marker N-1 → N, data visible
    recovery   status, leftovers ─► abort                            commit again: changes nothing

A sink is a description of a target: picklable, and it opens nothing until it is used. A third party writes one with the two
classes `Sink` and `Transaction` alone. The coordinator calls the driver's verbs in protocol order and from any process; each
must be safe to repeat, because the process that called it first may be dead, or may only look dead.

What a sink must guarantee is said at each verb. The rules that hold for all of them:

- Nothing staged is visible before `commit`, whatever readers do.
- Everything staged carries its owner and its attempt. (Two sinks of one query that share a server get the same attempts.)
- The marker moves in the same atomic step that makes the data visible.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from twophase.handle import Handle
from twophase.identity import Attempt, DecisionId, Epoch, Generation, Owner

H = TypeVar("H", bound=Handle)

WHOLE = -1
"""The key of the one marker of a sink that is atomic across tasks, where others have a marker per slot."""


@dataclass(frozen=True)
class Capabilities:
    """What a sink promises, as data: the coordinator plans by it, and the conformance suite tests by it."""

    atomic: bool
    """All shares of an epoch become visible in one step, under one marker; otherwise slot by slot, a marker each."""
    several_owners: bool
    """Several queries may write side by side; otherwise the target is one line of epochs with one owner at a time."""
    share_lives_ms: int | None = None
    """How long a share lives from `begin` at the least; None means until it is committed or aborted."""
    ordered: bool = False
    """Rows of one slot keep their order."""
    upserts: bool = False
    """A row takes the place of the one with the same key: the last of a share, and that of the newest epoch."""
    overwrites: bool = False
    """Spark's complete output mode: an epoch replaces all before it."""

    def __post_init__(self) -> None:
        if not self.atomic and not self.several_owners:
            raise ValueError("a target with one owner is one line of epochs, so its sink must be atomic across tasks")


@dataclass(frozen=True)
class Description:
    """A sink as data: the format that it is used by in Spark, and the options that make it."""

    format: str
    options: Mapping[str, str]


@dataclass(frozen=True)
class Marker:
    """ "Owner is at this epoch", stored in the target atomically with the data: the truth about what is visible."""

    owner: Owner
    epoch: Epoch
    by: str
    """Who moved it here: the decision where one step commits the epoch, the attempt where each slot has a marker."""
    base: int = 0
    """Where the target is one line of epochs: target epoch = base + Spark's epoch number."""


@dataclass(frozen=True)
class Status:
    """The markers of a target, by slot; under the one key `WHOLE` for a sink that is atomic across tasks.

    A target with one line of epochs reports its newest marker *whoever owns it*: that is how a stranger is noticed.
    """

    markers: Mapping[int, Marker] = field(default_factory=dict)
    own: Marker | None = None
    """Where another owner has the line now: the newest marker that *this* owner has in it, from before."""


@dataclass(frozen=True)
class PreparedEpoch:
    """What a generation is about to write to one sink."""

    owner: Owner
    generation: Generation
    epoch: Epoch
    origin: Marker | None
    """Where the marker is now, and so where the decision will move it from; None before the first epoch."""
    base: int = 0
    schema: pa.Schema | None = None
    overwrite: bool = False
    deadline_ms: int | None = None
    """After this moment (Unix time) no task of the generation may begin."""


@dataclass(frozen=True)
class Plan:
    """What tasks need to begin: travels to executors by pickle, together with the sink."""

    prepared: PreparedEpoch
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One run of one task: which slot of the epoch it fills, and which attempt it is."""

    slot: int
    attempt: Attempt


@dataclass(frozen=True)
class Share(Generic[H]):
    """One task's part of an epoch, as voted and decided."""

    slot: int
    attempt: Attempt
    rows: int
    checksum: str
    """Of the rows, independent of their order."""
    handle: H


@dataclass(frozen=True)
class CommitOrder(Generic[H]):
    """A decision, as far as it concerns one sink."""

    owner: Owner
    epoch: Epoch
    decision: DecisionId
    origin: Marker | None
    base: int
    shares: tuple[Share[H], ...]

    @property
    def marker(self) -> Marker:
        """The marker of a sink that is atomic across tasks after this order was carried out."""
        return Marker(self.owner, self.epoch, str(self.decision), self.base)


@dataclass(frozen=True)
class TakeOver:
    """An empty epoch that hands a target with one line of epochs from one owner to another."""

    origin: Marker
    """The replaced owner's newest marker; nothing happens unless the target is still there."""
    marker: Marker
    """The new owner's first: the epoch before its first own one, at the target's next position."""


class Outcome(enum.Enum):
    COMMITTED = "committed"
    ALREADY_COMMITTED = "already committed"


@dataclass(frozen=True)
class Leftover(Generic[H]):
    """Something staged that is still in the target."""

    generation: Generation
    mark: str
    """What `Sink.mark` gives for the share that this was staged for."""
    what: str
    """For people: which file, table or transaction, of which epoch."""
    handle: H | None = None
    owner: Owner | None = None
    """Who staged it; a target with one line of epochs must say."""


class Transaction(ABC, Generic[H]):
    """One task attempt's share of one epoch, on the executor."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None: ...

    @abstractmethod
    def pre_commit(self) -> H:
        """Make the share durable and invisible, and vote for it. Nothing may be written after it.

        A share without rows is ordinary. When this returns, the share survives the death of this process and of the
        target's server.
        """

    @abstractmethod
    def abort(self) -> None:
        """Drop the share. Called after an error, at any point; what it can't remove is a leftover."""


class Sink(ABC, Generic[H]):
    """A configured target."""

    capabilities: Capabilities
    handle_type: ClassVar[type[Handle]]

    @property
    def target(self) -> Hashable | None:
        """What it writes to, so that two sinks of one query on one line of epochs are noticed; None if it can't say."""
        return None

    def describe(self) -> Description | None:
        """How another process can build this sink again; None if none can.

        It is kept in the ledger, so that `twophase inspect` and `twophase recover` find the target of a query that is not
        running. A secret is in it by reference or not at all.
        """
        return None

    @abstractmethod
    def fence(self, owner: Owner, generation: Generation) -> None:
        """Keep older generations of this ledger out, as far as the target can.

        Driver, right after the generation was published. Must not hinder the commit of a decision that an older
        generation took: it may still have to be rolled forward.
        """

    def prepare(self, prepared: PreparedEpoch) -> Plan:
        """Ready the target for the tasks. Driver, after recovery and before any task begins.

        Called a second time where the schema of what is written becomes known only later (`foreachBatch`).
        """
        return Plan(prepared)

    @abstractmethod
    def begin(self, plan: Plan, task: Task) -> Transaction[H]:
        """Start a share. Executor."""

    @abstractmethod
    def alive(self, order: CommitOrder[H]) -> Mapping[int, str]:
        """Which shares could *not* be committed now, with time to spare: slot → reason. Driver, before the decision."""

    @abstractmethod
    def commit(self, order: CommitOrder[H]) -> Outcome:
        """Move the marker from `order.origin` and make the shares visible. Driver.

        Idempotent from any process at any later time, by compare-and-set on the marker:

        - the marker is there already, by this decision (or these attempts): ALREADY_COMMITTED.
        - a share is *proven* dead, for ever: NotCommitted with `dead_slots`, after all others that don't depend on it
          were committed. A sink that is atomic across tasks commits all or none.
        - the marker of this owner is before this epoch, and not at `order.origin`: the line went on without this decision,
          which so can never be committed: NotCommitted with all slots.
        - the marker is anywhere else: Fenced.
        - the reply was lost and the target can't be asked: OutcomeUnknown.

        What is staged for these shares beyond their data is cleaned up; where that fails, it is a leftover.
        """

    @abstractmethod
    def abort(self, owner: Owner, leftovers: Sequence[Leftover[H]]) -> None:
        """Delete these, and only these: the coordinator knows that none will ever be committed. Missing ones are fine."""

    @abstractmethod
    def status(self, owner: Owner, *, settled: bool) -> Status:
        """What is visible. With `settled`, wait for what is in doubt (or raise OutcomeUnknown); otherwise report what is
        certainly visible, in doubt or not."""

    @abstractmethod
    def leftovers(self, owner: Owner, *, seen_from: Generation | None = None) -> Iterable[Leftover[H]]:
        """Everything that is staged by any generation of any ledger: of this owner, where several write side by side;
        of any owner, where the target is one line of epochs.

        Parameters
        ----------
        seen_from:
            The generation that asks. A target in which names are used again (Kafka) can tell which generation a leftover is of
            only from there; others need not look at it.
        """

    def forgets(self, order: CommitOrder[H]) -> bool:
        """Whether this order is so old that the target may have forgotten its markers by now. Only for a target that keeps them for
        a time (Kafka): where Spark has logged such an epoch as committed, a marker that is missing is no sign of anything."""
        return False

    def require_fit(self, schema: pa.Schema | None, *, overwrite: bool) -> None:
        """Raise what `prepare` would for rows of this schema, as far as the target is as it is now. Changes nothing.

        Driver, before a take-over is published: a query whose rows can't be written must not own the target. `schema` is None
        where it becomes known only later (`foreachBatch`).
        """
        return

    def take_over(self, order: TakeOver) -> None:
        """Publish the empty epoch of a take-over, by the same exclusive step as any epoch.

        Idempotent; Fenced if the target is not at `order.origin` any more. The epoch says who was replaced. Only sinks with
        one line of epochs need it.
        """
        raise TypeError(f"{type(self).__name__} takes several owners side by side: there is nothing to take over")

    def mark(self, share: Share[H]) -> str:
        """What identifies a share among leftovers; the attempt, unless the target can't carry it."""
        return str(share.attempt)
