"""`twophase.exactly_once`: sinks for `foreachBatch`, several of them in one decision.

::

    def route(batch, epoch):
        epoch.write("orders", batch.where("kind = 'order'"))
        epoch.write("refunds", batch.where("kind = 'refund'"))

    sinks = {"orders": FilesSink("/data/orders"), "refunds": FilesSink("/data/refunds")}
    df.writeStream.foreachBatch(twophase.exactly_once(route, **sinks)).option("checkpointLocation", …).start()

The mechanism: prepare before the function, a Spark job for each `write` whose tasks vote, one decision for all sinks when the
function has returned, then every sink commits. Only the votes of winning attempts come back from a job. After a crash Spark
calls the function again for the same epoch; a sink that has the epoch already is not written a second time.

The guarantee is the formats', for each sink, and for all of them together: after recovery an epoch is in every sink or in none.
The batch is persisted when several sinks may read it, so that rand() or uuid() can't differ between them; an executor that is
lost takes its part of that with it, so a plan that is not deterministic is still best made so.

What it can't do: what the function does beside `epoch.write` is its own affair, and happens again with every replay.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.pool import AsyncResult
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from twophase.connectors.arrow_schema import arrow_schema
from twophase.connectors.by_key_group import sent_by_key_group
from twophase.connectors.explained import explained, ours_in
from twophase.connectors.query_options import SINK, QueryOptions, now_ms, query_of
from twophase.connectors.stream_writer import epoch_number
from twophase.connectors.worker_memory import set_aside_what_stays
from twophase.coordinator import Coordinator
from twophase.errors import NotCommitted, OptionError, ProtocolViolation
from twophase.log import Log
from twophase.options import parse
from twophase.plan import EpochPlan
from twophase.query import AnySink
from twophase.sink import Sink
from twophase.task import run_task
from twophase.vote import Vote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"
"""Spark runs a query's jobs in a group that is named after the run."""

log = Log("twophase.exactly_once")


class EpochWriter:
    """What a function for `foreachBatch` is handed: writes DataFrames to the sinks of this epoch."""

    def __init__(self, coordinator: Coordinator, plan: EpochPlan):
        self._coordinator = coordinator
        self._plan = plan
        self._votes: dict[str, list[Vote]] = {}
        self._begun: set[str] = set()
        self._unfinished: list[str] = []  # begun and not done: failed, or still running
        self._failed: dict[str, Exception] = {}
        self._open = True
        self._lock = threading.Lock()

    @property
    def number(self) -> int:
        """The number of the epoch: Spark's batch id."""
        return self._plan.epoch.number

    @property
    def plan(self) -> EpochPlan:
        return self._plan

    @property
    def votes(self) -> list[Vote]:
        return [vote for votes in self._votes.values() for vote in votes]

    def require_done(self) -> None:
        """Raise unless every write that was begun has come to its end: one that failed would be an empty share."""
        if self._unfinished:
            names = ", ".join(dict.fromkeys(self._unfinished))
            why = "".join(f". {name}: {_first_line(error)}" for name, error in self._failed.items())
            raise NotCommitted(
                f"the write to {names} failed or has not ended, and the function returned all the same: let its error through, "
                f"and wait for its threads. Nothing was decided{why}",
                epoch=self.number,
            )

    def write(self, name: str, df: DataFrame) -> None:
        """Write these rows to the sink of this name, as its whole share of the epoch: invisible until the epoch is committed."""
        with self._lock:
            self._unfinished.append(str(name))
        try:
            self._votes[name] = self._run(name, df)
        except Exception as error:
            self._failed.setdefault(str(name), error)
            raise
        with self._lock:
            self._unfinished.remove(str(name))

    def _run(self, name: str, df: DataFrame) -> list[Vote]:
        # The function may write its sinks from several threads; each job then runs beside the others.
        with explained(epoch=self.number), self._lock:
            self._require_writable(name)
            _require_rows(df)
            self._begun.add(name)
            self._plan = plan = self._coordinator.plan_for(self._plan, name, arrow_schema(df.schema))
        sink, df = sent_by_key_group(self._coordinator.query.sinks[name], df)
        task = WriteTask(sink, name, plan)
        try:
            rows = df.mapInArrow(task, "vote string").collect()
        except PySparkException as error:
            ours = ours_in(str(error))
            if ours is None:
                raise
            raise ours from None
        return [Vote.from_text(row.vote) for row in rows]

    def close(self) -> None:
        """After the function has returned: a DataFrame that it kept can't be written any more."""
        self._open = False

    def _require_writable(self, name: str) -> None:
        sinks = self._coordinator.query.sinks
        if not self._open:
            raise ProtocolViolation(f"epoch {self.number} is over: write to it before the function returns")
        if name not in sinks:
            raise ProtocolViolation(
                f"there is no sink {name!r} in this query: its sinks are {', '.join(sorted(sinks))}"
            )
        if name in self._failed:
            raise ProtocolViolation(
                f"the write to {name!r} has failed in this epoch, and is not tried again: let its error through, and Spark runs "
                f"the whole epoch again when the query is started. {_first_line(self._failed[name])}"
            )
        if name in self._begun:
            raise ProtocolViolation(
                f"the sink {name!r} was written twice in one epoch: write it once, with the union of what you have"
            )


