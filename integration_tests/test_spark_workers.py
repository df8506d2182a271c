"""Spark's Python workers are other processes: they must find the packages where an editable install puts them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

PROGRAM = """
import os, sys
from pyspark.sql import SparkSession

def found(_):
    import twophase, twophase.connectors, twophase.sinks.heap, twophase.sources
    yield os.getpid(), twophase.sinks.heap.__file__

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
[(worker, path)] = spark.sparkContext.parallelize([0], 1).mapPartitions(found).collect()
spark.stop()
assert worker != os.getpid()
print(path)
"""


@pytest.mark.parametrize("folder", [ROOT, Path("/")], ids=["from the root of the repository", "from elsewhere"])
def test_a_spark_worker_imports_what_is_installed(folder: Path) -> None:
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.fail("Spark needs Java 17 or newer: install a JRE, or set JAVA_HOME")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert Path(ran.stdout.strip().splitlines()[-1]) == ROOT / "sinks" / "heap.py"
