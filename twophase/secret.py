"""A secret: a reference or a literal, which is resolved at use and never printed.

An option that holds a password is a `Secret`, made from one of three spellings:

===============  ==============================================================================================
``env:NAME``     the environment variable NAME
``file:PATH``    the content of the file, as UTF-8, without one newline at its end
anything else    the secret itself
===============  ==============================================================================================

`reveal` is the only way to the value, and looks a reference up each time, in the process that calls it: a rotated file
is seen, and a driver may hold other values than its executors. A relative PATH is relative to that process's working
folder.

The guarantee: no str, repr, format, JSON or dataclasses.asdict of a secret, and no error of this module, shows a value.
References are shown, because they say where to look and hide nothing.

What it can't do: a pickle must carry a literal, because a task needs it; so it is in Spark's task binaries and in
whatever those are spilled to. Use references: they travel as references. A literal that begins with ``env:`` or
``file:`` can't be spelled; put it in a file.
"""

from __future__ import annotations

import os
from typing import Any, Final

from twophase.errors import OptionError

_ENVIRONMENT: Final = "env:"
_FILE: Final = "file:"


class Secret:
    """A secret by reference or by value.

    Not a str, so that nothing prints, joins or serialises it by accident; not a dataclass, because asdict opens those
    up.
    """

    __slots__ = ("_text",)
    _text: str

    def __init__(self, text: str):
        object.__setattr__(self, "_text", text)

    @property
    def is_reference(self) -> bool:
        """Whether it names where the value is, rather than being it."""
        return self._text.startswith((_ENVIRONMENT, _FILE))

    @property
    def reference(self) -> str | None:
        """Where the value is, which is no secret; None if it is the value itself."""
        return self._text if self.is_reference else None

    def reveal(self) -> str:
        """The value; OptionError, which names the reference, if there is none."""
        if self._text.startswith(_ENVIRONMENT):
            value = os.environ.get(self._text.removeprefix(_ENVIRONMENT))
            reason = "the environment variable is not set in this process"
        elif self._text.startswith(_FILE):
            value, reason = _content(self._text.removeprefix(_FILE))
        else:
            return self._text
        if value is None:
            problem = f"the secret {self._text} can't be read: {reason}"
            raise OptionError(problem, problems=[problem])
        return value

    def __repr__(self) -> str:
        return f"Secret({self._text!r})" if self.is_reference else "Secret('***')"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Secret can't be changed")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("a Secret can't be changed")

    def __reduce__(self) -> tuple[Any, ...]:
        return Secret, (self._text,)


def _content(path: str) -> tuple[str | None, str]:
    """What the file says, or None and why not.

    The reason is returned rather than raised from: a UnicodeDecodeError holds the bytes that it could not decode.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:
            content = file.read()
    except OSError as error:
        return None, os.strerror(error.errno) if error.errno else type(error).__name__
    except UnicodeDecodeError:
        return None, "the file is not UTF-8"
    except ValueError:
        return None, "the path is not valid"
    return content.removesuffix("\r\n" if content.endswith("\r\n") else "\n"), ""
