"""Spark's classes as an archive that a JVM maps at its start, instead of reading and checking each of them again.

Most of what a short query takes is the start of a JVM, and half of that is classes. HotSpot can write those that one run has used
to an archive when it ends. Here that run is a small streaming query, once for each Java and each pyspark; the archive lies in the
user's cache, and is renamed into place when it is whole. Whether it fits is the JVM's to judge: one that does not is ignored.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache as once
from pathlib import Path
from typing import Any

import pyspark

from twophase.failpoints import VARIABLE
from twophase.testing.servers.java import java
from twophase.testing.user_cache import cache, locked

_TRAINS_WITHIN_S = 300.0
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"


@once
def class_archive() -> Path | None:
    """The archive for this Java and this pyspark, made first if it is not there; None if this Java makes none."""
    folder = cache() / "classes"
    archive = folder / f"spark-{pyspark.__version__}-{_fits()}.jsa"
    none = archive.with_suffix(".none")
    if not archive.exists() and not none.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / "lock"):
            if not archive.exists() and not none.exists():
                _make(archive, none)
    return archive if archive.exists() else None


def options_with(archive: Path) -> str:
    return f'"-XX:SharedArchiveFile={archive}" {_QUIET}'


def _fits() -> str:
    """What the JVM will compare: the Java, and the class path with its files' times."""
    jars = Path(pyspark.__file__).parent / "jars"
    program = os.path.realpath(java())
    facts = [program, os.stat(program).st_mtime_ns, str(jars)]
    facts += [(jar.name, jar.stat().st_mtime_ns) for jar in sorted(jars.glob("*.jar"))]
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _make(archive: Path, none: Path) -> None:
    """Called by whoever holds the lock."""
    partial = archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    command = [sys.executable, "-m", "twophase.testing.class_archive", str(partial)]
    ran = subprocess.run(
        command,
        env=without_failpoints(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TRAINS_WITHIN_S,
        check=False,
    )
    if ran.returncode != 0:
        raise RuntimeError(f"the query whose classes are to be kept failed:\n{(ran.stdout + ran.stderr)[-4000:]}")
    if partial.exists():
        partial.rename(archive)
    else:
        none.write_text("This Java did not write an archive of its classes: Spark starts without.\n")


def without_failpoints(environment: Mapping[str, str]) -> dict[str, str]:
    """A fault that is armed is meant for the query under test. It struck this one, which comes first where there is no archive yet,
    and the crash matrix took that for its own."""
    return {name: value for name, value in environment.items() if name != VARIABLE}


def main(archive: str) -> int:
    """A query that uses what queries use; the JVM writes the archive when it ends."""
    from pyspark.sql import SparkSession

    import twophase
    from twophase.testing.quick_start import started_with

    builder = started_with(SparkSession.builder.master("local[2]"), f'"-XX:ArchiveClassesAtExit={archive}" {_QUIET}')
    spark = builder.getOrCreate()
    twophase.register(spark)
    with tempfile.TemporaryDirectory(prefix="twophase-classes-") as folder:
        spark.range(1000).repartition(2).write.parquet(f"{folder}/input")
        for way in ("format", "function"):
            rows = spark.readStream.schema("id bigint").parquet(f"{folder}/input")
            writer = rows.writeStream.option("checkpointLocation", f"{folder}/{way}-checkpoint").trigger(
                availableNow=True
            )
            _start(writer, way, f"{folder}/{way}").awaitTermination()
    spark.stop()
    return 0


def _start(writer: Any, way: str, table: str) -> Any:
    import twophase
    from twophase.sinks import FilesSink

    if way == "format":
        return writer.format("twophase-files").start(table)
    return writer.foreachBatch(twophase.exactly_once(FilesSink(table))).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
