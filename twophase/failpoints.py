"""Failpoints: named places in the protocol where a test can kill, fail or hold a process.

    failpoints.hit("decide.published", owner=owner, epoch=epoch)

The environment variable ``TWOPHASE_FAILPOINTS``, read once at import, names the *arming file* by an absolute path;
Spark's workers inherit it. Without the variable, `hit` looks at one global and returns. With it, each hit looks for the
file: no file, nothing happens; else every hit is traced and the fault armed for it, if there is one, is carried out.

====================  ==========================================================================
the arming file       a JSON line per fault; written by `arm`
``<file>.trace``      a JSON line per hit, appended by one write *before* the action; read by `trace`
``<file>.release``    a JSON line per release: {"point": …, "hit": …}; written by `release`
====================  ==========================================================================

    {"point": "decide.published", "hit": 2, "action": "kill"}

Hits are counted over all processes: ``"hit": 2`` is the second time that any process reaches the point. The count is
that of the trace, taken and written under a lock on it, so two processes never take the same number, and a restarted
process goes on counting where the killed one ended: a fault fires once.

Actions: *kill* is SIGKILL of the process. *raise* raises `InjectedFault`. *pause* holds the thread that hit until a
release names the point, and the hit number if it gives one; after ``timeout_s`` seconds (120 if the line has none) it
raises `InjectedFault`.

A sink of somebody else's has failpoints of its own by hitting them: any two words with a dot between them, the first of which is
none of twophase's (`sqlite.inserted`). Ours are all in `POINTS`.

The guarantee: a fault that fired is in the trace, so a test can refuse to pass if its fault never did. A malformed
arming file raises ValueError at every hit: a typing error can't make a crash test pass by doing nothing.

What it can't do: the counter is as fast as reading the trace (fine for thousands of hits, not for millions), and it
needs all processes on one machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from twophase.errors import ProtocolViolation

VARIABLE: Final = "TWOPHASE_FAILPOINTS"

POINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # driver
        "prepare.before_publish": "The prepare record is built; the ledger does not have it yet.",
        "prepare.published": "The new generation is in the ledger; nothing was read or swept under it yet.",
        "prepare.fenced": "Every sink has fenced the older generations.",
        "prepare.markers_read": "The markers of every sink are read for the first time.",
        "prepare.swept": "What older generations held and no open decision names is aborted.",
        "prepare.rolled_forward": "The newest decision, if it was open, is committed in every sink.",
        "prepare.planned": "Each sink has its plan; the tasks have not started.",
        "take_over.before": "The target's line belongs to the replaced owner still.",
        "take_over.after": "The empty epoch that names the new owner is in the target's line.",
        "decide.before_alive": "All votes are in; no share was asked whether it is alive.",
        "decide.before_publish": "Every share is alive; the ledger does not have the decision yet.",
        "decide.published": "The decision is in the ledger: the commit point is passed, and no sink knows it.",
        "commit.before_sink": "The next sink in the decision is about to commit.",
        "commit.after_sink": "That sink has committed; the ones after it have not.",
        "commit.done": "Every sink has committed; Spark has not logged the epoch.",
        "abort.before_publish": "The abort is accepted; the ledger does not have its prepare record yet.",
        "abort.published": "The generation that fences the aborted one is in the ledger; nothing is swept.",
        "abort.swept": "What the aborted generation held is gone.",
        "sweep.listed": "A sink's leftovers are listed; none is aborted yet.",
        "sweep.before_abort": "One leftover is about to be aborted.",
        "ledger.before_compaction": "Records below the kept range are known; none is deleted yet.",
        "ledger.compacting": "One record below the kept range is deleted; others may follow.",
        "files.sealed": "The staged folder of an epoch is sealed: no task can open a file in it any more.",
        "files.manifest_published": "The manifest is in the sealed folder; the table does not have the epoch yet.",
        "files.renamed": "The epoch is in the table.",
        "postgres.locked": "The marker's row is locked and compared; the transaction that commits has changed nothing.",
        "postgres.inserted": "The epoch's rows are ready to be seen, by that transaction alone; the marker is where it was.",
        "postgres.committed": "Rows and marker are committed; staging tables, where there are some, are still there.",
        "postgres.slot_committed": "One prepared transaction of the decision is committed; those of other slots may not be.",
        "rocksdb.sealed": "The files of every share are where a manifest can name them; none does.",
        "rocksdb.published": "The manifest is in the line: the epoch is what readers of the state see.",
        "pravega.merged": "One share's events are in the transaction that the decision is committed by; others may not be.",
        "pravega.intended": "The journal says which transaction the epoch is committed by; that one is open.",
        "pravega.asked": "The controller has promised to commit the transaction; events may not be visible yet.",
        "pravega.committed": "The epoch is visible; the journal says so only by that transaction's state.",
        # executor
        "rocksdb.uploading": "One file of a snapshot is in staging; others, and the part file, may not be.",
        "task.before_begin": "The task has checked the epoch's number; the target knows nothing of the attempt.",
        "task.begun": "The attempt's transaction is open, and empty.",
        "task.written": "The rows are handed to the transaction.",
        "task.before_pre_commit": "The share is complete; nothing of it is sure to be durable.",
        "task.pre_committed": "The share is durable and invisible; the vote has not left the task.",
        "task.aborted": "The attempt has aborted its own share.",
    }
)
"""Every failpoint of twophase, and what is true when it is hit. A test keeps this and the calls of `hit` the same."""

TARGETS: Final = frozenset({"files", "postgres", "pravega", "rocksdb"})
"""The first words of failpoints that the sinks of one target have."""


def of_others(*targets: str) -> frozenset[str]:
    """The failpoints that only sinks of other targets than these have."""
    return frozenset(point for point in POINTS if point.partition(".")[0] in TARGETS.difference(targets))


_OURS: Final = frozenset(point.partition(".")[0] for point in POINTS)

Action = Literal["kill", "raise", "pause"]

_POLL_S: Final = 0.02
_path: str | None = None


class InjectedFault(Exception):
    """Raised by a failpoint on purpose. No TwophaseError: nothing may be concluded from it."""

    def __init__(self, point: str, hit: int, reason: str = "armed to raise"):
        super().__init__(point, hit, reason)

    def __str__(self) -> str:
        point, hit, reason = self.args
        return f"failpoint {point}, hit {hit}: {reason}"


@dataclass(frozen=True)
class Fault:
    """One line of the arming file: what to do at the `hit`-th hit of `point`."""

    point: str
    action: Action
    hit: int = 1
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        require_point(self.point)
        if self.action not in get_args(Action):
            raise ValueError(f"there is no action {self.action!r}")
        if type(self.hit) is not int or self.hit < 1:
            raise ValueError(f"hits are counted from 1, not {self.hit!r}")
        if type(self.timeout_s) not in (int, float) or not 0 < self.timeout_s < float("inf"):
            raise ValueError(f"timeout_s is a number of seconds above 0, not {self.timeout_s!r}")


@dataclass(frozen=True)
class Hit:
    """One line of the trace: the `hit`-th time that any process reached `point`, and what was done to it."""

    point: str
    hit: int
    pid: int
    owner: str | None
    epoch: int | None
    slot: int | None
    action: Action | None
    time: float


def require_point(name: str) -> None:
    """ValueError if it can't be a failpoint: one of ours that is not declared, or no name of one."""
    family, _, step = str(name).partition(".")  # as it stands in an arming file, it may be anything
    if str(name) not in POINTS and (family in _OURS or not (family.isidentifier() and step.isidentifier())):
        raise ValueError(f"there is no failpoint {name!r}")


