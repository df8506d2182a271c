"""How a state becomes the next one: operations are applied, drivers run on, phases end; and what must hold is checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.model import invariants, objects, slot_sink
from tests.model.objects import FILES, Files, Op
from tests.model.replay import Node, Raised, Returned
from tests.model.slot_sink import SlotState
from tests.model.spark import (
    Commit,
    Dead,
    Finished,
    Log,
    Phase,
    Recover,
    Setup,
    Start,
    following,
    program,
)
from tests.model.state import (
    NO_COMPACTION,
    RECONFIGURATIONS,
    REFUSALS,
    RESTARTS_WITHOUT_PROGRESS,
    SURGERY,
    Process,
    Report,
    Scenario,
    State,
)
from twophase.errors import Fenced, NotCommitted
from twophase.identity import Epoch, Owner, offsets_hash
from twophase.sinks.heap import HeapState


class Steps:
    """What every way through the model shares: the explorer tries all moves, the histories one at a time."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.report = Report()
        self._interned: dict[Any, Any] = {}
        self._roots: dict[tuple[Setup, Phase], Node] = {}
        self._checked: set[tuple[int, int, int]] = set()
        self._faultless: dict[int, State] = {}

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

    def _is_over(self, state: State) -> bool:
        return state.why == "finished" or state.fruitless >= RESTARTS_WITHOUT_PROGRESS

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
            more = invariants.decided_by(op.arguments[1], op.arguments[0], decided)
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
        if not isinstance(phase, Log) or node is not self._node(setup, phase):
            return state
        if (SURGERY | RECONFIGURATIONS).intersection(state.faults):
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
        return not any(touch(op, other) for other in others)

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


def touch(one: Op | None, other: Op | None) -> bool:
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
