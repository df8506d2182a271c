"""`make model`: explore a larger bound than `make test` does. `--help` lists what can be set."""

from __future__ import annotations

import argparse
import sys

from tests.model.bounds import LARGE, SMALL, Bound
from tests.model.explorer import Explorer
from tests.model.invariants import Violation
from tests.model.state import ALL_FAULTS, RECONFIGURATIONS, Scenario


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
            print(Explorer(bound.limited(chosen.seconds)).run(), flush=True)
        except Violation as violation:
            print(f"VIOLATED {violation}")
            print("\n".join(violation.__notes__))
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
