"""Processor time of processes, as the system counts it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def processor_s(pids: Iterable[int]) -> float:
    """Of these processes, and of those that they have waited for."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(int(each) for each in fields[11:15])  # own and children's, user and system
    return ticks / _TICKS_PER_S
