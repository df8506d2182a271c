"""Spark's own connector for Kafka, to be measured beside ours.

connector.xml names it: the newest release that could be had when this was written, which may be older than Spark. The connector
calls Spark's module for delegation tokens, whatever the settings, and registries that have the connector do not all have that
module. Without authentication three of its classes are called, and have nothing to do: token_provider/ has these three, and the
JDK's compiler makes a jar of them in the user's cache.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from twophase.testing.servers.jars import fetch, pyspark_jars
from twophase.testing.servers.java import java
from twophase.testing.servers.server import ServerUnavailable
from twophase.testing.user_cache import cache

_HERE = Path(__file__).parent
_NAME = "spark-sql-kafka-0-10_2.13-"
_COMPILES_WITHIN_S = 120.0


@dataclass(frozen=True)
class Connector:
    version: str
    jars: tuple[Path, ...]


def connector() -> Connector:
    """Fetched and made, unless it is there; ServerUnavailable if it can't be."""
    jars = fetch("spark-kafka", listed=_HERE / "connector.xml")
    (version,) = [jar.stem.removeprefix(_NAME) for jar in jars if jar.name.startswith(_NAME)]
    return Connector(version, (*jars, _token_provider()))


def _token_provider() -> Path:
    sources = sorted((_HERE / "token_provider").glob("*.java"))
    checksum = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    jar = cache() / "jars" / f"token-provider-{checksum}.jar"
    if not jar.exists():
        with tempfile.TemporaryDirectory(prefix="twophase-bench-") as folder:
            _compile(sources, Path(folder) / "classes")
            made = Path(folder) / jar.name
            with zipfile.ZipFile(made, "w") as file:
                for each in sorted((Path(folder) / "classes").rglob("*.class")):
                    file.write(each, each.relative_to(Path(folder) / "classes"))
            # The cache may be on another disk: only there a rename replaces whole files.
            shutil.copyfile(made, jar.with_suffix(".partial"))
            jar.with_suffix(".partial").rename(jar)
    return jar


def _compile(sources: list[Path], classes: Path) -> None:
    beside = Path(java()).resolve().parent
    compiler = shutil.which("javac", path=str(beside)) or shutil.which("javac")
    if compiler is None:
        raise ServerUnavailable(f"there is no javac beside {java()}: install a JDK")
    class_path = pyspark_jars("scala-library", "spark-core_2.13")
    ran = subprocess.run(
        [
            *(compiler, "-nowarn", "--release", "17", "-d", str(classes)),
            *("-cp", ":".join(map(str, class_path)), *map(str, sources)),
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMPILES_WITHIN_S,
        check=False,
    )
    if ran.returncode != 0:
        raise ServerUnavailable(f"javac failed: {ran.stderr.strip()}")
