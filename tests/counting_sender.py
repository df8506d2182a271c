"""A sender that can be killed: ``python -m tests.counting_sender SPOOL PORT ENOUGH``; lines are the numbers from 0 on.

It ends when it has sent ENOUGH of them; or, if that is the name of a file, when that is there and everything is safe.
What a program would do to make lines is here to count on from what is in the spool.
"""

from __future__ import annotations

import os
import sys
import time

from examples.socket_sender import PAUSE_S, Sender, Spool

LINES_AT_ONCE = 20


def main(path: str, port: int, enough: str) -> None:
    spool, sender = Spool(path), _listening(path, port)
    while not (spool.following >= int(enough) if enough.isdigit() else os.path.exists(enough)):
        following = spool.following
        end = min(int(enough), following + LINES_AT_ONCE) if enough.isdigit() else following + LINES_AT_ONCE // 4
        spool.put([b"%d" % number for number in range(following, end)])
        time.sleep(PAUSE_S / 2)
    while spool.first < spool.following:
        time.sleep(PAUSE_S)
    sender.close()


def _listening(path: str, port: int) -> Sender:
    deadline = time.monotonic() + 30
    while True:
        try:
            return Sender(path, port)
        except OSError:  # connections of the one before it are still there
            assert time.monotonic() < deadline
            time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
