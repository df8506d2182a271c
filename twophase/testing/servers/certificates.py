"""Certificates for servers that speak TLS on this machine: an authority of a test's own, and a server's certificate by it.

They are made by keytool, which comes with the Java that runs the servers: so a test that needs them needs nothing more. What is not
written in Java wants a key as a PEM file, which keytool does not write: that takes openssl.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from twophase.testing.servers.java import java
from twophase.testing.servers.ports import LOOPBACK
from twophase.testing.servers.server import ServerUnavailable

_PASSWORD = "certificates of a test"
_MADE_WITHIN_S = 60.0


@dataclass(frozen=True)
class Certificate:
    """A server's certificate, for 127.0.0.1."""

    authority: Path
    """Who signed it, as a PEM file: what clients trust."""
    store: Path
    """Certificate and key, as a PKCS12 file: what the server has."""
    password: str = _PASSWORD
    """Of the store."""


def certificate(folder: Path) -> Certificate:
    """A new one, by an authority that is new too."""
    made = Certificate(folder / "authority.pem", folder / "server.p12")
    # Python refuses authorities that do not say what their key is for, from 3.13 on.
    _keytool(made.store, "-genkeypair", "authority", "-ext", "bc:c=ca:true", "-ext", "ku:c=keyCertSign")
    _keytool(made.store, "-exportcert", "authority", "-rfc", "-file", str(made.authority))
    _keytool(made.store, "-genkeypair", "server", "-signer", "authority", "-ext", f"san=ip:{LOOPBACK}")
    # The server would otherwise be free to show the authority's certificate as its own.
    _keytool(made.store, "-delete", "authority")
    return made


def private_key(certificate: Certificate, path: Path) -> Path:
    """The server's certificate and its key as one PEM file, for the eyes of whoever runs this alone."""
    path.touch(0o600)
    words = ["pkcs12", "-in", str(certificate.store), "-nodes", "-passin", f"pass:{certificate.password}"]
    _run("openssl", *words, "-out", str(path))
    return path


def _keytool(store: Path, verb: str, alias: str, *words: str) -> None:
    command = [verb, "-alias", alias, *words]
    if verb == "-genkeypair":
        command += ["-dname", f"CN=twophase test {alias}", "-keyalg", "EC", "-validity", "2"]
    command += ["-keystore", str(store), "-storetype", "PKCS12", "-storepass", _PASSWORD]
    _run(str(Path(java()).with_name("keytool")), *command)


def _run(*command: str) -> None:
    if shutil.which(command[0]) is None:
        raise ServerUnavailable(f"no certificate can be made without {command[0]}: install it")
    ran = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_MADE_WITHIN_S, check=False
    )
    if ran.returncode != 0:
        raise ServerUnavailable(f"no certificate could be made:\n{ran.stdout}{ran.stderr}")
