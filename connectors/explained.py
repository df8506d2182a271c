"""What a person sees when a query fails: one sentence of ours, instead of a trace through our code.

Spark prints the Python traceback of an error that a sink raises, and stops the query with it. At the border to Spark our own
errors lose their trace, because their message says what to do; and an error of the operating system becomes one of ours,
which says the same for it. Anything else is a defect of twophase, and keeps its trace.
"""

from __future__ import annotations

import errno
import re
from dataclasses import dataclass
from types import TracebackType

from twophase import errors
from twophase.errors import TargetUnavailable, TwophaseError

_CURES = {
    errno.EACCES: "the user that runs Spark has no rights there: grant them",
    errno.EPERM: "the user that runs Spark has no rights there: grant them",
    errno.EROFS: "the file system is mounted read-only: mount it for writing, or use another path",
    errno.ENOSPC: "the disk is full: free some space",
    errno.EDQUOT: "the disk quota is used up: free some space",
    errno.ENOENT: "a folder that has to exist is gone: restore it",
    errno.ENOTDIR: "a file is where a folder should be: move it away, or use another path",
    errno.ENAMETOOLONG: "a name is longer than the file system takes (mostly 255 bytes): shorten the path, or the values of the "
    "partition column",
    errno.EMFILE: "the process has too many open files: raise its limit (ulimit -n)",
}


def explained(*, epoch: int | None = None, slot: int | None = None, where: str | None = None) -> _Explained:
    """A context: errors that come through it are fit to be read by the person who runs the query.

    Parameters
    ----------
    where:
        What is worked on: an error of the operating system does not always name a path.
    """
    return _Explained(epoch, slot, where)


@dataclass(frozen=True)
class _Explained:
    """No generator with `contextmanager`: contextlib puts the old trace back on an error that a generator lets through."""

    epoch: int | None
    slot: int | None
    where: str | None

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TwophaseError):
            raise error.with_traceback(None) from None
        if isinstance(error, OSError):
            raise self._unavailable(error) from None

    def _unavailable(self, error: OSError) -> TargetUnavailable:
        cure = _CURES.get(error.errno or 0, "see to it that it works again")
        place = f" (at work on {self.where})" if self.where and error.filename is None else ""
        return TargetUnavailable(
            f"{error}{place}: {cure}, and start the query again. Nothing of the epoch is visible in part, and nothing is lost",
            epoch=self.epoch,
            slot=self.slot,
        )


_OURS = re.compile(r"twophase\.errors\.(\w+): \[\w+\] (.*)")


def ours_in(text: str) -> TwophaseError | None:
    """Our own error inside of what Spark says about a task that failed: its sentence, without the trace around it."""
    found = _OURS.search(text)
    kind = None if found is None else getattr(errors, found[1], None)
    if found is None or not (isinstance(kind, type) and issubclass(kind, TwophaseError)):
        return None
    return kind(found[2])
