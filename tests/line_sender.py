"""Senders of lines on the loopback, for the tests of the socket source: one that only talks, and one that keeps its lines."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from examples.socket_sender import Sender, Spool

LOOPBACK = "127.0.0.1"
WITHIN_S = 30.0


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = WITHIN_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {timeout_s} s"
        time.sleep(0.005)


class PlainSender:
    """What `nc -lk` is: bytes for whoever is connected, and no word about what came of them."""

    def __init__(self, port: int = 0):
        self._listening = socket.create_server((LOOPBACK, port))
        self.port = int(self._listening.getsockname()[1])
        self.connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self.connections.append(self._listening.accept()[0])

    def connected(self, count: int = 1) -> socket.socket:
        wait_for(lambda: len(self.connections) >= count, f"connection {count}")
        return self.connections[-1]

    def send(self, data: bytes) -> None:
        self.connected().sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in self.connections:
            connection.close()


class SpoolingSender:
    """The sender of the examples, in this process."""

    def __init__(self, folder: Path, port: int = 0):
        self.path = str(folder / "spool.db")
        self.spool = Spool(self.path)
        self._sender = Sender(self.path, port)
        self.port = self._sender.port

    def put(self, lines: Sequence[bytes]) -> None:
        self.spool.put(lines)

    def wait(self) -> None:
        """Until every line is safe."""
        wait_for(lambda: self.spool.first == self.spool.following, "every line was acknowledged")

    def close(self) -> None:
        self._sender.close()
        self.spool.close()
