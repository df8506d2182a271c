"""A cell of the matrix: a target, the way that a query writes to it, who dies, and at which steps.

::

    files/format/driver/decide.published#2                      the driver dies when it comes there the second time in its run
    files/format/driver/decide.published#2>files.sealed#1       … and its successor dies while it recovers
    files/format/zombie/decide.before_publish#2                 it is frozen there, and goes on when another has done everything
    files/format/executor/task.written#1                        an executor dies, and Spark runs its task again
    kafka/format/server:broker/decide.published#2               a server dies and comes back while the driver waits there

Hits are counted from the start of a run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from twophase.failpoints import require_point

Course = Literal["format", "sink", "function", "take-over", "poison", "long"]
"""`format`, `sink` and `function` are ways to write (program.py). The others write by the format: a query that takes the target
over; one whose tasks fail, so that Spark aborts; one that is so long that its ledger is compacted."""

_NAME = re.compile(r"(?P<target>[^/]+)/(?P<course>[^/]+)/(?P<victim>[^/]+)/(?P<kills>.+)")


@dataclass(frozen=True)
class Kill:
    """Where something dies: at this hit of this failpoint, counted from the start of the run."""

    point: str
    hit: int = 2

    def __post_init__(self) -> None:
        require_point(self.point)
        if self.hit < 1:
            raise ValueError(f"hits of {self.point} are counted from 1, not {self.hit}")

    def __str__(self) -> str:
        return f"{self.point}#{self.hit}"

    @classmethod
    def parse(cls, text: str) -> Kill:
        point, _, hit = text.partition("#")
        return cls(point, int(hit or 2))


@dataclass(frozen=True)
class Cell:
    target: str
    course: Course
    victim: str
    """`driver`, `zombie`, `executor`, or `server:` and its name."""
    kills: tuple[Kill, ...]
    """The last one is what the cell is about; the ones before it make the state that it strikes in."""

    def __post_init__(self) -> None:
        """Only what is run as it is called: a part of a name that nothing looks at would make it a lie."""
        kind, beside = self.victim.partition(":")[0], self.course in ("take-over", "poison", "long")
        if kind not in ("driver", "executor", "zombie", "server"):
            raise ValueError(f"nobody knows how to kill {self.victim!r}")
        if kind != "driver" and (beside or len(self.kills) > 1):
            raise ValueError(f"{self}: {kind} is killed once, in a query that writes by format, sink or function")
        if self.course in ("take-over", "poison") and len(self.kills) > 1:
            raise ValueError(f"{self}: such a query is killed once")

    def __str__(self) -> str:
        return f"{self.target}/{self.course}/{self.victim}/{'>'.join(map(str, self.kills))}"

    @classmethod
    def parse(cls, text: str) -> Cell:
        found = _NAME.fullmatch(text)
        if found is None or found["course"] not in get_args(Course):
            raise ValueError(f"{text!r} is not the name of a cell: files/format/driver/decide.published#2 is one")
        kills = tuple(Kill.parse(each) for each in found["kills"].split(">"))
        return cls(found["target"], found["course"], found["victim"], kills)  # type: ignore[arg-type]
