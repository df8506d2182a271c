"""Transactional ids: a bounded set for each ledger, from which a transaction's generation can be told.

::

    twophase/<query>/<sink>/<ledger>.<generation mod 31>.<slot>.<task mod 31>

Brokers remember every id for a week, so ids are used again. 31 is prime because generations step by two or three; a zombie would
have to sleep through 31 generations before its id is somebody else's. Which generation an id stands for is told from the one
that asks: the newest before it that has the same remainder, or, for the half of the circle that lies ahead, the next one after.
"""

from __future__ import annotations

from dataclasses import dataclass

from twophase.identity import Attempt, Generation, Owner

CIRCLE = 31
_AHEAD = CIRCLE // 2


@dataclass(frozen=True)
class TransactionalId:
    prefix: str
    owner: Owner
    ledger: str
    generation: int
    """Its number, modulo CIRCLE."""
    slot: int
    task: int
    """Spark's id of the task attempt, modulo CIRCLE."""

    @classmethod
    def of(cls, prefix: str, owner: Owner, slot: int, attempt: Attempt) -> TransactionalId:
        generation = attempt.generation
        return cls(prefix, owner, generation.ledger, generation.number % CIRCLE, slot, attempt.task % CIRCLE)

    def __str__(self) -> str:
        return f"{names_of(self.prefix, self.owner)}{self.ledger}.{self.generation}.{self.slot}.{self.task}"

    @classmethod
    def parse(cls, text: str, prefix: str, owner: Owner) -> TransactionalId | None:
        """None if the name is not one of this owner's."""
        begins = names_of(prefix, owner)
        parts = text.removeprefix(begins).rsplit(".", 3)
        if not text.startswith(begins) or len(parts) != 4 or not all(part.isdigit() for part in parts[1:]):
            return None
        return cls(prefix, owner, parts[0], *map(int, parts[1:]))

    def generation_seen_from(self, asking: Generation | None) -> Generation:
        if asking is None or self.ledger != asking.ledger:
            return Generation(self.ledger, self.generation)
        behind = (asking.number - self.generation) % CIRCLE
        return Generation(
            self.ledger, asking.number - behind if behind < CIRCLE - _AHEAD else asking.number - behind + CIRCLE
        )


def names_of(prefix: str, owner: Owner) -> str:
    """What all transactional ids and marker groups of an owner begin with."""
    return f"{prefix}/{owner}/"
