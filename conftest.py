"""What the tests of this repository take from twophase.testing, as anybody's tests can; and which of them run together."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["twophase.testing.servers.plugin"]

_SHARED = re.compile(r"\b(kafka_server|postgres_server|spark):")
"""Fixtures of a whole run, as tests ask for them."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run in several processes, files that share a server or Spark's session run in one, so that each is started once.

    By its marks xdist could do that for tests, and not with this pytest, whose node ids can't be changed any more.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _shared_by(nodeid.partition("::")[0]) or nodeid

    return Together(config, log)


@functools.cache
def _shared_by(file: str) -> str:
    """What a file shares with others; a server, if it is that and the session. The largest groups begin first."""
    path = Path(__file__).parent / file
    return min(_SHARED.findall(path.read_text("utf-8")), default="") if "integration_tests" in path.parts else ""
