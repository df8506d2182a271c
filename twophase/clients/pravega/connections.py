"""Controllers, one for each cluster, its credentials and each process: a channel takes longer to make than most questions do."""

from __future__ import annotations

import os
import threading

from twophase.clients.pravega.access import Access
from twophase.clients.pravega.controller import Controller

_controllers: dict[tuple[int, str, float], Controller] = {}
_lock = threading.Lock()


def controller_of(access: Access, *, patience_s: float) -> Controller:
    """The one for this access. A forked process has its own, since channels can't be shared."""
    key = (os.getpid(), access.digest(), patience_s)
    with _lock:
        if key not in _controllers:
            _controllers[key] = Controller(access, patience_s=patience_s)
        return _controllers[key]


def close_connections() -> None:
    """End those that this process keeps; they are opened again when they are needed."""
    with _lock:
        for (pid, _, _), controller in _controllers.items():
            if pid == os.getpid():
                controller.close()
        _controllers.clear()