def hit(point: str, *, owner: str | None = None, epoch: int | None = None, slot: int | None = None) -> None:
    """Say that the protocol is at `point`, one of `POINTS` or of a sink's own, for this owner, epoch and slot where it has them."""
    if _path is None:
        return
    _reached(_path, point, owner, epoch, slot)


def reload() -> None:
    """Read the environment again."""
    global _path
    path = os.environ.get(VARIABLE) or None
    if path is not None and not os.path.isabs(path):
        # Workers have other working folders: they would look elsewhere, find nothing, and every test would pass.
        raise ValueError(f"{VARIABLE} must be an absolute path, not {path!r}")
    _path = path


def arm(path: str | os.PathLike[str], *faults: Fault) -> None:
    """Begin afresh with these faults: counters at zero, trace empty, nothing released. Without any, hits are traced."""
    text = "".join(json.dumps(asdict(fault)) + "\n" for fault in faults)
    _faults(text, str(path))
    with _locked(path) as trace_fd:
        os.ftruncate(trace_fd, 0)
        _write_whole(_beside(path, "release"), "", os.O_TRUNC)
        _write_whole(os.fspath(path), text, os.O_TRUNC)


def release(path: str | os.PathLike[str], point: str, hit: int | None = None) -> None:
    """Let go on what pauses, or will pause, at the `hit`-th hit of `point`, or at any hit of it."""
    _write_whole(_beside(path, "release"), json.dumps({"point": point, "hit": hit}) + "\n", os.O_APPEND)


