"""Bounded calls: none lasts longer than it may; one that nobody took, or whose reply was lost and that may be made twice, is made
again for as long as there is patience."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from twophase.clients.hdfs.answers import NotTaken

T = TypeVar("T")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_LOOKS = 3


class Overdue(Exception):
    """A call that has not returned in time. It goes on by itself, and may still be carried out."""


def bounded(call: Callable[[], T], timeout_s: float) -> T:
    """What `call` gives, if it does so in time.

    In a thread, because hdfs-native has no time limit of its own; a daemon, so that one that never returns does not keep the
    process from ending.
    """
    outcome: list[T] = []
    trouble: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is raised where it was asked for
            trouble.append(error)

    thread = threading.Thread(target=run, name="twophase-hdfs-call", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if trouble:
        raise trouble[0]
    if not outcome:
        raise Overdue(f"no answer within {timeout_s:g} s")
    return outcome[0]


def patiently(call: Callable[[], T], patience_s: float) -> T:
    """What `call` gives; made again while nobody takes it."""
    deadline = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return call()
        except NotTaken:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def looks(patience_s: float) -> Iterator[float]:
    """For a request that may be made again when its reply was lost: the patience left for each time, three times at least.

    A NameNode that starts takes connections long before it answers. By its silence it can't be told from one that is gone.
    """
    deadline = time.monotonic() + patience_s
    made = 0
    while made < _LOOKS or time.monotonic() < deadline:
        yield max(0.0, deadline - time.monotonic())
        made += 1
