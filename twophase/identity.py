"""The names of things: epoch, owner, generation, attempt, decision.

Each is a frozen dataclass with one text form, `str(x)`, and `parse`, its inverse. Names that come from users are escaped
in the text form, so that it can be used as a path component or inside an id.

`Generation` and `Attempt` are qualified by the ledger's id because generation numbers mean something only within one
ledger: a copied checkpoint would otherwise fence, or be fenced by, a stranger.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from twophase.names import escape, unescape


def offsets_hash(data: bytes) -> str:
    """Hash of the bytes of Spark's `offsets/N`: the same in every replay of N."""
    return hashlib.sha256(data).hexdigest()[:32]


@dataclass(frozen=True, order=True)
class Epoch:
    """One micro-batch of one query: Spark's batch id, and what the batch reads."""

    number: int
    offsets: str

    def __str__(self) -> str:
        return f"{self.number}@{self.offsets}"

    @classmethod
    def parse(cls, text: str) -> Epoch:
        number, _, offsets = text.partition("@")
        return cls(int(number), offsets)


@dataclass(frozen=True, order=True)
class Owner:
    """Who writes: a query, and the name of the sink within it."""

    query: str
    sink: str

    def __str__(self) -> str:
        return f"{escape(self.query)}/{escape(self.sink)}"

    @classmethod
    def parse(cls, text: str) -> Owner:
        query, _, sink = text.partition("/")
        return cls(unescape(query), unescape(sink))


@dataclass(frozen=True)
class Generation:
    """The sequence number of a prepare record. The newest of a ledger owns the epoch; all older ones are fenced."""

    ledger: str
    number: int

    def __str__(self) -> str:
        return f"{self.ledger}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Generation:
        ledger, _, number = text.rpartition(".")
        return cls(ledger, int(number))

    def is_older_than(self, other: Generation) -> bool:
        """Generations of different ledgers can't be compared: neither is older."""
        return self.ledger == other.ledger and self.number < other.number


@dataclass(frozen=True)
class Attempt:
    """One run of one task; unique for ever, and carried by everything that the run stages.

    `task` is Spark's taskAttemptId. The attempt *number* would name nothing: it starts again at 0 in a retried stage.

    `nonce` is its prepare record's. Where a checkpoint was restored from a backup, numbers of generations and of tasks repeat,
    while something that an attempt of the same number has sent may still be on its way to the target.
    """

    generation: Generation
    task: int
    nonce: str = ""
    """Empty in what was written before attempts had one."""

    def __str__(self) -> str:
        return f"{self.generation}.{self.nonce}_{self.task}" if self.nonce else f"{self.generation}.{self.task}"

    @classmethod
    def parse(cls, text: str) -> Attempt:
        generation, _, run = text.rpartition(".")
        nonce, _, task = run.rpartition("_")
        return cls(Generation.parse(generation), int(task), nonce)


@dataclass(frozen=True)
class DecisionId:
    """The ledger record that decided: what a target stores to recognise a replayed commit."""

    ledger: str
    number: int

    def __str__(self) -> str:
        return f"{self.ledger}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> DecisionId:
        ledger, _, number = text.rpartition(".")
        return cls(ledger, int(number))
