"""A part of a server that is a container, by testcontainers; used where a Docker daemon answers and has the image.

Containers share the network of this machine and are told their ports: so they come back on the same port after a kill, which
published ports do not. An image is never pulled: a test run that downloads gigabytes unasked helps nobody.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twophase.extras import require
from twophase.testing.servers.server import ServerUnavailable

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer

_SOCKET = "unix:///var/run/docker.sock"
_SHOWN = 6000
_ASK_WITHIN_S = 5
_STOPS_WITHIN_S = 30
# Reads until whoever started it is gone, however it went, and removes the container.
_GUARD = """\
import sys
sys.stdin.read()
import docker
docker.from_env().api.remove_container(sys.argv[1], v=True, force=True)
"""


@dataclass(frozen=True)
class Image:
    """What runs in the container, and what it is told."""

    name: str
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    entrypoint: str | None = None
    """What runs instead of the image's own first program."""


def has_image(name: str) -> bool:
    """Whether a container of this image can be started here: testcontainers, a daemon that answers, and the image."""
    if importlib.util.find_spec("testcontainers") is None or not _may_answer(os.environ.get("DOCKER_HOST")):
        return False
    docker = require("docker", "testing")
    try:
        client = docker.from_env(timeout=_ASK_WITHIN_S)
    except docker.errors.DockerException:  # there is no daemon
        return False
    try:
        client.images.get(name)
    except docker.errors.ImageNotFound:
        return False
    finally:
        client.close()
    return True


def _may_answer(host: str | None) -> bool:
    """False if nobody listens on the daemon's socket file; asked here, since Docker's client leaks what it failed to open."""
    path = (host or _SOCKET).removeprefix("unix://")
    if "://" in path:
        return True
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


class ContainerPart:
    """One container; its data live as long as it does."""

    def __init__(self, name: str, image: Image):
        self.name = name
        self._image = image
        self._container: DockerContainer | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        if self._container is None:
            return False
        self._container.reload()
        return self._container.status == "running"

    def start(self) -> None:
        if self._container is not None:
            self._container.get_wrapped_container().start()
            return
        if not has_image(self._image.name):  # testcontainers would pull it
            raise ServerUnavailable(f"there is no image {self._image.name} here, or no Docker daemon that answers")
        from testcontainers.core.config import testcontainers_config
        from testcontainers.core.container import DockerContainer

        # The container that removes ours after a crash is an image too, and would be pulled; the guard does that here.
        testcontainers_config.ryuk_disabled = True
        container = DockerContainer(self._image.name, env=dict(self._image.environment))
        entrypoint = {} if self._image.entrypoint is None else {"entrypoint": self._image.entrypoint}
        container.with_kwargs(network="host", **entrypoint)
        if self._image.command:
            container.with_command(list(self._image.command))
        self._container = container
        container.start()
        arguments = [sys.executable, "-c", _GUARD, container.get_container_id()]
        self._guard = subprocess.Popen(arguments, stdin=subprocess.PIPE, start_new_session=True)

    def kill(self) -> None:
        if self.is_running and self._container is not None:
            self._container.get_wrapped_container().kill(signal="SIGKILL")
            self._container.wait()

    def stop(self) -> None:
        if self._container is not None:
            self._container.get_wrapped_container().stop(timeout=_STOPS_WITHIN_S)

    def log(self) -> str:
        if self._container is None:
            return "(it was not started)"
        # Both streams as they came; get_logs has one after the other.
        printed: bytes = self._container.get_wrapped_container().logs()
        return printed.decode("utf-8", errors="replace")[-_SHOWN:]

    def remove(self) -> None:
        if self._container is not None:
            self._container.stop()
            self._container = None
        if self._guard is not None:
            self._guard.kill()
            self._guard.wait()
            if self._guard.stdin is not None:
                self._guard.stdin.close()
            self._guard = None
