"""An instance of librdkafka, producer or consumer, and its troubles: what it says while whoever waits for it learns nothing.

A call that finds no broker ends with a timeout, whatever the reason is. The reason comes by a callback: a password that is not
accepted, a certificate that is not trusted, a port where nobody listens.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twophase.clients.kafka import librdkafka
from twophase.clients.kafka.librdkafka import library
from twophase.clients.kafka.refusals import explained
from twophase.clients.kafka.settings import in_words_of_java
from twophase.errors import TwophaseError

_CERTAIN = ("_AUTHENTICATION", "_SSL")
"""To try again would change nothing."""
_SAYS_NOTHING = frozenset(
    {"_TRANSPORT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT", "_ALL_BROKERS_DOWN", "_LEADER_NOT_AVAILABLE"}
)
_RECENT_S = 60.0
_POLL_MS = 50


@dataclass(frozen=True)
class Trouble:
    name: str
    said: str
    at: float

    @property
    def is_certain(self) -> bool:
        return self.name in _CERTAIN

    def explained(self) -> TwophaseError:
        return explained(self.name, self.said)


class Troubles:
    """Of one instance. To be kept for as long as the instance lives, which calls it."""

    def __init__(self) -> None:
        self._heard: Trouble | None = None
        self.callback = librdkafka.ERROR_CALLBACK(self._hear)

    def explained(self, name: str, said: str, *, needs: Mapping[str, str] | None = None) -> TwophaseError:
        """The error for what a call ended with; for the trouble behind it, if the call knows of none."""
        trouble = self.recent()
        if name in _SAYS_NOTHING and trouble is not None:
            return trouble.explained()
        return explained(name, said, needs=needs)

    def recent(self) -> Trouble | None:
        heard = self._heard
        return heard if heard is not None and time.monotonic() - heard.at < _RECENT_S else None

    def _hear(self, _instance: Any, code: int, reason: bytes, _opaque: Any) -> None:
        name = name_of(code)
        known = self.recent()
        # Several connections are tried, and some of them only say that they are gone.
        if name != "_ALL_BROKERS_DOWN" and (known is None or name in _CERTAIN or not known.is_certain):
            self._heard = Trouble(name, reason.decode(errors="replace"), time.monotonic())


def new_instance(
    kind: int,
    settings: Mapping[str, str],
    troubles: Troubles,
    configure: Callable[[Any], None] | None = None,
) -> Any:
    """The library's pointer. `configure` is given the configuration, for further callbacks."""
    conf, said = library().conf_new(), ctypes.create_string_buffer(librdkafka.ERROR_CODE_BYTES)
    for key, value in settings.items():
        if library().conf_set(conf, key.encode(), value.encode(), said, len(said)) != 0:
            library().conf_destroy(conf)
            raise explained("_INVALID_ARG", f"kafka.{key}: {_text(said)}")
    library().conf_set_error_cb(conf, troubles.callback)
    if configure is not None:
        configure(conf)
    instance = library().new(kind, conf, said, len(said))
    if not instance:
        library().conf_destroy(conf)
        raise explained("_INVALID_ARG", in_words_of_java(_text(said)))
    return instance


def trouble_with(settings: Mapping[str, str], *, within_s: float) -> Trouble | None:
    """What keeps a client with these settings from the brokers, as far as that can be told in this time."""
    troubles = Troubles()
    instance = new_instance(librdkafka.PRODUCER, settings, troubles)
    deadline = time.monotonic() + within_s
    try:
        while time.monotonic() < deadline:
            library().poll(instance, _POLL_MS)
            trouble = troubles.recent()
            if trouble is not None and trouble.is_certain:
                return trouble
    finally:
        library().destroy(instance)
    return troubles.recent()


def name_of(code: int) -> str:
    name: bytes = library().err2name(code)
    return name.decode()


def _text(said: Any) -> str:
    text: bytes = said.value
    return text.decode(errors="replace")
