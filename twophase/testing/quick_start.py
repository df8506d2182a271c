"""Spark for a query that lives for seconds: most of what it takes is the start of a JVM."""

from __future__ import annotations

import os
import sys
from typing import Any

import pyspark

from twophase.testing.class_archive import class_archive, options_with

_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def quick_start(builder: Any) -> Any:
    """The builder of a session, with what makes the start short; nothing of it changes what a query does.

    The second compiler and the parallel collector pay off after minutes: without them a query of three epochs takes 14 s of
    processor time in the JVM instead of 24, and 7 with its classes from an archive.
    """
    archive = class_archive()
    return started_with(builder, options_with(archive) if archive else "")


def started_with(builder: Any, java_options: str) -> Any:
    # Where SPARK_HOME is not said, Spark's scripts start a Python to find it; and the Python of the PATH may be a slow stranger.
    os.environ.setdefault("SPARK_HOME", os.path.dirname(pyspark.__file__))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        builder.config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", f"{_JVM} {java_options}")
        .config("spark.executor.extraJavaOptions", f"{_JVM} {java_options}")
    )
