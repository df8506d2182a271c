"""What the tests of this repository take from twophase.testing, as anybody's tests can; and which of them run together."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

pytest_plugins = ["twophase.testing.servers.plugin"]

_SHARED = re.compile(r"\b(hdfs_server|kafka_server|pravega_server|spark):")
"""Fixtures of a whole run, as tests ask for them, that take long to start."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where tests run in several processes, files that share a server or Spark's session run in one, so that each is started once.

    By its marks xdist could do that for tests, and not with this pytest, whose node ids can't be changed any more.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return _shared_by(file) or (nodeid.rpartition("::")[0] if _starts_postgres(file) else nodeid)

    return Together(config, log)


@functools.cache
def _shared_by(file: str) -> str:
    """What a file shares with others; a server, if it is that and the session. The largest groups begin first."""
    path = Path(__file__).parent / file
    return min(_SHARED.findall(path.read_text("utf-8")), default="") if "integration_tests" in path.parts else ""


@functools.cache
def _starts_postgres(file: str) -> bool:
    """Such a server is there in a second, so every process may have one: only what stands together runs together."""
    return "postgres_server:" in (Path(__file__).parent / file).read_text("utf-8")
