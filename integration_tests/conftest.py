"""One Spark session for all tests that need nothing special of it: starting one costs seconds."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import twophase
from integration_tests.streams import Place


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    require_java()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Four tries a task, as on a cluster: local mode has one.
    builder = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.streaming.stopTimeout", "60s")
    )
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
