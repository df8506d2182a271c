"""Log lines with fields: what happened, and to whose epoch.

    log = Log("twophase.coordinator")
    log.info("decided", owner="orders/kafka", epoch=7, generation=12)
    # decided owner=orders/kafka epoch=7 generation=12

The mechanism: Python's own logging. The message is the event and its fields as logfmt: a value is quoted where it is
empty or holds a space, a quote, an equals sign or anything unprintable, so that a line stays one line and can be taken
apart again. The record also carries `record.twophase_event` and `record.twophase` (the fields as a dict, with values
that JSON can hold) for formatters that write JSON. A field that is None is left out.

The guarantee: no secret is printed, because a `Secret` shows its safe form wherever it is; and this library configures
nothing: the logger "twophase" has a NullHandler, and levels, handlers and formats are the application's.

What it can't do: a secret inside a plain text is not recognised.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final, Literal

logging.getLogger("twophase").addHandler(logging.NullHandler())

_STACK_LEVEL: Final = 3  # the caller of info(), past _emit and info itself


class Log:
    """A logger whose lines have an event and fields."""

    __slots__ = ("_logger",)

    def __init__(self, name: str):
        self._logger = logging.getLogger(name)

    def debug(self, event: str, /, **fields: object) -> None:
        self._emit(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._emit(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._emit(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._emit(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self._emit(logging.ERROR, event, fields, traceback=True)

    def _emit(
        self, level: int, event: str, fields: dict[str, object], *, traceback: Literal[True] | None = None
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        plain = {name: _plain(value) for name, value in fields.items() if value is not None}
        message = " ".join([event, *(f"{name}={_logfmt(value)}" for name, value in plain.items())])
        extra = {"twophase_event": event, "twophase": plain}
        # The message is final: with arguments, logging would take a % in it for a placeholder.
        self._logger.log(level, message, exc_info=traceback, extra=extra, stacklevel=_STACK_LEVEL)


def _plain(value: object) -> Any:
    """The value if JSON can hold it as it is, else its text; a Secret's text is its safe form."""
    # By type, not isinstance: a subclass of str or int (an enum) has a text of its own.
    return value if type(value) in (str, int, float, bool) else str(value)


def _logfmt(value: Any) -> str:
    text = json.dumps(value) if isinstance(value, bool) else str(value)
    if text and text.isprintable() and not set(text) & set(' "=\\'):
        return text
    # Escaping all but ASCII also takes care of line separators and terminal codes that JSON would let through.
    return json.dumps(text, ensure_ascii=not text.isprintable()).replace("\x7f", "\\u007f")
