"""Kafka: brokers in KRaft mode, each a process that is broker and controller, sized for tests.

    with kafka.on_this_machine(folder, kafka.Setup(brokers=3, properties={"min.insync.replicas": "2"})) as server:
        server.endpoint          "127.0.0.1:12345,…", for bootstrap.servers
        server.kill("broker-2")

Clients connect where a broker tells them to, not where they first connected. To put a proxy in front of a broker, choose the
broker's port yourself and let it advertise the proxy's; brokers talk to each other on ports of their own, past the proxy:

    (port,) = free_ports(1)
    with TcpProxy(port) as proxy, kafka.on_this_machine(
        folder, kafka.Setup(client_ports=(port,), advertised_ports=(proxy.port,))
    ) as server:
        ...  # bootstrap.servers = server.endpoint, which is the proxy

For clients that log in there is a listener beside the plain one, with TLS, SCRAM-SHA-512 and ACLs. Who comes by the plain one may
do everything, and is who makes users and gives them rights:

    (port,) = free_ports(1)
    security = kafka.Security((port,), certificate(folder))
    with kafka.on_this_machine(folder, kafka.Setup(security=security)) as server:
        security.endpoint        "127.0.0.1:12346", for bootstrap.servers of a user
"""

from __future__ import annotations

import socket
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from twophase.testing.servers.certificates import Certificate
from twophase.testing.servers.container import ContainerPart, Image
from twophase.testing.servers.jars import fetch
from twophase.testing.servers.java import java_command
from twophase.testing.servers.ports import LOOPBACK, free_ports, host_and_port, why_unreachable
from twophase.testing.servers.process import Command, ProcessPart
from twophase.testing.servers.server import Server, ServerUnavailable, Way
from twophase.testing.servers.vendor import Vendor

_HEAP_MB = 512
# Any 16 bytes will do, but all brokers of a cluster, and all starts of a broker, must agree.
_CLUSTER = "dHdvcGhhc2UtdGVzdC1rYQ"
_FORMATS_WITHIN_S = 120.0
_ANSWERS_WITHIN_S = 5.0
_LOG4J = """\
Configuration:
  Appenders: {Console: {name: out, PatternLayout: {pattern: "%d{HH:mm:ss.SSS} %p %c{1}: %m%n"}}}
  Loggers: {Root: {level: INFO, AppenderRef: {ref: out}}}
"""


@dataclass(frozen=True)
class Security:
    """A second listener for clients, who log in over TLS and have the rights that ACLs give them; at first none."""

    ports: tuple[int, ...]
    """Where the brokers listen for them."""
    certificate: Certificate
    """The brokers'."""

    @property
    def endpoint(self) -> str:
        return _endpoint(self.ports)


@dataclass(frozen=True)
class Setup:
    """What a test may want otherwise."""

    brokers: int = 1
    properties: Mapping[str, str] = field(default_factory=dict)
    """Server properties, of every broker, over those that are set here."""
    features: Mapping[str, int] = field(default_factory=dict)
    """Levels of features such as transaction.version, fixed when the storage is formatted."""
    client_ports: tuple[int, ...] = ()
    """Where the brokers listen for clients; chosen, unless given."""
    advertised_ports: tuple[int, ...] = ()
    """Where clients are told to connect, if that is not where the brokers listen: a proxy's ports."""
    security: Security | None = None
    """With it there are users and rights; without it everybody may do everything."""


DEFAULT = Setup()


@dataclass(frozen=True)
class _Ports:
    """The ports of all brokers, by broker."""

    client: Sequence[int]
    advertised: Sequence[int]
    internal: Sequence[int]
    controller: Sequence[int]


def given(endpoint: str) -> Server[str]:
    """Somebody's cluster, by its bootstrap servers."""
    first = host_and_port(endpoint.partition(",")[0], 9092)
    return Server("Kafka", endpoint, way=Way.GIVEN, ready=lambda: why_unreachable(*first))


def on_this_machine(folder: Path, setup: Setup = DEFAULT) -> Server[str]:
    """A cluster of processes, with everything but its jars in `folder`; not started yet."""
    ports = _ports(setup)
    jars = fetch("kafka")
    (folder / "log4j2.yaml").write_text(_LOG4J)
    parts = [_process(folder, setup, ports, node, jars) for node in range(setup.brokers)]
    return _server(setup, ports, Way.PROCESS, parts)


def in_container(image: str, setup: Setup = DEFAULT) -> Server[str]:
    """A cluster of containers of the Apache project's image; not started yet."""
    if setup.features:
        raise ServerUnavailable("the image formats its storage itself, and can't be told feature levels: use a process")
    if setup.security is not None:
        raise ServerUnavailable("a container does not have the certificates: use a process")
    ports = _ports(setup)
    parts = [ContainerPart(f"broker-{node + 1}", _image(image, setup, ports, node)) for node in range(setup.brokers)]
    return _server(setup, ports, Way.CONTAINER, parts)


def _server(setup: Setup, ports: _Ports, way: Way, parts: Sequence[ProcessPart | ContainerPart]) -> Server[str]:
    return Server(
        "Kafka",
        _endpoint(ports.advertised),
        way=way,
        parts=parts,
        ready=lambda: _lacking(ports.internal[0], setup.brokers),
    )


def _endpoint(ports: Sequence[int]) -> str:
    return ",".join(f"{LOOPBACK}:{port}" for port in ports)


