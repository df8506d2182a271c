"""One Spark session for all tests that need nothing special of it: starting one costs seconds."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import twophase
from integration_tests.streams import Place
from twophase.testing.quick_start import quick_start


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    require_java()
    # Four tries a task, as on a cluster: local mode has one.
    builder = quick_start(SparkSession.builder.master("local[2,4]")).config("spark.sql.streaming.stopTimeout", "60s")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    twophase.register(session)
    yield session
    session.stop()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def require_java() -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.fail("Spark needs Java 17 or newer: install a JRE, or set JAVA_HOME")


@pytest.fixture(autouse=True)
def _no_client_of_kafka_outlives_its_test() -> Iterator[None]:
    yield
    topics = sys.modules.get("integration_tests.topics")
    if topics is not None:
        topics.close_clients()


@pytest.fixture(autouse=True)
def _no_session_of_postgres_outlives_its_test() -> Iterator[None]:
    yield
    database = sys.modules.get("twophase.clients.postgres.database")
    if database is not None:
        database.close_idle()
    tables = sys.modules.get("integration_tests.postgres_tables")
    if tables is not None:
        tables.close_sessions()
