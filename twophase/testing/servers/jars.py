"""The jars of the servers, fetched once into the user's cache by the Ivy that pyspark brings along: no Maven.

servers.xml lists exactly what runs; whoever needs other jars brings a list of their own. A set of jars lies in a folder named by
the checksum of its list, so that a new list is fetched anew; the folder is renamed into place when it is complete, so that one
which exists is whole. Whoever fetches holds a lock, and what an interrupted fetch left is begun again.

Ivy asks its default repository. Where that can't be reached, TWOPHASE_IVY_SETTINGS names a settings file of Ivy's.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from twophase.testing.servers.java import java
from twophase.testing.servers.server import ServerUnavailable
from twophase.testing.user_cache import cache, locked

SETTINGS = "TWOPHASE_IVY_SETTINGS"

_LIST = Path(__file__).with_name("servers.xml")
_SHOWN = 4000


def fetch(server: str, *, listed: Path = _LIST, into: Path | None = None, timeout_s: float = 900.0) -> list[Path]:
    """The jars of one server, which is a configuration of the list, from the cache if they are there."""
    folder = cache() if into is None else into
    checksum = hashlib.sha256(listed.read_bytes()).hexdigest()[:12]
    complete = folder / "jars" / f"{server}-{checksum}"
    if not complete.is_dir():
        (folder / "jars").mkdir(parents=True, exist_ok=True)
        with locked(folder / "jars" / "lock"):
            if not complete.is_dir():
                _fetch(server, listed, complete, ivy_cache=folder / "ivy", timeout_s=timeout_s)
    return sorted(complete.glob("*.jar"))


def pyspark_jars(*names: str) -> list[Path]:
    """Jars of pyspark's own, by their names without version."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ServerUnavailable("pyspark is not installed, and the servers run with some of its jars")
    folder = Path(spec.origin).parent / "jars"
    found = [jar for name in names for jar in folder.glob(f"{name}-[0-9]*.jar")]
    if len(found) != len(names):
        raise ServerUnavailable(f"{folder} does not have exactly one each of {', '.join(names)}: is this pyspark 4?")
    return found


def _fetch(server: str, listed: Path, complete: Path, *, ivy_cache: Path, timeout_s: float) -> None:
    """Called by whoever holds the lock."""
    partial = complete.with_name(f"{complete.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (ivy,) = pyspark_jars("ivy")
    settings = os.environ.get(SETTINGS)
    command = [
        *(java(), "-jar", str(ivy)),
        *(("-settings", settings) if settings else ()),
        *("-cache", str(ivy_cache), "-ivy", str(listed), "-confs", server, "-types", "jar", "bundle"),
        *("-retrieve", f"{partial}/[artifact]-[revision](-[classifier]).[ext]"),
    ]
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise ServerUnavailable(f"the jars of {server} were not fetched within {timeout_s:.0f} s") from None
    if ran.returncode != 0 or not partial.is_dir():
        raise ServerUnavailable(
            f"Ivy could not fetch the jars of {server} (set {SETTINGS} if you need another repository):\n"
            f"{(ran.stdout + ran.stderr)[-_SHOWN:]}"
        )
    partial.rename(complete)
