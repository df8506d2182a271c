"""Control clients, one for each cluster, its credentials and each process: a connection takes longer than most questions."""

from __future__ import annotations

import hashlib
import os
import threading
from functools import partial

from twophase.clients.kafka import settings
from twophase.clients.kafka.connection import Connection
from twophase.clients.kafka.control import ControlClient
from twophase.clients.kafka.instance import trouble_with
from twophase.options import PassThrough

_TROUBLE_WITHIN_S = 2.0

_Key = tuple[int, str, float]
_clients: dict[_Key, ControlClient] = {}
_lock = threading.Lock()


def control_of(kafka: PassThrough, *, patience_s: float) -> ControlClient:
    """The client for these settings. A forked process has its own, since sockets can't be shared; and so has a secret that was
    changed where it is kept."""
    told = kafka.reveal()
    key = (os.getpid(), _digest(told), patience_s)
    with _lock:
        if key not in _clients:
            trouble = partial(trouble_with, settings.for_librdkafka(told), within_s=_TROUBLE_WITHIN_S)
            connection = Connection(settings.for_kafka_python(told), patience_s=patience_s, trouble=trouble)
            _clients[key] = ControlClient(connection)
        return _clients[key]


def close_connections() -> None:
    """End those that this process keeps; they are opened again when they are needed."""
    with _lock:
        for (pid, _, _), client in _clients.items():
            if pid == os.getpid():
                client.close()
        _clients.clear()


def _digest(told: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(told.items())).encode()).hexdigest()
