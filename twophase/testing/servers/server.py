"""One test server, wherever it runs: it can be killed, stopped and started again, unless it is somebody else's.

    with kafka.on_this_machine(folder) as server:
        server.endpoint          what a client connects to
        server.kill()            kill -9
        server.start()           the same port; the same data if server.keeps_data
        server.log()             the end of what it printed

A server is one or more *parts*, each a process or a container: HDFS is a NameNode and a DataNode, and each can be killed alone.
A server whose endpoint came from the environment has no parts: to kill it is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Generic, Protocol, Self, TypeVar

Endpoint = TypeVar("Endpoint", covariant=True)

_POLL_S = 0.1


class ServerUnavailable(RuntimeError):
    """The server can't be had here; the message says why, and what helps."""


class NotOurServer(RuntimeError):
    """Somebody else's server, known by its address only, was to be killed, stopped or started."""


class Way(Enum):
    """Where a server comes from."""

    GIVEN = "an endpoint from the environment"
    CONTAINER = "a container"
    PROCESS = "a process on this machine"


class Part(Protocol):
    """A process or a container."""

    @property
    def name(self) -> str: ...

    @property
    def is_running(self) -> bool: ...

    def start(self) -> None: ...

    def kill(self) -> None:
        """End it without a chance to say goodbye, and return when it is gone."""

    def stop(self) -> None:
        """Ask it to end, and return when it is gone."""

    def log(self) -> str:
        """The end of what it printed, over all its runs."""

    def remove(self) -> None:
        """Leave nothing behind but logs; it does not run any more."""


class Server(Generic[Endpoint]):
    """A test server. `ready` says what it still waits for, and nothing once it serves."""

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        *,
        way: Way,
        ready: Callable[[], str],
        parts: Sequence[Part] = (),
        keeps_data: bool = True,
        up_within_s: float = 120.0,
    ):
        self.name = name
        self.endpoint = endpoint
        self.way = way
        self.keeps_data = keeps_data
        """Whether it has, when it is started after a kill, what it had before."""
        self._parts = {part.name: part for part in parts}
        self._ready = ready
        self._up_within_s = up_within_s

    @property
    def can_be_killed(self) -> bool:
        return bool(self._parts)

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self._parts)

    def ended(self) -> list[str]:
        """The parts that do not run."""
        return [name for name, part in self._parts.items() if not part.is_running]

    def start(self, part: str | None = None) -> None:
        """Start what does not run: one part, or everything. With all parts up, it returns when clients are served."""
        if self._parts or part is not None:
            for each in self._named(part):
                if not each.is_running:
                    each.start()
        if not self.ended():
            self.wait_until_ready()

    def kill(self, part: str | None = None) -> None:
        """kill -9."""
        for each in self._named(part):
            each.kill()

    def stop(self, part: str | None = None) -> None:
        """Stop it as its operator would, in the opposite order of the start."""
        for each in reversed(list(self._named(part))):
            if each.is_running:
                each.stop()

    def restart(self) -> None:
        """Stop what runs, and start everything, on the same ports."""
        self.stop()
        self.start()

    def log(self) -> str:
        return "\n".join(f"--- {name}\n{part.log()}" for name, part in self._parts.items())

    def wait_until_ready(self) -> None:
        """Wait until it serves; fail if a part ends, or time is up, first."""
        deadline = time.monotonic() + self._up_within_s
        while lacking := self._ready():
            ended = self.ended()
            if ended or not self._parts or time.monotonic() > deadline:
                raise ServerUnavailable(self._why_not(ended, lacking))
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Kill what still runs: nobody needs its data any more."""
        for part in self._parts.values():
            part.kill()
            part.remove()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _named(self, part: str | None) -> Iterator[Part]:
        if not self._parts:
            raise NotOurServer(
                f"{self.name} is {self.way.value}: it can't be killed, stopped or started from here. "
                "Unset the variable to have a server of your own, or ask can_be_killed first."
            )
        if part is None:
            return iter(self._parts.values())
        if part not in self._parts:
            raise ValueError(f"{self.name} has no part {part!r}; it has {', '.join(self._parts)}")
        return iter([self._parts[part]])

    def _why_not(self, ended: list[str], lacking: str) -> str:
        if not self._parts:
            return f"{self.name}, {self.way.value}, does not answer: {lacking}"
        if ended:
            what = f"ended: {', '.join(ended)}"
        else:
            what = f"not ready within {self._up_within_s:.0f} s: {lacking}"
        return f"{self.name}, {self.way.value}: {what}\n{self.log()}"
