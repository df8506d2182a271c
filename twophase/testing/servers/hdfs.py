"""HDFS: one NameNode and one DataNode, of Hadoop's own classes and the Hadoop jars of pyspark.

    with hdfs.on_this_machine(folder) as server:
        server.endpoint.url              "hdfs://127.0.0.1:12345", for hdfs-native
        server.endpoint.webhdfs_url      "http://127.0.0.1:12346", for hdfs
        server.kill("namenode")

It is ready when a byte was written through the DataNode: the NameNode's own list of living DataNodes is stale after a kill.
"""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from xml.sax.saxutils import escape

from twophase.testing.servers.container import ContainerPart, Image
from twophase.testing.servers.jars import fetch, pyspark_jars
from twophase.testing.servers.java import java_command
from twophase.testing.servers.ports import LOOPBACK, free_ports, why_unreachable
from twophase.testing.servers.process import Command, ProcessPart
from twophase.testing.servers.server import Server, ServerUnavailable, Way
from twophase.testing.servers.vendor import Vendor

_HEAP_MB = 256
_FORMATS_WITHIN_S = 120.0
_ANSWERS_WITHIN_S = 20.0
_MAIN = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
_FROM_PYSPARK = (
    *("hadoop-client-api", "hadoop-client-runtime", "slf4j-api", "jcl-over-slf4j"),
    *("log4j-1.2-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl"),
)
_LOG4J = """\
rootLogger.level=info
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d{HH:mm:ss.SSS} %p %c{1}: %m%n
"""


@dataclass(frozen=True)
class HdfsEndpoint:
    """The two doors of one file system."""

    url: str
    webhdfs_url: str


@dataclass(frozen=True)
class _Ports:
    rpc: int
    http: int
    data: int
    data_http: int
    data_ipc: int

    @property
    def endpoint(self) -> HdfsEndpoint:
        return HdfsEndpoint(f"hdfs://{LOOPBACK}:{self.rpc}", f"http://{LOOPBACK}:{self.http}")


def given(endpoint: HdfsEndpoint) -> Server[HdfsEndpoint]:
    """Somebody's file system."""
    return Server("HDFS", endpoint, way=Way.GIVEN, ready=lambda: _why_unreachable(endpoint))


def on_this_machine(folder: Path, settings: Mapping[str, str] | None = None) -> Server[HdfsEndpoint]:
    """Two processes, with everything but their jars in `folder`; not started yet. `settings` go to hdfs-site.xml."""
    ports = _Ports(*free_ports(5))
    configuration = folder / "configuration"
    configuration.mkdir(exist_ok=True)
    (configuration / "core-site.xml").write_text(
        _xml({**_core_site(ports), "hadoop.tmp.dir": str(folder / "temporary")})
    )
    places = {
        "dfs.namenode.name.dir": (folder / "namenode-data").absolute().as_uri(),
        "dfs.datanode.data.dir": (folder / "datanode-data").absolute().as_uri(),
    }
    (configuration / "hdfs-site.xml").write_text(_xml({**_hdfs_site(ports), **places, **(settings or {})}))
    (configuration / "log4j2.properties").write_text(_LOG4J)
    class_path = [configuration, *fetch("hdfs"), *pyspark_jars(*_FROM_PYSPARK)]
    if not (folder / "namenode-data").exists():
        _format(class_path)
    parts = [
        ProcessPart(
            name,
            Command(java_command(main, class_path=class_path, heap_mb=_HEAP_MB), folder),
            log=folder / f"{name}.log",
        )
        for name, main in _MAIN.items()
    ]
    return _server(ports, Way.PROCESS, parts)


def in_container(image: str, settings: Mapping[str, str] | None = None) -> Server[HdfsEndpoint]:
    """Two containers of the Apache project's image; not started yet."""
    ports = _Ports(*free_ports(5))
    told = {
        **{f"CORE-SITE.XML_{name}": value for name, value in _core_site(ports).items()},
        **{f"HDFS-SITE.XML_{name}": value for name, value in {**_hdfs_site(ports), **(settings or {})}.items()},
    }
    places = {"HDFS-SITE.XML_dfs.namenode.name.dir": "/tmp/namenode", "ENSURE_NAMENODE_DIR": "/tmp/namenode"}
    parts = [
        ContainerPart("namenode", Image(image, ("hdfs", "namenode"), {**told, **places})),
        ContainerPart("datanode", Image(image, ("hdfs", "datanode"), told)),
    ]
    return _server(ports, Way.CONTAINER, parts)


