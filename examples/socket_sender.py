"""A sender for `twophase-socket` that loses no line and sends none twice, whatever is killed: itself, the query, or both.

    app | python -m examples.socket_sender /data/spool.db --port 9999

and in the query ``.option("acknowledge", "true")``. It reads lines from its standard input into a spool, which is a database of
SQLite, and gives them to whoever connects. The spool keeps the number of each line, so that line n is the same line for ever, and
forgets a line when the source says that it is safe. It ends when its input has ended and everything is safe.

What is in the spool is safe from then on; what a killed sender had read from its input and not put there is not. A program that
can't have that puts its lines there itself, with `Spool.put`, in the same transaction as its own work if it likes.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import socket
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Any

GREETING = re.compile(
    rb"twophase-socket 1 journal=([0-9a-f]+) (?:stream=- next=-|stream=([A-Za-z0-9._-]+) next=([0-9]+))"
)
ACKNOWLEDGEMENT = re.compile(rb"ack=([0-9]+)")
LINES_AT_ONCE = 1000
PAUSE_S = 0.02


class Spool:
    """Lines with their numbers, on disk until they are safe elsewhere. Each thread opens its own."""

    def __init__(self, path: str):
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute("PRAGMA synchronous = FULL")
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.execute("CREATE TABLE IF NOT EXISTS lines (number INTEGER PRIMARY KEY, line BLOB NOT NULL)")
            self._database.execute("CREATE TABLE IF NOT EXISTS stream (id TEXT, journal TEXT, following INTEGER)")
            if self._one("SELECT count(*) FROM stream") == 0:
                # A new name for each spool: numbers begin anew, and must not be taken for those of another one.
                self._database.execute("INSERT INTO stream VALUES (?, NULL, 0)", (uuid.uuid4().hex,))

    def put(self, lines: Iterable[bytes]) -> None:
        """Keep lines, each without its end. When this returns they will be sent, whatever dies."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            following = self.following
            for line in lines:
                self._database.execute("INSERT INTO lines VALUES (?, ?)", (following, line))
                following += 1
            self._database.execute("UPDATE stream SET following = ?", (following,))

    @property
    def stream(self) -> str:
        return str(self._one("SELECT id FROM stream"))

    @property
    def following(self) -> int:
        """The number of the next line that will be put here."""
        return int(self._one("SELECT following FROM stream"))

    @property
    def first(self) -> int:
        """The number of the oldest line that is here."""
        return int(self._one("SELECT coalesce(min(number), (SELECT following FROM stream)) FROM lines"))

    def lines(self, number: int) -> Sequence[bytes]:
        """Some lines from a number on."""
        found = self._database.execute(
            "SELECT line FROM lines WHERE number >= ? ORDER BY number LIMIT ?", (number, LINES_AT_ONCE)
        )
        return [line for (line,) in found]

    def forget(self, number: int) -> None:
        """Lines before a number are safe."""
        self._database.execute("DELETE FROM lines WHERE number < ?", (number,))

    def refusal(self, journal: str, stream: str | None, following: int | None) -> str | None:
        """Why a journal can't be served; None if it can. From then on it is the one."""
        if stream is not None and stream != self.stream:
            return f"this is the stream {self.stream}"
        if following is not None and following > self.following:
            return f"only {self.following} lines were ever put here, and the journal has {following}: an old copy of the spool?"
        if following is not None and following < self.first:
            return f"the lines from {following} to {self.first - 1} were said to be safe, and are gone"
        known = self._one("SELECT journal FROM stream")
        if known not in (None, journal):
            return f"the lines before {self.first} went to the journal {known}: lines go to one journal alone (--new-journal)"
        self._database.execute("UPDATE stream SET journal = ?", (journal,))
        return None

    def forget_journal(self) -> None:
        """Go to another journal from now on. What only the old one has is lost to it."""
        self._database.execute("UPDATE stream SET journal = NULL")

    def close(self) -> None:
        self._database.close()

    def _one(self, sql: str) -> Any:
        return self._database.execute(sql).fetchone()[0]


class Sender:
    """Serves a spool. A new connection replaces the one before it, which may be that of a source that is gone."""

    def __init__(self, path: str, port: int, host: str = "127.0.0.1"):
        self._path = path
        self._listening = socket.create_server((host, port))
        self._newest = 0
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        self._newest += 1
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                connection, _ = self._listening.accept()
                self._newest += 1
                threading.Thread(target=self._serve, args=(connection, self._newest), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        # A connection that breaks is no error: the source connects again, and says where to go on.
        with closing(connection), closing(Spool(self._path)) as spool, suppress(OSError):
            heard = bytearray()
            while b"\n" not in heard:
                if not (data := connection.recv(4096)):
                    return
                heard += data
            greeting, _, rest = bytes(heard).partition(b"\n")
            found = GREETING.fullmatch(greeting)
            if found is None:
                return
            journal = found[1].decode()
            stream = None if found[2] is None else found[2].decode()
            asked = None if found[3] is None else int(found[3])
            refusal = spool.refusal(journal, stream, asked)
            if refusal is not None:
                connection.sendall(f"twophase-socket 1 refuse={refusal}\n".encode())
                return
            at = spool.first if asked is None else asked
            connection.sendall(f"twophase-socket 1 stream={spool.stream} first={at}\n".encode())
            self._send(connection, spool, at, bytearray(rest), number)

    def _send(self, connection: socket.socket, spool: Spool, at: int, heard: bytearray, number: int) -> None:
        while number == self._newest:
            lines = spool.lines(at)
            if lines:
                connection.sendall(b"".join(line + b"\n" for line in lines))
                at += len(lines)
            readable, _, _ = select.select([connection], [], [], 0 if lines else PAUSE_S)
            if readable:
                if not (data := connection.recv(65536)):
                    return
                heard += data
                *told, rest = bytes(heard).split(b"\n")
                heard[:] = rest
                # Each says all that those before it said.
                if told and (found := ACKNOWLEDGEMENT.fullmatch(told[-1])):
                    spool.forget(int(found[1]))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Send the lines of the standard input to a query.")
    parser.add_argument("spool", help="the file that keeps lines until they are safe")
    parser.add_argument("--port", type=int, default=9999)
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument(
        "--new-journal", action="store_true", help="go on with another journal: the old one is gone for good"
    )
    given = parser.parse_args(arguments)
    spool = Spool(given.spool)
    if given.new_journal:
        spool.forget_journal()
    sender = Sender(given.spool, given.port, given.host)
    rest = b""
    # What has come by now goes into the spool at once: each time that it is synced costs milliseconds.
    while data := os.read(sys.stdin.fileno(), 1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        spool.put(lines)
    spool.put([rest] if rest else [])
    while spool.first < spool.following:
        time.sleep(PAUSE_S)
    sender.close()
    spool.close()


if __name__ == "__main__":
    main()
