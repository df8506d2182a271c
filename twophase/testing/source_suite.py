"""SourceSuite: every promise of a replayable source, as tests that any source can be put to. See docs/testing.md.

Adopted by a subclass with one fixture, `origin`, which returns a `SourceOrigin`: how to make the source, how to give it rows, and
how to lose some. A test is skipped only by what the origin claims, and says so.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("twophase.testing.source_replays")

from twophase.testing.source_origin import SourceOrigin  # noqa: E402 - asserts are rewritten when a module is imported
from twophase.testing.source_replays import UNITS, SourceReplays  # noqa: E402

__all__ = ["UNITS", "SourceOrigin", "SourceSuite"]


class SourceSuite(SourceReplays):
    """Adopt it by a subclass with the fixture `origin`."""

    @pytest.fixture
    def origin(self) -> SourceOrigin:
        raise NotImplementedError("give a fixture called origin, which returns a SourceOrigin: see docs/testing.md")

    @pytest.fixture
    def full(self, origin: SourceOrigin) -> SourceOrigin:
        """The same origin, with ten rows in five units."""
        for values in UNITS:
            origin.add(values)
        return origin
