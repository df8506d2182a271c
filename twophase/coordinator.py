"""The coordinator: the epoch commit protocol, on the driver.

::

    prepare(N) ─► tasks vote ─► commit(N, votes) ──► Spark logs commits/N
      │ recovery first                │ decide: the commit point ─► every sink commits
      │ (recovery.py), then           ▼ on failure
      │ judge: write or done      abort(N, votes): only what is undecided, and of this generation
      ▼ (standing.py)
    plan for the tasks

It keeps nothing in memory between calls, because Spark runs them in different processes that outlive queries: each call
reads the ledger. Spark (the checkpoint), storage (the ledger), the targets (the sinks) and the clock are handed in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from twophase import failpoints
from twophase.decision import Decision, SinkDecision
from twophase.errors import AlreadyDecided, Fenced, NotCommitted, ProtocolViolation, about
from twophase.identity import Epoch, Generation
from twophase.ledger import Tail
from twophase.log import Log
from twophase.plan import EpochPlan, SinkPlan
from twophase.query import Query
from twophase.record import Prepare
from twophase.recovery import describe, enter, publish_generation, roll_forward, sweep
from twophase.revision import check_replay, check_slots, combined_shares, slots_differ
from twophase.sink import PreparedEpoch, Status
from twophase.standing import Standing, is_closed, judge, refuse_visible_without_decision
from twophase.task import driver_task, run_task
from twophase.vote import Vote

log = Log("twophase.coordinator")


@dataclass(frozen=True)
class Coordinator:
    query: Query

    # ---- the verbs ----

    def prepare(
        self, number: int, *, schemas: Mapping[str, pa.Schema] | None = None, overwrite: bool = False
    ) -> EpochPlan:
        """Begin epoch N: recover what was before, fence older generations, and plan what tasks write.

        Parameters
        ----------
        number:
            The epoch that Spark is about to run, as far as its log tells.
        """
        with about(owner=self.query.name, epoch=number):
            return self._prepare(number, schemas or {}, overwrite=overwrite)

    def _prepare(self, number: int, schemas: Mapping[str, pa.Schema], *, overwrite: bool) -> EpochPlan:
        query = self.query
        if number < 0:
            raise ProtocolViolation("epochs are numbered from 0")
        offsets = query.checkpoint.offsets_hash(number)
        if offsets is None or query.checkpoint.is_committed(number):
            said = "is not logged" if offsets is None else "is logged as committed"
            raise ProtocolViolation(
                f"epoch {number} {said} in Spark's checkpoint, so Spark is not about to run it. Give the number that Spark gave "
                "the batch, and the checkpoint of the query that runs; the continuous trigger, which logs an epoch when it is "
                "over, is not supported",
                owner=query.name,
                epoch=number,
            )
        epoch = Epoch(number, offsets)
        entered = enter(query, epoch, tasks=True, schemas=schemas, overwrite=overwrite)
        statuses = query.statuses(settled=True)
        previous = query.previous(epoch, entered.tail)
        plans = {}
        for name in query.sinks:
            view, dead = query.view(name, epoch, entered.tail), entered.dead.get(name)
            # Again: after the markers were read before, and before the sweep, a commit may have landed that was on its way when
            # the checkpoint was restored to before its decision.
            refuse_visible_without_decision(view, statuses[name])
            standing = judge(view, statuses[name], previous=previous, dead=dead)
            if standing.origin is None and view.enrolment is not None and not dead:
                log.warning(
                    "the target has forgotten its markers, which were due to expire", owner=view.owner, epoch=number
                )
            plans[name] = self._plan(name, standing, entered.prepare, schemas.get(name), overwrite=overwrite)
        failpoints.hit("prepare.planned", owner=query.name, epoch=number)
        log.info("prepared", owner=query.name, epoch=number, generation=entered.prepare.generation)
        return EpochPlan(entered.prepare.generation, epoch, plans, entered.prepare.attempts_nonce)

    def plan_for(self, plan: EpochPlan, name: str, schema: pa.Schema, *, overwrite: bool = False) -> EpochPlan:
        """The same plan, with one sink's part made for this schema: `foreachBatch` learns it only when a sink is written."""
        sink_plan = plan.sinks[name]
        if sink_plan.plan is None:
            return plan
        prepared = dataclasses.replace(sink_plan.plan.prepared, schema=schema, overwrite=overwrite)
        with about(owner=self.query.name, epoch=plan.epoch.number):
            made = dataclasses.replace(sink_plan, plan=self.query.sinks[name].prepare(prepared))
        return dataclasses.replace(plan, sinks={**plan.sinks, name: made})

    def commit(self, number: int, votes: Sequence[Vote | None], *, plan: EpochPlan | None = None) -> None:
        """Decide epoch N by these votes, and commit it in every sink. Calling it again changes nothing.

        Parameters
        ----------
        plan:
            Where it is at hand: a sink without any vote then gets an empty share, written here.
        """
        with about(owner=self.query.name, epoch=number):
            self._commit(number, votes, plan)

    def _commit(self, number: int, votes: Sequence[Vote | None], plan: EpochPlan | None) -> None:
        query = self.query
        cast = self._check_votes(number, votes, plan)
        generation, epoch = self._common(number, cast, plan)
        tail = self._read_own(generation, epoch)
        statuses = query.statuses(settled=False)
        if tail.decide is None:
            decision = self._decide(tail, self._complete(tail, cast, plan), statuses)
        else:
            decision = self._same_decision(tail.decide.decision, cast)
        if decision is None:
            log.info("already committed", owner=query.name, epoch=number)
            return
        dead = roll_forward(query, decision, statuses)
        if dead:
            raise NotCommitted(
                f"decided, and then the target lost the shares of {describe(dead)}. They will be written again from the source: "
                "start the query again",
                owner=query.name,
                epoch=number,
            )
        failpoints.hit("commit.done", owner=query.name, epoch=number)

    def abort(self, number: int, votes: Sequence[Vote | None]) -> None:
        """Clean up after a failed epoch, if it is certain that nothing of it was decided. Otherwise do nothing.

        Spark calls it after a failed commit too, when the epoch may be decided; and from drivers that have been overtaken.
        """
        with about(owner=self.query.name, epoch=number):
            self._abort(number, votes)

    def _abort(self, number: int, votes: Sequence[Vote | None]) -> None:
        query = self.query
        present = [vote for vote in votes if vote is not None]
        if not present:
            return  # whose generation this is can't be known; the next prepare sweeps
        generation, epoch = self._common(number, present, None)
        tail = query.ledger.read()
        if tail is None or tail.generation != generation or tail.decide is not None:
            log.info("nothing to abort", owner=query.name, epoch=number, generation=generation)
            return
        failpoints.hit("abort.before_publish", owner=query.name, epoch=number)
        try:
            # Publishing is what makes the epoch undecidable: a decision that is still on its way can't land any more.
            fence, found = publish_generation(query, tail, epoch, tasks=False)
            failpoints.hit("abort.published", owner=query.name, epoch=number)
            sweep(query, fence, query.statuses(settled=False), found)
        except Fenced:
            log.info("overtaken while aborting", owner=query.name, epoch=number, generation=generation)
            return
        failpoints.hit("abort.swept", owner=query.name, epoch=number)
        log.info("aborted", owner=query.name, epoch=number, generation=generation)

    def recover(self) -> EpochPlan | None:
        """Settle a query that is not running: fence, sweep, roll the newest decision forward. None if it never ran.

        A query that does run is fenced by this, and fails.
        """
        query = self.query
        number = query.checkpoint.newest()
        offsets = None if number is None else query.checkpoint.offsets_hash(number)
        if number is None or offsets is None:
            return None
        epoch = Epoch(number, offsets)
        entered = enter(query, epoch, tasks=False)
        if entered.dead:
            dead = describe(entered.dead)
            log.warning("will be written again when the query starts", owner=query.name, epoch=number, dead=dead)
        return EpochPlan(entered.prepare.generation, epoch, {})

    # ---- planning ----

    def _plan(
        self, name: str, standing: Standing, prepare: Prepare, schema: pa.Schema | None, *, overwrite: bool
    ) -> SinkPlan:
        if standing.done:
            return SinkPlan(None)
        sink = self.query.sinks[name]
        lives_ms = sink.capabilities.share_lives_ms
        plan = sink.prepare(
            PreparedEpoch(
                owner=self.query.owner(name),
                generation=prepare.generation,
                epoch=prepare.epoch,
                origin=standing.origin,
                base=standing.base,
                schema=schema,
                overwrite=overwrite,
                deadline_ms=None if lives_ms is None else self.query.now_ms() + lives_ms,
            )
        )
        return SinkPlan(plan, standing.dead)

    # ---- deciding ----

    def _decide(self, tail: Tail, votes: Sequence[Vote], statuses: Mapping[str, Status]) -> Decision | None:
        """Publish the decision; None if every sink has the epoch already."""
        query, epoch = self.query, tail.prepare.epoch
        revised = tail.decision if tail.decision is not None and tail.decision.epoch == epoch else None
        previous = query.previous(epoch, tail)
        decided = {}
        for name in query.sinks:
            own = [vote for vote in votes if vote.sink == name]
            prior = None if revised is None else revised.sinks.get(name)
            new = {vote.slot for vote in own if vote.share is not None}
            dead = new if new and prior is not None else None
            if prior is not None and not self._keeps_what_it_must(name, own, prior, statuses[name]):
                raise slots_differ(prior.shares, own)
            standing = judge(query.view(name, epoch, tail), statuses[name], previous=previous, dead=dead)
            self._require_unmoved(name, standing, epoch, drained=not new)
            decided[name] = self._decide_sink(name, own, standing, prior, tail)
        if all(vote.share is None for vote in votes):
            return None
        if revised is not None and any(vote.share is None for vote in votes):
            for name, prior in revised.sinks.items():
                check_replay(name, decided[name].shares, prior.shares, atomic=query.sinks[name].capabilities.atomic)
        decision = Decision(
            id=query.ledger.next_decision_id(tail),
            generation=tail.generation,
            epoch=epoch,
            revision=0 if revised is None else revised.revision + 1,
            sinks=decided,
        )
        failpoints.hit("decide.before_alive", owner=query.name, epoch=epoch.number)
        self._require_alive(decision, statuses)
        failpoints.hit("decide.before_publish", owner=query.name, epoch=epoch.number)
        query.ledger.decide(tail, decision)
        failpoints.hit("decide.published", owner=query.name, epoch=epoch.number)
        log.info("decided", owner=query.name, epoch=epoch.number, decision=decision.id, revision=decision.revision)
        return decision

    def _decide_sink(
        self, name: str, votes: Sequence[Vote], standing: Standing, prior: SinkDecision | None, tail: Tail
    ) -> SinkDecision:
        decided_by = self.query.ledger.next_decision_id(tail)
        if standing.done:
            return prior or SinkDecision(decided_by, standing.joined, standing.base, standing.origin, ())
        if self.query.sinks[name].capabilities.atomic and any(vote.share is None for vote in votes):
            raise ProtocolViolation(f"sink {name!r} is written whole, and some of its tasks wrote nothing")
        shares = combined_shares(votes, () if prior is None else prior.shares)
        return SinkDecision(decided_by, standing.joined, standing.base, standing.origin, shares)

    def _keeps_what_it_must(self, name: str, votes: Sequence[Vote], prior: SinkDecision, status: Status) -> bool:
        """Whether a replay of a sink by slot has a task that drained for every share that is visible, and none for others.

        Prepare has committed what could be, and the rest is proven dead: so the markers say which shares are kept. A replay with
        other slots would leave a visible share out of the decision, or a dead one in it. (An atomic sink has one marker.)
        """
        if self.query.sinks[name].capabilities.atomic:
            return True
        visible = set()
        for share in prior.shares:
            marker = status.markers.get(share.slot)
            if marker is not None and marker.by == str(share.attempt):
                visible.add(share.slot)
        if len(visible) == len(prior.shares):
            return all(vote.share is None for vote in votes)  # done: it does not matter how many tasks drained
        same_slots = {vote.slot for vote in votes} == {share.slot for share in prior.shares}
        return visible == {vote.slot for vote in votes if vote.share is None} and (same_slots or not visible)

    def _require_unmoved(self, name: str, standing: Standing, epoch: Epoch, *, drained: bool) -> None:
        """Raise Fenced if the target is not where it was when the tasks were planned."""
        if drained != standing.done:
            raise Fenced(
                "the epoch was in the target when the tasks began, and is not any more"
                if drained
                else "another driver of this query committed the epoch in the meantime",
                owner=str(self.query.owner(name)),
                epoch=epoch.number,
            )

    def _require_alive(self, decision: Decision, statuses: Mapping[str, Status]) -> None:
        query = self.query
        for name, sink in query.sinks.items():
            if is_closed(query.decision_view(name, decision), statuses[name]):
                continue
            ailing = sink.alive(query.order(name, decision))
            if ailing:
                reasons = "; ".join(f"slot {slot}: {why}" for slot, why in sorted(ailing.items()))
                raise NotCommitted(
                    f"not decided, because shares could not be committed any more ({reasons}). The epoch will be written again",
                    dead_slots=sorted(ailing),
                    owner=str(query.owner(name)),
                    epoch=decision.epoch.number,
                )

    def _same_decision(self, decision: Decision, votes: Sequence[Vote]) -> Decision:
        for vote in votes:
            if vote.share is not None and vote.share not in decision.sinks[vote.sink].shares:
                raise AlreadyDecided(
                    f"epoch {decision.epoch.number} was decided with other votes (decision {decision.id}); that one stands",
                    owner=self.query.name,
                    epoch=decision.epoch.number,
                    slot=vote.slot,
                )
        return decision

    # ---- votes ----

    def _check_votes(self, number: int, votes: Sequence[Vote | None], plan: EpochPlan | None) -> list[Vote]:
        """The votes, if they are whole; a sink without any is whole only if it can be written here."""
        query = self.query
        present = [vote for vote in votes if vote is not None]
        if len(present) < len(votes):
            raise ProtocolViolation(
                "a task sent no vote (the continuous trigger does that, and is not supported): use a micro-batch trigger",
                owner=query.name,
                epoch=number,
            )
        strangers = {vote.sink for vote in present} - set(query.sinks)
        if strangers:
            raise ProtocolViolation(f"votes for sinks that are not configured: {sorted(strangers)}", epoch=number)
        for name in query.sinks:
            own = [vote for vote in present if vote.sink == name]
            if not own and plan is None:
                raise ProtocolViolation(
                    "no votes, so it can't be known which generation asks", owner=query.name, epoch=number
                )
            check_slots(own)
        return present

    def _complete(self, tail: Tail, votes: Sequence[Vote], plan: EpochPlan | None) -> list[Vote]:
        """A sink that no task wrote gets an empty share, so that an epoch without tasks is like any other."""
        voted = {vote.sink for vote in votes}
        missing = [name for name in self.query.sinks if name not in voted]
        if not missing or plan is None:
            return list(votes)
        if (plan.generation, plan.epoch) != (tail.generation, tail.prepare.epoch) or not plan.sinks.keys() >= set(
            missing
        ):
            raise ProtocolViolation(f"the plan of generation {plan.generation} is not the one that the tasks ran by")
        number, now_ms = plan.epoch.number, self.query.now_ms
        return [
            *votes,
            *(
                run_task(
                    self.query.sinks[name], name, plan, (), number=number, slot=0, task_id=driver_task(), now_ms=now_ms
                )
                for name in missing
            ),
        ]

    def _common(self, number: int, votes: Sequence[Vote], plan: EpochPlan | None) -> tuple[Generation, Epoch]:
        """The generation and epoch that all votes were given for; of an epoch without any, those of the plan."""
        given = {(vote.generation, vote.epoch) for vote in votes} | {
            (vote.share.attempt.generation, vote.epoch) for vote in votes if vote.share is not None
        }
        if not given and plan is not None:
            given = {(plan.generation, plan.epoch)}
        if len(given) != 1:
            raise ProtocolViolation(
                f"votes of several generations or epochs: {sorted(f'{g} for epoch {e}' for g, e in given)}",
                owner=self.query.name,
                epoch=number,
            )
        generation, epoch = given.pop()
        if epoch.number != number:
            raise Fenced(
                f"Spark is at epoch {number}, and the votes were given for {epoch.number}: another driver of this query logged an "
                "epoch in between. Only one may run.",
                owner=self.query.name,
                epoch=number,
            )
        return generation, epoch

    def _read_own(self, generation: Generation, epoch: Epoch) -> Tail:
        tail = self.query.ledger.read()
        if tail is None or tail.generation != generation:
            newer = "a ledger that is gone" if tail is None else f"generation {tail.generation}"
            raise Fenced(
                f"generation {generation} was overtaken by {newer}: another driver of this query runs, or ran. Only one may.",
                owner=self.query.name,
                epoch=epoch.number,
            )
        if tail.prepare.epoch != epoch:
            raise ProtocolViolation(f"generation {generation} was prepared for {tail.prepare.epoch}, not {epoch}")
        return tail