def _server(ports: _Ports, way: Way, parts: Sequence[ProcessPart | ContainerPart]) -> Server[HdfsEndpoint]:
    return Server("HDFS", ports.endpoint, way=way, parts=parts, ready=lambda: _lacking(ports.endpoint.webhdfs_url))


def _core_site(ports: _Ports) -> dict[str, str]:
    return {"fs.defaultFS": ports.endpoint.url}


def _hdfs_site(ports: _Ports) -> dict[str, str]:
    return {
        "dfs.replication": "1",
        "dfs.namenode.rpc-address": f"{LOOPBACK}:{ports.rpc}",
        "dfs.namenode.http-address": f"{LOOPBACK}:{ports.http}",
        "dfs.datanode.address": f"{LOOPBACK}:{ports.data}",
        "dfs.datanode.http.address": f"{LOOPBACK}:{ports.data_http}",
        "dfs.datanode.ipc.address": f"{LOOPBACK}:{ports.data_ipc}",
        # The host in the redirects of WebHDFS.
        "dfs.datanode.hostname": LOOPBACK,
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.permissions.enabled": "false",
        "dfs.namenode.safemode.extension": "0",
        # A DataNode that was killed is noticed in seconds.
        "dfs.heartbeat.interval": "1",
        "dfs.namenode.heartbeat.recheck-interval": "1000",
        # The close of a WebHDFS write asks again after 400 ms by default, which a small file then costs.
        "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": "5",
        "dfs.client.block.write.locateFollowingBlock.max.delay.ms": "50",
        "dfs.datanode.directoryscan.interval": "-1",
        "dfs.block.scanner.volume.bytes.per.second": "0",
    }


def _xml(properties: Mapping[str, str]) -> str:
    lines = [
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in properties.items()
    ]
    return "\n".join(["<configuration>", *lines, "</configuration>", ""])


def _format(class_path: Sequence[Path]) -> None:
    words = ("-format", "-force", "-nonInteractive")
    command = java_command(_MAIN["namenode"], *words, class_path=class_path, heap_mb=_HEAP_MB)
    ran = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FORMATS_WITHIN_S, check=False
    )
    if ran.returncode != 0:
        raise ServerUnavailable(f"the NameNode could not be formatted:\n{ran.stdout}{ran.stderr}")


def _lacking(webhdfs_url: str) -> str:
    """Why a byte can't be written: out of safe mode, with a DataNode that takes it, is what ready means."""
    url = f"{webhdfs_url}/webhdfs/v1/.twophase-ready?op=CREATE&overwrite=true&user.name=hdfs"
    try:
        _put(_redirected(url))
    except urllib.error.HTTPError as error:
        return f"{error}: {error.read().decode(errors='replace')}"
    except OSError as error:
        return str(error)
    return ""


def _redirected(url: str) -> str:
    """Where the NameNode sends a writer: urllib does not follow a redirect of a PUT by itself."""
    try:
        _put(url)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 307:
                return error.headers["Location"]
        raise
    raise OSError("the NameNode took data itself")


def _put(url: str) -> None:
    # No proxy of the environment: this is our own machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    opener.open(urllib.request.Request(url, data=b"x", method="PUT"), timeout=_ANSWERS_WITHIN_S).close()


def _why_unreachable(endpoint: HdfsEndpoint) -> str:
    for url in (endpoint.url, endpoint.webhdfs_url):
        parts = urlsplit(url)
        # A name without a port is a nameservice, which only a client's configuration knows.
        if parts.hostname and parts.port and (why := why_unreachable(parts.hostname, parts.port)):
            return why
    return ""


VENDOR = Vendor(
    name="HDFS",
    variables=("TWOPHASE_HDFS_URL", "TWOPHASE_WEBHDFS_URL"),
    image="apache/hadoop:3.5.0",
    image_variable="TWOPHASE_HDFS_IMAGE",
    given=lambda told: given(HdfsEndpoint(told["TWOPHASE_HDFS_URL"], told["TWOPHASE_WEBHDFS_URL"])),
    in_container=in_container,
    on_this_machine=on_this_machine,
)