def _require_rows(df: object) -> None:
    if not isinstance(df, DataFrame):
        raise ProtocolViolation(f"epoch.write(name, df) wants a DataFrame, and got {type(df).__name__}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


@dataclass(frozen=True)
class WriteTask:
    """One task of a write: run by `mapInArrow`, on an executor."""

    sink: AnySink
    name: str
    plan: EpochPlan

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:
            raise ProtocolViolation("a task was run outside of Spark")
        slot = context.partitionId()
        with explained(slot=slot, where=str(self.sink.target)):
            vote = run_task(
                self.sink,
                self.name,
                self.plan,
                batches,
                number=epoch_number(context),
                slot=slot,
                task_id=context.taskAttemptId(),
                now_ms=now_ms,
            )
        set_aside_what_stays()
        yield pa.record_batch({"vote": [vote.to_text()]})


EpochFunction = Callable[[DataFrame, EpochWriter], object]


@dataclass(frozen=True)
class ExactlyOnce:
    """A function for `foreachBatch`. Made by `exactly_once`."""

    function: EpochFunction
    sinks: Mapping[str, AnySink]
    given: Mapping[str, Any] = field(default_factory=dict)
    """Options of the query, by key in lower case."""

    def options(self, **options: Any) -> ExactlyOnce:
        """The same with these options of the query too: owner, ledger, movedFrom, and takeOver as {sink name: owner}."""
        given = {**self.given, **{key.lower(): value for key, value in options.items()}}
        if "checkpointlocation" in given:
            problem = "set checkpointLocation as an option of the query: df.writeStream.option('checkpointLocation', …)"
            raise OptionError(problem, problems=[problem])
        made = dataclasses.replace(self, given=given)
        made.parsed()
        return made

    def parsed(self) -> tuple[QueryOptions, Mapping[str, str]]:
        """The options of the query, and the owners that it replaces, by sink name."""
        replaced = self.given.get("takeover", {})
        if isinstance(replaced, str):
            if len(self.sinks) > 1:
                problem = f"takeOver needs the sink's name too, here: takeOver={{name: {replaced!r}}}"
                raise OptionError(problem, problems=[problem])
            replaced = dict.fromkeys(self.sinks, replaced)
        if not isinstance(replaced, Mapping):
            problem = (
                f"takeOver is {replaced!r}: give the owner that the error names, here as takeOver={{sink name: owner}}"
            )
            raise OptionError(problem, problems=[problem])
        problems = [
            f"takeOver names {name!r}, which is no sink of this query" for name in replaced if name not in self.sinks
        ]
        problems += [
            f"takeOver of {name!r} is {owner!r}: give the owner that the error names"
            for name, owner in replaced.items()
            if not isinstance(owner, str)
        ]
        if problems:
            raise OptionError("; ".join(problems), problems=problems)
        return parse(QueryOptions, {key: value for key, value in self.given.items() if key != "takeover"}), replaced

    def __call__(self, batch: DataFrame, number: int) -> None:
        with explained(epoch=number):
            query_id, run_id = _running_query(batch.sparkSession)
            _refuse_second_call(query_id, run_id, number)
            location = _checkpoint_location(batch.sparkSession, query_id)
            options, take_over = self.parsed()
            options = dataclasses.replace(options, checkpoint_location=location)
            coordinator = Coordinator(query_of(options, self.sinks, take_over))
            # Where the batch is written as it is, its columns are known by now, and judged before a take-over.
            known = {SINK: arrow_schema(batch.schema)} if self.function is _write_as_it_is else None
            epoch = EpochWriter(coordinator, coordinator.prepare(number, schemas=known))
        several = len(self.sinks) > 1
        if several:
            batch.persist()
        try:
            _require_ran(self.function(batch, epoch), number)
            epoch.close()
            with explained(epoch=number):
                epoch.require_done()
                coordinator.commit(number, epoch.votes, plan=epoch.plan)
            _committed[query_id] = (run_id, number)
        except Exception as error:
            epoch.close()
            _abort(coordinator, number, epoch, error)
            raise
        finally:
            if several:
                batch.unpersist()


def exactly_once(function: EpochFunction | AnySink, /, **sinks: AnySink) -> ExactlyOnce:
    """Make a function for `foreachBatch` that writes every epoch to its sinks exactly once.

    Parameters
    ----------
    function:
        Called as ``function(batch, epoch)``: writes to the sinks by ``epoch.write(name, df)``, each at most once; one that is
        not written gets an empty share. Or a sink, which is then given every batch as it is.
    **sinks:
        The sinks by name. A name is part of who owns the target: keep it.

    Examples
    --------
    >>> df.writeStream.foreachBatch(twophase.exactly_once(FilesSink("/data/orders")))  # doctest: +SKIP
    """
    if isinstance(function, Sink):
        if sinks:
            raise TypeError(
                "exactly_once(sink) writes to that sink alone: name several, and give a function that writes to them"
            )
        return ExactlyOnce(_write_as_it_is, {SINK: function})
    if not callable(function):
        raise TypeError(f"exactly_once wants a function or a sink, not {type(function).__name__}")
    given: Mapping[str, object] = sinks
    strange = [name for name, sink in given.items() if not isinstance(sink, Sink)]
    if strange or not sinks:
        shown = ", ".join(f"{name} (of the type {type(given[name]).__name__})" for name in strange)
        raise TypeError(f"not a sink: {shown}" if strange else "exactly_once needs at least one sink, by name")
    return ExactlyOnce(function, sinks)


def _require_ran(returned: object, number: int) -> None:
    """What a function returns may be what it was to do: a generator, a coroutine, the lazy result of `map`, a future, another
    function. Its epoch would be committed without rows."""
    for each in _within(returned):
        if isinstance(each, Future) and each.done():
            each.result()  # if it has failed, the epoch has
        elif isinstance(each, AsyncResult) and each.ready():
            each.get()
        elif isinstance(each, Future | AsyncResult | Iterator) or _is_to_be_called(each):
            if inspect.iscoroutine(each):
                each.close()  # or Python warns that nobody has awaited it
            raise ProtocolViolation(
                f"the function of exactly_once returned a {type(each).__name__}, which has not run, or not to its end: write "
                "without async, yield, lambda and map, and wait for what runs in other threads",
                epoch=number,
            )


def _within(returned: object) -> Iterator[object]:
    """What was returned, or what is in it."""
    if isinstance(returned, Mapping):
        returned = [*returned.keys(), *returned.values()]
    if not isinstance(returned, list | tuple | set | frozenset):
        yield returned
        return
    for each in returned:
        yield from _within(each)


def _is_to_be_called(each: object) -> bool:
    is_function = inspect.isroutine(each) or isinstance(each, functools.partial)
    return is_function or inspect.isawaitable(each) or inspect.isasyncgen(each)


def _write_as_it_is(batch: DataFrame, epoch: EpochWriter) -> None:
    epoch.write(SINK, batch)


_committed: dict[str, tuple[str | None, int]] = {}
"""Query → run and epoch that were committed last in this process. Only a guard: Spark calls once for an epoch and run."""


def _refuse_second_call(query_id: str, run_id: str | None, number: int) -> None:
    if _committed.get(query_id) == (run_id, number):
        raise ProtocolViolation(
            f"exactly_once was called twice for epoch {number}: the second call's rows would be dropped. Call it once, with one "
            "function that writes to all sinks",
            epoch=number,
        )


def _running_query(spark: SparkSession) -> tuple[str, str | None]:
    """The id of the query that is calling us, and that of its run."""
    if getattr(spark, "_jsparkSession", None) is None:
        problem = (
            "twophase.exactly_once can't run through Spark Connect, which does not let it see the query's checkpoint: use a "
            "format (twophase.register), or a classic session"
        )
        raise OptionError(problem, problems=[problem])
    query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if query_id is None:
        raise ProtocolViolation(
            "exactly_once was called outside of a streaming query: give it to writeStream.foreachBatch"
        )
    return query_id, spark.sparkContext.getLocalProperty(_RUN_ID)


def _checkpoint_location(spark: SparkSession, query_id: str) -> str:
    # Of the shared state: the session of a batch is a copy of the query's, and does not know the query.
    session: Any = spark
    virtual_machine: Any = spark.sparkContext._jvm
    running = session._jsparkSession.sharedState().activeStreamingQueries()
    query = running.get(virtual_machine.java.util.UUID.fromString(query_id))
    if query is None:
        raise ProtocolViolation(
            f"Spark knows no running query {query_id}: give exactly_once to writeStream.foreachBatch"
        )
    return str(query.resolvedCheckpointRoot())


def _abort(coordinator: Coordinator, number: int, epoch: EpochWriter, error: Exception) -> None:
    """Clean up if it is certain that nothing was decided; what went wrong first is what the user must see."""
    try:
        coordinator.abort(number, epoch.votes)
    except Exception as second:  # noqa: BLE001 - what is left over is swept by the next prepare
        log.warning("could not clean up", owner=coordinator.query.name, epoch=number, why=repr(second))
        error.add_note(f"and what it staged could not be cleaned up: {second!r}")
