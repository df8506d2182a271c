"""A query that can be killed, without Spark: ``python -m tests.small_query DATABASE JOURNAL PORT COUNT``.

It does with a source what Spark does, in Spark's order: a range is logged before it is read, its rows and its commit come in one
transaction, and it is acknowledged when the next one is logged.
"""

from __future__ import annotations

import sqlite3
import sys
import time

from twophase.sources.socket import SocketSource


def main(path: str, journal: str, port: int, count: int) -> None:
    database = sqlite3.connect(path, isolation_level=None, timeout=30)
    database.execute(
        "CREATE TABLE IF NOT EXISTS epochs (number INTEGER PRIMARY KEY, start TEXT, until TEXT, done INTEGER)"
    )
    database.execute("CREATE TABLE IF NOT EXISTS lines (epoch INTEGER, line TEXT)")
    source = SocketSource(
        "127.0.0.1", port, journal, acknowledge=True, segment_bytes=8192, max_line_bytes=100, max_rows_per_trigger=777
    )
    while database.execute("SELECT count(*) FROM lines").fetchone()[0] < count:
        newest = database.execute(
            "SELECT number, start, until, done FROM epochs ORDER BY number DESC LIMIT 1"
        ).fetchone()
        if newest is None or newest[3]:
            number, start = (0, source.earliest()) if newest is None else (newest[0] + 1, newest[2])
            until = source.latest(start)
            if until == start:
                time.sleep(0.01)
                continue
            database.execute("INSERT INTO epochs VALUES (?, ?, ?, 0)", (number, start, until))
            if newest is not None:
                source.acknowledge(newest[2])
        else:
            number, start, until, _ = newest
        rows = [
            (number, row["value"])
            for split in source.plan(start, until)
            for batch in source.read(split)
            for row in batch.to_pylist()
        ]
        database.execute("BEGIN")
        database.executemany("INSERT INTO lines VALUES (?, ?)", rows)
        database.execute("UPDATE epochs SET done = 1 WHERE number = ?", (number,))
        database.execute("COMMIT")
    source.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
