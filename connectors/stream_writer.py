"""A sink as a format of `writeStream`: the hooks that Spark has, and which verb of the protocol each one is.

::

    where it runs                       Spark calls                  the protocol
    ──────────────────────────────      ─────────────────────        ──────────────────────────────────────────
    planner, before each micro-batch    streamWriter                 prepare(N): the plan is pickled with the writer
    executor, each task                 write(batches)               begin, write, pre-commit, vote
    commit worker                       streamWriter                 nothing
    commit worker                       commit(messages, N)          decide, commit
    commit worker                       abort(messages, N)           abort

Planner and commit worker are long-lived Python processes on the driver that serve several queries and survive their restarts:
nothing about a run is kept in them. `streamWriter` is called in both, and must prepare in the planner alone: there the
DataSource was constructed, and in the commit worker it came out of a pickle.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from twophase.connectors.arrow_schema import arrow_schema
from twophase.connectors.explained import explained
from twophase.connectors.query_options import SINK, QueryOptions, is_of_query, is_of_storage, now_ms, query_of
from twophase.connectors.worker_memory import set_aside_what_stays
from twophase.coordinator import Coordinator
from twophase.errors import OptionError, ProtocolViolation
from twophase.log import Log
from twophase.options import key_of, parse
from twophase.plan import EpochPlan
from twophase.query import AnySink, Query
from twophase.task import run_task
from twophase.vote import Vote

log = Log("twophase.stream_writer")


@dataclass
class VoteMessage(WriterCommitMessage):
    """A vote on its way from a task to the driver."""

    vote: str


@dataclass(frozen=True)
class StreamTarget:
    """One format's sink and the query around it, as the options of a `writeStream` describe them."""

    options: QueryOptions
    sink: AnySink

    @property
    def query(self) -> Query:
        return query_of(self.options, {SINK: self.sink})

    @property
    def where(self) -> str:
        """For people: what is written to."""
        ledger = self.options.ledger or f"{self.options.checkpoint_location}/twophase"
        return f"{self.sink.target} or the ledger {ledger}"


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes one epoch. Built anew for each, and again for its commit; there it has no plan."""

    def __init__(self, target: StreamTarget, plan: EpochPlan | None):
        self._target = target
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        context = TaskContext.get()
        if context is None or self._plan is None:
            raise ProtocolViolation("a task was run without a plan, or outside of Spark")
        slot = context.partitionId()
        with explained(slot=slot, where=str(self._target.sink.target)):
            vote = run_task(
                self._target.sink,
                SINK,
                self._plan,
                iterator,
                number=epoch_number(context),
                slot=slot,
                task_id=context.taskAttemptId(),
                now_ms=now_ms,
            )
        set_aside_what_stays()
        return VoteMessage(vote.to_text())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with explained(epoch=batchId, where=self._target.where):
            Coordinator(self._target.query).commit(batchId, votes_of(messages))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        # An error here would hide the one that Spark aborts for: all that it then shows is "Writing job failed".
        try:
            Coordinator(self._target.query).abort(batchId, votes_of(messages))
        except Exception as error:  # noqa: BLE001 - what is left over is swept by the next prepare
            log.warning("could not clean up", epoch=batchId, why=repr(error))


def target_of(options: Mapping[str, str], make_sink: Any, *, in_storage: bool = False) -> StreamTarget:
    """What the options describe; every wrong one is reported at once, whichever part of them it belongs to.

    Parameters
    ----------
    in_storage:
        Whether the sink lies in storage as the checkpoint does, and so is told how to speak to it.
    """
    ours = {key: value for key, value in options.items() if is_of_query(key)}
    theirs = {
        key: value
        for key, value in options.items()
        if not (is_of_query(key) or key.lower() == "queryname") or (in_storage and is_of_storage(key))
    }
    problems: list[str] = []
    query_options = sink = None
    try:
        query_options = parse(QueryOptions, ours)
    except OptionError as error:
        problems += error.problems
    try:
        sink = make_sink(theirs)
    except OptionError as error:
        problems += [problem + _meant(problem, theirs) for problem in error.problems]
    if query_options is None or sink is None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise OptionError(f"{count} with the options: " + "; ".join(problems), problems=problems)
    return StreamTarget(query_options, sink)


def _meant(problem: str, given: Mapping[str, str]) -> str:
    """An option that the sink does not know may be a misspelt one of the query."""
    for key in given:
        if problem == f"unknown option {key!r}":
            keys = {key_of(each.name).lower(): key_of(each.name) for each in fields(QueryOptions)}
            near = difflib.get_close_matches(key.lower(), keys, n=1)
            return f": did you mean {keys[near[0]]}?" if near else ""
    return ""


def prepared_writer(target: StreamTarget, schema: StructType, *, overwrite: bool) -> StreamWriter:
    """The writer of the epoch that Spark is about to run: in the planner."""
    sink, query = target.sink, target.query
    if overwrite and not sink.capabilities.overwrites:
        problem = (
            "the output mode complete replaces everything at every epoch, which this sink can't do: use the output mode append, "
            "or twophase.exactly_once with foreachBatch"
        )
        raise OptionError(problem, problems=[problem])
    number = query.checkpoint.newest()
    if number is None:
        raise ProtocolViolation(
            "Spark has logged no epoch before its tasks: the continuous trigger is not supported; use a micro-batch trigger",
            owner=query.name,
        )
    schemas = {SINK: arrow_schema(schema)}
    return StreamWriter(target, Coordinator(query).prepare(number, schemas=schemas, overwrite=overwrite))


def epoch_number(context: TaskContext) -> int:
    """The epoch that Spark says this task belongs to."""
    number = context.getLocalProperty("streaming.sql.batchId")
    if number is None:
        raise ProtocolViolation(
            "Spark does not say which epoch this task belongs to: it is not part of a micro-batch, or was started from a thread "
            "that does not inherit Spark's properties (pyspark.InheritableThread does)"
        )
    return int(number)


def votes_of(messages: list[WriterCommitMessage | None]) -> list[Vote | None]:
    return [None if message is None else Vote.from_text(_text(message)) for message in messages]


def _text(message: WriterCommitMessage) -> str:
    if not isinstance(message, VoteMessage):
        raise ProtocolViolation(f"a task sent a {type(message).__name__} for a vote")
    return message.vote
