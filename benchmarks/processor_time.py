"""Processor time of processes, as the system counts it.

What a process has used is gone with it, unless its parent has waited for it; the parent of Spark's Python workers does not, and
workers that were idle for a minute are ended. So each process is compared with itself: sums would count what such a worker did in
earlier runs against this one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processor_s(pids: Iterable[int]) -> dict[int, float]:
    """Of each of these processes, with those that it has waited for."""
    found = {}
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[pid] = sum(int(each) for each in fields[11:15]) / _TICKS_PER_S  # own and children's, user and system
    return found


def spent_s(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """By those that are there at the end."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def stolen_s() -> float:
    """What the host of this machine, if it has one, has given to others since it was started, of all cores together."""
    return int(Path("/proc/stat").read_text().split("\n", 1)[0].split()[8]) / _TICKS_PER_S