def _ports(setup: Setup) -> _Ports:
    for name in ("client_ports", "advertised_ports"):
        if len(getattr(setup, name)) not in (0, setup.brokers):
            raise ValueError(f"{name} must be as many as there are brokers: {setup.brokers}")
    if setup.security is not None and len(setup.security.ports) != setup.brokers:
        raise ValueError(f"the ports of security must be as many as there are brokers: {setup.brokers}")
    chosen = free_ports(3 * setup.brokers)
    client = setup.client_ports or tuple(chosen[::3])
    return _Ports(client, setup.advertised_ports or client, chosen[1::3], chosen[2::3])


def properties(setup: Setup, ports: _Ports, node: int) -> dict[str, str]:
    """server.properties of one broker, but for the place of its data.

    Brokers have a listener to themselves: what a proxy in front of the clients' one cuts must not hit the messages by which
    brokers finish transactions.
    """
    replicas = str(min(setup.brokers, 3))
    in_sync = str(min(setup.brokers, 2))
    plain = {
        "process.roles": "broker,controller",
        "node.id": str(node + 1),
        "controller.quorum.voters": ",".join(
            f"{other + 1}@{LOOPBACK}:{port}" for other, port in enumerate(ports.controller)
        ),
        "listeners": (
            f"CLIENT://{LOOPBACK}:{ports.client[node]},INTERNAL://{LOOPBACK}:{ports.internal[node]},"
            f"CONTROLLER://{LOOPBACK}:{ports.controller[node]}"
        ),
        "advertised.listeners": (
            f"CLIENT://{LOOPBACK}:{ports.advertised[node]},INTERNAL://{LOOPBACK}:{ports.internal[node]}"
        ),
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "controller.listener.names": "CONTROLLER",
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "1",
        # Nobody else joins a group in a test: the default waits three seconds for them.
        "group.initial.rebalance.delay.ms": "0",
        # A broker that was killed is let in again when its former life has timed out, after nine seconds by default.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    }
    return {**plain, **_secured(setup.security, plain, node), **setup.properties}


def _secured(security: Security | None, plain: Mapping[str, str], node: int) -> dict[str, str]:
    """What differs with a listener for those who log in."""
    if security is None:
        return {}
    listener = f"SECURE://{LOOPBACK}:{security.ports[node]}"
    of_listener = {
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(security.certificate.store),
        "ssl.keystore.password": security.certificate.password,
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    }
    return {
        "listeners": f"{plain['listeners']},{listener}",
        "advertised.listeners": f"{plain['advertised.listeners']},{listener}",
        "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},SECURE:SASL_SSL",
        **{f"listener.name.secure.{key}": value for key, value in of_listener.items()},
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The brokers themselves, and who comes by the plain listener.
        "super.users": "User:ANONYMOUS",
    }


def _process(folder: Path, setup: Setup, ports: _Ports, node: int, jars: Sequence[Path]) -> ProcessPart:
    name = f"broker-{node + 1}"
    data, file = folder / f"{name}-data", folder / f"{name}.properties"
    lines = {**properties(setup, ports, node), "log.dirs": str(data)}
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    options = (f"-Dlog4j2.configurationFile={folder / 'log4j2.yaml'}",)
    if not data.exists():
        _format(file, setup.features, jars, options)
    arguments = java_command("kafka.Kafka", str(file), class_path=jars, heap_mb=_HEAP_MB, options=options)
    return ProcessPart(name, Command(arguments, folder), log=folder / f"{name}.log")


def _format(file: Path, features: Mapping[str, int], jars: Sequence[Path], options: tuple[str, ...]) -> None:
    levels = [word for name, level in features.items() for word in ("--feature", f"{name}={level}")]
    words = ("format", "-t", _CLUSTER, "-c", str(file), *levels)
    command = java_command("kafka.tools.StorageTool", *words, class_path=jars, heap_mb=_HEAP_MB, options=options)
    ran = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FORMATS_WITHIN_S, check=False
    )
    if ran.returncode != 0:
        raise ServerUnavailable(f"Kafka's storage could not be formatted:\n{ran.stdout}{ran.stderr}")


def _image(image: str, setup: Setup, ports: _Ports, node: int) -> Image:
    told = {f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in properties(setup, ports, node).items()}
    return Image(image, environment={**told, "CLUSTER_ID": _CLUSTER, "KAFKA_HEAP_OPTS": f"-Xmx{_HEAP_MB}m"})


def _lacking(port: int, brokers: int) -> str:
    """What the cluster still lacks, by its own metadata: a port that is open says nothing about who answers."""
    request = struct.pack(">hhih i", 3, 0, 1, -1, 0)  # Metadata, version 0, of all topics, without a client's name
    try:
        with socket.create_connection((LOOPBACK, port), _ANSWERS_WITHIN_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = connection.makefile("rb").read(12)
    except OSError as error:
        return str(error)
    if len(answer) < 12:
        return "the broker closed the connection"
    _, _, found = struct.unpack(">iii", answer)
    return "" if found == brokers else f"{found} of {brokers} brokers"


VENDOR = Vendor(
    name="Kafka",
    variables=("TWOPHASE_KAFKA_BOOTSTRAP",),
    image="apache/kafka:4.3.1",
    image_variable="TWOPHASE_KAFKA_IMAGE",
    given=lambda told: given(told["TWOPHASE_KAFKA_BOOTSTRAP"]),
    in_container=in_container,
    on_this_machine=on_this_machine,
)
