"""Rounds: every contender in each of them, so that what slows the machine for a minute slows them all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.session import Measured

FILES_PER_EPOCH = 2


@dataclass(frozen=True)
class Size:
    rows: int
    epochs: int

    @property
    def files(self) -> int:
        return self.epochs * FILES_PER_EPOCH

    @property
    def rows_per_epoch(self) -> int:
        return self.rows // self.epochs


def interleaved(
    name: str, contenders: Sequence[str], measure: Callable[[str], Measured], repetitions: int
) -> dict[str, list[Measured]]:
    """Every contender in every round, in turning order; the first round warms up and is dropped."""
    results: dict[str, list[Measured]] = {contender: [] for contender in contenders}
    for number in range(repetitions + 1):
        first = number % len(contenders)
        for contender in (*contenders[first:], *contenders[:first]):
            measured = measure(contender)
            if number:
                results[contender].append(measured)
            said = f"{measured.rows_per_s:>12,.0f} rows/s {measured.stolen:>4.0%} of the machine stolen"
            print(f"{name} {number}/{repetitions} {contender:<14}{said}", flush=True)
    return results
