"""Test servers as pytest fixtures, each started once a run, when a test first asks for it.

    pytest_plugins = ["twophase.testing.servers.plugin"]     in the conftest.py of the root

    def test_something(kafka_server):
        producer = Producer({"bootstrap.servers": kafka_server.endpoint})

A server that can't be had is a failure, in continuous integration and anywhere else: a test that did not run has shown nothing.
Who has no server deselects the tests that need one, and knows it.

A test that kills a server starts it again. One that leaves it dead fails, and so does one during which it died by itself; it is
then started again, for the tests to come. The log of a server stands beside the failure of a test that used it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pytest

from twophase.testing.servers import hdfs, kafka, postgres, pravega
from twophase.testing.servers.hdfs import HdfsEndpoint
from twophase.testing.servers.server import Server, ServerUnavailable
from twophase.testing.servers.vendor import Vendor, server_of

Endpoint = TypeVar("Endpoint")

_RUNNING = pytest.StashKey[list[Server[Any]]]()
_FIXTURES = ("kafka_server", "postgres_server", "hdfs_server", "pravega_server")


@pytest.fixture(scope="session")
def kafka_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server[str]]:
    """A Kafka broker; its endpoint is for bootstrap.servers."""
    with _served(kafka.VENDOR, pytestconfig, tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server[str]]:
    """A PostgreSQL server; its endpoint is a connection string."""
    with _served(postgres.VENDOR, pytestconfig, tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="session")
def hdfs_server(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server[HdfsEndpoint]]:
    """A NameNode with a DataNode; its endpoint has two addresses, `url` and `webhdfs_url`."""
    with _served(hdfs.VENDOR, pytestconfig, tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="session")
def pravega_server(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server[str]]:
    """A Pravega; its endpoint is the controller's."""
    with _served(pravega.VENDOR, pytestconfig, tmp_path_factory) as server:
        yield server


@contextmanager
def _served(
    vendor: Vendor[Endpoint], config: pytest.Config, folders: pytest.TempPathFactory
) -> Iterator[Server[Endpoint]]:
    running = config.stash.setdefault(_RUNNING, [])
    with ExitStack() as stack:
        try:
            server = stack.enter_context(server_of(vendor, folders.mktemp(vendor.name)))
        except ServerUnavailable as error:
            pytest.fail(f"{vendor.name} is needed, and can't be had: {error}", pytrace=False)
        running.append(server)
        try:
            yield server
        finally:
            running.remove(server)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Hold a test to leaving the servers alive."""
    try:
        result = yield
    finally:
        dead = [(server, ended) for server in item.config.stash.get(_RUNNING, []) if (ended := server.ended())]
        for server, _ in dead:
            server.start()
    if dead:
        named = "; ".join(f"{server.name} ({', '.join(ended)})" for server, ended in dead)
        pytest.fail(f"not running at the end of this test, and started again: {named}", pytrace=False)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the log of a server beside the failure of a test that used it."""
    report = yield
    if report.failed:
        values = getattr(item, "funcargs", None) or {}
        for server in (values[name] for name in _FIXTURES if name in values):
            if server.can_be_killed:
                report.sections.append((f"log of {server.name}", server.log()))
    return report
