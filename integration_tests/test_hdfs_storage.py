"""Storage on a real HDFS, by both clients: the promises of every storage, and what happens to it alone."""

from __future__ import annotations

import uuid

import pytest

from integration_tests.hdfs_tables import CLIENTS, url_of
from twophase.storage import FileStorage
from twophase.storage_of import storage_of
from twophase.testing.servers.hdfs import HdfsEndpoint
from twophase.testing.servers.server import Server
from twophase.testing.storage_suite import StorageSuite

pytestmark = pytest.mark.servers


@pytest.fixture(params=CLIENTS)
def top(request: pytest.FixtureRequest, hdfs_server: Server[HdfsEndpoint]) -> str:
    return f"{url_of(hdfs_server.endpoint, request.param)}/storage-{uuid.uuid4().hex}"


@pytest.fixture
def storage(top: str) -> FileStorage:
    return storage_of(top)


@pytest.fixture
def root(storage: FileStorage, top: str) -> str:
    storage.make_folder(top)
    return top


class TestHdfsStorage(StorageSuite):
    """By `hdfs://` and by `webhdfs://`."""

    many_names = 1_100
