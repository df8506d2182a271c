"""The ledger: the durable decision log of a query, one numbered sequence of prepare and decide records.

::

            publish 1        publish 2       publish 3        publish 4
    (empty) ───────► prepare ───────► decide ───────► prepare ───────► prepare …
                     generation 1     epoch 0         generation 3     generation 4: fences 3

A writer publishes record k+1 only after having read up to k, and publication is exclusive: so each record is a
compare-and-set on the whole history. Whoever finds k+1 taken has been overtaken. A decision directly follows the prepare of
its generation, or does not exist.

Each prepare carries all state, so old records are deleted, and the cost of an epoch does not grow with history. The price is
that a number below the kept range is free again, and a writer that slept through the deletion can publish there: so
after every publication the folder is listed, and a record that is not the newest counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from twophase import failpoints
from twophase.decision import Decision
from twophase.errors import CheckpointMismatch, Fenced, LedgerCorrupt, OutcomeUnknown, ProtocolViolation
from twophase.identity import DecisionId, Epoch, Generation
from twophase.log import Log
from twophase.record import Decide, Enrolment, Prepare, Record, decode, encode
from twophase.sink import Description
from twophase.storage import Storage

KEPT_RECORDS = 100
PUBLISH_TRIES = 5
TEMPORARY_LIVES_S = 3600.0
"""A temporary file that is older than this belongs to a process that died while it published."""
_DIGITS = 20

log = Log("twophase.ledger")


@dataclass(frozen=True)
class Tail:
    """The end of the ledger, as read: the newest prepare, and the decision that followed it, if any."""

    prepare: Prepare
    decide: Decide | None

    @property
    def number(self) -> int:
        return self.prepare.number if self.decide is None else self.decide.number

    @property
    def decision(self) -> Decision | None:
        """The newest decision: the only one that can be open."""
        return self.prepare.decision if self.decide is None else self.decide.decision

    @property
    def generation(self) -> Generation:
        return self.prepare.generation

    @property
    def sinks(self) -> Mapping[str, Enrolment]:
        """Every sink that a decision ever named."""
        named = {} if self.decision is None else self.decision.sinks
        return {**self.prepare.sinks, **{name: Enrolment(sink.joined, sink.base) for name, sink in named.items()}}

    @property
    def begun(self) -> Mapping[str, int]:
        """Sinks whose first epoch was begun, and that no decision has named: at which epoch."""
        begun = self.prepare.begun
        if begun is None:  # of a release that wrote down only what could be described
            begun = dict.fromkeys(self.prepare.targets, self.prepare.epoch.number)
        return {name: number for name, number in begun.items() if name not in self.sinks}


class Ledger:
    """A ledger in a folder of a storage. Keeps nothing in memory: each verb reads what it acts on.

    Parameters
    ----------
    new_id:
        Gives a fresh identifier, for ledger ids and nonces: letters and digits, never twice the same.
    now_ms:
        Unix time in milliseconds; recorded for people, never compared.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        *,
        new_id: Callable[[], str],
        now_ms: Callable[[], int],
        kept_records: int = KEPT_RECORDS,
        publish_tries: int = PUBLISH_TRIES,
    ):
        if kept_records < 3:
            raise ValueError("a ledger keeps at least 3 records: a prepare, its decision and the next prepare")
        self._storage = storage
        self._folder = folder
        self._new_id = new_id
        self._now_ms = now_ms
        self._kept_records = kept_records
        self._publish_tries = publish_tries

    @property
    def location(self) -> str:
        return self._storage.normalise(self._folder)

    def read(self) -> Tail | None:
        """The end of the ledger; None if there is no record yet."""
        while True:
            numbers = self._numbers()
            if not numbers:
                return None
            wanted = numbers[-1]
            try:
                prepare = newest = self._record(wanted)
                if isinstance(newest, Decide):
                    wanted = newest.number - 1
                    prepare = self._record(wanted)
            except FileNotFoundError:
                listed = self._numbers()
                if listed[-1:] == numbers[-1:] and wanted in listed:
                    raise LedgerCorrupt(
                        f"ledger record {self._path(wanted)} is a link that leads nowhere: what it led to was moved or deleted. "
                        "Nothing was changed. Put that back, or restore the checkpoint folder as a whole from a backup."
                    ) from None
                if listed[-1:] == numbers[-1:]:
                    raise LedgerCorrupt(
                        f"record {numbers[-1]} of the ledger {self.location} is a decision, and the prepare before it is "
                        "gone: records were deleted by hand. Restore the checkpoint folder as a whole from a backup."
                    ) from None
                continue  # overtaken by a whole kept range between listing and reading
            break
        if not isinstance(prepare, Prepare):
            raise LedgerCorrupt(
                f"records {prepare.number} and {newest.number} of the ledger {self.location} both decide"
            )
        if isinstance(newest, Decide) and newest.decision.generation != prepare.generation:
            raise LedgerCorrupt(
                f"the decision in record {newest.number} of the ledger {self.location}, of generation "
                f"{newest.decision.generation}, does not belong to the prepare before it, {prepare.generation}: "
                "records of two histories were mixed. Restore the checkpoint folder as a whole from a backup."
            )
        # A record is acted on only once it can't vanish: the process that linked it may not have got as far as this.
        self._storage.sync(self._folder)
        return Tail(prepare, newest if isinstance(newest, Decide) else None)

    def history(self) -> list[Record]:
        """The records that are kept, oldest first: for people. Those that are deleted while this reads are left out."""
        records = []
        for number in self._numbers():
            try:
                records.append(self._record(number))
            except FileNotFoundError:
                continue
        return records

    def prepare(
        self,
        tail: Tail | None,
        *,
        query: str,
        epoch: Epoch,
        tasks: bool = True,
        replaces: tuple[str, ...] = (),
        targets: Mapping[str, Description] | None = None,
        writes: Iterable[str] = (),
    ) -> Prepare:
        """Publish a new generation after `tail`. Raises Fenced if another record came first.

        A ledger that is new, was moved, or takes over from others (`replaces`) gets a new id.

        Parameters
        ----------
        writes:
            The sinks that its tasks write to. A generation without tasks begins nothing, and hands on what was begun.
        """
        if tail is None:
            self._storage.make_folder(self._folder)
        location = self.location
        moved = tail is not None and tail.prepare.location != location
        if tail is None or moved or replaces:
            ledger, replaced = (
                self._new_id(),
                (*(() if tail is None else (*tail.prepare.replaces, tail.prepare.ledger)), *replaces),
            )
        else:
            ledger, replaced = tail.prepare.ledger, tail.prepare.replaces
        record = Prepare(
            number=1 if tail is None else tail.number + 1,
            nonce=self._new_id(),
            ledger=ledger,
            location=location,
            query=query,
            epoch=epoch,
            tasks=tasks,
            sinks={} if tail is None else tail.sinks,
            replaces=tuple(dict.fromkeys(replaced)),
            decision=None if tail is None else tail.decision,
            written_ms=self._now_ms(),
            targets=targets or {},
            begun=_begun(tail, epoch, writes) if tasks else {} if tail is None else tail.begun,
        )
        numbers = self._publish(record)
        self._compact(record, numbers)
        return record

    def decide(self, tail: Tail, decision: Decision) -> None:
        """Publish the commit point of an epoch directly after its prepare. Raises Fenced if another record came first."""
        if tail.decide is not None or decision.id != self.next_decision_id(tail):
            raise ProtocolViolation(f"decision {decision.id} does not follow its prepare {tail.generation}")
        self._publish(Decide(tail.number + 1, self._new_id(), tail.prepare.ledger, decision, self._now_ms()))

    def next_decision_id(self, tail: Tail) -> DecisionId:
        return DecisionId(tail.prepare.ledger, tail.number + 1)

    def is_newest(self, generation: Generation) -> bool:
        """Whether no other generation has been published since this one."""
        tail = self.read()
        return tail is not None and tail.generation == generation

    def refuse_if_foreign(self, tail: Tail | None, *, query: str, moved_from: str | None) -> None:
        """Raise CheckpointMismatch unless the ledger belongs to this place and this query."""
        if tail is None:
            return
        there, here = tail.prepare.location, self.location
        moved = None if moved_from is None else self._storage.normalise(moved_from)
        # People name the checkpoint, and not the folder in it.
        if there != here and there not in (moved, f"{moved}/{self._folder.rpartition('/')[2]}"):
            raise CheckpointMismatch(
                f"the ledger in {here} was written in {there}: the checkpoint was copied or moved. If the query now lives "
                f"here and will never run there again, set the option movedFrom to {there!r}"
                + ("" if moved_from is None else f" (it is {moved_from!r})"),
                epoch=tail.prepare.epoch.number,
            )
        if tail.prepare.query != query:
            raise CheckpointMismatch(
                f"the ledger in {here} belongs to the query {tail.prepare.query!r}, and this query is {query!r}: the folder "
                "was put into another checkpoint, or the option owner was changed",
                epoch=tail.prepare.epoch.number,
            )

    def _publish(self, record: Record) -> list[int]:
        """Publish a record as the newest; returns the numbers that are then in the folder."""
        path, data = self._path(record.number), encode(record)
        may_be_there = False
        try:
            for _ in range(self._publish_tries):
                try:
                    self._storage.publish(path, data)
                except FileExistsError:
                    self._fence_unless_mine(record)
                    self._storage.sync(self._folder)  # mine, from an earlier try that may not have got as far as this
                except TimeoutError:
                    may_be_there = True  # or may land later: only the same record may be tried again
                    continue
                may_be_there = True
                break
            else:
                raise TimeoutError(f"no answer after {self._publish_tries} tries")
            numbers = self._numbers()
        except OSError as error:
            if not may_be_there:
                raise
            raise OutcomeUnknown(
                f"ledger record {path} may have been published ({error}): start the query again"
            ) from error
        if numbers[-1:] != [record.number]:
            raise Fenced(
                f"ledger record {record.number} is not the newest ({max(numbers, default=None)}): another driver of this "
                "query took over. Only one may run.",
            )
        return numbers

    def _fence_unless_mine(self, record: Record) -> None:
        try:
            theirs = self._record(record.number)
        except FileNotFoundError:
            theirs = None  # deleted since: a whole kept range behind
        if theirs is None or theirs.nonce != record.nonce:
            raise Fenced(
                f"ledger record {record.number} was published by another driver of this query. Only one may run: stop the "
                "other, or this one.",
            )

    def _compact(self, newest: Prepare, numbers: list[int]) -> None:
        """Delete what is below the kept range, oldest first. Only the newest prepare may: it carries all state."""
        doomed = [number for number in numbers if number <= newest.number - self._kept_records]
        if not doomed:
            return
        failpoints.hit("ledger.before_compaction", epoch=newest.epoch.number)
        try:
            for number in doomed:
                self._storage.delete(self._path(number))
                failpoints.hit("ledger.compacting", epoch=newest.epoch.number)
            self._storage.sweep_temporary(self._folder, older_than_s=TEMPORARY_LIVES_S)
        except OSError as error:
            # The generation is published, and old records do no harm: the next prepare tries again.
            log.warning("old ledger records could not be deleted", epoch=newest.epoch.number, why=str(error))

    def _numbers(self) -> list[int]:
        names = (entry.name for entry in self._storage.list(self._folder))
        return sorted(
            int(stem)
            for stem, dot, suffix in (name.partition(".") for name in names)
            if suffix == "record" and len(stem) == _DIGITS and stem.isascii() and stem.isdigit()
        )

    def _record(self, number: int) -> Record:
        path = self._path(number)
        try:
            data = self._storage.read(path)
        except (IsADirectoryError, NotADirectoryError) as error:
            raise LedgerCorrupt(
                f"ledger record {path} is not a file, or the ledger no folder: somebody has put something else there. Nothing was "
                "changed. Take it away, or restore the checkpoint folder as a whole from a backup"
            ) from error
        return decode(data, path=path, number=number)

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:0{_DIGITS}d}.record"


def _begun(tail: Tail | None, epoch: Epoch, writes: Iterable[str]) -> Mapping[str, int]:
    return {name: epoch.number for name in writes if tail is None or name not in tail.sinks}
