"""Seeded mistakes in the protocol: each makes one change that looks harmless, and says which check must catch it.

A mistake that nothing catches is a hole in the model. Mistakes below the protocol, in how a record gets onto a disk, are seeded
in tests/test_local_storage.py and tests/ledger/test_on_disk.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from tests.model import spark
from tests.model.spark import Setup, offsets_of
from tests.model.state import Scenario
from twophase import coordinator, recovery, standing
from twophase.checkpoint import Checkpoint
from twophase.coordinator import Coordinator
from twophase.decision import Decision
from twophase.errors import Fenced
from twophase.identity import offsets_hash
from twophase.ledger import Ledger, Tail
from twophase.query import Query
from twophase.record import Prepare, encode
from twophase.sink import CommitOrder, Leftover, Outcome, TakeOver
from twophase.sinks import heap
from twophase.sinks.heap import CommittedEpoch, HeapState, StagedShare
from twophase.standing import Standing

Change = Callable[[ExitStack], None]


@dataclass(frozen=True)
class Mistake:
    name: str
    change: Change
    caught_by: str
    faults: frozenset[str] = frozenset()
    max_faults: int = 1
    max_switches: int | None = 2
    setup: Setup = field(default_factory=lambda: Setup(0))

    @property
    def scenario(self) -> Scenario:
        return Scenario(
            setup=self.setup,
            max_faults=self.max_faults if self.faults else 0,
            max_switches=self.max_switches,
            kinds=self.faults,
            seconds=60,
        )

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        with ExitStack() as stack:
            self.change(stack)
            yield


def swap(place: Any, name: str, make: Callable[[Any], Any]) -> Change:
    """Replace `place.name` by what `make` makes of the original."""
    return lambda stack: stack.enter_context(patch.object(place, name, make(getattr(place, name)))) and None


def several(*changes: Change) -> Change:
    def change(stack: ExitStack) -> None:
        for one in changes:
            one(stack)

    return change


# ---- the mistakes ----


def generation_cached(prepare: Any) -> Any:
    def cached(self: Ledger, tail: Tail | None, **given: Any) -> Prepare:
        if tail is not None and tail.decide is None and tail.prepare.epoch == given["epoch"]:
            return tail.prepare
        published: Prepare = prepare(self, tail, **given)
        return published

    return cached


def abort_by_votes(_: Any) -> Any:
    def abort(self: Coordinator, number: int, votes: Any) -> None:  # noqa: ARG001
        for vote in votes:
            if vote is not None and vote.share is not None:
                owner = self.query.owner(vote.sink)
                leftover: Leftover[Any] = Leftover(vote.generation, str(vote.share.attempt), "voted")
                self.query.sinks[vote.sink].abort(owner, [leftover])

    return abort


def abort_all_of_the_epoch(_: Any) -> Any:
    def abort(self: Coordinator, number: int, votes: Any) -> None:  # noqa: ARG001
        for name, staged in recovery.leftovers(self.query, None).items():
            self.query.sinks[name].abort(self.query.owner(name), staged)

    return abort


def number_trusted_by_tasks(run_task: Any) -> Any:
    return lambda sink, name, plan, batches, **given: run_task(
        sink, name, plan, batches, **{**given, "number": plan.epoch.number}
    )


def number_trusted_by_commit(_: Any) -> Any:
    return lambda self, number, votes, plan: (votes[0].generation, votes[0].epoch)  # noqa: ARG005


def decided_after_commit(stack: ExitStack) -> None:
    real_decide, real_roll_forward = Ledger.decide, recovery.roll_forward
    put_off: list[tuple[Tail, Decision]] = []

    def decide(self: Ledger, tail: Tail, decision: Decision) -> None:  # noqa: ARG001
        put_off.append((tail, decision))

    def roll_forward(query: Query, decision: Decision, statuses: Any) -> Any:
        dead = real_roll_forward(query, decision, statuses)
        if put_off:
            real_decide(query.ledger, *put_off.pop())
        return dead

    stack.enter_context(patch.object(Ledger, "decide", decide))
    stack.enter_context(patch.object(coordinator, "roll_forward", roll_forward))


def marker_set(_: Any) -> Any:
    def commit(state: HeapState, order: CommitOrder[Any]) -> tuple[HeapState, Outcome]:
        """INSERT … SELECT and `SET marker`, with the staging table dropped some other time."""
        known = {s.attempt: s for s in (*state.staged, *(s for e in state.line for s in e.shares))}
        if state.marker == order.marker or not all(s.attempt in known for s in order.shares):
            return state, Outcome.ALREADY_COMMITTED
        shares = tuple(known[share.attempt] for share in order.shares)
        line = (*state.line, CommittedEpoch(order.marker, shares))
        return dataclasses.replace(state, line=line, staged=state.staged - set(shares)), Outcome.COMMITTED

    return commit


def number_is_identity(real: Any) -> Any:
    def hashed(self: Checkpoint, number: int) -> str | None:
        return None if real(self, number) is None else offsets_hash(offsets_of(number, 0))

    return hashed


def attempt_numbers_as_names(run_task: Any) -> Any:
    return lambda *args, **given: run_task(*args, **{**given, "task_id": given["task_id"] % 10})


def sweep_first(publish: Any) -> Any:
    def publish_generation(query: Query, tail: Tail | None, epoch: Any, **given: Any) -> Any:
        if tail is not None:
            soon = dataclasses.replace(tail.prepare, number=tail.number + 1, decision=tail.decision)
            for name, staged in recovery.leftovers(query, soon.generation).items():
                marks = recovery._open_marks(query, name, soon.decision, query.statuses(settled=False)[name])
                doomed = [s for s in staged if s.mark not in marks]
                query.sinks[name].abort(query.owner(name), doomed)
        return publish(query, tail, epoch, **given)

    return publish_generation


def drop_live_shares(roll_forward: Any) -> Any:
    def rolled(query: Query, decision: Decision, statuses: Any, **given: Any) -> Any:
        dead = roll_forward(query, decision, statuses, **given)
        return {name: frozenset(share.slot for share in decision.sinks[name].shares) for name in dead}

    return rolled


def unknown_is_dead(roll_forward: Any) -> Any:
    def rolled(query: Query, decision: Decision, statuses: Any, **given: Any) -> Any:
        try:
            return roll_forward(query, decision, statuses, **given)
        except TimeoutError:
            return {name: frozenset(s.slot for s in sink.shares) for name, sink in decision.sinks.items()}

    return rolled


def publish_unlisted(_: Any) -> Any:
    def publish(self: Ledger, record: Any) -> list[int]:
        try:
            self._storage.publish(self._path(record.number), encode(record))
        except FileExistsError:
            self._fence_unless_mine(record)
        return self._numbers()

    return publish


def time_out_is_success(real: Any) -> Any:
    def publish(self: Ledger, record: Any) -> list[int]:
        if isinstance(record, Prepare):
            numbers: list[int] = real(self, record)
            return numbers
        try:
            self._storage.publish(self._path(record.number), encode(record))
        except FileExistsError:
            self._fence_unless_mine(record)
        except TimeoutError:
            return [record.number]
        return self._numbers()

    return publish


def take_over_in_place(_: Any) -> Any:
    def take_over(state: HeapState, order: TakeOver) -> tuple[HeapState, None]:
        *before, last = state.line
        return dataclasses.replace(state, line=(*before, dataclasses.replace(last, marker=order.marker))), None

    return take_over


def empty_epoch_dropped(decide: Any) -> Any:
    def decided(self: Coordinator, tail: Tail, votes: Any, statuses: Any) -> Any:
        rows = sum(vote.share.rows for vote in votes if vote.share is not None)
        return decide(self, tail, votes, statuses) if rows else None

    return decided


def any_tail_is_mine(_: Any) -> Any:
    return lambda self, generation, epoch: self.query.ledger.read()  # noqa: ARG005


def behind_is_done(judge: Any) -> Any:
    def judged(view: Any, status: Any, **given: Any) -> Standing:
        marker = standing.newest_marker(status)
        if marker is not None and marker.epoch.number >= view.epoch.number:
            return Standing(True, marker, 0, marker.base)
        verdict: Standing = judge(view, status, **given)
        return verdict

    return judged


def generations_repeat(_: Any) -> Any:
    def publish_generation(query: Query, tail: Tail | None, epoch: Any, **given: Any) -> Any:
        prepare = query.ledger.prepare(tail, query=query.name, epoch=epoch, **given)
        with contextlib.suppress(Fenced):
            recovery.fence(query, prepare)
        return prepare, recovery.leftovers(query, prepare.generation)

    return publish_generation


def first_of_a_name_stays(real: Any) -> Any:
    """A target that takes two shares of one name for one, as a file or a gid would."""

    def stage(state: HeapState, share: StagedShare) -> Any:
        named = any((s.owner, s.attempt) == (share.owner, share.attempt) for s in state.staged)
        return (state, None) if named else real(state, share)

    return stage


def nothing(*_: Any, **__: Any) -> None:
    return None


UNGUARDED = swap(Coordinator, "_keeps_what_it_must", lambda _: lambda *__: True)
"""Some mistakes would be stopped by a later check, as refusals: without that check they show what they do."""
UNNOTICED = several(
    swap(recovery, "refuse_visible_without_decision", lambda _: nothing),
    swap(coordinator, "refuse_visible_without_decision", lambda _: nothing),
)

NAMELESS = swap(Prepare, "attempts_nonce", lambda _: "")
"""Attempts are named by the numbers of their generation and task alone."""

ZOMBIE = frozenset({"second driver"})
ONE_TRY = Setup(0, publish_tries=1)

MISTAKES: tuple[Mistake, ...] = (
    Mistake(
        "generation cached per process",
        swap(Ledger, "prepare", generation_cached),
        "5 delete only when certain",
        ZOMBIE,
    ),
    Mistake(
        "abort deletes what its votes name",
        swap(Coordinator, "abort", abort_by_votes),
        "5 delete only when certain",
        frozenset({"lost reply"}),
    ),
    Mistake(
        "abort of someone else's generation",
        swap(Coordinator, "abort", abort_all_of_the_epoch),
        "5 delete only when certain",
        ZOMBIE,
    ),
    Mistake(
        "number from offsets/ trusted",
        several(
            swap(spark, "run_task", number_trusted_by_tasks), swap(Coordinator, "_common", number_trusted_by_commit)
        ),
        "6 no loss",
        ZOMBIE,
    ),
    Mistake("decided after the first commit", decided_after_commit, "1 decided before commit"),
    Mistake(
        "marker set, not compared and set",
        swap(heap, "commit", marker_set),
        "2 gapless prefix",
        frozenset({"crash", "late request"}),
        2,
    ),
    Mistake(
        "epoch number alone as identity",
        swap(Checkpoint, "offsets_hash", number_is_identity),
        "6 no loss",
        frozenset({"crash", "rewound"}),
        2,
    ),
    Mistake("attempt numbers as names", swap(spark, "run_task", attempt_numbers_as_names), "recovers"),
    Mistake(
        "sweep before the generation is published",
        swap(recovery, "publish_generation", sweep_first),
        "5 delete only when certain",
        ZOMBIE,
    ),
    Mistake(
        "revision that drops a live share",
        several(swap(recovery, "roll_forward", drop_live_shares), UNGUARDED),
        "4 once",
        frozenset({"share dies"}),
    ),
    Mistake(
        "lost reply taken for a dead share",
        several(swap(recovery, "roll_forward", unknown_is_dead), UNGUARDED),
        "5 delete only when certain",
        frozenset({"crash", "lost reply"}),
        2,
    ),
    Mistake(
        "old records deleted without the listing check",
        swap(Ledger, "_publish", publish_unlisted),
        "1 decided before commit",
        ZOMBIE,
        setup=Setup(0, kept_records=3),
    ),
    Mistake(
        "time-out of a decision taken for success",
        swap(Ledger, "_publish", time_out_is_success),
        "1 decided before commit",
        frozenset({"late request"}),
    ),
    Mistake(
        "existing record taken for mine",
        swap(Ledger, "_fence_unless_mine", lambda _: nothing),
        "1 decided before commit",
        ZOMBIE,
    ),
    Mistake(
        "take-over without an epoch of its own",
        swap(heap, "take_over", take_over_in_place),
        "2 gapless prefix",
        frozenset({"crash", "taken over"}),
        2,
    ),
    Mistake("empty epoch dropped", swap(Coordinator, "_decide", empty_epoch_dropped), "recovers"),
    Mistake(
        "sweep by epoch, whatever the generation",
        several(
            swap(recovery, "_may_sweep", lambda _: lambda *__: True),
            swap(recovery, "require_newest", lambda _: nothing),
            swap(recovery, "_is_ahead", lambda _: lambda *__: False),
        ),
        "5 delete only when certain",
        ZOMBIE,
    ),
    Mistake(
        "sweep of what an open decision names",
        swap(recovery, "_open_marks", lambda _: lambda *__: frozenset()),
        "5 delete only when certain",
        frozenset({"crash"}),
    ),
    Mistake(
        "no check that the generation is still the newest",
        swap(Coordinator, "_read_own", any_tail_is_mine),
        "5 delete only when certain",
        ZOMBIE,
        max_switches=3,
    ),
    Mistake(
        "skipped because the target is at N or beyond",
        several(
            swap(coordinator, "judge", behind_is_done),
            UNNOTICED,
            UNGUARDED,
        ),
        "6 no loss",
        frozenset({"crash", "restored"}),
        2,
    ),
    Mistake(
        "open decision not rolled forward",
        swap(recovery, "roll_forward", lambda _: lambda *__, **___: {}),
        "recovers",
        frozenset({"crash"}),
    ),
    Mistake(
        "copied checkpoint accepted",
        swap(Ledger, "refuse_if_foreign", lambda _: nothing),
        "7 mismatch is refused",
        frozenset({"crash", "copied"}),
        2,
    ),
    Mistake(
        "generations repeat after a restore",
        several(
            swap(recovery, "publish_generation", generations_repeat),
            swap(heap, "stage", first_of_a_name_stays),
            NAMELESS,
        ),
        "6 no loss",
        frozenset({"crash", "restored"}),
        2,
    ),
    Mistake(
        "replay not compared",
        swap(coordinator, "check_replay", lambda _: nothing),
        "6 replay matches",
        frozenset({"crash", "share dies"}),
        2,
        setup=Setup(0, deterministic=False),
    ),
    Mistake(
        "kept shares told by who drained",
        UNGUARDED,
        "recovers",
        frozenset({"share dies", "rescaled"}),
        2,
        setup=Setup(0, sinks=("b",)),
    ),
    Mistake(
        "shares of an unknown revision not noticed",
        UNNOTICED,
        "4 once",
        frozenset({"share dies", "crash", "restored"}),
        3,
        setup=Setup(0, sinks=("b",)),
    ),
    Mistake(
        "shares of an unknown revision noticed before the sweep only",
        swap(coordinator, "refuse_visible_without_decision", lambda _: nothing),
        "4 once",
        frozenset({"share dies", "late request", "restored"}),
        3,
        setup=Setup(0, sinks=("b",), epochs=1, slots=1),
    ),
)
