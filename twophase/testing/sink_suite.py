"""SinkSuite: every promise of the sink contract, as tests that any sink can be put to. See docs/testing.md.

::

    class OrdersTarget(SinkTarget):          how to make the sink, read the target, and see what is left in it
        ...

    class TestOrders(SinkSuite):
        @pytest.fixture
        def target(self, tmp_path):
            return OrdersTarget(tmp_path)

==================  =====================================================================================
`SinkCommits`       commit, abort, leftovers: repeated, late, out of order; twins, zombies
`SinkDeadShares`    shares that are lost: named, and dead for good
`SinkRows`          no rows, many rows and slots, order, borrowed memory, every Arrow type
`SinkOwners`        fences, several owners or one, take-over, hostile names
`SinkLikeness`      equal rows, names that are nearly the same, two that commit at once
`SinkProcesses`     other processes that commit, delete, look, and are killed or overtaken within a commit
`SinkFailures`      calls to the target that fail, whichever it is, in each verb and in tasks
`SinkQueries`       the real coordinator: crashes at every step, revisions, replays, other queries
==================  =====================================================================================

A test is skipped only by a capability that the sink declares, or by what the target claims, and says which.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "twophase.testing.sink_commits",
    "twophase.testing.sink_dead_shares",
    "twophase.testing.sink_failures",
    "twophase.testing.sink_likeness",
    "twophase.testing.sink_owners",
    "twophase.testing.sink_processes",
    "twophase.testing.sink_queries",
    "twophase.testing.sink_rows",
)

from twophase.testing.query_steps import QuerySteps  # noqa: E402 - asserts are rewritten when a module is imported
from twophase.testing.sink_commits import SinkCommits  # noqa: E402
from twophase.testing.sink_dead_shares import SinkDeadShares  # noqa: E402
from twophase.testing.sink_failures import SinkFailures  # noqa: E402
from twophase.testing.sink_likeness import SinkLikeness  # noqa: E402
from twophase.testing.sink_owners import SinkOwners  # noqa: E402
from twophase.testing.sink_processes import SinkProcesses  # noqa: E402
from twophase.testing.sink_queries import SinkQueries  # noqa: E402
from twophase.testing.sink_rows import SinkRows  # noqa: E402
from twophase.testing.sink_steps import SinkSteps  # noqa: E402
from twophase.testing.sink_target import SinkTarget  # noqa: E402

__all__ = ["SinkSuite", "SinkTarget"]


class SinkSuite(
    SinkCommits, SinkDeadShares, SinkRows, SinkOwners, SinkLikeness, SinkProcesses, SinkFailures, SinkQueries
):
    """Adopt it by a subclass with the fixture `target`."""

    @pytest.fixture
    def target(self) -> SinkTarget:
        raise NotImplementedError("give a fixture called target, which returns a SinkTarget: see docs/testing.md")

    @pytest.fixture
    def steps(self, target: SinkTarget) -> SinkSteps:
        return SinkSteps(target)

    @pytest.fixture
    def query(self, target: SinkTarget, tmp_path: Path) -> QuerySteps:
        return QuerySteps(tmp_path / "checkpoint", target)
