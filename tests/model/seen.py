"""Which states were met, and with how much to come: a state is not tried again with fewer faults and switches left.

Of each only 8 bytes of a hash are kept. Two different states with the same hash would be taken for one: with 10 million states
the chance that there is such a pair is 1 in 300,000.

The hash is the same in every process, so what one has finished can be handed to others: as two arrays, in the order of hashes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.model.state import Scenario, State

Array = np.ndarray[Any, Any]


def _none(kind: type) -> Array:
    return np.empty(0, kind)


@dataclass(frozen=True)
class Met:
    """States that are done with, or wait at a place where they are not forgotten."""

    hashes: Array = field(default_factory=lambda: _none(np.uint64))
    """In order, each once."""
    bits: Array = field(default_factory=lambda: _none(np.uint32))
    """A bit for every (number of faults, number of switches) with which the state was met."""

    @classmethod
    def of(cls, bits: dict[int, int]) -> Met:
        hashes = np.fromiter(bits, np.uint64, len(bits))
        order = np.argsort(hashes)
        return cls(hashes[order], np.fromiter(bits.values(), np.uint32, len(bits))[order])

    def __len__(self) -> int:
        return len(self.hashes)

    def bits_of(self, key: int) -> int:
        place = int(self.hashes.searchsorted(np.uint64(key)))
        return int(self.bits[place]) if place < len(self.hashes) and int(self.hashes[place]) == key else 0

    def with_all(self, other: Met) -> Met:
        """Both; a state that is in both was met in all the ways of either."""
        places = self.hashes.searchsorted(other.hashes)
        inside = places < len(self.hashes)
        known = np.zeros(len(other), bool)
        known[inside] = self.hashes[places[inside]] == other.hashes[inside]
        bits = self.bits.copy()
        bits[places[known]] |= other.bits[known]
        new = ~known
        return Met(
            np.insert(self.hashes, places[new], other.hashes[new]), np.insert(bits, places[new], other.bits[new])
        )


class Seen:
    def __init__(self, scenario: Scenario, before: Met | None = None):
        self._exact = not scenario.reduce
        self._switches = (scenario.max_switches or 0) + 1
        self._before = before
        """What others have met and finished."""
        self.met: dict[int, int] = {}
        """Hash → bits, as in `Met`; of what was met here."""
        pairs = [(f, s) for f in range(scenario.max_faults + 1) for s in range(self._switches)]
        assert len(pairs) <= np.iinfo(np.uint32).bits
        self._better = {
            pair: sum(1 << self._bit(*other) for other in pairs if other[0] <= pair[0] and other[1] <= pair[1])
            for pair in pairs
        }

    def _bit(self, faults: int, switches: int) -> int:
        return faults * self._switches + switches

    def hash(self, state: State) -> int:
        return state.hash(state.faults if self._exact else ())

    def _bits_of(self, key: int) -> int:
        bits = self.met.get(key, 0)
        return bits if self._before is None else bits | self._before.bits_of(key)

    def admits(self, key: int, state: State) -> bool:
        """Whether it is new, or has more to come than before; it is then taken down."""
        pair = (len(state.faults), state.switches)
        bits = self._bits_of(key)
        if bits & self._better[pair]:
            return False
        self.met[key] = bits | 1 << self._bit(*pair)
        return True

    def outdoes(self, key: int, state: State) -> bool:
        """Whether it was met with more to come, after it was admitted."""
        pair = (len(state.faults), state.switches)
        others = self._better[pair] & ~(1 << self._bit(*pair))
        return bool(others and self._bits_of(key) & others)
