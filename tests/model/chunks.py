"""A search in several processes, in bounded memory.

The states with one fault less than the last that wait when all states with fewer are done are the *roots*. What is left of the
search is to follow each of them, and all that comes of it. They are cut into chunks, and each chunk is followed by a child: what
it remembers (programs that were run, values, results of operations) dies with it, and only hashes of the states that it met come
back.

A child takes a state for done if it met it itself, or if a chunk that was *finished* before the child began has met it. What
another child meets at the same moment is followed twice, and counted once. A child that dies has met nothing. So there is no
circle: whatever is left out was followed by a chunk that had finished without leaning on this one.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from tests.model.explorer import HEARTBEAT_S, Explorer, Waiting, undisturbed
from tests.model.invariants import Violation
from tests.model.journal import Chunk, Journal
from tests.model.seen import Array, Met, Seen
from tests.model.state import Report, Scenario

CHUNK_STATES = 600_000
"""A child that has met so many begins no further root: its memory grows by about 2 kB for each."""
CHUNK_ROOTS = 500
"""As many roots it is given at most; what it does not begin comes back."""
POLL_S = 0.05
CHILD_HEARTBEAT_S = 1.0

COUNTS = struct.Struct("QQ")
"""What a child says now and then: how many states it has met, and how many of its roots are done."""
SLOT_BYTES = COUNTS.size

FAILED, VIOLATED, OUT_OF_TIME = 1, 2, 3
"""How a child ends that has no chunk to show."""

Say = Callable[[str], None]


@dataclass
class Child:
    pid: int
    slot: int
    """Its place in the memory that it shares with us, in which it says how far it is."""
    roots: list[Waiting]
    path: Path
    """Where its chunk is, once it has ended."""
    status: int | None = None

    @property
    def failure(self) -> Path:
        return self.path.with_suffix(".json")

    def has_ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def kill(self) -> None:
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


@dataclass
class Chunks:
    """One search; `run` may be called once."""

    scenario: Scenario
    processes: int = 1
    journal: Path | None = None
    say: Say | None = None
    chunk_states: int = CHUNK_STATES
    met: Met = field(default_factory=Met)
    ends: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)

    def run(self) -> Report:
        """Explore; raises Violation with the schedule that leads to it."""
        self._began = time.monotonic()
        self._explorer = Explorer(self.scenario)
        with undisturbed(), self._folder() as journal:
            self._explorer.begin()
            self._explorer.follow(self._explorer.layers[:-2])
            self._take_stock()
            self._resume(journal)
            self._shared = mmap.mmap(-1, SLOT_BYTES * self.processes)
            self._follow_roots(journal)
        return self._told()

    @contextmanager
    def _folder(self) -> Iterator[Journal]:
        if self.journal is not None:
            yield Journal.of(self.scenario, self.journal)
            return
        with tempfile.TemporaryDirectory() as folder:
            yield Journal(Path(folder))

    def _take_stock(self) -> None:
        """What was met before the roots; and these, the ones that were found last first, as in a search that is not cut."""
        explorer = self._explorer
        self.met = Met.of(explorer.seen.met)
        self.ends |= explorer.ends.keys()
        self.refused |= {key for key, refused in explorer.ends.items() if refused}
        explorer.ends.clear()
        waiting = (root for layer in explorer.layers for root in layer)
        roots = [(state, key, how) for state, key, how in waiting if not explorer.seen.outdoes(key, state)]
        # They have equally many faults, so of two with one hash the one with fewer switches outdoes the other.
        assert len({key for _, key, _ in roots}) == len(roots)
        self._roots = deque(reversed(roots))
        self._all_roots = len(self._roots)
        for layer in explorer.layers:
            layer.clear()
        self._report = explorer.report
        explorer.report = Report()

    def _resume(self, journal: Journal) -> None:
        """Roots are told by their hashes, and not by their places: these may differ from run to run."""
        done: set[int] = set()
        for chunk in journal.chunks():
            self._merge(chunk)
            self._report.journal_s += chunk.seconds
            done |= set(chunk.roots.tolist())
        self._roots = deque(root for root in self._roots if root[1] not in done)
        self._resumed = self._all_roots - len(self._roots)

    def _merge(self, chunk: Chunk) -> None:
        self.met = self.met.with_all(chunk.met)
        self.ends |= set(chunk.ends.tolist())
        self.refused |= set(chunk.refused.tolist())
        self._report.steps += chunk.steps
        self._report.faults += chunk.faults

    def _told(self) -> Report:
        report = self._report
        report.states, report.ends, report.refused = len(self.met), len(self.ends), len(self.refused)
        report.seconds = time.monotonic() - self._began
        return report

    # ---- children ----

    def _follow_roots(self, journal: Journal) -> None:
        children: list[Child] = []
        limit = self._began + (self.scenario.seconds or math.inf)
        heartbeat = self._began + HEARTBEAT_S
        try:
            while (self._roots or children) and self._report.complete:
                while self._roots and len(children) < self.processes:
                    children.append(self._begin_child(journal, {child.slot for child in children}))
                time.sleep(POLL_S)
                for child in [child for child in children if child.has_ended()]:
                    children.remove(child)
                    self._end_child(child)
                now = time.monotonic()
                if now > limit:
                    self._report.complete = False
                if now > heartbeat and self.say is not None:
                    heartbeat = now + HEARTBEAT_S
                    self.say(self._how_far(children))
        finally:
            for child in children:
                child.kill()

    def _begin_child(self, journal: Journal, taken: set[int]) -> Child:
        """Towards the end the chunks get smaller, so that all processes have something to do until then. Half of the processes
        come from the other side: roots that were found one after the other lead to the same states."""
        count = max(1, min(CHUNK_ROOTS, len(self._roots) // (2 * self.processes)))
        slot = min(set(range(self.processes)) - taken)
        roots = [self._roots.pop() if slot % 2 else self._roots.popleft() for _ in range(count)]
        path = journal.path(f"{roots[0][1]:016x}")
        self._shared[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = bytes(SLOT_BYTES)
        with warnings.catch_warnings():
            # Python warns of threads, which a fork does not take along. None of pyarrow's has anything to do here.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            self._be_child(roots, path, slot)
        return Child(pid, slot, roots, path)

    def _end_child(self, child: Child) -> None:
        if child.status == OUT_OF_TIME:
            self._report.complete = False
            return
        if child.status == VIOLATED:
            invariant, what, notes = json.loads(child.failure.read_text())
            child.failure.unlink()
            violation = Violation(invariant, what)
            for note in notes:
                violation.add_note(note)
            raise violation
        if child.status != 0:
            raise RuntimeError(f"a process of the search ended with {child.status}, and left nothing")
        chunk = Chunk.load(child.path)
        self._merge(chunk)
        left = child.roots[len(chunk.roots) :]
        if child.slot % 2:
            self._roots.extend(reversed(left))
        else:
            self._roots.extendleft(reversed(left))

    def _how_far(self, children: Sequence[Child]) -> str:
        counts = [COUNTS.unpack_from(self._shared, child.slot * SLOT_BYTES) for child in children]
        states = len(self.met) + sum(met for met, _ in counts)
        waiting = len(self._roots) + sum(len(child.roots) for child in children) - sum(done for _, done in counts)
        seconds = time.monotonic() - self._began
        followed = self._all_roots - waiting - self._resumed
        left = f"about {seconds / followed * waiting:,.0f} s to come" if followed else "no estimate yet"
        memory_gb = sum(map(_memory_gb, (os.getpid(), *(child.pid for child in children))))
        return (
            f"{self._all_roots - waiting:,} of {self._all_roots:,} roots, {states:,} states, {seconds:,.0f} s, {left}, "
            f"{memory_gb:.1f} GB"
        )

    # ---- in the child ----

    def _be_child(self, roots: Sequence[Waiting], path: Path, slot: int) -> NoReturn:
        """Never returns into what the parent was doing, nor runs what it has to do at its end."""
        status = FAILED
        try:
            chunk = self._followed(roots, slot)
            if chunk is not None:
                chunk.save(path)
            status = OUT_OF_TIME if chunk is None else 0
        except Violation as violation:
            told = (violation.invariant, violation.what, violation.__notes__)
            Child(os.getpid(), slot, [], path).failure.write_text(json.dumps(told))
            status = VIOLATED
        except BaseException:  # noqa: BLE001 - whatever it is, it must not get out of here
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _followed(self, roots: Sequence[Waiting], slot: int) -> Chunk | None:
        explorer, done = self._explorer, 0
        explorer.seen = Seen(self.scenario, self.met)

        def progress(states: int, _seconds: float, _waiting: list[int]) -> None:
            COUNTS.pack_into(self._shared, slot * SLOT_BYTES, states, done)

        explorer.progress, explorer.heartbeat_s = progress, CHILD_HEARTBEAT_S
        for root in roots:
            explorer.layers[len(root[0].faults)].append(root)
            explorer.follow([explorer.layers[-1], *explorer.layers[:-1]])
            if not explorer.report.complete:
                return None
            done += 1
            if len(explorer.seen.met) >= self.chunk_states:
                break
        return Chunk(
            roots=_array(key for _, key, _ in roots[:done]),
            met=Met.of(explorer.seen.met),
            ends=_array(explorer.ends),
            refused=_array(key for key, refused in explorer.ends.items() if refused),
            steps=explorer.report.steps,
            seconds=time.process_time(),
            faults=explorer.report.faults,
        )


def _array(hashes: Iterable[int]) -> Array:
    return np.fromiter(hashes, np.uint64)


def _memory_gb(pid: int) -> float:
    """What a process has for itself, where the system says it."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
    except OSError:
        return 0.0
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE") / 2**30
