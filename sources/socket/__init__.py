"""Lines from a socket, by way of a journal that makes them replayable."""

from __future__ import annotations

from twophase.sources.socket.source import SocketSource

__all__ = ["SocketSource"]
