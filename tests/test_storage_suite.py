"""The promises of every storage, on a local disk; on HDFS they are in integration_tests/test_hdfs_storage.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from twophase.local_storage import LocalStorage
from twophase.testing.storage_suite import StorageSuite


class TestLocalStorage(StorageSuite):
    @pytest.fixture
    def storage(self) -> LocalStorage:
        return LocalStorage()

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        folder = tmp_path / "root"
        folder.mkdir()
        return str(folder)
