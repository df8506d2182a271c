"""What controllers, segment stores and connections say, as errors that say what to do."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from twophase.errors import TargetUnavailable
from twophase.extras import require

_PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "RESOURCE_EXHAUSTED", "CANCELLED")
_ADVICE = {
    "UNAUTHENTICATED": "the controller does not accept the user: look at user and password",
    "PERMISSION_DENIED": "the user lacks a right",
    "UNAVAILABLE": "no connection to the controller",
    "DEADLINE_EXCEEDED": "the controller does not answer in time",
    "NOT_FOUND": "it is not there",
}


class Refusal(enum.Enum):
    """What a segment store answers in the place of what was asked for, by the type of its reply."""

    CONDITION_FAILED = 8
    WRONG_HOST = 50
    SEALED = 51
    EXISTS = 52
    NO_SEGMENT = 53
    BAD_EVENT_NUMBER = 55
    TRUNCATED = 56
    UNSUPPORTED = 57
    BAD_TOKEN = 60
    ERROR = 61
    OTHER = 0


class SegmentRefused(TargetUnavailable):
    """A segment store understood, and did not do it."""

    def __init__(self, message: str, *, refusal: Refusal = Refusal.OTHER, **about: Any):
        super().__init__(message, **about)
        self.refusal = refusal


class NoStream(TargetUnavailable):
    """There is no such stream, or scope."""


def is_passing(error: Any) -> bool:
    """Whether what the controller said may be over by itself, so that trying again makes sense."""
    return _code(error) in _PASSING


def explained(error: Any, doing: str) -> TargetUnavailable:
    """Our error for one of gRPC's."""
    code = _code(error)
    said = " ".join(str(getattr(error, "details", lambda: error)() or "").split())
    kind = NoStream if code == "NOT_FOUND" else TargetUnavailable
    return kind(f"{doing}: {_ADVICE.get(code, 'the controller refused')} ({code}: {said})")


@contextmanager
def no_connection(doing: str) -> Iterator[None]:
    """What comes through here as a lost connection is raised as ours."""
    try:
        yield
    except OSError as error:
        raise TargetUnavailable(
            f"{doing}: the connection to the segment store is lost ({type(error).__name__}: {error})"
        ) from error


def rpc_error() -> type[Exception]:
    found: type[Exception] = require("grpc", "pravega").RpcError
    return found


def _code(error: Any) -> str:
    code = getattr(error, "code", None)
    return str(getattr(code() if callable(code) else None, "name", "UNKNOWN"))
