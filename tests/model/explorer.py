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
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tests.model import invariants, objects, slot_sink
from tests.model.objects import ATOMIC, FILES, SLOTS, Files, Op
from tests.model.replay import Node, Raised, Returned
from tests.model.slot_sink import SlotState
from tests.model.spark import (
    Commit,
    Dead,
    Finished,
    Log,
    LogCommit,
    Phase,
    Recover,
    RunTask,
    Setup,
    Start,
    following,
    program,
    retried,
    twin_of,
)
from twophase.errors import Fenced, NotCommitted
from twophase.identity import Epoch, Owner, offsets_hash
from twophase.record import Prepare as PrepareRecord
from twophase.record import decode
from twophase.sinks.heap import HeapState

RESTARTS_WITHOUT_PROGRESS = 3
NO_COMPACTION = 100

ALL_FAULTS = frozenset(
    {
        "crash", "lost reply", "late request", "duplicate request", "second driver", "task crash", "late twin",
        "share dies", "commit again", "rewound", "restored", "copied", "moved", "emptied", "taken over", "rival",
    }
)  # fmt: skip

RECONFIGURATIONS = frozenset({"rescaled", "sink added", "sink removed"})
"""Not faults, but what people do between two starts of a query; for long histories."""

SURGERY = frozenset({"rewound", "restored", "copied", "moved", "emptied", "taken over", "rival"})

REFUSALS = {
    "rewound": {"CHECKPOINT_MISMATCH"},
    "restored": {"CHECKPOINT_MISMATCH"},
    "copied": {"CHECKPOINT_MISMATCH"},
    "moved": {"CHECKPOINT_MISMATCH"},
    "rescaled": {"REPLAY_DIFFERS"},
    # A new ledger can't sweep what the lost one staged: the target is in doubt until those shares expire.
    "emptied": {"CHECKPOINT_MISMATCH", "OUTCOME_UNKNOWN"},
}
"""Fault → with which errors a query may stop for good because of it. Everything else must be recovered from."""


FIRST = Setup(0)


class Process(NamedTuple):
    setup: Setup
    phase: Phase
    node: Node


class State(NamedTuple):
    files: Files
    atomic: HeapState
    slots: SlotState
    drivers: tuple[Process, ...] = ()
    twins: tuple[Process, ...] = ()
    messages: tuple[Op, ...] = ()
    faults: tuple[str, ...] = ()
    decided: invariants.Decided = frozenset()
    """Everything that was ever decided."""
    newest: invariants.Decided = frozenset()
    """What the newest decision names."""
    next_setup: Setup = FIRST
    fruitless: int = 0
    """How often in a row a driver died without a fault, and without getting an epoch done."""
    why: str = ""
    running: int = 0
    """Which of two living drivers has the floor."""
    switches: int = 0

    def key(self) -> tuple[Any, ...]:
        """Everything is interned, so identity is equality."""
        return (
            id(self.files), id(self.atomic), id(self.slots), tuple(id(p.node) for p in self.drivers),
            tuple(id(p.node) for p in self.twins), tuple(id(m) for m in self.messages), self.faults, id(self.decided),
            id(self.newest), id(self.next_setup), self.fruitless, self.why, self.running, self.switches,
        )  # fmt: skip


@dataclass(frozen=True)
class Scenario:
    """What is explored."""

    setup: Setup = FIRST
    max_faults: int = 1
    max_switches: int = 2
    """How often the floor passes between two living drivers, other than by the end of one."""
    kinds: frozenset[str] = ALL_FAULTS
    normalise: bool = True
    """Whether states between epochs are renamed; only if drivers are always started alike."""
    seconds: float | None = None


@dataclass
class Report:
    schedules: int = 0
    states: int = 0
    steps: int = 0
    seconds: float = 0.0
    refused: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    complete: bool = True

    def __str__(self) -> str:
        fired = ", ".join(f"{kind} {count:,}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.schedules:,} schedules, {self.states:,} states, {self.steps:,} steps, {self.seconds:.1f} s"
            f"{'' if self.complete else ' (stopped early)'}; ends refused: {self.refused:,}; faults fired: {fired}"
        )


