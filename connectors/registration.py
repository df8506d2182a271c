"""`twophase.register(spark)`: every format whose extra is installed becomes a format of this session."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from twophase.connectors.partition_by import carry_partition_by
from twophase.errors import MissingExtra, OptionError
from twophase.log import Log

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

FORMATS = {
    "twophase-files": ("twophase.connectors.files", "FilesFormat"),
    "twophase-hdfs": ("twophase.connectors.hdfs", "HdfsFormat"),
    "twophase-kafka": ("twophase.connectors.kafka", "KafkaFormat"),
    "twophase-postgres": ("twophase.connectors.postgres", "PostgresFormat"),
    "twophase-socket": ("twophase.connectors.socket", "SocketFormat"),
    "twophase-rocksdb": ("twophase.connectors.rocksdb", "RocksDBFormat"),
    "twophase-pravega": ("twophase.connectors.pravega", "PravegaFormat"),
}
"""Name → module and class; a module whose vendor client is not installed raises MissingExtra."""
_VARIABLE = "PYSPARK_PYTHON"
_IMPORTS = "import pyarrow, twophase.connectors"
"""What a worker must be able to import. In the root of the repository any Python finds `twophase` alone, by the folder's name;
pyspark itself comes with Spark."""

log = Log("twophase.registration")


def register(spark: SparkSession) -> list[str]:
    """Register every format whose extra is installed; returns their names. Calling it again changes nothing.

    Also sees to it that Spark's Python workers run this Python, where nobody has said which one they should run.
    """
    connect = type(spark).__module__.startswith("pyspark.sql.connect")
    if not connect:  # there the workers are the server's, and so is what they run
        _see_to_workers(spark)
    carry_partition_by(connect=connect)
    registered = []
    for name, (module, format_class) in FORMATS.items():
        try:
            found = getattr(importlib.import_module(module), format_class)
        except MissingExtra as error:
            log.info("not registered", format=name, why=error.message)
            continue
        spark.dataSource.register(found)
        registered.append(name)
    return registered


def _see_to_workers(spark: SparkSession) -> None:
    """Spark's workers run the `python3` of the PATH unless told otherwise, and that one may not have twophase."""
    context = spark.sparkContext
    if _is_chosen(context):
        _require_twophase(str(context.pythonExec))
    else:
        context.pythonExec = sys.executable
        os.environ[_VARIABLE] = sys.executable


def _is_chosen(context: SparkContext) -> bool:
    return bool(os.environ.get(_VARIABLE)) or context.getConf().contains("spark.pyspark.python")


def _require_twophase(python: str) -> None:
    found = shutil.which(python)
    if found is None:
        _refuse(python, "it is not there")
    elif os.path.realpath(found) != os.path.realpath(sys.executable) or os.path.dirname(found) != os.path.dirname(
        sys.executable
    ):
        try:
            ran = subprocess.run([found, "-c", _IMPORTS], capture_output=True, text=True, timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            _refuse(python, str(error))
        else:
            if ran.returncode != 0:
                _refuse(python, (ran.stderr.strip().splitlines() or ["it fails"])[-1])


def _refuse(python: str, why: str) -> None:
    problem = (
        f"Spark's Python workers run {python!r}, and that can't import what twophase needs ({why}). Set {_VARIABLE}, before "
        f"Spark starts, to a Python that has twophase installed on every machine, such as {sys.executable}"
    )
    raise OptionError(problem, problems=[problem])
