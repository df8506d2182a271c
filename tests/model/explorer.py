"""Every schedule of a scenario: which process takes the next step, and where each fault strikes. Equal states are merged.

A state is the world, the processes (each a node of its replay tree), messages that are still on their way, and how many faults
have struck. Orders that nobody can tell apart are tried once: a driver runs on through operations at which no fault can strike
and that no other process or message on its way can touch, and a late message lands only right before an operation that could
notice it, or at the end.

Between two epochs, with nothing staged, nothing on its way, and one driver that has just logged a commit, the future depends on
the past by names only: generation numbers, ledger ids, nonces, attempts. Such a state is replaced by the one that a
run without faults has there. (Not after surgery, which looks into the past.)

Faults, each of which counts: a driver dies before an operation; a reply is lost; a request arrives late or never, or twice;
a second driver starts; a task dies, or gets a late twin; a staged share dies; the checkpoint is rewound, restored, copied, moved
or emptied; Spark calls commit again.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.model import invariants
from tests.model.objects import ATOMIC, SLOTS, Files, Op
from tests.model.replay import Raised
from tests.model.spark import (
    LogCommit,
    RunTask,
    Setup,
    Start,
    retried,
    twin_of,
)
from tests.model.state import (
    Process,
    Report,
    State,
)
from tests.model.steps import Steps, touch
from twophase.identity import Owner
from twophase.record import Prepare as PrepareRecord
from twophase.record import decode


class Explorer(Steps):
    # ---- the search ----

    def run(self) -> Report:
        """Explore; raises Violation with the schedule that leads to it."""
        collecting = gc.isenabled()
        gc.disable()  # millions of objects, none of them garbage
        try:
            return self._run()
        finally:
            if collecting:
                gc.enable()

    def _run(self) -> Report:
        began = time.monotonic()
        limit = None if self.scenario.seconds is None else began + self.scenario.seconds
        first = self.first()
        finished: dict[tuple[Any, ...], int] = {}
        trail: list[str] = []
        frames: list[tuple[tuple[Any, ...], Iterator[tuple[str, State]], list[int]]] = []

        def enter(state: State) -> int | None:
            key = state.key()
            known = finished.get(key)
            if known is not None:
                return known
            self.report.states += 1
            self.check(state)
            frames.append((key, iter(self.moves(state)), [0]))
            return None

        try:
            self._faultless = self._faultless_states(first) if self.scenario.normalise else {}
            enter(first)
            while frames:
                key, moves, total = frames[-1]
                move = next(moves, None)
                if move is None:
                    frames.pop()
                    finished[key] = max(total[0], 1)
                    if trail:
                        trail.pop()
                    if frames:
                        frames[-1][2][0] += finished[key]
                    continue
                if limit and time.monotonic() > limit:
                    self.report.complete = False
                    break
                label, state = move
                self.report.steps += 1
                trail.append(label)
                known = enter(state)
                if known is not None:
                    total[0] += known
                    trail.pop()
        except invariants.Violation as violation:
            violation.add_note("schedule:\n  " + "\n  ".join(trail))
            raise
        self.report.schedules = next(iter(frames), (0, 0, [finished.get(first.key(), 0)]))[2][0]
        self.report.seconds = time.monotonic() - began
        return self.report

    # ---- moves ----

    def moves(self, state: State) -> Iterator[tuple[str, State]]:
        if not state.drivers and not self._is_over(state):
            yield "a driver starts", self._started(state)
        if state.drivers:
            yield from self._driver_moves(state, state.running, state.drivers[state.running])
        if len(state.drivers) == 2 and state.switches < self.scenario.max_switches:
            passed = state._replace(running=1 - state.running, switches=state.switches + 1)
            yield "the other driver has the floor", passed
        for place, twin in enumerate(state.twins):
            yield from self._twin_moves(state, place, twin)
        over = not state.drivers and self._is_over(state)
        for place, message in enumerate(state.messages):
            rest = state.messages[:place] + state.messages[place + 1 :]
            if not state.drivers or any(touch(d.node.op, message) for d in (*state.drivers, *state.twins)):
                landed, _ = self._apply(state._replace(messages=rest), message)
                yield f"late {message} lands", self._run_on(landed)
            if over:
                yield f"late {message} is lost", state._replace(messages=rest)
        if not state.drivers:
            yield from self._surgery(state)
            yield from self._reconfigured(state)
        yield from self._dying_shares(state)

    def _started(self, state: State) -> State:
        setup = state.next_setup
        process = Process(setup, Start(), self._node(setup, Start()))
        begun = state._replace(
            drivers=(*state.drivers, process), next_setup=self._intern(replace(setup, driver=setup.driver + 1))
        )
        return self._run_on(begun)

    def _driver_moves(self, state: State, place: int, driver: Process) -> Iterator[tuple[str, State]]:
        who, op = f"driver {driver.setup.driver} {type(driver.phase).__name__}", driver.node.op
        assert op is not None
        yield f"{who}: {op}", self._step(state, place, driver, op)
        if not op.mutates:
            return
        gone = state.drivers[:place] + state.drivers[place + 1 :]
        if self._may(state, "crash"):
            died = state._replace(drivers=gone, running=0, switches=state.switches if gone else 0, fruitless=0)
            yield f"{who}: dies before {op}", self._struck(died, "crash")
        yield from self._message_faults(state, place, driver, op, who)
        if len(state.drivers) == 1 and self._may(state, "second driver"):
            yield "a second driver starts", self._started(self._struck(state, "second driver"))
        if (
            len(state.drivers) == 1
            and "a" in driver.setup.sinks
            and driver.setup.query == "q"
            and self._may(state, "rival")
        ):
            rival = state._replace(next_setup=self._intern(_successor(driver.setup)))
            yield "a rival starts, to take over", self._started(self._struck(rival, "rival"))
        if isinstance(driver.phase, LogCommit) and not driver.phase.commit.again and self._may(state, "commit again"):
            again = self._with(state, place, self._at(driver.setup, replace(driver.phase.commit, again=True)))
            yield f"{who}: Spark commits again", self._run_on(self._struck(again, "commit again"))
        if isinstance(driver.phase, RunTask):
            if driver.phase.attempt == 0 and self._may(state, "task crash"):
                again = self._with(state, place, self._at(driver.setup, retried(driver.phase)))
                yield f"{who}: task dies before {op}, tried again", self._run_on(self._struck(again, "task crash"))
            if self._may(state, "late twin") and not state.twins:
                twin = self._at(driver.setup, twin_of(driver.phase))
                yield f"{who}: gets a late twin", self._struck(state._replace(twins=(twin,)), "late twin")

    def _message_faults(
        self, state: State, place: int, driver: Process, op: Op, who: str
    ) -> Iterator[tuple[str, State]]:
        timeout = Raised(TimeoutError("no reply"))
        if self._may(state, "lost reply"):
            done, _ = self._apply(self._struck(state, "lost reply"), op)
            yield f"{who}: {op}, reply lost", self._answered(done, place, driver, timeout)
        if self._may(state, "late request"):
            sent = self._struck(state, "late request")._replace(messages=(*state.messages, self._intern(op)))
            yield f"{who}: {op} is late", self._answered(sent, place, driver, timeout)
        if self._may(state, "duplicate request"):
            sent = self._struck(state, "duplicate request")._replace(messages=(*state.messages, self._intern(op)))
            yield f"{who}: {op}, sent twice", self._step(sent, place, driver, op)

    def _twin_moves(self, state: State, place: int, twin: Process) -> Iterator[tuple[str, State]]:
        rest = state.twins[:place] + state.twins[place + 1 :]
        op = twin.node.op
        if op is None:
            yield "the twin ends", state._replace(twins=rest)
            return
        done, result = self._apply(state, op)
        yield f"twin: {op}", done._replace(twins=(*rest, twin._replace(node=twin.node.after(result))))
        yield "the twin dies", state._replace(twins=rest)

    def _surgery(self, state: State) -> Iterator[tuple[str, State]]:
        """What people do to checkpoints while no driver runs."""
        setup, root = state.next_setup, state.next_setup.root
        files = state.files.by_path
        last = max((int(p.rpartition("/")[2]) for p in files if p.startswith(f"{root}/commits/")), default=-1)
        if not files or self._is_over(state):
            return
        for number in range(last + 2):  # the last of these is the epoch that was under way
            for salt in (setup.salt, setup.salt + 1):
                changed = replace(setup, salt=salt)
                if self._may(state, "rewound"):
                    kept = {p: d for p, d in files.items() if "/twophase/" in p or int(p.rpartition("/")[2]) < number}
                    yield f"rewound to before {number}, salt {salt}", self._operated(state, "rewound", kept, changed)
                if self._may(state, "restored"):
                    for records in (0, 1, 2) if number else (1, 2):  # before the first epoch, it is emptied
                        kept = _restored(files, root, number, records=records)
                        label = f"restored to {RESTORED[records]} {number}, salt {salt}"
                        yield label, self._operated(state, "restored", kept, changed)
        other = f"{root}x"
        copy = {p.replace(root, other, 1): d for p, d in files.items()}
        if self._may(state, "copied"):
            yield "copied", self._operated(state, "copied", {**files, **copy}, replace(setup, root=other))
        if self._may(state, "moved"):
            place = replace(setup, root=other, moved_from=f"{root}/twophase")
            yield "moved", self._operated(state, "moved", copy, place)
        if self._may(state, "taken over") and "a" in setup.sinks and setup.query == self.scenario.setup.query:
            yield "another query takes over", self._operated(state, "taken over", files, _successor(setup))
        if self._may(state, "emptied"):
            yield "emptied", self._operated(state, "emptied", {}, setup)

    def _reconfigured(self, state: State) -> Iterator[tuple[str, State]]:
        setup, files = state.next_setup, state.files.by_path
        if self._is_over(state):
            return
        for slots in (1, 2, 3):
            if slots != setup.slots and self._may(state, "rescaled"):
                changed = self._intern(replace(setup, slots=slots))
                yield f"rescaled to {slots} tasks", self._struck(state._replace(next_setup=changed), "rescaled")
        used = {named.sink for named in state.decided} | set(setup.sinks)
        new = next((name for name in ("b2", "b3", "b4") if name not in used), None)
        if new is not None and self._may(state, "sink added"):
            changed = self._intern(replace(setup, sinks=(*setup.sinks, new)))
            yield f"sink {new} added", self._struck(state._replace(next_setup=changed), "sink added")
        # A sink may go once the newest decision is committed everywhere, as Spark's log says.
        settled = all(f"{setup.root}/commits/{named.epoch.number}" in files for named in state.newest)
        for name in setup.sinks if settled and len(setup.sinks) > 1 and self._may(state, "sink removed") else ():
            sinks = tuple(other for other in setup.sinks if other != name)
            take_over = tuple((other, owner) for other, owner in setup.take_over if other != name)
            changed = self._intern(replace(setup, sinks=sinks, take_over=take_over))
            yield f"sink {name} removed", self._struck(state._replace(next_setup=changed), "sink removed")

    def _operated(self, state: State, kind: str, files: dict[str, bytes], setup: Setup) -> State:
        return self._struck(
            state._replace(files=self._intern(Files(files)), next_setup=self._intern(setup), fruitless=0), kind
        )

    def _dying_shares(self, state: State) -> Iterator[tuple[str, State]]:
        if not self._may(state, "share dies"):
            return
        looked_at = {d.node.op.target for d in state.drivers if d.node.op} or {ATOMIC, SLOTS}
        for share in sorted(state.atomic.staged, key=lambda s: str(s.attempt)) if ATOMIC in looked_at else ():
            atomic = self._intern(replace(state.atomic, staged=state.atomic.staged - {share}))
            yield f"a: {share.attempt} dies", self._struck(state._replace(atomic=atomic, fruitless=0), "share dies")
        for t in sorted(state.slots.pending, key=lambda t: str(t.attempt)) if SLOTS in looked_at else ():
            slots = self._intern(replace(state.slots, pending=state.slots.pending - {t}))
            yield f"b: {t.attempt} dies", self._struck(state._replace(slots=slots, fruitless=0), "share dies")

    def _may(self, state: State, kind: str) -> bool:
        return len(state.faults) < self.scenario.max_faults and kind in self.scenario.kinds

    def _struck(self, state: State, kind: str) -> State:
        self.report.faults[kind] += 1
        return state._replace(faults=tuple(sorted((*state.faults, kind))), fruitless=0)


def _successor(setup: Setup) -> Setup:
    """Another query, with a checkpoint of its own, that takes over the target with one line of epochs."""
    take_over = (("a", str(Owner(setup.query, "a"))),)
    return replace(setup, driver=setup.driver + 100, query="q2", root="/t0", take_over=take_over)


RESTORED = ("before", "after the first prepare of", "after the first two records of")


def _restored(files: dict[str, bytes], root: str, number: int, *, records: int) -> dict[str, bytes]:
    """The whole checkpoint as it was before epoch `number`, or after the first records of it."""
    ledger = sorted(path for path in files if path.startswith(f"{root}/twophase/"))
    before = [path for path in ledger if _epoch_of(path, files[path]) < number]
    kept = {path: files[path] for path in ledger[: len(before) + records]}
    for path, data in files.items():
        name = path.rpartition("/")[2]
        if path in ledger or not path.startswith(root):
            continue
        if int(name) < number or (records and int(name) == number and "/offsets/" in path):
            kept[path] = data
    return kept


def _epoch_of(path: str, data: bytes) -> int:
    record = decode(data, path=path, number=int(path.rpartition("/")[2].partition(".")[0]))
    return record.epoch.number if isinstance(record, PrepareRecord) else record.decision.epoch.number