class Explorer:
    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.report = Report()
        self._interned: dict[Any, Any] = {}
        self._roots: dict[tuple[Setup, Phase], Node] = {}
        self._checked: set[tuple[int, int, int]] = set()
        self._faultless: dict[int, State] = {}

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

    def first(self) -> State:
        none: invariants.Decided = self._intern(frozenset())
        files, atomic, slots = self._intern(Files()), self._intern(HeapState()), self._intern(SlotState())
        return State(files, atomic, slots, decided=none, newest=none, next_setup=self._intern(self.scenario.setup))

    def _intern(self, value: Any) -> Any:
        return self._interned.setdefault((type(value), value), value)

    def _node(self, setup: Setup, phase: Phase) -> Node:
        root = self._roots.get((setup, phase))
        if root is None:
            root = self._roots[setup, phase] = Node(lambda world: program(setup, phase, world))
        return root

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
            if not state.drivers or any(_touch(d.node.op, message) for d in (*state.drivers, *state.twins)):
                landed, _ = self._apply(state._replace(messages=rest), message)
                yield f"late {message} lands", self._run_on(landed)
            if over:
                yield f"late {message} is lost", state._replace(messages=rest)
        if not state.drivers:
            yield from self._surgery(state)
            yield from self._reconfigured(state)
        yield from self._dying_shares(state)

    def _is_over(self, state: State) -> bool:
        return state.why == "finished" or state.fruitless >= RESTARTS_WITHOUT_PROGRESS

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
                    for middle in (False, True) if number else (True,):  # before the first epoch, it is emptied
                        kept = _restored(files, root, number, middle=middle)
                        label = f"restored to {'the middle of ' if middle else 'before '}{number}, salt {salt}"
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
            changed = self._intern(replace(setup, sinks=tuple(other for other in setup.sinks if other != name)))
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

    # ---- steps ----

    def _apply(self, state: State, op: Op) -> tuple[State, Returned | Raised]:
        old = getattr(state, op.target)
        invariants.check_request(
            op, old, state.decided, frozenset() if SURGERY.intersection(state.faults) else state.newest
        )
        try:
            new, value = op.transition(old, *op.arguments)
        except Exception as error:  # noqa: BLE001 - whatever a target raises is an answer to the process that asked
            return state, Raised(error)
        if new is old:
            return state, Returned(value)
        decided, newest = state.decided, state.newest
        if op.transition is objects.publish and "/twophase/" in op.arguments[0] and _is_newest(old, op.arguments[0]):
            more = invariants.decided_by(op.arguments[1], op.arguments[0])
            if more:
                decided, newest = self._intern(decided | more), self._intern(more)
        changed: dict[str, Any] = {op.target: self._intern(new)}
        return state._replace(decided=decided, newest=newest, **changed), Returned(value)

    def _step(self, state: State, place: int, driver: Process, op: Op) -> State:
        done, result = self._apply(state, op)
        return self._answered(done, place, driver, result)

    def _answered(self, state: State, place: int, driver: Process, result: Returned | Raised) -> State:
        return self._run_on(self._advanced(state, place, driver, result))

    def _advanced(self, state: State, place: int, driver: Process, result: Returned | Raised) -> State:
        return self._settled(state, place, driver._replace(node=driver.node.after(result)))

    def _settled(self, state: State, place: int, driver: Process) -> State:
        """Go through the ends of phases until the driver wants an operation, or is gone."""
        while driver.node.ended is not None:
            ended, phase = driver.node.ended, driver.phase
            if isinstance(phase, Commit) and isinstance(ended, Returned):
                state = state._replace(fruitless=0)
            next_phase = driver.node.next_phase
            if next_phase is None:
                next_phase = driver.node.next_phase = self._next_phase(
                    driver.setup, following(driver.setup, phase, ended)
                )
            if isinstance(next_phase, Finished | Dead):
                return self._gone(state, place, next_phase)
            driver = next_phase
        return self._with(state, place, driver)

    def _next_phase(self, setup: Setup, phase: Phase) -> Process | Finished | Dead:
        return phase if isinstance(phase, Finished | Dead) else self._at(setup, phase)

    def _gone(self, state: State, place: int, end: Finished | Dead) -> State:
        rest = state.drivers[:place] + state.drivers[place + 1 :]
        state = state._replace(running=0, switches=state.switches if rest else 0)
        if isinstance(end, Finished):
            return state._replace(drivers=rest, why="finished")
        blameless = not rest and not state.twins and not state.messages
        return state._replace(drivers=rest, fruitless=state.fruitless + 1 if blameless else 0, why=end.why)

    def _run_on(self, state: State) -> State:
        """Run the drivers on as far as nobody can tell in which order."""
        for place in range(len(state.drivers)):
            state = self._settled(state, place, state.drivers[place]) if place < len(state.drivers) else state
        place = 0
        while place < len(state.drivers):
            driver = state.drivers[place]
            op = driver.node.op
            if op is None or not self._is_private(state, op):
                place += 1
                continue
            count = len(state.drivers)
            done, result = self._apply(state, op)
            if done is not state:
                self.check(done)
            state = self._advanced(done, place, driver, result)
            if len(state.drivers) < count:
                place = 0
            state = self._normalised(state)
        return self._normalised(state)

    def _normalised(self, state: State) -> State:
        """The same state under the names that a run without faults gives."""
        if len(state.drivers) != 1 or state.twins or state.atomic.staged or state.slots.pending:
            return state
        setup, phase, node = state.drivers[0]
        if not isinstance(phase, Log) or node is not self._node(setup, phase) or SURGERY.intersection(state.faults):
            return state
        like = self._faultless.get(phase.number)
        if like is None or (state.files is like.files and not state.messages):
            return state
        if not all(_is_spent(state, message) for message in state.messages):
            return state
        self.check(state)
        return like._replace(faults=state.faults)

    def _faultless_states(self, first: State) -> dict[int, State]:
        """Epoch → the state in which a run without faults is about to log it."""
        states: dict[int, State] = {}
        setup = first.next_setup
        process: Process | Finished | Dead = self._at(setup, Start())
        state = first._replace(next_setup=self._intern(replace(setup, driver=setup.driver + 1)))
        while isinstance(process, Process):
            if isinstance(process.phase, Log) and process.phase.number > 0:
                states[process.phase.number] = state._replace(drivers=(process,))
            node = process.node
            while node.op is not None:
                state, result = self._apply(state, node.op)
                node = node.after(result)
            assert node.ended is not None
            process = self._next_phase(setup, following(setup, process.phase, node.ended))
        return states

    def _is_private(self, state: State, op: Op) -> bool:
        """Whether no fault can strike at this operation, and no other process or message can tell when it happens."""
        if op.transition is objects.read and op.arguments[0] in state.files.by_path:
            return self.scenario.setup.kept_records >= NO_COMPACTION  # a file never changes, as long as none is deleted
        if len(state.drivers) > 1 or (
            len(state.faults) < self.scenario.max_faults and (op.mutates or op.target != FILES)
        ):
            return False
        others = (*state.messages, *(twin.node.op for twin in state.twins))
        return not any(_touch(op, other) for other in others)

    def _at(self, setup: Setup, phase: Phase) -> Process:
        return Process(setup, phase, self._node(setup, phase))

    def _with(self, state: State, place: int, driver: Process) -> State:
        return state._replace(drivers=(*state.drivers[:place], driver, *state.drivers[place + 1 :]))

    # ---- checks ----

    def check(self, state: State) -> None:
        place = (id(state.atomic), id(state.slots), id(state.decided))
        if place not in self._checked:
            self._checked.add(place)
            deterministic = self.scenario.setup.deterministic
            invariants.check_line(state.atomic)
            invariants.check_shares(
                invariants.visible_in_line(state.atomic), state.decided, deterministic=deterministic
            )
            invariants.check_shares(
                invariants.visible_in_slots(state.slots), state.decided, deterministic=deterministic
            )
            invariants.check_no_gap_by_slot(state.slots, state.decided)
            invariants.check_same_rows(state.atomic, state.slots)
        if not state.drivers and not state.twins and not state.messages and self._is_over(state):
            self._check_end(state)

    def _check_end(self, state: State) -> None:
        if state.why != "finished":
            if state.why not in self._refusals(state):
                raise invariants.Violation("recovers", f"the query can't be started any more: {state.why}")
            self.report.refused += 1
            return
        setup = state.next_setup
        logged = [n for n in range(setup.epochs) if f"{setup.root}/commits/{n}" in state.files.by_path]
        epochs = [Epoch(n, offsets_hash(state.files.by_path[f"{setup.root}/offsets/{n}"])) for n in logged]
        for name in setup.sinks:
            atomic = name.startswith("a")
            shares = invariants.visible_in_line(state.atomic) if atomic else invariants.visible_in_slots(state.slots)
            if setup.root != self.scenario.setup.root and setup.moved_from is None:
                invariants.check_copy_untouched(state.files.by_path, setup.root)
            invariants.check_complete(shares, epochs, state.decided, Owner(setup.query, name))
        self._check_residue(state)

    def _refusals(self, state: State) -> set[str]:
        refusals = set().union(*(REFUSALS.get(fault, set()) for fault in state.faults))
        return refusals if self.scenario.setup.deterministic else refusals | {"REPLAY_DIFFERS"}

    def _check_residue(self, state: State) -> None:
        """9: after recovery, nothing that older generations staged is left."""
        setup = state.next_setup
        node = self._node(setup, Recover())
        while node.op is not None:
            state, result = self._apply(state, node.op)
            node = node.after(result)
        if isinstance(node.ended, Raised):
            if getattr(node.ended.error, "condition", "") in self._refusals(state):
                return
            raise invariants.Violation("recovers", f"recover after the end: {node.ended.error}")
        if "emptied" in state.faults:
            return  # what the lost ledger staged can't be told from a stranger's
        owners = {Owner(setup.query, name) for name in setup.sinks}
        own = (t for t in state.slots.pending if t.owner in owners)
        # A successor can't know the ledger of an owner that never committed here: what that one staged stays.
        known = {e.marker.by.partition(".")[0] for e in state.atomic.line}
        staged = [s for s in state.atomic.staged if not setup.take_over or s.attempt.generation.ledger in known]
        left = [*map(str, staged if "a" in setup.sinks else ()), *map(str, own)]
        if left:
            raise invariants.Violation("9 no residue", f"left after recovery: {left}")


