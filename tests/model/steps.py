"""How a state becomes the next one: operations are applied, drivers run on, phases end; and what must hold is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from tests.model import invariants, objects, slot_sink
from tests.model.digest import digest
from tests.model.footprint import Footprint, death_in_line, death_in_slots
from tests.model.objects import ATOMIC, SLOTS, Files, Op
from tests.model.replay import Guess, Node, Raised, Returned, key_of
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
    RESTARTS_WITHOUT_PROGRESS,
    Process,
    Report,
    Scenario,
    State,
    aftermath,
)
from twophase.errors import Fenced, NotCommitted
from twophase.identity import Epoch, Owner, offsets_hash
from twophase.sinks.heap import HeapState

ABOUT_SHARES = (slot_sink.vote, slot_sink.end)
"""What only says False if its share is not there."""
REMEMBERED = 1_000_000
"""Results of operations that are kept, so as not to carry them out again."""
Applied = tuple[Any, invariants.Decided, Returned | Raised]


class Passage(NamedTuple):
    """A driver's way to the end of its phase if nothing comes between: a function of where it is, and of the world."""

    world: tuple[Files, HeapState, SlotState, invariants.Decided, invariants.Decided]
    """As it is then; as in `State`: files, atomic, slots, decided, newest."""
    node: Node
    footprint: Footprint
    """Of all operations on the way."""


