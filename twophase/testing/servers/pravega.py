"""Pravega: the project's own emulator, controller and segment store in one process, all in memory.

    with pravega.on_this_machine(folder) as server:
        server.endpoint          "127.0.0.1:12345", the controller's gRPC
        server.keeps_data        False: what was written ends with the process

Kill and start give an empty Pravega on the same ports. The emulator's controller listens on every address of the machine and
can't be told otherwise; what it holds are test data.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from twophase.extras import require
from twophase.testing.servers.container import ContainerPart, Image
from twophase.testing.servers.jars import fetch
from twophase.testing.servers.java import java_command
from twophase.testing.servers.ports import LOOPBACK, free_ports, host_and_port, why_unreachable
from twophase.testing.servers.process import Command, ProcessPart
from twophase.testing.servers.server import Server, Way
from twophase.testing.servers.vendor import Vendor

_HEAP_MB = 768
_ANSWERS_WITHIN_S = 5.0
_EXISTS = "/io.pravega.controller.stream.api.grpc.v1.ControllerService/checkStreamExists"
# The stream that a starting controller makes last: with it, everything that serves requests is there.
_LAST_STREAM = (b"_system", b"_kvTableStream")
_LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %-5level %logger{0}: %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


def given(endpoint: str) -> Server[str]:
    """Somebody's cluster, by its controller."""
    address = host_and_port(endpoint, 9090)
    return Server("Pravega", endpoint, way=Way.GIVEN, ready=lambda: why_unreachable(*address))


def on_this_machine(folder: Path, settings: Mapping[str, str] | None = None) -> Server[str]:
    """The emulator as a process; not started yet. `settings` are properties of Pravega's."""
    told = {**_settings(*free_ports(3)), **(settings or {})}
    (folder / "standalone.properties").write_text("".join(f"{name}={value}\n" for name, value in told.items()))
    (folder / "logback.xml").write_text(_LOGBACK)
    # Its ZooKeeper writes to the temporary folder, and a kill leaves that there.
    options = (
        f"-Djava.io.tmpdir={folder}",
        f"-Dlogback.configurationFile={folder / 'logback.xml'}",
        f"-Dsinglenode.configurationFile={folder / 'standalone.properties'}",
    )
    main = "io.pravega.local.LocalPravegaEmulator"
    arguments = java_command(main, class_path=fetch("pravega"), heap_mb=_HEAP_MB, options=options)
    part = ProcessPart("pravega", Command(arguments, folder), log=folder / "pravega.log")
    return _server(told, Way.PROCESS, part)


def in_container(image: str, settings: Mapping[str, str] | None = None) -> Server[str]:
    """The emulator of the project's image; not started yet."""
    told = {**_settings(*free_ports(3)), **(settings or {})}
    options = " ".join(f"-D{name}={value}" for name, value in told.items())
    # Past the image's own script, which sets fixed ports after anything that it is told.
    emulator = Image(image, environment={"JAVA_OPTS": options}, entrypoint="/opt/pravega/bin/pravega-standalone")
    return _server(told, Way.CONTAINER, ContainerPart("pravega", emulator))


def _settings(controller: int, segment_store: int, zookeeper: int) -> dict[str, str]:
    return {
        "singlenode.controller.rpc.port": str(controller),
        "singlenode.segmentStore.port": str(segment_store),
        "singlenode.zk.port": str(zookeeper),
        "pravegaservice.service.listener.host.nameOrIp": LOOPBACK,
        "singlenode.controller.rest.enable": "false",
        "singlenode.admin.gateway.enable": "false",
    }


def _server(settings: Mapping[str, str], way: Way, part: ProcessPart | ContainerPart) -> Server[str]:
    endpoint = f"{LOOPBACK}:{settings['singlenode.controller.rpc.port']}"
    return Server("Pravega", endpoint, way=way, parts=[part], ready=lambda: _lacking(endpoint), keeps_data=False)


def _lacking(endpoint: str) -> str:
    """What the controller still lacks, asked in two fields of protobuf that need no generated code."""
    grpc = require("grpc", "pravega")
    request = b"".join(bytes([number << 3 | 2, len(name)]) + name for number, name in enumerate(_LAST_STREAM, 1))
    with grpc.insecure_channel(endpoint, [("grpc.enable_http_proxy", 0)]) as channel:
        try:
            answer: bytes = channel.unary_unary(_EXISTS)(request, timeout=_ANSWERS_WITHIN_S)
        except grpc.RpcError as error:
            return str(error.details())
    return "" if answer == b"\x08\x01" else "the controller is making its streams"


VENDOR = Vendor(
    name="Pravega",
    variables=("TWOPHASE_PRAVEGA_CONTROLLER",),
    image="pravega/pravega:0.13.0",
    image_variable="TWOPHASE_PRAVEGA_IMAGE",
    given=lambda told: given(told["TWOPHASE_PRAVEGA_CONTROLLER"]),
    in_container=in_container,
    on_this_machine=on_this_machine,
)
