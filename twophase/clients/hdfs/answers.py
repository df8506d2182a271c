"""What a NameNode or a client of it says, as the errors that storage has: by the name of Hadoop's exception.

Three kinds of trouble must never be confused:

==================  ================================================================================================
a refusal           the NameNode answered: nothing was changed. A built-in error that says why
`NotTaken`          nobody took the request: no NameNode was reached, or it was not ready. Trying again is safe
a TimeoutError      the request may have been carried out, now or later: the reply was lost
==================  ================================================================================================

Every error has a number. One without would be taken for Arrow's own, which has none, and a file for damaged.
"""

from __future__ import annotations

import errno
import re

_NOT_READY = ("SafeModeException", "StandbyException", "RetriableException", "ObserverRetryOnActiveException")
_NOT_READY_WORDS = ("Failed to find datanode", "There are 0 datanode(s) running", "no node is chosen")
_NUMBERS = {
    "FileNotFoundException": errno.ENOENT,
    "NoSuchFileException": errno.ENOENT,
    # Of a file that was deleted while it was written, or that somebody else writes by now.
    "LeaseExpiredException": errno.ENOENT,
    "FileAlreadyExistsException": errno.EEXIST,
    "AlreadyBeingCreatedException": errno.EEXIST,
    "ParentNotDirectoryException": errno.ENOTDIR,
    "PathIsNotDirectoryException": errno.ENOTDIR,
    "AccessControlException": errno.EACCES,
    "AuthorizationException": errno.EACCES,
    "SecurityException": errno.EACCES,
    "InvalidToken": errno.EACCES,
    "NSQuotaExceededException": errno.EDQUOT,
    "DSQuotaExceededException": errno.EDQUOT,
    "QuotaExceededException": errno.EDQUOT,
    "MaxDirectoryItemsExceededException": errno.EDQUOT,
    "PathComponentTooLongException": errno.ENAMETOOLONG,
    "InvalidPathException": errno.EINVAL,
    "IllegalArgumentException": errno.EINVAL,
    "UnsupportedOperationException": errno.EOPNOTSUPP,
}
_WORDS = (
    ("must both be", errno.EEXIST),  # a file is to be renamed to a folder that is there, or the other way round
    ("directory or file under source", errno.EINVAL),
    ("could only be written to 0 of", errno.ENOSPC),
    ("could only be replicated to 0 nodes", errno.ENOSPC),
)
_SHOWN = 300


class NotTaken(ConnectionError):
    """Nobody took the request, so that nothing was changed: try again, for as long as there is patience."""

    def __init__(self, why: str):
        super().__init__(errno.ECONNREFUSED, why)
        self._why = why

    def __reduce__(self) -> tuple[type[NotTaken], tuple[str]]:
        return NotTaken, (self._why,)


def refusal(exception: str, said: str, path: str) -> OSError:
    """The error for an exception of Hadoop's, by its class with or without its package."""
    name = re.split(r"[.$]", exception)[-1]
    why = _first_line(said)
    if name in _NOT_READY or any(words in why for words in _NOT_READY_WORDS):
        return NotTaken(f"the NameNode is not ready: {name}: {why}")
    number = _NUMBERS.get(name)
    if name == "FileNotFoundException" and "is not a file" in why.lower():
        number = errno.EISDIR  # what the NameNode says of a folder that is to be read
    if number is None:
        number = next((number for words, number in _WORDS if words in why.lower()), errno.EIO)
    return OSError(number, f"{name}: {why}", path)


def lost(what: str, path: str, why: object) -> TimeoutError:
    """For a request whose reply never came."""
    return TimeoutError(errno.ETIMEDOUT, f"{what}: the reply was lost ({_first_line(str(why))})", path)


def _first_line(text: str) -> str:
    lines = text.strip().splitlines() or [""]
    return lines[0][:_SHOWN]