class Steps:
    """What every way through the model shares: the explorer tries all moves, the histories one at a time."""

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        self.report = Report()
        self.outcomes: set[tuple[Any, ...]] = set()
        """How schedules ended, and the whole world after recovery; of those that ended refused, what readers see."""
        self.ends: dict[int, bool] = {}
        """Hash of a state in which a schedule ended → whether the query was refused there."""
        self._interned: dict[Any, Any] = {}
        self._roots: dict[tuple[Setup, Phase], Node] = {}
        self._checked: set[tuple[str, int, int]] = set()
        self._passages: dict[tuple[int, ...], Passage] = {}
        self._results: dict[Any, Returned | Raised] = {}
        self._faultless: dict[int, State] = {}
        self._applied: dict[tuple[int, int, int, int], Applied] = {}
        self._nothing: invariants.Decided = self._intern(frozenset())

    def first(self) -> State:
        none = self._nothing
        files, atomic, slots = self._intern(Files()), self._intern(HeapState()), self._intern(SlotState())
        return State(files, atomic, slots, decided=none, newest=none, next_setup=self._intern(self.scenario.setup))

    def _intern(self, value: Any) -> Any:
        return self._interned.setdefault((type(value), value), value)

    def _node(self, setup: Setup, phase: Phase, guess: Guess | None = None) -> Node:
        root = self._roots.get((setup, phase))
        if root is None:
            root = self._roots[setup, phase] = Node(
                lambda world: program(setup, phase, world), digest((setup, phase))
            ).run(guess)
        return root

    def _is_over(self, state: State) -> bool:
        return state.why == "finished" or state.fruitless >= RESTARTS_WITHOUT_PROGRESS

    # ---- steps ----

    def _apply(self, state: State, op: Op) -> tuple[State, Returned | Raised]:
        newest = self._nothing if aftermath(state.faults).surgery else state.newest
        key = (id(getattr(state, op.target)), id(op), id(state.decided), id(newest))
        applied = self._applied.get(key)
        if applied is None:
            if len(self._applied) > REMEMBERED:
                self._applied.clear()
            applied = self._applied[key] = self._carry_out(state, op, newest)
        target, more, result = applied
        if target is None:
            return state, result
        changed: dict[str, Any] = {op.target: target}
        if more:
            changed |= {"decided": self._intern(state.decided | more), "newest": more}
        return state._replace(**changed), result

    def _carry_out(self, state: State, op: Op, newest: invariants.Decided) -> Applied:
        """The target as it is then (None: as it was), what was decided by this, and the answer."""
        old = getattr(state, op.target)
        invariants.check_request(op, old, state.decided, newest)
        try:
            new, value = op.transition(old, *op.arguments)
        except Exception as error:  # noqa: BLE001 - whatever a target raises is an answer to the process that asked
            return None, self._nothing, self._result(Raised(error))
        if op.sight is not None:
            value = self._intern(op.sight.of(value))
        result = self._result(Returned(value))
        if new is old:
            return None, self._nothing, result
        more = self._nothing
        if op.transition is objects.publish and "/twophase/" in op.arguments[0] and _is_newest(old, op.arguments[0]):
            more = self._intern(invariants.decided_by(op.arguments[1], op.arguments[0], state.decided))
        if isinstance(new, SlotState) and new.visible is not old.visible:
            # Slots become visible each on its own: only the order within one can be seen.
            new = replace(new, visible=tuple(sorted(new.visible, key=lambda t: (t.owner, t.slot))))
        new = self._intern(new)
        return (None if new is old else new), more, result

    def _result(self, result: Returned | Raised) -> Returned | Raised:
        """The one that stands for all that are equal to it."""
        return self._results.setdefault(key_of(result), result)

    def _step(self, state: State, place: int, driver: Process, op: Op) -> State:
        done, result = self._apply(state, op)
        return self._answered(done, place, driver, result)

    def _answered(self, state: State, place: int, driver: Process, result: Returned | Raised) -> State:
        return self._run_on(self._advanced(state, place, driver, result))

    def _advanced(self, state: State, place: int, driver: Process, result: Returned | Raised) -> State:
        stepped = driver._replace(node=driver.node.after(result, self._guess(state)))
        return self._settled(state._replace(widowed=False) if state.widowed else state, place, stepped)

    def _guess(self, state: State) -> Guess:
        """The answers that a process gets if it goes on at once."""

        def guess(op: Op) -> Returned | Raised | None:
            nonlocal state
            try:
                state, result = self._apply(state, op)
            except invariants.Violation:
                return None  # whoever really takes this step will say so
            return result

        return guess

    def _settled(self, state: State, place: int, driver: Process) -> State:
        """Go through the ends of phases until the driver wants an operation, or is gone."""
        while driver.node.ended is not None:
            ended, phase = driver.node.ended, driver.phase
            if isinstance(phase, Commit) and isinstance(ended, Returned):
                state = state._replace(fruitless=0)
            next_phase = driver.node.next_phase
            if next_phase is None:
                following_phase = following(driver.setup, phase, ended)
                next_phase = self._next_phase(driver.setup, following_phase, self._guess(state))
                driver.node.next_phase = next_phase
            if isinstance(next_phase, Finished | Dead):
                return self._gone(state, place, next_phase)
            driver = next_phase
        return self._with(state, place, driver)

    def _next_phase(self, setup: Setup, phase: Phase, guess: Guess | None = None) -> Process | Finished | Dead:
        return phase if isinstance(phase, Finished | Dead) else self._at(setup, phase, guess)

    def _gone(self, state: State, place: int, end: Finished | Dead) -> State:
        rest = state.drivers[:place] + state.drivers[place + 1 :]
        state, query = (
            state._replace(drivers=rest, running=0, switches=state.switches if rest else 0),
            state.drivers[place].setup.query,
        )
        if rest or query != state.next_setup.query:
            return state._replace(
                fruitless=0, widowed=self._is_widowed(state)
            )  # why this one ended is of no account: another will say how it ends
        if isinstance(end, Finished):
            return state._replace(why="finished")
        return state._replace(fruitless=state.fruitless + 1, why=end.why)

    def _is_widowed(self, state: State) -> bool:
        begins = self.scenario.kinds & {"second driver", "rival"}
        return bool(state.drivers and begins) and len(state.faults) < self.scenario.max_faults

    def _run_on(self, state: State) -> State:
        """Run the drivers on as far as nobody can tell in which order."""
        for place in range(len(state.drivers)):
            state = self._settled(state, place, state.drivers[place]) if place < len(state.drivers) else state
        waiting = -1
        while waiting != len(state.messages) + len(
            state.twins
        ):  # whatever is dropped no longer stands in anybody's way
            state = self._without_spent(state)
            waiting = len(state.messages) + len(state.twins)
            state = self._without_spent(self._run_on_beside(state))
        return self._normalised(state)

    def _run_on_beside(self, state: State) -> State:
        """The same, as far as what is alive or on its way beside the drivers lets them."""
        place = 0
        while place < len(state.drivers) and not state.widowed:
            driver = state.drivers[place]
            op = driver.node.op
            if op is None or not (self._is_private(state, op) or self._is_forced(state, place, op)):
                place += 1
                continue
            count = len(state.drivers)
            passed = self._passed(state, place, driver)
            if passed is None:
                done, result = self._apply(state, op)
                if done is not state:
                    self.check(done)
                passed = self._advanced(done, place, driver, result)
            state = self._normalised(passed)
            if len(state.drivers) < count:
                place = 0
        return state

    def _passed(self, state: State, place: int, driver: Process) -> State | None:
        """The state after the rest of this driver's phase, if every operation in it is as private or as forced as the next one."""
        if not self.scenario.reduce or len(state.faults) < self.scenario.max_faults:
            return None
        most = self.scenario.max_switches
        if len(state.drivers) > 1 and (most is None or state.switches < most or place != state.running):
            return None
        passage = self._passage(state, driver)
        others = (*state.messages, *(twin.node.op for twin in state.twins))
        if any(other is not None and passage.footprint.touches(other.footprint) for other in others):
            return None
        return self._at_the_end(state, place, driver, passage)

    def _at_the_end(self, state: State, place: int, driver: Process, passage: Passage) -> State:
        files, atomic, slots, decided, newest = passage.world
        state = state._replace(files=files, atomic=atomic, slots=slots, decided=decided, newest=newest)
        return self._settled(state, place, Process(driver.setup, driver.phase, passage.node))

    def _passage(self, state: State, driver: Process) -> Passage:
        surgery = aftermath(state.faults).surgery
        world = (state.files, state.atomic, state.slots, state.decided, state.newest)
        key = (id(driver.node), *map(id, world), surgery)
        passage = self._passages.get(key)
        if passage is None:
            passage = self._passages[key] = self._gone_through(state, driver.node)
        return passage

    def _gone_through(self, state: State, node: Node) -> Passage:
        footprints = []
        while node.op is not None:
            footprints.append(node.op.footprint)
            done, result = self._apply(state, node.op)
            if done is not state:
                self.check(done)
            node, state = node.after(result, self._guess(done)), done
        return Passage(
            (state.files, state.atomic, state.slots, state.decided, state.newest), node, Footprint.of_all(footprints)
        )

    def _without_spent(self, state: State) -> State:
        """Drop what can't have an effect from here on, now or later: nobody can tell whether it ever comes. That is late messages
        that are refused or change nothing, and twins that are refused, and so end."""
        if not self.scenario.reduce or not (state.messages or state.twins):
            return state
        messages = tuple(m for m in state.messages if not self._is_spent_for_good(state, m))
        twins = tuple(t for t in state.twins if t.node.op and not self._is_refused_for_good(state, t.node.op))
        if len(messages) == len(state.messages) and len(twins) == len(state.twins):
            return state
        return state._replace(messages=messages, twins=twins)

    def _is_refused_for_good(self, state: State, op: Op) -> bool:
        """A name in a folder stays taken, unless records are deleted; fences and the newest marker only move on."""
        name = op.transition.__name__
        if name == "publish":
            return op.arguments[0] in state.files.by_path and self.scenario.setup.kept_records >= NO_COMPACTION
        if op.target != ATOMIC or name not in ("fence", "stage", "commit", "take_over"):
            return False
        try:
            op.transition(state.atomic, *op.arguments)
        except Fenced:
            return True
        except NotCommitted:
            return False  # a share that is not there yet may still come
        return False

    def _is_spent_for_good(self, state: State, message: Op) -> bool:
        """Refused, or about a share of target b that is not there. An attempt begins once: such a share comes back only by a
        `begin` that is still on its way, and target b, which is the model's own, answers until then that it is not there."""
        if self._is_refused_for_good(state, message):
            return True
        if message.transition not in ABOUT_SHARES or message.transition(state.slots, *message.arguments)[1]:
            return False
        on_their_way = (*state.messages, *(twin.node.op for twin in state.twins))
        return not any(other is not None and other.transition is slot_sink.begin for other in on_their_way)

    def _normalised(self, state: State) -> State:
        """The same state under the names that a run without faults gives."""
        if not self.scenario.reduce or len(state.drivers) != 1:
            return state
        if state.twins or state.atomic.staged or state.slots.pending:
            return state
        setup, phase, node = state.drivers[0]
        if not isinstance(phase, Log) or node is not self._node(setup, phase):
            return state
        if aftermath(state.faults).surgery or aftermath(state.faults).reconfigured:
            return state
        like = self._faultless.get(phase.number)
        if like is None or (state.files is like.files and not state.messages):
            return state
        if not all(_is_spent(state, message) for message in state.messages):
            return state
        self.check(state)
        return like._replace(faults=state.faults, widowed=state.widowed)

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
        if not self.scenario.reduce:
            return False
        kept = self.scenario.setup.kept_records >= NO_COMPACTION
        if kept and op.transition is objects.read and op.arguments[0] in state.files.by_path:
            return True  # a file never changes, as long as none is deleted
        return self._is_apart(state, op) and not self._can_be_disturbed(state, op)

    def _is_forced(self, state: State, place: int, op: Op) -> bool:
        """Whether this operation is all that can happen: the other driver waits, and nothing else can touch it.

        A phase begins with a state of its own, so that ways that have met are followed once.
        """
        return (
            self.scenario.reduce
            and self.scenario.max_switches is not None
            and len(state.drivers) == 2
            and place == state.running
            and not state.drivers[place].node.is_first
            and not self._can_be_disturbed(state, op)
            and not self._may_pass(state)
        )

    def _may_pass(self, state: State) -> bool:
        """Whether the other driver may have the floor now."""
        if len(state.drivers) < 2 or self.scenario.max_switches is None:
            return False
        return state.switches < self.scenario.max_switches and not self._goes_alone(state, state.running)

    def _goes_alone(self, state: State, place: int) -> bool:
        """Whether what this driver does next, fault or not, is nothing to the other one, now and later."""
        op = state.drivers[place].node.op
        if not self.scenario.reduce or op is None:
            return False
        if self._is_apart(state, op):
            return True
        left = len(state.faults) < self.scenario.max_faults
        return not (left or state.messages or state.twins or self._comes_to(state, 1 - place, op))

    def _comes_to(self, state: State, place: int, op: Op) -> bool:
        """Whether a driver that goes on alone to its end ever touches what this operation does."""
        count = len(state.drivers)
        while len(state.drivers) == count:
            driver = state.drivers[place]
            try:
                passage = self._passage(state, driver)
            except invariants.Violation:
                return True  # whoever really takes these steps will say so
            if passage.footprint.touches(op.footprint):
                return True
            state = self._at_the_end(state, place, driver, passage)
        return False

    def _can_be_disturbed(self, state: State, op: Op) -> bool:
        """Whether a fault can strike at this operation, or a message or a twin touch it."""
        if len(state.faults) < self.scenario.max_faults and (op.mutates or any(_mortal(state, op))):
            return True
        others = (*state.messages, *(twin.node.op for twin in state.twins))
        return any(touch(op, other) for other in others)

    def _is_apart(self, state: State, op: Op) -> bool:
        """Whether only one living driver ever touches what this operation does: two queries share target a, and nothing else."""
        if len(state.drivers) < 2:
            return True
        one, other = state.drivers
        return one.setup.query != other.setup.query and op.target != ATOMIC

    def _at(self, setup: Setup, phase: Phase, guess: Guess | None = None) -> Process:
        return Process(setup, phase, self._node(setup, phase, guess))

    def _with(self, state: State, place: int, driver: Process) -> State:
        return state._replace(drivers=(*state.drivers[:place], driver, *state.drivers[place + 1 :]))

    # ---- checks ----

    def check(self, state: State) -> None:
        line, visible, decided = state.atomic.line, state.slots.visible, state.decided
        self._check_once("line", line, decided, lambda: self._check_line(state))
        self._check_once("visible", visible, decided, lambda: self._check_visible(state))
        self._check_once("both", line, visible, lambda: invariants.check_same_rows(state.atomic, state.slots))
        if not state.drivers and not state.twins and not state.messages and self._is_over(state):
            self.outcomes.add(self._check_end(state))
            self.ends[state.hash()] = state.why != "finished"

    def _check_once(self, name: str, one: object, other: object, check: Callable[[], None]) -> None:
        """What is checked here belongs to values that are interned, so it lives as long as this does, and identity will do."""
        place = (name, id(one), id(other))
        if place not in self._checked:
            check()
            self._checked.add(place)

    def _check_line(self, state: State) -> None:
        invariants.check_line(state.atomic)
        shares = invariants.visible_in_line(state.atomic)
        invariants.check_shares(shares, state.decided, deterministic=self.scenario.setup.deterministic)

    def _check_visible(self, state: State) -> None:
        shares = invariants.visible_in_slots(state.slots)
        invariants.check_shares(shares, state.decided, deterministic=self.scenario.setup.deterministic)
        invariants.check_no_gap_by_slot(state.slots, state.decided)

    def _check_end(self, state: State) -> tuple[Any, ...]:
        """Returns what the end looks like."""
        if state.why != "finished":
            if state.why not in self._refusals(state):
                raise invariants.Violation("recovers", f"the query can't be started any more: {state.why}")
            return state.why, state.atomic.line, state.slots.visible
        setup = state.next_setup
        logged = [n for n in range(setup.epochs) if f"{setup.root}/commits/{n}" in state.files.by_path]
        epochs = [Epoch(n, offsets_hash(state.files.by_path[f"{setup.root}/offsets/{n}"])) for n in logged]
        for name in setup.sinks:
            atomic = name.startswith("a")
            shares = invariants.visible_in_line(state.atomic) if atomic else invariants.visible_in_slots(state.slots)
            if setup.root != self.scenario.setup.root and setup.moved_from is None:
                invariants.check_copy_untouched(state.files.by_path, setup.root)
            invariants.check_complete(shares, epochs, state.decided, Owner(setup.query, name))
        state = self._check_residue(state)
        return state.why, state.files, state.atomic, state.slots

    def _refusals(self, state: State) -> set[str]:
        refusals = set(aftermath(state.faults).refusals)
        return refusals if self.scenario.setup.deterministic else refusals | {"REPLAY_DIFFERS"}

    def _check_residue(self, state: State) -> State:
        """9: after recovery, nothing that older generations staged is left. Returns the state after recovery."""
        setup = state.next_setup
        node = self._node(setup, Recover(), self._guess(state))
        while node.op is not None:
            state, result = self._apply(state, node.op)
            node = node.after(result, self._guess(state))
        if isinstance(node.ended, Raised):
            if getattr(node.ended.error, "condition", "") in self._refusals(state):
                return state
            raise invariants.Violation("recovers", f"recover after the end: {node.ended.error}")
        if aftermath(state.faults).residue:
            return state  # what the lost ledger staged can't be told from a stranger's
        owners = {Owner(setup.query, name) for name in setup.sinks}
        own = (t for t in state.slots.pending if t.owner in owners)
        # A successor can't know the ledger of an owner that never committed here: what that one staged stays.
        known = {e.marker.by.partition(".")[0] for e in state.atomic.line}
        staged = [s for s in state.atomic.staged if not setup.take_over or s.attempt.generation.ledger in known]
        left = [*map(str, staged if "a" in setup.sinks else ()), *map(str, own)]
        if left:
            raise invariants.Violation("9 no residue", f"left after recovery: {left}")
        return state


def touch(one: Op | None, other: Op | None) -> bool:
    """Whether the order of two operations can matter."""
    return one is not None and other is not None and one.footprint.touches(other.footprint)


def _mortal(state: State, op: Op) -> Iterator[Footprint]:
    """Shares whose death right before this operation it could notice."""
    if op.target == ATOMIC:
        deaths = (death_in_line(share.attempt) for share in state.atomic.staged)
    elif op.target == SLOTS:
        deaths = (death_in_slots(share.owner, share.attempt) for share in state.slots.pending)
    else:
        return
    yield from (death for death in deaths if death.touches(op.footprint))


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
