"""Every schedule of a scenario: which process takes the next step, and where each fault strikes. Equal states are merged.

A state is the world, the processes (each a node of its replay tree), messages that are still on their way, and how many faults
have struck. Orders that nobody can tell apart are tried once: docs/proof.md says which these are, and why. States are tried in
the order of their faults: one that was met with as many faults left is not tried again with fewer.

Between two epochs, with nothing staged, nothing on its way, and one driver that has just logged a commit, the future depends on
the past by names only: generation numbers, ledger ids, nonces, attempts. Such a state is replaced by the one that a
run without faults has there. (Not after surgery, which looks into the past.)

Faults, each of which counts: a driver dies before an operation; a reply is lost; a request arrives late or never, or twice;
a second driver starts; a task dies, or gets a late twin; a staged share dies; the checkpoint is rewound, restored, copied, moved
or emptied; Spark calls commit again.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.model import invariants, slot_sink
from tests.model.footprint import Footprint, death_in_line, death_in_slots
from tests.model.objects import FILES, Files, Op
from tests.model.replay import Raised
from tests.model.seen import Seen
from tests.model.spark import (
    LogCommit,
    RunTask,
    Setup,
    Start,
    remembering,
    retried,
    twin_of,
)
from tests.model.state import (
    Process,
    Report,
    Scenario,
    State,
)
from tests.model.steps import Steps, touch
from twophase.identity import Owner
from twophase.record import Prepare as PrepareRecord
from twophase.record import decode


class Label(tuple[Any, ...]):
    """What a move is called: a text and what it is about, put together only when somebody reads it."""

    __slots__ = ()

    def __str__(self) -> str:
        text, *about = self
        return str(text).format(*about)


Trail = tuple["Trail | None", Label | str]
"""How a state was reached: how the one before it was, and the move between them."""


Waiting = tuple[State, int, Trail | None]
"""A state, its hash, and how it was reached."""

HEARTBEAT_S = 30.0

Progress = Callable[[int, float, list[int]], None]
"""Told now and then: states so far, seconds, and how many states wait, by their number of faults."""


class Explorer(Steps):
    progress: Progress | None = None
    heartbeat_s = HEARTBEAT_S

    def __init__(self, scenario: Scenario):
        super().__init__(scenario)
        self._began = time.monotonic()

    # Made when a search begins: long histories take moves from here, search nothing, and set no bound to faults.

    @functools.cached_property
    def seen(self) -> Seen:
        return Seen(self.scenario)

    @functools.cached_property
    def layers(self) -> list[list[Waiting]]:
        """What waits, by its number of faults."""
        return [[] for _ in range(self.scenario.max_faults + 1)]

    # ---- the search ----

    def run(self) -> Report:
        """Explore; raises Violation with the schedule that leads to it."""
        with undisturbed():
            self.begin()
            # What has no faults left is followed at once: it need not wait for anything, and would fill the memory.
            self.follow([self.layers[-1], *self.layers[:-1]])
        return self.told()

    def begin(self) -> None:
        """Put down the first state."""
        first = self.first()
        key = self.seen.hash(first)
        self.seen.admits(key, first)
        with _scheduled(None):
            self._faultless = self._faultless_states(first) if self.scenario.normalise else {}
            self.check(first)
        self.layers[0].append((first, key, None))

    def follow(self, layers: Sequence[list[Waiting]]) -> None:
        """Follow whatever waits in these layers, the first ones first, until nothing does."""
        limit = self._began + (self.scenario.seconds or math.inf)
        heartbeat = self._began + self.heartbeat_s
        seen = self.seen
        while layer := next(filter(None, layers), None):
            state, key, reached = layer.pop()
            if seen.outdoes(key, state):
                continue
            now = time.monotonic()
            if now > limit:
                self.report.complete = False
                break
            if now > heartbeat and self.progress is not None:
                heartbeat = now + self.heartbeat_s
                self.progress(len(seen.met), now - self._began, [len(waiting) for waiting in self.layers])
            self._expand(state, reached)

    def _expand(self, state: State, reached: Trail | None) -> None:
        found: list[Waiting] = []
        with _scheduled(reached):
            for label, to in self.moves(state):
                self.report.steps += 1
                key = self.seen.hash(to)
                if self.seen.admits(key, to):
                    trail = (reached, label)
                    with _scheduled(trail):
                        self.check(to)
                    found.append((to, key, trail))
        for waiting in reversed(found):  # the first move is followed first
            self.layers[len(waiting[0].faults)].append(waiting)

    def told(self) -> Report:
        self.report.states = len(self.seen.met)
        self.report.ends, self.report.refused = len(self.ends), sum(self.ends.values())
        self.report.seconds = time.monotonic() - self._began
        return self.report

    # ---- moves ----

    def moves(self, state: State) -> Iterator[tuple[Label | str, State]]:
        if not state.drivers and not self._is_over(state):
            yield "a driver starts", self._started(state)
        for place in self._on_the_floor(state):
            yield from self._driver_moves(state, place, state.drivers[place])
        if self._may_pass(state):
            passed = state._replace(running=1 - state.running, switches=state.switches + 1)
            yield "the other driver has the floor", passed
        for place, twin in enumerate(state.twins):
            yield from self._twin_moves(state, place, twin)
        over = not state.drivers and self._is_over(state)
        for place, message in enumerate(state.messages):
            rest = state.messages[:place] + state.messages[place + 1 :]
            if self._may_come(state, message, (*rest, *(twin.node.op for twin in state.twins))):
                # Whoever was refused before it came may be accepted now.
                landed, _ = self._apply(state._replace(messages=rest, fruitless=0), message)
                yield Label(("late {} lands", message)), self._run_on(landed)
            if over:
                yield Label(("late {} is lost", message)), state._replace(messages=rest)
        if not state.drivers:
            yield from self._surgery(state)
            yield from self._reconfigured(state)
        yield from self._dying_shares(state)

    def _on_the_floor(self, state: State) -> Iterable[int]:
        """Which drivers may go on now."""
        if len(state.drivers) < 2:
            return range(len(state.drivers))
        if self.scenario.max_switches is not None:
            return (state.running,)
        alone = (place for place in (0, 1) if self._goes_alone(state, place))
        first = next(alone, None)
        return (0, 1) if first is None else (first,)

    def _may_come(self, state: State, late: Op | None, others: Iterable[Op | None]) -> bool:
        """Whether something late comes now: only right before what could notice it, or when no driver runs."""
        if not self.scenario.reduce or not state.drivers:
            return True
        return any(touch(late, driver.node.op) for driver in state.drivers) or any(touch(late, o) for o in others)

    def _started(self, state: State) -> State:
        setup = state.next_setup
        process = Process(setup, Start(), self._node(setup, Start()))
        begun = state._replace(
            drivers=(*state.drivers, process),
            widowed=False,
            next_setup=self._intern(replace(setup, driver=setup.driver + 1)),
            why="",
        )
        return self._run_on(begun)

    def _driver_moves(self, state: State, place: int, driver: Process) -> Iterator[tuple[Label | str, State]]:
        who, op = Label(("driver {} {}", driver.setup.driver, type(driver.phase).__name__)), driver.node.op
        assert op is not None
        yield Label(("{}: {}", who, op)), self._step(state, place, driver, op)
        if op.mutates or state.widowed or not self.scenario.reduce:
            yield from self._beginnings(state, driver)
        if not op.mutates and self.scenario.reduce:
            return
        gone = state.drivers[:place] + state.drivers[place + 1 :]
        if self._may(state, "crash"):
            died = state._replace(drivers=gone, running=0, switches=state.switches if gone else 0, fruitless=0)
            died = self._struck(died, "crash")
            died = self._run_on(died._replace(widowed=self._is_widowed(died)))
            yield Label(("{}: dies before {}", who, op)), died
        if not op.mutates:
            return
        yield from self._message_faults(state, place, driver, op, who)
        if isinstance(driver.phase, LogCommit) and not driver.phase.commit.again and self._may(state, "commit again"):
            again = self._with(state, place, self._at(driver.setup, replace(driver.phase.commit, again=True)))
            yield Label(("{}: Spark commits again", who)), self._run_on(self._struck(again, "commit again"))
        if isinstance(driver.phase, RunTask):
            if driver.phase.attempt == 0 and self._may(state, "task crash"):
                again = self._with(state, place, self._at(driver.setup, retried(driver.phase)))
                tried = self._run_on(self._struck(again, "task crash"))
                yield Label(("{}: task dies before {}, tried again", who, op)), tried
            if self._may(state, "late twin") and not state.twins:
                twin = self._at(driver.setup, twin_of(driver.phase))
                yield (
                    Label(("{}: gets a late twin", who)),
                    self._struck(state._replace(twins=(twin,)), "late twin"),
                )

    def _beginnings(self, state: State, driver: Process) -> Iterator[tuple[Label | str, State]]:
        """Another driver starts beside this one."""
        if len(state.drivers) > 1:
            return
        if self._may(state, "second driver"):
            yield "a second driver starts", self._started(self._struck(state, "second driver"))
        if "a" in driver.setup.sinks and driver.setup.query == "q" and self._may(state, "rival"):
            rivals = state.next_setup.query != driver.setup.query  # one was there before, and is started again
            rival = state if rivals else state._replace(next_setup=self._intern(_successor(driver.setup)))
            yield "a rival starts, to take over", self._started(self._struck(rival, "rival"))

    def _message_faults(
        self, state: State, place: int, driver: Process, op: Op, who: Label
    ) -> Iterator[tuple[Label | str, State]]:
        timeout = Raised(TimeoutError("no reply"))
        late = self._intern(replace(op, arguments=slot_sink.come_late(op.transition, op.arguments)))
        if self._may(state, "lost reply"):
            done, _ = self._apply(self._struck(state, "lost reply"), op)
            yield Label(("{}: {}, reply lost", who, op)), self._answered(done, place, driver, timeout)
        if self._may(state, "late request"):
            sent = self._struck(state, "late request")._replace(messages=(*state.messages, late))
            yield Label(("{}: {} is late", who, op)), self._answered(sent, place, driver, timeout)
        if self._may(state, "duplicate request"):
            sent = self._struck(state, "duplicate request")._replace(messages=(*state.messages, late))
            yield Label(("{}: {}, sent twice", who, op)), self._step(sent, place, driver, op)

    def _twin_moves(self, state: State, place: int, twin: Process) -> Iterator[tuple[Label | str, State]]:
        rest = state.twins[:place] + state.twins[place + 1 :]
        op = twin.node.op
        if op is None:
            yield "the twin ends", state._replace(twins=rest)
            return
        if self._may_come(state, op, state.messages):
            done, result = self._apply(state._replace(fruitless=0), op)
            yield (
                Label(("twin: {}", op)),
                self._run_on(done._replace(twins=(*rest, twin._replace(node=twin.node.after(result))))),
            )
            yield "the twin dies", self._run_on(state._replace(twins=rest))

    def _surgery(self, state: State) -> Iterator[tuple[Label | str, State]]:
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

    def _reconfigured(self, state: State) -> Iterator[tuple[Label | str, State]]:
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
        """Whoever does this makes sure that nobody writes to the checkpoint any more: what is on its way there is lost."""
        messages = tuple(message for message in state.messages if message.target != FILES)
        changed = self._intern(Files(files))
        return self._struck(
            state._replace(files=changed, messages=messages, next_setup=self._intern(setup), fruitless=0), kind
        )

    def _dying_shares(self, state: State) -> Iterator[tuple[Label | str, State]]:
        if not self._may(state, "share dies"):
            return
        looking = (*(p.node.op for p in (*state.drivers, *state.twins)), *state.messages)
        noticing = [op.footprint for op in looking if op is not None]
        for share in sorted(state.atomic.staged, key=lambda s: str(s.attempt)):
            if self._is_noticed(death_in_line(share.attempt), noticing):
                atomic = self._intern(replace(state.atomic, staged=state.atomic.staged - {share}))
                died = self._struck(state._replace(atomic=atomic, fruitless=0), "share dies")
                yield Label(("a: {} dies", share.attempt)), died
        for t in sorted(state.slots.pending, key=lambda t: str(t.attempt)):
            if self._is_noticed(death_in_slots(t.owner, t.attempt), noticing):
                slots = self._intern(replace(state.slots, pending=state.slots.pending - {t}))
                died = self._struck(state._replace(slots=slots, fruitless=0), "share dies")
                yield Label(("b: {} dies", t.attempt)), died

    def _is_noticed(self, death: Footprint, noticing: Sequence[Footprint]) -> bool:
        return not self.scenario.reduce or any(death.touches(other) for other in noticing)

    def _may(self, state: State, kind: str) -> bool:
        return len(state.faults) < self.scenario.max_faults and kind in self.scenario.kinds

    def _struck(self, state: State, kind: str) -> State:
        self.report.faults[kind] += 1
        return state._replace(faults=tuple(sorted((*state.faults, kind))), fruitless=0)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """For a search: millions of objects, none of them garbage, and real code that is run millions of times."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with remembering():
            yield
    finally:
        if collecting:
            gc.enable()


@contextlib.contextmanager
def _scheduled(trail: Trail | None) -> Iterator[None]:
    """A violation says by which schedule it was reached, once."""
    try:
        yield
    except invariants.Violation as violation:
        if not hasattr(violation, "__notes__"):
            violation.add_note("schedule:\n  " + "\n  ".join(_told(trail)))
        raise


def _told(trail: Trail | None) -> list[str]:
    told = []
    while trail is not None:
        trail, label = trail
        told.append(str(label))
    return told[::-1]


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