def trace(path: str | os.PathLike[str]) -> list[Hit]:
    """Every hit since the arming, oldest first."""
    return [Hit(**line) for line in _lines(_beside(path, "trace"))]


def _reached(path: str, point: str, owner: str | None, epoch: int | None, slot: int | None) -> None:
    if not os.path.exists(path):
        return
    try:
        require_point(point)
    except ValueError as error:
        raise ProtocolViolation(str(error)) from error
    with _locked(path) as trace_fd:
        try:
            with open(path, encoding="utf-8") as file:
                faults = _faults(file.read(), path)
        except FileNotFoundError:
            return
        number = 1 + sum(line["point"] == point for line in _lines(_beside(path, "trace")))
        fault = faults.get((point, number))
        action = fault.action if fault else None
        line = Hit(point, number, os.getpid(), owner, epoch, slot, action, time.time())
        _write(trace_fd, json.dumps(asdict(line)) + "\n")
    if fault is not None:
        _carry_out(fault, path)


def _carry_out(fault: Fault, path: str) -> None:
    if fault.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault.action == "raise":
        raise InjectedFault(fault.point, fault.hit)
    deadline = time.monotonic() + fault.timeout_s
    while not any(
        line["point"] == fault.point and line["hit"] in (None, fault.hit) for line in _lines(_beside(path, "release"))
    ):
        if time.monotonic() > deadline:
            # No TimeoutError: to the protocol that is a lost reply, which it would look up and go on from.
            raise InjectedFault(fault.point, fault.hit, f"not released within {fault.timeout_s} s")
        time.sleep(_POLL_S)


def _faults(text: str, path: str) -> dict[tuple[str, int], Fault]:
    faults: dict[tuple[str, int], Fault] = {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            fault = Fault(**json.loads(line))
            if (fault.point, fault.hit) in faults:
                raise ValueError("this hit of this failpoint is armed already")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        faults[fault.point, fault.hit] = fault
    return faults


@contextmanager
def _locked(path: str | os.PathLike[str]) -> Iterator[int]:
    """The trace, open for appending and locked against every other thread and process."""
    trace_fd = os.open(_beside(path, "trace"), os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(trace_fd, fcntl.LOCK_EX)
        _drop_torn_line(trace_fd)
        yield trace_fd
    finally:
        os.close(trace_fd)


def _drop_torn_line(trace_fd: int) -> None:
    """SIGKILL can end a write at the end of a page: such a line has no end, and the next one would be appended to it."""
    text = os.pread(trace_fd, os.fstat(trace_fd).st_size, 0)
    whole = text.rfind(b"\n") + 1
    if whole != len(text):
        os.ftruncate(trace_fd, whole)


def _lines(path: str) -> list[dict[str, Any]]:
    """The lines that have an end. A write that crosses a page can be seen in part by whoever reads without the lock; readers
    don't take it, because a frozen process may hold it."""
    try:
        with open(path, encoding="utf-8") as file:
            ended, _, _ = file.read().rpartition("\n")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in ended.splitlines()]


def _write_whole(path: str, text: str, how: int) -> None:
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | how, 0o666)
    try:
        _write(fd, text)
    finally:
        os.close(fd)


def _write(fd: int, text: str) -> None:
    data = text.encode()
    if os.write(fd, data) != len(data):
        raise OSError("a failpoint's line was written in part only: is the disk full?")


def _beside(path: str | os.PathLike[str], suffix: str) -> str:
    return f"{os.fspath(path)}.{suffix}"


reload()
