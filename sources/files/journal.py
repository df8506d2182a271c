"""The journal of taken files: in which order the files of a plain folder were found, the same for every reader, for ever.

::

    taken/00000000000000000001.record     files 0, 1, 2        each file: name, bytes, time of its last change
    taken/00000000000000000002.record     file  3
    taken/00000000000000000003.record     files 4 … 10003      publish 4 ─► whoever is second reads it, and takes the rest

A folder has no order of its own: times of change come from other machines, and a file with an old one can arrive late. So
whoever lists the folder appends the names that are not in the journal yet, and an offset is an index into the journal.

The mechanism: records are numbered, immutable, and published exclusively after all before them were read. If the next
number is taken, that record is read, and only names that are still missing are tried again: so a name is in the journal
once. A record is durable before anything is done with it. The first record names the journal, and each later one repeats
that id: an offset carries it, so a journal that was deleted and begun again is noticed.

The guarantee: index i means the same file, with the same size and time of change, in every process and after every crash.

What it can't do: forget. It keeps a name for ever, in memory too where it is read (about 200 bytes a file), and a process
that starts reads all records. Records must not be deleted by hand: a gap is an error.
"""

from __future__ import annotations

import errno
import hashlib
import json
import secrets
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from twophase.errors import LedgerCorrupt, OptionError, OutcomeUnknown
from twophase.storage import Storage
from twophase.vote import canonical_json

JOURNAL_FORMAT = 1
FILES_PER_RECORD = 10_000
PUBLISH_TRIES = 5
TEMPORARY_LIVES_S = 3600.0
_MAGIC = b"twophase-taken"
_DIGITS = 20
_NO_RIGHT = {errno.EACCES, errno.EPERM, errno.EROFS}


@dataclass(frozen=True)
class TakenFile:
    """A file as it was when it was found. The name is relative to the folder, with `/` between its parts."""

    name: str
    bytes: int
    modified_ns: int


@dataclass(frozen=True)
class Record:
    """One publication: the files from index `first` on."""

    number: int
    nonce: str
    journal: str
    first: int
    files: tuple[TakenFile, ...]


@dataclass
class History:
    """The journal as far as it was read. Only ever appended to, so that an index once valid stays so."""

    journal: str | None = None
    number: int = 0
    digest: str = ""
    files: list[TakenFile] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)

    def append(self, record: Record, data: bytes) -> None:
        for at, file in enumerate(record.files, record.first):
            self.files.append(file)
            self.names[file.name] = at
        self.journal, self.number, self.digest = record.journal, record.number, _digest(data)


