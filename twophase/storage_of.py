"""Which storage a path lies on: its URL chooses.

A bare absolute path and `file:` are the local disk. Anything else is refused by name: a path that is quietly taken for a
local one would be written where nobody looks.
"""

from __future__ import annotations

import re

from twophase.errors import OptionError
from twophase.local_storage import LocalStorage

SUPPORTED = "an absolute path on a local disk (/data/orders or file:///data/orders)"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def storage_of(path: str, *, option: str = "path") -> LocalStorage:
    """The storage that `path` lies on; OptionError, which calls it by the name of its `option`, if there is none for it."""
    scheme = _SCHEME.match(path)
    # One letter before a colon is a drive of Windows.
    if scheme is not None and len(scheme[1]) > 1 and scheme[1].lower() != "file":
        raise _unsupported(
            f"{option} is {path!r}, and there is no storage for {scheme[1]}: here; supported is {SUPPORTED}"
        )
    storage = LocalStorage()
    try:
        storage.normalise(path)
    except ValueError as error:
        raise _unsupported(f"{option} can't be used: {error}; supported is {SUPPORTED}") from error
    return storage


def _unsupported(problem: str) -> OptionError:
    return OptionError(f"1 problem with the options: {problem}", problems=[problem])