def _successor(setup: Setup) -> Setup:
    """Another query, with a checkpoint of its own, that takes over the target with one line of epochs."""
    take_over = (("a", str(Owner(setup.query, "a"))),)
    return replace(setup, driver=setup.driver + 100, query="q2", root="/t0", take_over=take_over)


def _touch(one: Op | None, other: Op | None) -> bool:
    """Whether the order of two operations can matter."""
    if one is None or other is None or one.target != other.target:
        return False
    if one.target != FILES:
        return one.mutates or other.mutates
    if not (one.mutates or other.mutates):
        return False
    mine, theirs = str(one.arguments[0]), str(other.arguments[0])
    return mine == theirs or mine.rpartition("/")[0] == theirs or theirs.rpartition("/")[0] == mine


def _is_spent(state: State, message: Op) -> bool:
    """Whether a late message can't have any effect any more, given that nothing is staged and no task runs.

    Names are never used again, numbers of the ledger are taken for ever, markers and fences only move on. What is left is a late
    `begin`, which leaves residue whenever it lands.
    """
    if message.transition is slot_sink.begin:
        return False
    try:
        new, _ = message.transition(getattr(state, message.target), *message.arguments)
    except (FileExistsError, Fenced, NotCommitted):
        return True
    return bool(new == getattr(state, message.target))


def _is_newest(files: Files, path: str) -> bool:
    return all(other < path for other in files.by_path if other.startswith(path.rpartition("/")[0] + "/"))


def _restored(files: dict[str, bytes], root: str, number: int, *, middle: bool) -> dict[str, bytes]:
    """The whole checkpoint as it was before epoch `number`, or after its first prepare."""
    records = sorted(path for path in files if path.startswith(f"{root}/twophase/"))
    before = [path for path in records if _epoch_of(path, files[path]) < number]
    length = len(before) + (1 if middle else 0)
    kept = {path: files[path] for path in records[:length]}
    for path, data in files.items():
        name = path.rpartition("/")[2]
        if path in records or not path.startswith(root):
            continue
        if int(name) < number or (middle and int(name) == number and "/offsets/" in path):
            kept[path] = data
    return kept


def _epoch_of(path: str, data: bytes) -> int:
    record = decode(data, path=path, number=int(path.rpartition("/")[2].partition(".")[0]))
    return record.epoch.number if isinstance(record, PrepareRecord) else record.decision.epoch.number