class Journal:
    """The journal in a folder of a storage.

    What was read is kept for the process, by place, and believed only if the newest record that it knows is still the same.
    """

    def __init__(self, storage: Storage, folder: str):
        self._storage = storage
        self._folder = folder

    def read(self) -> History:
        """All that is in the journal now, durable."""
        with _lock:
            return self._read()

    def extend(self, found: Iterable[TakenFile]) -> History:
        """Append what is not in it yet, in the order given; returns the journal with all of it, durable."""
        found = list(found)
        with _lock:
            history = self._read()
            while missing := [file for file in found if file.name not in history.names][:FILES_PER_RECORD]:
                self._append(history, missing)
            return history

    def _append(self, history: History, files: list[TakenFile]) -> None:
        """Publish `files` as the next record; if another came first, read that one instead."""
        if history.journal is None:
            self._make_folder()
        record = Record(
            number=history.number + 1,
            nonce=secrets.token_hex(16),
            journal=history.journal or secrets.token_hex(8),
            first=len(history.files),
            files=tuple(files),
        )
        path, data = self._path(record.number), encode(record)
        for _ in range(PUBLISH_TRIES):
            try:
                self._storage.publish(path, data)
            except FileExistsError:
                pass  # another reader's, or mine by a try whose reply was lost: what is there says which files it has
            except TimeoutError:
                continue  # it may land later: only the same record may be tried again
            except OSError as error:
                raise self._explained(error) from error
            self._read_on(history)
            if history.number < record.number:
                raise corrupt(path, "was taken, and is gone: records are being deleted")
            return
        raise OutcomeUnknown(f"the record {path} of taken files may have been published: start the query again")

    def _read(self) -> History:
        place = self._storage.normalise(self._folder)
        history = _histories.get(place)
        if history is None or not self._is_prefix(history):
            history = self._read_all()
            _histories[place] = history
        self._read_on(history)
        return history

    def _is_prefix(self, history: History) -> bool:
        if history.number == 0:
            return True
        try:
            return _digest(self._storage.read(self._path(history.number))) == history.digest
        except FileNotFoundError:
            return False

    def _read_all(self) -> History:
        numbers = sorted(self._numbers())
        if numbers != list(range(1, len(numbers) + 1)):
            missing = sorted(set(range(1, numbers[-1])) - set(numbers))
            raise LedgerCorrupt(
                f"the journal of taken files {self._folder} has no record {missing[0]}, but has record {numbers[-1]}: records "
                "were deleted by hand. Restore the folder from a backup, or start a new query with another `ledger`."
            )
        self._storage.sweep_temporary(self._folder, older_than_s=TEMPORARY_LIVES_S)
        return History()

    def _read_on(self, history: History) -> None:
        new = list(self._records_after(history.number))
        if new:
            # Before they count for anything: the process that linked one may have died before its folder was synced, and an
            # offset must not outlive it.
            self._storage.sync(self._folder)
        for data in new:
            history.append(self._checked(history, data), data)

    def _records_after(self, number: int) -> Iterator[bytes]:
        while True:
            number += 1
            try:
                data = self._storage.read(self._path(number))
            except FileNotFoundError:
                return
            yield data

    def _checked(self, history: History, data: bytes) -> Record:
        number = history.number + 1
        path = self._path(number)
        record = decode(data, path=path)
        if (record.number, record.first) != (number, len(history.files)) or history.journal not in (
            None,
            record.journal,
        ):
            raise corrupt(path, "does not follow the record before it: records of two journals were mixed")
        return record

    def _numbers(self) -> Iterator[int]:
        for entry in self._storage.list(self._folder):
            stem, _, suffix = entry.name.partition(".")
            if suffix == "record" and len(stem) == _DIGITS and stem.isascii() and stem.isdigit():
                yield int(stem)

    def _make_folder(self) -> None:
        try:
            self._storage.make_folder(self._folder)
        except OSError as error:
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> Exception:
        if error.errno not in _NO_RIGHT:
            return error
        problem = (
            f"the journal of taken files can't be written to {self._folder} ({error.strerror}): set the option ledger to a "
            "folder that this user may write to, the same one for as long as the query lives"
        )
        return OptionError(f"1 problem with the options: {problem}", problems=[problem])

    def _path(self, number: int) -> str:
        return f"{self._folder}/{number:0{_DIGITS}d}.record"


def encode(record: Record) -> bytes:
    content = {
        "number": record.number,
        "nonce": record.nonce,
        "journal": record.journal,
        "first": record.first,
        "files": [[file.name, file.bytes, file.modified_ns] for file in record.files],
    }
    # A name whose bytes are not UTF-8 has lone surrogates in Python; json.loads reads them back.
    body = canonical_json(content).encode("utf-8", "surrogatepass") + b"\n"
    return b"%s %d sha256=%s\n" % (_MAGIC, JOURNAL_FORMAT, _digest(body).encode()) + body


def decode(data: bytes, *, path: str) -> Record:
    """Read a record; raises LedgerCorrupt that says in what way it can't be read."""
    header, _, body = data.partition(b"\n")
    words = header.split(b" ")
    if words[0] != _MAGIC or len(words) != 3 or not words[1].isdigit():
        raise corrupt(path, "is not a record of taken files: another program wrote it, or it is torn")
    if int(words[1]) != JOURNAL_FORMAT:
        raise corrupt(path, f"has format {int(words[1])}, and this release reads {JOURNAL_FORMAT}: run a newer release")
    if words[2] != b"sha256=" + _digest(body).encode():
        raise corrupt(path, "is torn or was altered: its checksum does not match")
    try:
        content = json.loads(body.decode("utf-8", "surrogatepass"))
        files = tuple(TakenFile(str(name), int(size), int(changed)) for name, size, changed in content["files"])
        return Record(
            int(content["number"]), str(content["nonce"]), str(content["journal"]), int(content["first"]), files
        )
    except (ValueError, KeyError, TypeError) as error:
        raise corrupt(path, f"is whole but makes no sense to this release: {error!r}") from error


def corrupt(path: str, what: str) -> LedgerCorrupt:
    return LedgerCorrupt(f"{path} {what}. Nothing was changed. Restore the folder of taken files from a backup.")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_histories: dict[str, History] = {}
_lock = threading.RLock()
