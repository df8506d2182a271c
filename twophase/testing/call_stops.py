"""Where a verb of a sink can be interrupted: after each call that it makes, whatever the sink is.

A *stop* is where a function in C has returned, be it a system call or a client's request. Python reports most of them. It does
not report those of Cython and ctypes: where a line of code makes more calls than were reported, its end is a stop too. Functions
that only compute, as the methods of text and of dictionaries, are none: nothing has happened to the target.

What a server does within one request has no stops, nor have threads that ran before.
"""

from __future__ import annotations

import bisect
import dis
import functools
import os
import re
import sys
import sysconfig
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

_PYTHON = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<", os.path.dirname(__file__))
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_TYPES_THAT_COMPUTE = (str, bytes, bytearray, int, float, list, dict, set, frozenset, tuple, type, re.Pattern, re.Match)
_MODULES_THAT_COMPUTE = frozenset(
    {"builtins", "math", "sys", "time"} | {f"_{name}" for name in ("abc", "json", "stat", "struct")}
)
_TESTING = __name__.rpartition(".")[0]
_CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX", "BEFORE_WITH"})


class Stop(NamedTuple):
    file: str
    line: int
    function: str
    """What has returned; empty if Python did not say."""


@contextmanager
def stopping(stopped: Callable[[Stop], None]) -> Iterator[None]:
    """What runs inside, in this thread and in those that it starts, calls `stopped` at each stop."""
    hooks = _Hooks(stopped, _is_code_of_anybody)
    trace, profile = sys.gettrace(), sys.getprofile()
    threading.settrace(hooks.trace)
    threading.setprofile(hooks.profile)
    try:
        with _hooked(hooks):
            yield
    finally:
        threading.setprofile(profile)
        threading.settrace(trace)


@contextmanager
def stopping_in(
    packages: Collection[str], stopped: Callable[[Stop], None], starting: Callable[[Stop], None] | None = None
) -> Iterator[None]:
    """Only what code of these packages has called, in this thread, is a stop when it returns. An error that `stopped` raises is an
    error of that call: within a client it might happen where none can, and leave somebody waiting for ever. `starting` is called
    before: what raises there was never called. (Of calls that Python does not report it is not.)"""

    def is_inside(frame: FrameType) -> bool:
        module = str(frame.f_globals.get("__name__", ""))
        return module.partition(".")[0] in packages and not module.startswith(_TESTING)

    with _hooked(_Hooks(stopped, is_inside, others_return=True, starting=starting)):
        yield


@contextmanager
def _hooked(hooks: _Hooks) -> Iterator[None]:
    trace, profile = sys.gettrace(), sys.getprofile()
    sys.settrace(hooks.trace)
    sys.setprofile(hooks.profile)
    try:
        yield
    finally:
        sys.setprofile(profile)
        sys.settrace(trace)


def _is_code_of_anybody(frame: FrameType) -> bool:
    """But Python's, whose calls are all reported."""
    file = frame.f_code.co_filename
    return file.startswith(_INSTALLED) or not file.startswith(_PYTHON)


@dataclass
class _Line:
    """The line that a frame is at, and which of its calls were reported so far, by where they stand in the code."""

    number: int
    reported: set[int] = field(default_factory=set)


class _Hooks:
    def __init__(
        self,
        stopped: Callable[[Stop], None],
        is_inside: Callable[[FrameType], bool],
        *,
        others_return: bool = False,
        starting: Callable[[Stop], None] | None = None,
    ):
        self._stopped, self._is_inside, self._others_return = stopped, is_inside, others_return
        self._starting = starting
        self._lines: dict[FrameType, _Line] = {}

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "call":
            self._report(frame.f_back)
            if self._is_inside(frame):
                self._lines[frame] = _Line(frame.f_lineno)
                return self.trace
            if not self._others_return or frame.f_back is None or frame.f_back not in self._lines:
                return None
            self._start(frame.f_back, frame.f_code.co_qualname)
            return self._trace_return
        line = self._lines.pop(frame, _Line(frame.f_lineno))
        if event != "return":
            self._lines[frame] = _Line(frame.f_lineno)
        if _instructions(frame.f_code).calls.get(line.number, frozenset()) - line.reported:
            self._stopped(Stop(frame.f_code.co_filename, line.number, ""))
        return self.trace

    def _trace_return(self, frame: FrameType, event: str, _: Any) -> Any:
        caller = frame.f_back
        if event == "return" and caller is not None:
            self._stopped(Stop(caller.f_code.co_filename, caller.f_lineno, frame.f_code.co_qualname))
        return self._trace_return

    def profile(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            self._report(frame)
            if not _only_computes(function) and self._is_caller(frame):
                self._start(frame, str(getattr(function, "__qualname__", function)))
        elif event == "c_return" and not _only_computes(function) and self._is_caller(frame):
            name = str(getattr(function, "__qualname__", function))
            self._stopped(Stop(frame.f_code.co_filename, frame.f_lineno, name))

    def _start(self, caller: FrameType, name: str) -> None:
        if self._starting is not None:
            self._starting(Stop(caller.f_code.co_filename, caller.f_lineno, name))

    def _is_caller(self, frame: FrameType) -> bool:
        return not self._others_return or frame in self._lines

    def _report(self, frame: FrameType | None) -> None:
        if frame is not None and frame in self._lines:
            offsets = _instructions(frame.f_code).offsets
            self._lines[frame].reported.add(offsets[bisect.bisect_right(offsets, frame.f_lasti) - 1])


class _Instructions(NamedTuple):
    offsets: Sequence[int]
    calls: Mapping[int, frozenset[int]]
    """By line, where the calls stand."""


@functools.cache
def _instructions(code: CodeType) -> _Instructions:
    steps = list(dis.get_instructions(code))
    calls: dict[int, frozenset[int]] = {}
    for step in steps:
        line = None if step.positions is None else step.positions.lineno
        if step.opname in _CALLS and line is not None:
            calls[line] = calls.get(line, frozenset()) | {step.offset}
    return _Instructions([step.offset for step in steps], calls)


def _only_computes(function: Any) -> bool:
    owner = getattr(function, "__self__", None)
    if isinstance(owner, ModuleType):
        return owner.__name__ in _MODULES_THAT_COMPUTE
    return isinstance(owner, _TYPES_THAT_COMPUTE)
