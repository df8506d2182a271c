"""Ports of the loopback address that a server can have, and have again after a restart.

A port that nobody listens on yet is free for everybody who looks: between the choice and the start of a server another process may
choose it too, and a proxy that got the port of its own server would connect to itself until no file can be opened. So a port that
was given is claimed, by a lock on one byte of a file that all processes of a user share, until the process ends.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
from pathlib import Path
from urllib.parse import urlsplit

from twophase.testing.user_cache import cache

LOOPBACK = "127.0.0.1"

_LOWEST = 12_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1000
# Its own: test runners seed the shared one, and two runs with the same seed would choose the same ports.
_random = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on or has been given, below those that the system gives to clients.

    Any connection that is opened while a server is down could get one of the latter, and the server could not come back.
    """
    below = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    candidates = range(min(_LOWEST, below // 2), below)
    found: list[int] = []
    for _ in range(_TRIES):
        port = _random.choice(candidates)
        if _is_free(port) and _claim(port):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} free ports below {below}")


def host_and_port(address: str, default_port: int) -> tuple[str, int]:
    """The two halves of an address as clients take it: with or without a scheme, with or without a port."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    return parts.hostname or LOOPBACK, parts.port or default_port


def why_unreachable(host: str, port: int, *, timeout_s: float = 5.0) -> str:
    """What keeps a client from connecting; nothing if it can."""
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        return f"{host}:{port}: {error}"
    return ""


class _Claims:
    """The ports that were given to one process. Locks are the process's, not the file's: a forked child has none of them."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.ports: set[int] = set()
        cache().mkdir(parents=True, exist_ok=True)
        # Never closed, which would let go of all locks.
        self._file = os.open(cache() / "ports.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def take(self, port: int) -> bool:
        if port in self.ports:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except BlockingIOError:
            return False
        self.ports.add(port)
        return True


_claims: list[_Claims] = []


def _claim(port: int) -> bool:
    if not _claims or _claims[-1].pid != os.getpid():
        _claims.append(_Claims())
    return _claims[-1].take(port)


def _is_free(port: int) -> bool:
    # Any address, not the loopback's alone: some servers can't be told where to listen.
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
