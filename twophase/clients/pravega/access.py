"""Access: where a cluster is, and how one gets in. Picklable, and it opens nothing."""

from __future__ import annotations

import base64
import hashlib
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from twophase.errors import TargetUnavailable
from twophase.extras import require
from twophase.secret import Secret

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^:/\s]+):(?P<port>[0-9]{1,5})")
_OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 64 << 20)]


@dataclass(frozen=True)
class Access:
    """How a client gets to the controller, and from there to the segment stores.

    Parameters
    ----------
    controller:
        Host and port of the controller's gRPC.
    tls:
        Whether controller and segment stores are spoken to by TLS.
    trust:
        A file with the certificates to trust, if they are not the machine's own.
    user, password:
        For Basic authentication.
    """

    controller: str
    tls: bool = False
    trust: str | None = None
    user: str | None = None
    password: Secret | None = None

    def problems(self) -> Iterable[str]:
        if not _ADDRESS.fullmatch(self.controller):
            yield f"controller is {self.controller!r}, and must be a host and a port, as in controller:9090"
        if self.trust is not None and not self.tls:
            yield "tlsTrust is set, and tls is not"
        if (self.user is None) != (self.password is None):
            yield "user and password are set together, or neither is"

    def digest(self) -> str:
        """The same for what one connection can serve; a secret that was changed where it is kept gives another."""
        told = (self.controller, self.tls, self.trust, self.user, self.password and self.password.reveal())
        return hashlib.sha256(repr(told).encode()).hexdigest()

    @property
    def is_authenticated(self) -> bool:
        return self.user is not None

    def channel(self) -> Any:
        grpc = require("grpc", "pravega")
        if not self.tls:
            return grpc.insecure_channel(self.controller, _OPTIONS)
        trusted = None if self.trust is None else self._trusted()
        return grpc.secure_channel(self.controller, grpc.ssl_channel_credentials(trusted), _OPTIONS)

    def metadata(self) -> list[tuple[str, str]]:
        """What every call to the controller carries."""
        if self.user is None or self.password is None:
            return []
        told = base64.b64encode(f"{self.user}:{self.password.reveal()}".encode()).decode()
        return [("authorization", f"Basic {told}")]

    def ssl_context(self) -> ssl.SSLContext | None:
        """For segment stores."""
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.trust)
        except OSError as error:
            raise TargetUnavailable(f"tlsTrust, {self.trust}, can't be read: {error}") from error

    def _trusted(self) -> bytes:
        assert self.trust is not None
        try:
            with open(self.trust, "rb") as file:
                return file.read()
        except OSError as error:
            raise TargetUnavailable(f"tlsTrust, {self.trust}, can't be read: {error}") from error
