"""Real, ordinary code as a process that can be stopped between any two operations, copied, and compared.

A program is a function of its parameters and of the results of its operations, nothing else. So a process is its program
and the list of results so far: to take a step, the program is run again from the start, fed with these, until it asks for one
operation more. Histories form a tree whose nodes are shared by all states that contain them: each is run once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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


class Recorded:
    """Feeds a program the results it has seen."""

    def __init__(self, results: tuple[Result, ...]):
        self._results = results
        self._next = 0

    def perform(self, op: Op) -> Any:
        if self._next == len(self._results):
            raise Pending(op)
        result = self._results[self._next]
        self._next += 1
        if isinstance(result, Raised):
            raise result.error.with_traceback(None)
        return result.value


Program = Callable[[Recorded], Any]


class Node:
    """A program after a number of results: what it asks for next, or how it ended."""

    __slots__ = ("_children", "_program", "_results", "ended", "next_phase", "op")

    def __init__(self, program: Program, results: tuple[Result, ...] = ()):
        self._program, self._results = program, results
        self._children: dict[Any, Node] = {}
        self.op: Op | None = None
        self.next_phase: Any = None
        """Filled in by whoever knows what comes after this program."""
        self.ended: Result | None = None
        try:
            self.ended = Returned(program(Recorded(results)))
        except Pending as pending:
            self.op = pending.op
        except Exception as error:  # noqa: BLE001 - however a program ends is a result
            self.ended = Raised(error)

    def after(self, result: Result) -> Node:
        if isinstance(result, Raised):
            key: Any = (type(result.error), str(result.error))
        else:
            # States of targets are interned by the explorer, and their hashes are slow.
            key = id(result.value) if isinstance(result.value, HeapState | SlotState) else result.value
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = Node(self._program, (*self._results, result))
        return child
