"""Ledger records: two kinds, prepare and decide, as bytes.

A record is two lines of UTF-8: a header that says what it is, and one JSON object::

    twophase-ledger 1 sha256=<of the second line>
    {"kind":"prepare","number":7,...}

The header is first so that every way of being unreadable has its own name: not ours, from a newer release, torn, altered.
None of them is guessed around.

Upgrade promise: a release reads every format up to its own. A release that can't read a record stops and says so.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from twophase.decision import Decision
from twophase.errors import LedgerCorrupt
from twophase.identity import Epoch, Generation
from twophase.sink import Description
from twophase.vote import canonical_json

RECORD_FORMAT = 1
NONCE_IN_ATTEMPTS = 12
"""Characters of a record's nonce that names in targets carry: 48 bits of a random one."""
_MAGIC = b"twophase-ledger"


@dataclass(frozen=True)
class Enrolment:
    """A sink that a decision has named: the epoch it joined at, and where its line of epochs is counted from."""

    joined: int
    base: int


@dataclass(frozen=True)
class Prepare:
    """A generation begins. Carries all state, so that older records may be deleted."""

    number: int
    nonce: str
    ledger: str
    location: str
    query: str
    epoch: Epoch
    tasks: bool
    """False when it was published only to fence: by abort, or by recovery from the command line."""
    sinks: Mapping[str, Enrolment] = field(default_factory=dict)
    replaces: tuple[str, ...] = ()
    """Ids of ledgers that this one continues, and whose leftovers it may sweep."""
    decision: Decision | None = None
    """The newest decision. Only the newest can be open."""
    written_ms: int = 0
    targets: Mapping[str, Description] = field(default_factory=dict)
    """What this generation writes to, by sink name, as far as the sinks can be described: for people, and for recovery."""
    begun: Mapping[str, int] | None = None
    """Sinks that tasks were begun for, and that no decision has named yet: at which epoch. None in records from before it was
    written down."""

    @property
    def generation(self) -> Generation:
        return Generation(self.ledger, self.number)

    @property
    def attempts_nonce(self) -> str:
        """What tells this generation's attempts from those of one with the same number, before the ledger was restored."""
        return self.nonce[:NONCE_IN_ATTEMPTS]

    def to_json(self) -> dict[str, Any]:
        # Format 1 was first written without these two, and is read either way.
        targets = {name: {"format": each.format, "options": dict(each.options)} for name, each in self.targets.items()}
        later = ({"targets": targets} if targets else {}) | ({} if self.begun is None else {"begun": dict(self.begun)})
        return later | {
            "kind": "prepare",
            "number": self.number,
            "nonce": self.nonce,
            "ledger": self.ledger,
            "location": self.location,
            "query": self.query,
            "epoch": str(self.epoch),
            "tasks": self.tasks,
            "sinks": {name: {"joined": sink.joined, "base": sink.base} for name, sink in self.sinks.items()},
            "replaces": list(self.replaces),
            "decision": None if self.decision is None else self.decision.to_json(),
            "written_ms": self.written_ms,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Prepare:
        return cls(
            number=int(data["number"]),
            nonce=str(data["nonce"]),
            ledger=str(data["ledger"]),
            location=str(data["location"]),
            query=str(data["query"]),
            epoch=Epoch.parse(data["epoch"]),
            tasks=bool(data["tasks"]),
            sinks={str(n): Enrolment(int(s["joined"]), int(s["base"])) for n, s in data["sinks"].items()},
            replaces=tuple(str(ledger) for ledger in data["replaces"]),
            decision=None if data["decision"] is None else Decision.from_json(data["decision"]),
            written_ms=int(data["written_ms"]),
            targets={
                str(name): Description(str(each["format"]), {str(k): str(v) for k, v in each["options"].items()})
                for name, each in data.get("targets", {}).items()
            },
            begun={str(name): int(number) for name, number in data["begun"].items()} if "begun" in data else None,
        )


@dataclass(frozen=True)
class Decide:
    """The commit point of an epoch."""

    number: int
    nonce: str
    ledger: str
    decision: Decision
    written_ms: int = 0

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "decide",
            "number": self.number,
            "nonce": self.nonce,
            "ledger": self.ledger,
            "decision": self.decision.to_json(),
            "written_ms": self.written_ms,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Decide:
        return cls(
            number=int(data["number"]),
            nonce=str(data["nonce"]),
            ledger=str(data["ledger"]),
            decision=Decision.from_json(data["decision"]),
            written_ms=int(data["written_ms"]),
        )


Record = Prepare | Decide


def encode(record: Record) -> bytes:
    # A path whose bytes are not UTF-8 has lone surrogates in Python, and so can an option; json.loads reads them back.
    body = canonical_json(record.to_json()).encode("utf-8", "surrogatepass") + b"\n"
    header = b"%s %d sha256=%s\n" % (_MAGIC, RECORD_FORMAT, hashlib.sha256(body).hexdigest().encode())
    return header + body


def decode(data: bytes, *, path: str, number: int) -> Record:
    """Read a record; raises LedgerCorrupt that says in what way it can't be read."""
    header, newline, body = data.partition(b"\n")
    words = header.split(b" ")
    if not data:
        raise _corrupt(path, "is empty: it was not written by publish-exclusive")
    if words[0] != _MAGIC:
        torn = newline == b"" and _MAGIC.startswith(data)
        raise _corrupt(path, "is torn" if torn else "is not a ledger record: another program wrote it")
    if len(words) != 3 or not words[1].isdigit() or len(words[1]) > 9 or not words[2].startswith(b"sha256="):
        raise _corrupt(path, "is torn: its header is not whole")
    if int(words[1]) == 0:
        raise _corrupt(path, "has format 0, which no release has written: another program wrote it, or it was altered")
    if int(words[1]) > RECORD_FORMAT:
        raise _corrupt(
            path,
            f"has format {int(words[1])}, and this release reads 1 to {RECORD_FORMAT}: "
            "run the release that wrote it, or a newer one",
        )
    if not body.endswith(b"\n"):
        raise _corrupt(path, "is torn: it ends before its last line does")
    if hashlib.sha256(body).hexdigest().encode() != words[2].removeprefix(b"sha256="):
        raise _corrupt(path, "was altered: its checksum does not match")
    try:
        content = json.loads(body)
        kind: type[Prepare] | type[Decide] = {"prepare": Prepare, "decide": Decide}[content["kind"]]
        record = kind.from_json(content)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _corrupt(path, f"is whole but makes no sense to this release: {error!r}") from error
    if record.number != number:
        raise _corrupt(path, f"says that it is record {record.number}: it was renamed or copied")
    return record


def _corrupt(path: str, what: str) -> LedgerCorrupt:
    return LedgerCorrupt(
        f"ledger record {path} {what}. Nothing was changed. Restore the checkpoint folder as a whole from a backup, or "
        "start a new query with its own checkpoint and take over the targets."
    )
