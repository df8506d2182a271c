"""`make model`: explore a larger bound than `make test` does. `--help` lists what can be set."""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path

from tests.model.bounds import LARGE, SMALL, Bound
from tests.model.chunks import Chunks
from tests.model.explorer import Explorer
from tests.model.invariants import Violation
from tests.model.state import ALL_FAULTS, RECONFIGURATIONS, Report, Scenario


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--faults", type=int, help="explore this many faults at most, instead of the list of bounds")
    parser.add_argument("--kinds", help=f"comma-separated, of: {', '.join(sorted(ALL_FAULTS | RECONFIGURATIONS))}")
    parser.add_argument(
        "--switches", type=int, help="how often the floor passes between two living drivers; any number"
    )
    parser.add_argument("--only", help="only the bounds whose names contain this")
    parser.add_argument("--seconds", type=float, help="stop each bound after this long, and say so")
    parser.add_argument("--small", action="store_true", help="the bounds that `make test` explores")
    parser.add_argument("--processes", type=int, default=1, help="how many search at the same time")
    parser.add_argument(
        "--journal", type=Path, help="folder that keeps what is finished; run again, the search goes on"
    )
    chosen = parser.parse_args()
    if chosen.faults is None:
        listed = SMALL if chosen.small else LARGE
        bounds = [bound for bound in listed if (chosen.only or "") in bound.name]
    else:
        kinds = frozenset(chosen.kinds.split(",")) if chosen.kinds else ALL_FAULTS
        if not kinds <= ALL_FAULTS | RECONFIGURATIONS:
            parser.error(f"no such fault: {', '.join(sorted(kinds - ALL_FAULTS - RECONFIGURATIONS))}")
        scenario = Scenario(max_faults=chosen.faults, kinds=kinds, max_switches=chosen.switches)
        bounds = [Bound(f"{chosen.faults} faults of {len(kinds)} kinds", scenario)]
    for bound in bounds:
        print(f"{bound.name}: ", end="", flush=True)
        try:
            print(_search(bound.limited(chosen.seconds), chosen.processes, chosen.journal), flush=True)
        except Violation as violation:
            print(f"VIOLATED {violation}")
            print("\n".join(violation.__notes__))
            return 1
    return 0


def _search(scenario: Scenario, processes: int, journal: Path | None) -> Report:
    if scenario.max_faults > 1 and (processes > 1 or journal is not None):
        return Chunks(scenario, processes, journal, say=_say).run()
    explorer = Explorer(scenario)
    explorer.progress = _progress
    return explorer.run()


def _progress(states: int, seconds: float, waiting: list[int]) -> None:
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    layers = ", ".join(f"{count:,} with {faults}" for faults, count in enumerate(waiting))
    _say(f"{states:,} states, {seconds:,.0f} s, {memory_gb:.1f} GB; waiting, by faults: {layers}")


def _say(how_far: str) -> None:
    """A search takes hours: say on the side how far it is."""
    print(f"  … {how_far}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
