"""One task of Spark as one task of the protocol: the same for a format and for `exactly_once`."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext

from twophase.connectors.explained import explained
from twophase.connectors.query_options import now_ms
from twophase.errors import ProtocolViolation
from twophase.plan import EpochPlan
from twophase.query import AnySink
from twophase.task import run_task
from twophase.vote import Vote


def run_spark_task(sink: AnySink, name: str, plan: EpochPlan, batches: Iterator[pa.RecordBatch]) -> Vote:
    """Write this task's rows and vote: its slot is the partition id, its attempt the task attempt id."""
    context = TaskContext.get()
    if context is None:
        raise ProtocolViolation("a task was run outside of Spark")
    slot = context.partitionId()
    with explained(slot=slot, where=str(sink.target)):
        return run_task(
            sink,
            name,
            plan,
            batches,
            number=_epoch_number(context),
            slot=slot,
            task_id=context.taskAttemptId(),
            now_ms=now_ms,
        )


def _epoch_number(context: TaskContext) -> int:
    """The epoch that Spark says this task belongs to."""
    number = context.getLocalProperty("streaming.sql.batchId")
    if number is None:
        raise ProtocolViolation(
            "Spark does not say which epoch this task belongs to: it is not part of a micro-batch, or was started from a thread "
            "that does not inherit Spark's properties (pyspark.InheritableThread does)"
        )
    return int(number)
