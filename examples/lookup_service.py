"""A lookup service over a live state: ``python -m examples.lookup_service STATE [PORT]``.

    curl http://127.0.0.1:8080/rows/ada          the row of this key, as JSON; 404 if there is none
    curl http://127.0.0.1:8080/epoch             which epoch is served

A query writes the state meanwhile (docs/rocksdb.md). Every answer is of one committed epoch; once a second the service looks
whether there is a newer one, and goes over to it.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import twophase
from twophase.state import Snapshot

LOOKS_EVERY_S = 1.0


class LiveState:
    """The newest epoch, for threads that read it."""

    def __init__(self, path: str):
        self._path = path
        self._lock = threading.Lock()
        self._newest = twophase.state.open(path)
        self._readers: dict[int, int] = {}
        self._looked = time.monotonic()

    @contextmanager
    def reading(self) -> Iterator[Snapshot]:
        """A snapshot that stays open for as long as it is read."""
        with self._lock:
            self._look()
            state = self._newest
            self._readers[id(state)] = self._readers.get(id(state), 0) + 1
        try:
            yield state
        finally:
            with self._lock:
                self._readers[id(state)] -= 1
                self._close_if_done(state)

    def _look(self) -> None:
        if time.monotonic() < self._looked + LOOKS_EVERY_S:
            return
        self._looked = time.monotonic()
        found = twophase.state.open(self._path)
        if found.marker == self._newest.marker:
            found.close()
            return
        before, self._newest = self._newest, found
        self._close_if_done(before)

    def _close_if_done(self, state: Snapshot) -> None:
        if state is not self._newest and not self._readers.pop(id(state), 0):
            state.close()

    def close(self) -> None:
        self._newest.close()


def server_of(path: str, port: int) -> ThreadingHTTPServer:
    live = LiveState(path)

    class Lookup(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with live.reading() as state:
                if self.path == "/epoch":
                    self._answer(200, {"epoch": state.epoch})
                elif self.path.startswith("/rows/"):
                    row = state.get(unquote(self.path.removeprefix("/rows/")))
                    self._answer(404 if row is None else 200, {"epoch": state.epoch, "row": row})
                else:
                    self._answer(404, {"error": "ask for /rows/KEY or /epoch"})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body, default=str).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: what is asked for is nobody's business."""

    class Server(ThreadingHTTPServer):
        def server_close(self) -> None:
            super().server_close()
            live.close()

    return Server(("127.0.0.1", port), Lookup)


if __name__ == "__main__":
    server = server_of(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8080)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()
