"""Another process, which knows nothing but what it is given: it calls one function, and is killed.

::

    answer_of(function, *arguments)             what it answers
    with OtherProcess(function, *arguments) as other:
        while other.goes_on():                  it stands where the function has called `stop`
            other.go_on()
        other.answer

It never comes to an orderly end, at which a client might still finish something; and nothing of this process's memory is in it. It
is a fork of a *nursery*, a process that was started for this alone and has imported modules and done nothing else: to start Python
anew for each would take a second, and so would it to import again what others before it have needed.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import IO, Any, NoReturn, TypeVar

R = TypeVar("R")

_DIES_WITHIN_S = 60.0
_POLL_S = 0.001
_STOP, _ANSWER, _ERROR = b"s", b"a", b"e"
_LENGTH_BYTES = 8
_imported: set[str] = set()
"""What other processes have imported so far: the nursery does so for all that come after them."""
_AHEAD = 100
"""Stops that are passed without a word to and fro for each; few enough for the socket to hold all that is said about them."""


def answer_of(function: Callable[..., R], *arguments: Any) -> R:
    """What a function of a module answers in a process of its own."""
    with OtherProcess(function, *arguments) as other:
        while other.goes_on():
            other.go_on()
        answer: R = other.answer
        return answer


class OtherProcess:
    def __init__(self, function: Callable[..., Any], *arguments: Any):
        self.answer: Any = None
        self._socket, its = socket.socketpair()
        self._said = self._socket.makefile("rb")
        modules = sorted({function.__module__, *(type(argument).__module__ for argument in arguments), *_imported})
        with its:
            wanted = pickle.dumps((sys.path, modules, dict(os.environ), os.getcwd()))
            nursery = _nursery(os.getpid())
            socket.send_fds(nursery, [len(wanted).to_bytes(_LENGTH_BYTES)], [its.fileno()])
            nursery.sendall(wanted)
        _imported.clear()
        self._socket.sendall(pickle.dumps(pickle.dumps((function, arguments))))
        pid = self._said.readline()
        if not pid:
            raise RuntimeError("no other process could be made: the one that makes them has ended")
        self._pid = int(pid)

    def __enter__(self) -> OtherProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        self._said.close()
        self._socket.close()

    def goes_on(self) -> bool:
        """Whether it has come to another stop; if not, it has answered, and is dead."""
        said = self._said.read(1)
        if said == _STOP:
            return True
        rest = self._said.read()
        if said != _ANSWER:
            raise AssertionError(f"the other process failed:\n{rest.decode()}")
        self._wait()
        self.answer, imported = pickle.loads(rest)
        _imported.update(imported)
        return False

    def go_on(self, stops: int = 1) -> None:
        """Let it pass so many stops, this one and those that it has not come to."""
        self._socket.sendall(_STOP * stops)

    def passes(self, stops: int | None = None) -> int:
        """Let it pass so many stops, or all; how many they were. It then goes on to the next, or has answered."""
        passed = 0
        while stops is None or passed < stops:
            ahead = _AHEAD if stops is None else min(_AHEAD, stops - passed)
            self.go_on(ahead)
            for _ in range(ahead):
                if not self.goes_on():
                    return passed
                passed += 1
        return passed

    def kill(self) -> None:
        """As `kill -9` does; when this returns, nothing that it held is held any more."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _DIES_WITHIN_S
        while _is_there(self._pid):
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self._pid} does not die")
            time.sleep(_POLL_S)


def _is_there(pid: int) -> bool:
    """The nursery does not keep its dead."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@functools.cache
def _nursery(_pid: int) -> socket.socket:
    """The one of this process, which a fork of it does not share; it ends with it."""
    mine, its = socket.socketpair()
    with its:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({its.fileno()})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[its.fileno()],
        )

    def end() -> None:
        mine.close()
        process.wait(_DIES_WITHIN_S)

    atexit.register(end)
    return mine


# ---- in the nursery ----


def serve(descriptor: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as asked:
        while True:
            length, given, _, _ = socket.recv_fds(asked, _LENGTH_BYTES, 1)
            if not length:
                return
            wanted = b""
            while len(wanted) < int.from_bytes(length):
                part = asked.recv(int.from_bytes(length) - len(wanted))
                if not part:
                    return  # whoever asked has died in the middle of it
                wanted += part
            sys.path[:], modules, environment, folder = pickle.loads(wanted)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            for name in modules:
                with suppress(Exception):  # raised again where it is needed
                    importlib.import_module(name)
            if os.fork() == 0:
                asked.close()
                _call(socket.socket(fileno=given[0]))
            os.close(given[0])


# ---- in the process that it has made ----

_heard: IO[bytes]
_answers: IO[bytes]


def _call(connection: socket.socket) -> NoReturn:
    global _heard, _answers
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _heard, _answers = connection.makefile("rb"), connection.makefile("wb")
    _say(f"{os.getpid()}\n".encode())
    try:
        known = set(sys.modules)
        function, arguments = pickle.loads(pickle.load(_heard))
        answer = _ANSWER + pickle.dumps((function(*arguments), sorted(set(sys.modules) - known)))
    except BaseException:  # noqa: BLE001 - told to whoever has asked
        answer = _ERROR + traceback.format_exc().encode()
    _say(answer)
    _die()


def stop() -> None:
    """Wait until the process that asked says go on."""
    _say(_STOP)
    if not _heard.read(1):
        _die()  # nobody is there any more


def _say(what: bytes) -> None:
    _answers.write(what)
    _answers.flush()


def _die() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL can't be survived")
