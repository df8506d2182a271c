"""Ports of the loopback address that a server can have, and have again after a restart."""

from __future__ import annotations

import random
import socket
from pathlib import Path
from urllib.parse import urlsplit

LOOPBACK = "127.0.0.1"

_LOWEST = 12_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_TRIES = 1000
# Its own: test runners seed the shared one, and two runs with the same seed would choose the same ports.
_random = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below those that the system gives to clients.

    Any connection that is opened while a server is down could get one of the latter, and the server could not come back.
    """
    below = int(_RANGE.read_text().split()[0]) if _RANGE.exists() else 32_768
    candidates = range(min(_LOWEST, below // 2), below)
    found: list[int] = []
    for _ in range(_TRIES):
        port = _random.choice(candidates)
        if port not in found and _is_free(port):
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


def _is_free(port: int) -> bool:
    # Any address, not the loopback's alone: some servers can't be told where to listen.
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
