"""Real, ordinary code as a process that can be stopped between any two operations, copied, and compared.

A program is a function of its parameters and of the results of its operations, nothing else. So a process is its program
and the list of results so far: to take a step, the program is run again from the start, fed with these, until it asks for one
operation more. Histories form a tree whose nodes are shared by all states that contain them: each is run once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.model.digest import digest, joined
from tests.model.objects import Op
from tests.model.slot_sink import SlotState
from twophase.sinks.heap import HeapState


class Pending(BaseException):
    """The program wants an operation whose result it does not have yet. Not an Exception: real code must not catch it."""

    def __init__(self, op: Op):
        super().__init__(str(op))
        self.op = op


@dataclass(frozen=True)
class Returned:
    value: Any


@dataclass(frozen=True)
class Raised:
    error: Exception


Result = Returned | Raised


Guess = Callable[[Op], "Result | None"]
"""What the answer to an operation would be if it were carried out at once; None if nobody can say."""


class Recorded:
    """Feeds a program the results it has seen; then, for as long as they can be guessed, those that it will probably see."""

    def __init__(self, node: Node, guess: Guess | None):
        self.node = node
        """Where the program is."""
        self._results = node.results()
        self._next = 0
        self._guess = guess

    def perform(self, op: Op) -> Any:
        if self._next < len(self._results):
            result: Result | None = self._results[self._next]
            self._next += 1
        else:
            self.node.op = op
            result = None if self._guess is None else self._guess(op)
            if result is None:
                raise Pending(op)
            self.node = self.node.add(result)
        if isinstance(result, Raised):
            raise result.error
        assert result is not None
        return result.value


def _forget_where(error: BaseException | None) -> None:
    """An error holds the frames through which it went, and with them all that the program had in its hands."""
    while error is not None:
        within = error.__cause__ or error.__context__
        error.__traceback__ = error.__cause__ = error.__context__ = None
        error = within


Program = Callable[[Recorded], Any]


class Node:
    """A program after a number of results: what it asks for next, or how it ended."""

    __slots__ = ("_before", "_children", "_digest", "_program", "_result", "ended", "next_phase", "op")

    def __init__(self, program: Program, name: bytes = b"", before: Node | None = None, result: Result | None = None):
        self._program, self._before, self._result = program, before, result
        self._digest = name
        """Of the first node: what stands for the program. Of the others it is made when somebody asks for it."""
        self._children: dict[Any, Node] | None = None
        self.op: Op | None = None
        self.next_phase: Any = None
        """Filled in by whoever knows what comes after this program."""
        self.ended: Result | None = None

    def run(self, guess: Guess | None = None) -> Node:
        """Find out what the program does next. Each run begins at the start, so it goes on into guessed results:
        most guesses come true, and their nodes are then there."""
        recorded = Recorded(self, guess)
        ended: Result | None = None
        try:
            ended = Returned(self._program(recorded))
        except Pending:
            pass
        except Exception as error:  # noqa: BLE001 - however a program ends is a result
            ended = Raised(error)
        recorded.node.ended = ended
        for raised in (*recorded.node.results(), ended):
            if isinstance(raised, Raised):
                _forget_where(raised.error)
        return self

    @property
    def is_first(self) -> bool:
        return self._before is None

    @property
    def digest(self) -> bytes:
        """Of the program, and of the results so far: whatever it does next depends on nothing else."""
        if not self._digest:
            assert self._before is not None
            self._digest = joined("node", self._before.digest, digest(self._result))
        return self._digest

    def results(self) -> tuple[Result, ...]:
        results: list[Result] = []
        node: Node | None = self
        while node is not None and node._result is not None:
            results.append(node._result)
            node = node._before
        return tuple(reversed(results))

    def after(self, result: Result, guess: Guess | None = None) -> Node:
        child = None if self._children is None else self._children.get(key_of(result))
        return self.add(result).run(guess) if child is None else child

    def add(self, result: Result) -> Node:
        """The node after this one, before it is known what the program does there."""
        if self._children is None:
            self._children = {}
        child = self._children[key_of(result)] = Node(self._program, before=self, result=result)
        return child


def key_of(result: Result) -> Any:
    if isinstance(result, Raised):
        # Not its text: an error learns on its way up whose epoch it is about.
        return (type(result.error), result.error.args, getattr(result.error, "dead_slots", None))
    # States of targets are interned by the explorer, and their hashes are slow.
    return id(result.value) if isinstance(result.value, HeapState | SlotState) else (type(result.value), result.value)
