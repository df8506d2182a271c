"""What is known about a query that may not be running: its ledger, beside Spark's logs, beside the markers in the targets.

Read-only, and safe while the query runs: then it shows one moment of a moving thing.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from twophase.checkpoint import Checkpoint
from twophase.connectors.query_options import QueryOptions, query_of
from twophase.connectors.registration import FORMATS
from twophase.connectors.verdict import verdict
from twophase.decision import Decision
from twophase.errors import CheckpointMismatch, MissingExtra, OptionError, TwophaseError
from twophase.ledger import Tail
from twophase.query import AnySink, Query
from twophase.record import Decide, Prepare, Record
from twophase.sink import WHOLE, Description, Status
from twophase.standing import is_closed

_LOOKS = 5


@dataclass(frozen=True)
class EpochLine:
    """One generation's run of an epoch, as far as the ledger still has it."""

    epoch: int
    generation: int
    state: str
    """prepared, decided, committed (by Spark's log), fenced (overtaken before it decided), or a fence (without tasks)."""
    rows: int | None = None
    shares: int | None = None
    revision: int | None = None
    prepared_ms: int = 0
    decided_after_ms: int | None = None
    """From prepare to decision: what the tasks took."""


@dataclass(frozen=True)
class SinkLine:
    """One target: what its marker says, and what is staged in it."""

    sink: str
    owner: str
    format: str | None
    options: Mapping[str, str]
    marker: str | None = None
    open: bool | None = None
    """Whether the newest decision is not visible here yet; None if the target could not be asked."""
    staged: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Inspection:
    checkpoint: str
    query: str
    ledger: str
    ledger_id: str | None
    newest_offsets: int | None
    newest_commit: int | None
    verdict: str
    epochs: tuple[EpochLine, ...]
    sinks: tuple[SinkLine, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def inspect(location: str, *, ledger: str | None = None) -> Inspection:
    """Look at a query by its checkpoint."""
    query, tail = opened(location, ledger=ledger, strict=False)
    inspection = _look(query, tail)
    for _ in range(_LOOKS):
        # A query that runs may have gone on meanwhile, and then what was seen does not fit together.
        if query.ledger.read() == tail:
            break
        query, tail = opened(location, ledger=ledger, strict=False)
        inspection = _look(query, tail)
    return inspection


def _look(query: Query, tail: Tail | None) -> Inspection:
    checkpoint = query.checkpoint
    sinks = [] if tail is None else [_sink_line(query, tail, name) for name in _names(tail)]
    return Inspection(
        checkpoint=checkpoint.root,
        query=query.name,
        ledger=query.ledger.location,
        ledger_id=None if tail is None else tail.prepare.ledger,
        newest_offsets=checkpoint.newest(),
        newest_commit=checkpoint.newest_commit(),
        verdict=verdict(query, tail, {line.sink: line.open for line in sinks}),
        epochs=tuple(_epoch_lines(checkpoint, query.ledger.history())),
        sinks=tuple(sinks),
    )


def opened(location: str, *, ledger: str | None = None, strict: bool = True) -> tuple[Query, Tail | None]:
    """The query of a checkpoint, with the sinks that its newest generation wrote to.

    Parameters
    ----------
    strict:
        Whether a sink that can't be built here is an error; otherwise it is left out.
    """
    options = QueryOptions(checkpoint_location=location, ledger=ledger)
    bare = query_of(options, {})
    tail = bare.ledger.read()
    if tail is None:
        return bare, None
    sinks: dict[str, AnySink] = {}
    for name, description in tail.prepare.targets.items():
        try:
            sinks[name] = sink_of(description)
        except TwophaseError:
            if strict:
                raise
    nameless = [name for name in _names(tail) if name not in tail.prepare.targets]
    if strict and nameless:
        raise CheckpointMismatch(
            f"the ledger does not say how to reach the sinks {nameless}: start the query itself, which recovers as it starts",
            owner=tail.prepare.query,
        )
    named = QueryOptions(checkpoint_location=location, ledger=ledger, owner=tail.prepare.query)
    return query_of(named, sinks), tail


def sink_of(description: Description) -> AnySink:
    """The sink that a ledger describes. Only formats of this release: a ledger is data, and names no code to run."""
    if description.format not in FORMATS:
        problem = f"the format {description.format!r} is none of this release's: {', '.join(sorted(FORMATS))}"
        raise OptionError(problem, problems=[problem])
    module, name = FORMATS[description.format]
    try:
        made: AnySink = getattr(importlib.import_module(module), name).make_sink(description.options)
    except MissingExtra as error:
        raise OptionError(error.message, problems=[error.message]) from error
    return made


def _names(tail: Tail) -> list[str]:
    return list(dict.fromkeys([*tail.prepare.targets, *(tail.decision.sinks if tail.decision else ())]))


def _epoch_lines(checkpoint: Checkpoint, records: list[Record]) -> list[EpochLine]:
    lines = []
    for at, record in enumerate(records):
        if not isinstance(record, Prepare):
            continue
        after = records[at + 1] if at + 1 < len(records) else None
        lines.append(_epoch_line(checkpoint, record, after))
    return lines


def _epoch_line(checkpoint: Checkpoint, prepare: Prepare, after: Record | None) -> EpochLine:
    number = prepare.epoch.number
    line = EpochLine(number, prepare.number, "prepared", prepared_ms=prepare.written_ms)
    if isinstance(after, Decide):
        committed = checkpoint.is_committed(number) or (checkpoint.newest_commit() or -1) >= number
        decision = after.decision
        return EpochLine(
            epoch=number,
            generation=prepare.number,
            state="committed" if committed else "decided",
            rows=_rows(decision),
            shares=sum(len(sink.shares) for sink in decision.sinks.values()),
            revision=decision.revision,
            prepared_ms=prepare.written_ms,
            decided_after_ms=after.written_ms - prepare.written_ms,
        )
    if not prepare.tasks:
        return EpochLine(number, prepare.number, "fence", prepared_ms=prepare.written_ms)
    return line if after is None else EpochLine(number, prepare.number, "fenced", prepared_ms=prepare.written_ms)


def _rows(decision: Decision) -> int:
    return sum(share.rows for sink in decision.sinks.values() for share in sink.shares)


def _sink_line(query: Query, tail: Tail, name: str) -> SinkLine:
    owner = query.owner(name)
    description = tail.prepare.targets.get(name)
    line = SinkLine(
        sink=name,
        owner=str(owner),
        format=None if description is None else description.format,
        options={} if description is None else description.options,
    )
    sink = query.sinks.get(name)
    if sink is None:
        problem = "it can't be built from the ledger" if description is None else "it can't be built here"
        return dataclasses.replace(line, problem=problem)
    try:
        status = sink.status(owner, settled=False)
        staged = tuple(left.what for left in sink.leftovers(owner))
    except (TwophaseError, OSError) as error:
        return dataclasses.replace(line, problem=str(error))
    is_open = tail.decision is not None and not is_closed(query.decision_view(name, tail.decision), status)
    return dataclasses.replace(line, marker=_marker(status), open=is_open, staged=staged)


def _marker(status: Status) -> str:
    if not status.markers:
        return "nothing yet"
    shown = [
        ("" if slot == WHOLE else f"slot {slot}: ") + f"epoch {marker.epoch.number} of {marker.owner}"
        for slot, marker in sorted(status.markers.items())
    ]
    return "; ".join(shown[:4]) + (f" and {len(shown) - 4} slots more" if len(shown) > 4 else "")
