"""A query as the protocol sees it: its checkpoint, its ledger, its sinks by name, and what is known about each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from twophase.checkpoint import Checkpoint
from twophase.decision import Decision
from twophase.errors import OptionError
from twophase.identity import Epoch, Owner
from twophase.ledger import Ledger, Tail
from twophase.sink import CommitOrder, Description, Sink, Status
from twophase.standing import View

AnySink = Sink[Any]


@dataclass(frozen=True)
class Query:
    """Everything that the coordinator is handed.

    Parameters
    ----------
    name:
        The query's part of the owner: Spark's query id, or the option `owner`.
    sinks:
        By name, in the order in which they commit.
    take_over:
        Sink name → text form of the owner that this query replaces there. Does nothing once done.
    moved_from:
        The ledger's former place, if the checkpoint was moved.
    """

    name: str
    checkpoint: Checkpoint
    ledger: Ledger
    sinks: Mapping[str, AnySink]
    now_ms: Callable[[], int]
    take_over: Mapping[str, str] = field(default_factory=dict)
    moved_from: str | None = None

    def __post_init__(self) -> None:
        problems = [
            f"takeOver names the sink {name!r}, which "
            + ("takes several owners side by side" if name in self.sinks else f"is none of {sorted(self.sinks)}")
            for name in self.take_over
            if name not in self.sinks or self.sinks[name].capabilities.several_owners
        ]
        if not self.name:
            problems.append("a query needs a name")
        lines = [sink.target for sink in self.sinks.values() if not sink.capabilities.several_owners]
        if any(target is not None and lines.count(target) > 1 for target in lines):
            problems.append("two sinks write to the same target, which takes one owner at a time: write to it once")
        if problems:
            raise OptionError("; ".join(problems), problems=problems, owner=self.name)

    def owner(self, sink: str) -> Owner:
        return Owner(self.name, sink)

    def targets(self) -> Mapping[str, Description]:
        described = {name: sink.describe() for name, sink in self.sinks.items()}
        return {name: description for name, description in described.items() if description is not None}

    def statuses(self, *, settled: bool) -> Mapping[str, Status]:
        return {name: sink.status(self.owner(name), settled=settled) for name, sink in self.sinks.items()}

    def view(self, sink: str, epoch: Epoch, tail: Tail) -> View:
        capabilities, forgotten = self.sinks[sink].capabilities, partial(self._is_forgotten, sink, tail.decision)
        return View(self.owner(sink), sink, capabilities, epoch, tail.decision, tail.sinks.get(sink), forgotten)

    def decision_view(self, sink: str, decision: Decision) -> View:
        """Enough of a view to ask whether this decision is visible."""
        capabilities, forgotten = self.sinks[sink].capabilities, partial(self._is_forgotten, sink, decision)
        return View(self.owner(sink), sink, capabilities, decision.epoch, decision, None, forgotten)

    def _is_forgotten(self, sink: str, decision: Decision | None) -> bool:
        return (
            decision is not None
            and sink in decision.sinks
            and self.sinks[sink].forgets(self.order(sink, decision))
            and self.checkpoint.is_committed(decision.epoch.number)
        )

    def order(self, sink: str, decision: Decision) -> CommitOrder[Any]:
        return decision.sinks[sink].order(self.owner(sink), decision.epoch, self.sinks[sink].handle_type)

    def previous(self, epoch: Epoch, tail: Tail | None) -> str | None:
        """Offsets hash of the epoch before: from Spark's log, else from the decision; None if neither has it any more."""
        if epoch.number == 0:
            return ""
        logged = self.checkpoint.offsets_hash(epoch.number - 1)
        decision = None if tail is None else tail.decision
        if logged is None and decision is not None and decision.epoch.number == epoch.number - 1:
            return decision.epoch.offsets
        return logged
