"""The Java that runs the servers, and the options that keep them small."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from twophase.testing.servers.server import ServerUnavailable

# The first compiler alone and one thread for garbage: servers that live for a minute start in half the time on two cores.
_SMALL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true")


def java() -> str:
    """The command that runs Java, found as Spark finds it."""
    home = os.environ.get("JAVA_HOME")
    command = shutil.which("java") if home is None else shutil.which("java", path=str(Path(home) / "bin"))
    if command is None:
        where = "and none is on the PATH" if home is None else f"and JAVA_HOME is {home}, where it is not"
        raise ServerUnavailable(
            f"this needs Java 17 or newer, {where}: install a JRE (on Debian: apt install default-jre-headless), or set JAVA_HOME"
        )
    return command


def java_command(
    main: str,
    *arguments: str,
    class_path: Iterable[Path | str],
    heap_mb: int,
    options: Sequence[str] = (),
) -> tuple[str, ...]:
    """A command line that runs the class `main`."""
    path = os.pathsep.join(map(str, class_path))
    return (java(), f"-Xmx{heap_mb}m", *_SMALL, *options, "-cp", path, main, *arguments)
