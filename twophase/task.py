"""One task's run, on the executor: begin, write, pre-commit, vote.

The core counts rows and sums checksums here, once for all sinks: a revision compares them when a decided share has to be
written again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

import pyarrow as pa

from twophase import failpoints
from twophase.checksum import Checksum
from twophase.errors import Fenced, NotCommitted
from twophase.identity import Attempt
from twophase.plan import EpochPlan
from twophase.sink import H, Plan, Sink, Task, Transaction
from twophase.vote import Vote, VotedShare


def driver_task() -> int:
    """The task id of a share that the driver writes for an epoch without tasks: negative, as Spark's never are, and never twice
    the same, because a commit that failed is called again."""
    return -1 - secrets.randbits(48)


def run_task(
    sink: Sink[H],
    name: str,
    plan: EpochPlan,
    batches: Iterable[pa.RecordBatch],
    *,
    number: int,
    slot: int,
    task_id: int,
    now_ms: Callable[[], int],
) -> Vote:
    """Write one task's rows as a share of the epoch, and vote.

    Parameters
    ----------
    number:
        The epoch that Spark says this task belongs to. The plan's is only the driver's guess.
    """
    if number != plan.epoch.number:
        raise Fenced(
            f"this task belongs to epoch {number}, and was planned for {plan.epoch.number}: another driver of the same query "
            "logged an epoch in between, and only one may run; or foreachBatch wrote from a thread that an earlier batch had "
            "started, which still says that batch's number: start threads anew in each.",
            epoch=number,
            slot=slot,
        )
    sink_plan = plan.sinks[name]
    if sink_plan.plan is None or not sink_plan.writes(slot):
        for _ in batches:
            pass
        return Vote(plan.generation, plan.epoch, name, slot, None)
    task = Task(slot, Attempt(plan.generation, task_id, plan.nonce))
    share = _write_share(sink, sink_plan.plan, task, batches, now_ms)
    return Vote(plan.generation, plan.epoch, name, slot, share)


def _write_share(
    sink: Sink[H], plan: Plan, task: Task, batches: Iterable[pa.RecordBatch], now_ms: Callable[[], int]
) -> VotedShare:
    prepared = plan.prepared
    owner, number = str(prepared.owner), prepared.epoch.number
    if prepared.deadline_ms is not None and now_ms() > prepared.deadline_ms:
        # A task that was queued for longer than a share lives may be a stranger's: its begin could abort a decided share.
        raise NotCommitted(
            "this task began after the deadline of its epoch: the epoch takes longer than the target keeps a share",
            owner=owner,
            epoch=number,
            slot=task.slot,
        )
    failpoints.hit("task.before_begin", owner=owner, epoch=number, slot=task.slot)
    transaction = sink.begin(plan, task)
    try:
        failpoints.hit("task.begun", owner=owner, epoch=number, slot=task.slot)
        checksum = Checksum()
        for batch in batches:
            checksum.add(batch)
            transaction.write(batch)
        failpoints.hit("task.written", owner=owner, epoch=number, slot=task.slot)
        failpoints.hit("task.before_pre_commit", owner=owner, epoch=number, slot=task.slot)
        handle = transaction.pre_commit()
        failpoints.hit("task.pre_committed", owner=owner, epoch=number, slot=task.slot)
        return VotedShare.of(task.slot, task.attempt, checksum.rows, checksum.value, handle)
    except Exception as error:
        _abort(transaction, error)
        failpoints.hit("task.aborted", owner=owner, epoch=number, slot=task.slot)
        raise


def _abort(transaction: Transaction[H], error: Exception) -> None:
    """Drop the share; what went wrong first is what the user must see, whatever goes wrong here."""
    try:
        transaction.abort()
    except Exception as second:  # noqa: BLE001 - what could not be dropped is a leftover, and is swept
        error.add_note(f"and the share could not be dropped: {second!r}")
