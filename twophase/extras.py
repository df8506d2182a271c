"""Vendor clients are extras: what is missing is named by the command that installs it.

`require` is how a sink or a source reaches its vendor's client. A client that is not installed and a client that is
installed but does not import (a missing shared library, a half-removed package, another version) need different cures,
so the two are told apart: advice to install what is installed already sends people in circles.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from twophase.errors import MissingExtra


def require(module: str, extra: str) -> ModuleType:
    """Import the vendor module `module`, which the extra `extra` installs.

    Raises
    ------
    MissingExtra
        The module is not installed; the message says what to run.
    ImportError
        The module is installed, but its import failed; the cause is chained.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if _is_absent(module, error):
            raise MissingExtra(f'{module} is not installed: pip install "twophase[{extra}]"') from error
        raise ImportError(
            f"{module}, of the extra {extra!r}, is installed, but importing it failed: {type(error).__name__}: {error}",
            name=error.name,
            path=error.path,
        ) from error


def _is_absent(module: str, error: ImportError) -> bool:
    """Whether the vendor's distribution is not there, rather than broken.

    It is broken if what was not found is something that the vendor's own code looked for, or a submodule of a package
    that is there. A namespace package is no evidence: any other distribution than protobuf may have brought `google`.
    """
    missing = error.name
    if not isinstance(error, ModuleNotFoundError) or missing is None:
        return False
    if module != missing and not module.startswith(f"{missing}."):
        return False
    parent = sys.modules.get(missing.rpartition(".")[0])
    return parent is None or parent.__file__ is None
