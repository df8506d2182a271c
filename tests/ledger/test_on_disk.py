"""The ledger on a disk that fails: kills, errors and power cuts at each system call, alone and one after the other.

A driver walks prepare → decide → prepare → decide → prepare, with the shortest history, so that the last step compacts.
What may be relied on is noted: each record whose publication returned, and each that `read` returned. Then the disk
strikes, and a fresh ledger must find a valid prefix that has all that was noted, and go on. Each way to strike is one
check; it gives what it found wrong:

========  =====================================================================
torn      a record is visible that can't be read
gap       a record within the kept range is missing, or the prepare of a decision
lost      the ledger ends before a noted record
replaced  another record has the number of a noted one
stuck     no further record can be published
========  =====================================================================
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest

from tests.disk import CrashStates, Effect, Fault, FaultyPosix, Operation, When, in_child
from tests.ledger.ledger_folder import QUERY, Relay, decision_after, epoch_of
from tests.test_local_storage import ExclusiveCreate, WithoutFileSync, WithoutFolderSync
from twophase.errors import LedgerCorrupt, OutcomeUnknown, TwophaseError
from twophase.ledger import Ledger, Tail
from twophase.local_storage import LocalStorage
from twophase.record import Record

T = TypeVar("T")

KEPT_RECORDS = 3
RECORDS = 5
KILLED = -9

Note = Callable[[str], None]


@dataclass(frozen=True)
class Kind:
    """What the drivers of a check run: the real thing, or a mistake in one of its layers."""

    posix: type[FaultyPosix] = FaultyPosix
    storage: type[LocalStorage] = LocalStorage
    ledger: type[Ledger] = Ledger

    def open(self, folder: str, posix: FaultyPosix, ids: str) -> Ledger:
        # Ids are counted, not random, so that the same history has the same bytes: equal states are then checked once.
        numbers = count(1)
        return self.ledger(
            self.storage(posix),
            folder,
            new_id=lambda: f"{ids}{next(numbers)}",
            now_ms=lambda: 0,
            kept_records=KEPT_RECORDS,
        )


REAL = Kind()


def drive(ledger: Ledger, note: Note, records: int = RECORDS) -> None:
    """Publish this many records, prepares and decisions in turn, each after reading; note what may be relied on."""
    for _ in range(records):
        tail = ledger.read()
        if tail is not None:
            note(noted(tail))
        if tail is None or tail.decide is not None:
            epoch = epoch_of(0 if tail is None else tail.prepare.epoch.number + 1)
            prepare = ledger.prepare(tail, query=QUERY, epoch=epoch)
            note(f"{prepare.number} {prepare.nonce}")
        else:
            ledger.decide(tail, decision_after(tail, "orders"))
            note(f"{tail.number + 1} ")  # its nonce is the ledger's own affair


def noted(tail: Tail) -> str:
    newest: Record = tail.prepare if tail.decide is None else tail.decide
    return f"{newest.number} {newest.nonce}"


@dataclass(frozen=True)
class Prefix:
    """What a fresh ledger finds: where it ends, the nonces of the records that are there, and what is wrong with it."""

    newest: int
    nonces: Mapping[int, str]
    wrong: frozenset[str]

    def wrong_after(self, notes: Sequence[str]) -> set[str]:
        """What is wrong if all this had been noted."""
        wrong = set(self.wrong)
        for number, nonce in (note.split(" ") for note in notes):
            if int(number) > self.newest:
                wrong.add("lost")
            if nonce and self.nonces.get(int(number), nonce) != nonce:
                wrong.add("replaced")
        return wrong


def prefix_in(folder: str) -> Prefix:
    """Read the ledger in `folder`, and go on with it by one record."""
    ledger = REAL.open(folder, FaultyPosix(fsync=False), "z")
    numbers = numbers_in(folder)
    try:
        nonces = {number: ledger._record(number).nonce for number in numbers}
    except LedgerCorrupt:
        return Prefix(numbers[-1], {}, frozenset({"torn"}))
    try:
        tail = ledger.read()
    except LedgerCorrupt:
        return Prefix(numbers[-1], nonces, frozenset({"gap"}))
    newest = 0 if tail is None else tail.number
    wrong = set()
    if not set(range(max(1, newest - KEPT_RECORDS + 1), newest + 1)) <= set(nonces):
        wrong.add("gap")
    try:
        following = ledger.prepare(tail, query=QUERY, epoch=epoch_of(9))
        goes_on = following.number == newest + 1 and ledger.read() == Tail(following, None)
    except TwophaseError:
        goes_on = False
    if not goes_on:
        wrong.add("stuck")
    return Prefix(newest, nonces, frozenset(wrong))


def numbers_in(folder: str) -> list[int]:
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return sorted(int(name.removesuffix(".record")) for name in names if name.endswith(".record"))


# -- the checks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    verb: str
    succeeds: bool


class Recording(FaultyPosix):
    """Remembers every call, those that fail included."""

    def __init__(self, fault: Fault | None = None, *, fsync: bool = True):
        super().__init__(fault, fsync=fsync)
        self.made: list[Call] = []

    def _call(self, operation: Operation, call: Callable[[], T]) -> T:
        self.made.append(Call(operation.verb, succeeds=False))
        result = super()._call(operation, call)
        self.made[-1] = Call(operation.verb, succeeds=True)
        return result


def calls_of(kind: Kind, root: Path) -> list[Call]:
    """The calls of an undisturbed run."""
    posix = mixed(Recording, kind.posix)(fsync=False)
    with fresh(root) as folder:
        drive(kind.open(folder, posix, "a"), posix.note)
    assert isinstance(posix, Recording)
    return posix.made


def mixed(*kinds: type[FaultyPosix]) -> type[FaultyPosix]:
    return type("Mixed", kinds, {})


@contextmanager
def fresh(root: Path) -> Iterator[str]:
    """The place of a ledger that is not there yet: the same each time, because a record says where it is."""
    disk = root / "disk"
    disk.mkdir()
    yield f"{disk}/twophase"
    shutil.rmtree(disk)


def places(calls: Sequence[Call], verbs: Sequence[str], effect: Effect) -> Iterator[tuple[int, When]]:
    """Before and after each call, and halfway through each write; or only those of some verbs.

    A kill after a call is a kill before the next one, by when even more may have been noted.
    """
    for at, call in enumerate(calls):
        if verbs and call.verb not in verbs:
            continue
        yield at, "before"
        if call.verb == "write":
            yield at, "halfway"
        if call.succeeds and (effect != "kill" or at == len(calls) - 1):
            yield at, "after"


@dataclass
class Found:
    """What a check found wrong, and how far the ledger had come in the cases that it tried."""

    wrong: set[str] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    cases: int = 0

    def add(self, prefix: Prefix, notes: Sequence[str]) -> None:
        self.wrong |= prefix.wrong_after(notes)
        self.ends.add(prefix.newest)
        self.cases += 1


def killed(kind: Kind, root: Path, verbs: Sequence[str] = ()) -> Found:
    """SIGKILL at each call, each time of a process of its own; the next process goes on."""
    found, diary = Found(), root / "diary"
    for at, when in places(calls_of(kind, root), verbs, "kill"):
        posix = kind.posix(Fault(at, "kill", when), fsync=False)
        with fresh(root) as folder, open(diary, "wb", buffering=0) as file:
            ledger = kind.open(folder, posix, "a")
            status = in_child(partial(drive, ledger, partial(write_line, file.fileno())))
            assert status == KILLED, f"call {at} was not reached"
            found.add(prefix_in(folder), diary.read_text().splitlines())
    return found


def write_line(file: int, text: str) -> None:
    os.write(file, f"{text}\n".encode())


def failed(kind: Kind, root: Path, verbs: Sequence[str] = (), effect: Effect = "EIO") -> Found:
    """An error at each call. A driver that gives up is followed by another; nobody is told that it was overtaken."""
    found = Found()
    for at, when in places(calls_of(kind, root), verbs, effect):
        posix = kind.posix(Fault(at, effect, when), fsync=False)
        notes: list[str] = []
        with fresh(root) as folder:
            with suppress(OSError, OutcomeUnknown):
                drive(kind.open(folder, posix, "a"), notes.append)
            assert posix.fired is not None
            found.add(prefix_in(folder), notes)
    return found


class PowerCuts:
    """Lays out each state that a power cut may leave, unless it has the same records as one before."""

    def __init__(self, recovered: Path):
        self.recovered = recovered
        self.found = Found()
        self.prefixes: dict[frozenset[tuple[str, bytes]], Prefix] = {}

    def check(
        self, root: str, operations: Sequence[Operation], initial: Mapping[str, bytes | None] | None = None
    ) -> None:
        for state in CrashStates(root, operations, initial or {}):
            records = frozenset((name, data) for name, data in state.files.items() if name.endswith(".record"))
            if records not in self.prefixes:
                state.materialise(self.recovered)
                self.prefixes[records] = prefix_in(f"{self.recovered}/twophase")
            self.found.add(self.prefixes[records], state.notes)


def powered_off(kind: Kind, root: Path, records: int = RECORDS) -> Found:
    """A power cut at any point of an undisturbed run."""
    posix, cuts = kind.posix(fsync=False), PowerCuts(root / "recovered")
    with fresh(root) as folder:
        drive(kind.open(folder, posix, "a"), posix.note, records)
        cuts.check(f"{root}/disk", posix.operations)
    return cuts.found


def killed_then_powered_off(kind: Kind, root: Path, verbs: Sequence[str] = ()) -> Found:
    """A driver is killed before each call; the next one goes on; and the power is cut at any point from then on."""
    return _struck_then_powered_off(kind, root, verbs, "kill")


def failed_then_powered_off(kind: Kind, root: Path, verbs: Sequence[str] = ()) -> Found:
    """A driver meets an error at each call; it, or the next one, goes on; and the power is cut from then on."""
    return _struck_then_powered_off(kind, root, verbs, "EIO")


def _struck_then_powered_off(kind: Kind, root: Path, verbs: Sequence[str], effect: Effect) -> Found:
    cuts = PowerCuts(root / "recovered")
    struck = mixed(Trimming, *((Dying,) if effect == "kill" else ()), kind.posix)
    for at, call in enumerate(calls_of(kind, root)):
        if verbs and call.verb not in verbs:
            continue
        posix, following = struck(Fault(at, effect), fsync=False), kind.posix(fsync=False)
        assert isinstance(posix, Trimming)
        following.operations = posix.operations
        with fresh(root) as folder:
            with suppress(OSError, OutcomeUnknown, Killed):
                drive(kind.open(folder, posix, "a"), posix.note)
            assert posix.fired == call.verb
            drive(kind.open(folder, following, "b"), following.note, 2)
            cuts.check(f"{root}/disk", following.operations, posix.durable)
    return cuts.found


class Killed(BaseException):
    """The process is gone: no handler runs."""


class Dying(FaultyPosix):
    """A kill without a process of its own, so that what the dead one did and what others do next are one record."""

    is_dead = False

    def close(self, descriptor: int) -> None:
        if self.is_dead:
            os.close(descriptor)  # as the system does for the dead
        else:
            super().close(descriptor)

    def _call(self, operation: Operation, call: Callable[[], T]) -> T:
        if self.is_dead:
            raise Killed
        return super()._call(operation, call)

    def _strike(self, fault: Fault, operation: Operation) -> None:
        self.fired, self.is_dead = operation.verb, True
        raise Killed


class Trimming(FaultyPosix):
    """Until it strikes, forgets operations that are certain: power cuts before the strike are a check of their own.

    Takes each file for synced: not for a mistake that leaves that out.
    """

    durable: Mapping[str, bytes | None] = {}

    def _call(self, operation: Operation, call: Callable[[], T]) -> T:
        result = super()._call(operation, call)
        folder = Path(operation.path)
        if self.fired is None and operation.verb == "fsync" and folder.name == "twophase":
            files = {f"twophase/{file.name}": file.read_bytes() for file in folder.iterdir()}
            self.durable = {"twophase": None, **files}
            self.operations[:] = [operation for operation in self.operations if operation.verb == "note"]
        return result


# -- the promises ----------------------------------------------------------------------------------------------------

EVERY_END = set(range(RECORDS + 1))


def test_after_a_kill_at_any_call_a_fresh_ledger_finds_a_valid_prefix_with_all_that_was_promised_and_goes_on(
    tmp_path: Path,
) -> None:
    found = killed(REAL, tmp_path)

    assert found.wrong == set()
    assert found.ends == EVERY_END, "the kills must fall between all records"


@pytest.mark.parametrize("effect", ["EIO", "ENOSPC"])
def test_after_an_error_at_any_call_a_fresh_ledger_finds_a_valid_prefix_with_all_that_was_promised_and_goes_on(
    tmp_path: Path, effect: Effect
) -> None:
    found = failed(REAL, tmp_path, effect=effect)

    assert found.wrong == set()
    assert found.ends == EVERY_END


def test_after_any_power_cut_a_fresh_ledger_finds_a_valid_prefix_with_all_that_was_promised_and_goes_on(
    tmp_path: Path,
) -> None:
    found = powered_off(REAL, tmp_path)

    assert found.wrong == set()
    assert found.ends == EVERY_END


@pytest.mark.parametrize("check", [killed_then_powered_off, failed_then_powered_off])
def test_what_a_reader_acted_on_after_a_kill_or_an_error_survives_any_later_power_cut(
    tmp_path: Path, check: Callable[[Kind, Path], Found]
) -> None:
    found = check(REAL, tmp_path)

    assert found.wrong == set()
    assert found.ends >= EVERY_END


# -- the checks are tested too ---------------------------------------------------------------------------------------


class NeverSyncs(Relay):
    """Publishes durably, as its storage does, and does nothing when it is asked to sync."""

    def sync(self, folder: str) -> None:
        pass


class ReadsWithoutSync(Ledger):
    def read(self) -> Tail | None:
        storage, self._storage = self._storage, NeverSyncs(self._storage)
        try:
            return super().read()
        finally:
            self._storage = storage


class TakesItsOwnRecordWithoutSync(Ledger):
    """After a time-out, finds its own record, and does not make sure that it stays."""

    def _publish(self, record: Record) -> list[int]:
        storage, self._storage = self._storage, NeverSyncs(self._storage)
        try:
            return super()._publish(record)
        finally:
            self._storage = storage


MISTAKES = {
    "O_EXCL create": Kind(storage=ExclusiveCreate),
    "no fsync of the file": Kind(posix=WithoutFileSync),
    "no fsync of the folder": Kind(posix=WithoutFolderSync),
    "no sync in read": Kind(ledger=ReadsWithoutSync),
    "no sync after a time-out": Kind(ledger=TakesItsOwnRecordWithoutSync),
}
CAUGHT: dict[tuple[str, Callable[..., Found]], set[str]] = {
    ("O_EXCL create", killed): {"torn"},
    ("O_EXCL create", failed): {"torn"},
    ("O_EXCL create", powered_off): {"torn"},
    ("no fsync of the file", killed): set(),
    ("no fsync of the file", failed): set(),
    ("no fsync of the file", powered_off): {"torn"},
    ("no fsync of the folder", killed): set(),
    ("no fsync of the folder", failed): set(),
    ("no fsync of the folder", powered_off): {"lost", "gap"},
    ("no sync in read", failed): set(),
    ("no sync in read", powered_off): set(),
    ("no sync in read", killed_then_powered_off): {"lost", "gap"},
    ("no sync in read", failed_then_powered_off): set(),
    ("no sync after a time-out", failed): set(),
    ("no sync after a time-out", powered_off): set(),
    ("no sync after a time-out", killed_then_powered_off): set(),
    ("no sync after a time-out", failed_then_powered_off): {"lost", "gap"},
}


@pytest.mark.parametrize(("mistake", "check"), CAUGHT, ids=[f"{name}, {check.__name__}" for name, check in CAUGHT])
def test_a_mistake_is_caught_by_the_checks_that_can_see_it_and_by_no_other(
    tmp_path: Path, mistake: str, check: Callable[..., Found]
) -> None:
    kind = MISTAKES[mistake]
    if check is powered_off:
        # Without syncs all that ever happened may be undone: a short history has states enough.
        found = powered_off(kind, tmp_path, 2 if kind.posix is WithoutFolderSync else 3)
    else:
        found = check(kind, tmp_path, ("create", "write", "fsync", "link"))

    assert found.wrong == CAUGHT[mistake, check]


def test_every_mistake_is_caught_by_some_check() -> None:
    assert {mistake for (mistake, _), caught in CAUGHT.items() if caught} == set(MISTAKES)
