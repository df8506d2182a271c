"""Which storage a path lies on: its URL chooses.

A bare absolute path and `file:` are the local disk, `hdfs:`, `webhdfs:` and `swebhdfs:` HDFS. Anything else is refused by name: a
path that is quietly taken for a local one would be written where nobody looks.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping

from twophase.errors import OptionError
from twophase.local_storage import LocalStorage
from twophase.secret import Secret
from twophase.storage import FileStorage

SUPPORTED = "an absolute path on a local disk (/data/orders or file:///data/orders), or on HDFS (hdfs://namenode:8020/data/orders)"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
# By name, and imported when a path asks for it: the core knows no vendor.
_REMOTE = dict.fromkeys(("hdfs", "webhdfs", "swebhdfs"), "twophase.clients.hdfs.storage")


def storage_of(path: str, *, option: str = "path", hdfs: Mapping[str, str | Secret] | None = None) -> FileStorage:
    """The storage that `path` lies on; OptionError, which calls it by the name of its `option`, if there is none for it.

    Parameters
    ----------
    hdfs:
        The options `hdfs.*`, without that prefix; for a path on HDFS.
    """
    scheme = scheme_of(path)
    if scheme not in ("file", *_REMOTE):
        raise _unsupported(
            f"{option} is {path!r}, and there is no storage for {scheme}: here; supported is {SUPPORTED}"
        )
    try:
        storage = _remote(scheme)(path, hdfs or {}) if scheme in _REMOTE else LocalStorage()
        storage.normalise(path)
    except ValueError as error:
        raise _unsupported(f"{option} can't be used: {error}; supported is {SUPPORTED}") from error
    return storage


def scheme_of(path: str) -> str:
    """In lower case; `file` if there is none. One letter before a colon is a drive of Windows."""
    scheme = _SCHEME.match(path)
    return "file" if scheme is None or len(scheme[1]) == 1 else scheme[1].lower()


def _remote(scheme: str) -> Callable[[str, Mapping[str, str | Secret]], FileStorage]:
    found: Callable[[str, Mapping[str, str | Secret]], FileStorage] = importlib.import_module(
        _REMOTE[scheme]
    ).storage_at
    return found


def _unsupported(problem: str) -> OptionError:
    return OptionError(f"1 problem with the options: {problem}", problems=[problem])
