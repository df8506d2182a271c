"""The journal of one owner and one stream: which transactions were begun, which one an epoch is committed by, and the marker.

::

    begun      a task has begun a transaction for an attempt: what a later generation finds, and aborts
    merging    the events of a decision's other transactions are moved into this one
    intended   this decision is committed by this transaction: from here on its state tells whether the epoch is visible
    settled    the marker, certain, and what is still open; everything before it is cut off

It is a stream of one segment beside the one that is written. Records are appended; those that draw a conclusion from what was read
before are appended only if nothing has been added since (a conditional append), so each is a compare-and-set on the whole history.
It is as long as what happened in one epoch: every epoch ends with `settled`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from twophase.clients.pravega.controller import Controller
from twophase.clients.pravega.events import events_of, whole_events
from twophase.clients.pravega.refusals import NoStream, Refusal, SegmentRefused
from twophase.clients.pravega.segment_store import SegmentStore, connected
from twophase.clients.pravega.stream import Stream
from twophase.decision import marker_from_json, marker_to_json
from twophase.errors import TargetUnavailable
from twophase.identity import Attempt, Owner
from twophase.sink import Marker

FORMAT = 1
_READ_BYTES = 1 << 20
_TRIES = 5


@dataclass(frozen=True)
class Begun:
    """A transaction that an attempt has begun."""

    attempt: Attempt
    transaction: str
    epoch: int
    slot: int


@dataclass(frozen=True)
class Intent:
    """A decision, and the transaction that it is committed by."""

    marker: Marker
    transaction: str
    replaces: str | None = None
    """The transaction whose segments were moved into this one, because the controller did not finish it."""


@dataclass(frozen=True)
class History:
    """What the journal says."""

    marker: Marker | None = None
    """The last one that is certain. Transactions of later intents may have been committed since."""
    intents: tuple[Intent, ...] = ()
    begun: tuple[Begun, ...] = ()
    merging: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Transactions that others are merged into, and those."""
    end: int = 0
    """Where the next record goes."""

    @property
    def newest_intents(self) -> tuple[Intent, ...]:
        """One for each marker: of a decision that was moved to another transaction, that one tells."""
        return tuple({each.marker: each for each in self.intents}.values())

    def intent_for(self, marker: Marker) -> Intent | None:
        """The newest one, if it was ever intended to move the marker there."""
        return next((each for each in reversed(self.intents) if each.marker == marker), None)


class Journal:
    def __init__(self, controller: Controller, stream: Stream, owner: Owner):
        named = json.dumps([stream.name, owner.query, owner.sink])
        self.stream = Stream(stream.scope, f"twophase-markers-{hashlib.sha256(named.encode()).hexdigest()[:32]}")
        self._controller = controller

    def create(self) -> None:
        """Nothing, if it is there."""
        if not self._controller.is_there(self.stream):
            self._controller.create_stream(self.stream, 1)

    def read(self) -> History | None:
        """None if it was never created. What is read is there for ever, or was cut off by a later `settled`."""
        for _ in range(_TRIES):
            try:
                segment = self._segment()
            except NoStream:
                return None
            with connected(self._controller, self.stream, segment) as store:
                try:
                    return self._read(store, self.stream.segment(segment))
                except SegmentRefused as error:
                    if error.refusal is not Refusal.TRUNCATED:
                        raise
        raise TargetUnavailable(f"{self.stream} is cut off faster than it can be read")

    def add(self, begun: Begun) -> None:
        """A task's: nothing follows from what was before, so it goes wherever the end is."""
        self._append(_record("begun", **_begun_to_json(begun)))

    def merge(self, into: str, sources: Sequence[str]) -> None:
        self._append(_record("merging", merging={into: list(sources)}))

    def intend(self, history: History, intent: Intent) -> bool:
        """Whether nobody has added anything since; the same for those below."""
        told = {"marker": marker_to_json(intent.marker), "transaction": intent.transaction, "replaces": intent.replaces}
        return self._append_at(history, _record("intended", **told))

    def settle(self, history: History, marker: Marker | None, still_open: Sequence[Begun]) -> bool:
        names = {each.transaction for each in still_open}
        told = {
            "marker": None if marker is None else marker_to_json(marker),
            "open": [_begun_to_json(each) for each in still_open],
            "merging": {into: list(sources) for into, sources in history.merging.items() if names & {into, *sources}},
        }
        if not self._append_at(history, _record("settled", **told)):
            return False
        segment = self._segment()
        with connected(self._controller, self.stream, segment) as store:
            store.truncate(self.stream.segment(segment), history.end, self._controller.token(self.stream).value)
        return True

    # ---- inside ----

    def _segment(self) -> int:
        # Not always the first number: one that is created again after it was deleted goes on counting.
        (only,) = self._controller.current(self.stream)
        return only.segment

    def _append(self, record: bytes) -> None:
        segment = self._segment()
        with connected(self._controller, self.stream, segment) as store:
            store.append(self.stream.segment(segment), record, self._controller.token(self.stream).value)

    def _append_at(self, history: History, record: bytes) -> bool:
        segment = self._segment()
        with connected(self._controller, self.stream, segment) as store:
            token = self._controller.token(self.stream).value
            return store.append_at(self.stream.segment(segment), history.end, record, token)

    def _read(self, store: SegmentStore, name: str) -> History:
        token = self._controller.token(self.stream).value
        info = store.info(name, token)
        data = bytearray()
        while info.begin + len(data) < info.length:
            at = info.begin + len(data)
            data += store.read(name, at, min(_READ_BYTES, info.length - at), token)[: info.length - at]
        content = bytes(data)
        history = History()
        for value in events_of(content, whole_events(content, info.begin, name), info.begin).values.to_pylist():
            history = _added(history, json.loads(value))
        return replace(history, end=info.length)


def _added(history: History, record: Mapping[str, Any]) -> History:
    if record.get("format") != FORMAT:
        raise TargetUnavailable(
            f"the journal has a record of format {record.get('format')!r}, not {FORMAT}: use the release that wrote it"
        )
    match record["kind"]:
        case "begun":
            return replace(history, begun=(*history.begun, _begun_from_json(record)))
        case "merging":
            return replace(history, merging={**history.merging, **_merging_from_json(record["merging"])})
        case "intended":
            replaces = record["replaces"]
            intent = Intent(marker_from_json(record["marker"]), str(record["transaction"]), replaces and str(replaces))
            return replace(history, intents=(*history.intents, intent))
        case "settled":
            marker = None if record["marker"] is None else marker_from_json(record["marker"])
            still_open = tuple(map(_begun_from_json, record["open"]))
            return History(marker, begun=still_open, merging=_merging_from_json(record["merging"]))
    raise TargetUnavailable(
        f"the journal has a record of the kind {record['kind']!r}, which this release does not know"
    )


def _record(kind: str, **fields: Any) -> bytes:
    return json.dumps({"format": FORMAT, "kind": kind, **fields}, sort_keys=True).encode()


def _merging_from_json(data: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {str(into): tuple(map(str, sources)) for into, sources in data.items()}


def _begun_to_json(begun: Begun) -> dict[str, Any]:
    return {
        "attempt": str(begun.attempt),
        "transaction": begun.transaction,
        "epoch": begun.epoch,
        "slot": begun.slot,
    }


def _begun_from_json(data: Mapping[str, Any]) -> Begun:
    return Begun(Attempt.parse(data["attempt"]), str(data["transaction"]), int(data["epoch"]), int(data["slot"]))
