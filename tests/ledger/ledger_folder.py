"""A ledger in its folder: written step by step, what lies there then, and storages that stand in front of it."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from twophase.decision import Decision, SinkDecision
from twophase.identity import Attempt, DecisionId, Epoch, Owner, offsets_hash
from twophase.ledger import KEPT_RECORDS, PUBLISH_TRIES, Ledger, Tail
from twophase.local_storage import LocalStorage
from twophase.record import RECORD_FORMAT, Enrolment, Prepare, Record, decode
from twophase.sink import Marker
from twophase.storage import Entry, Storage
from twophase.vote import VotedShare, canonical_json

QUERY = "0d7e3c1a-query"
NOW_MS = 1_763_300_000_000


# -- written step by step --------------------------------------------------------------------------------------------


def ledger_in(
    folder: str | Path,
    storage: Storage | None = None,
    *,
    kept_records: int = KEPT_RECORDS,
    new_id: Callable[[], str] = lambda: uuid4().hex,
) -> Ledger:
    inner = LocalStorage() if storage is None else storage
    return Ledger(inner, str(folder), new_id=new_id, now_ms=lambda: NOW_MS, kept_records=kept_records)


def epoch_of(number: int) -> Epoch:
    return Epoch(number, offsets_hash(b"offsets/%d" % number))


def decision_after(tail: Tail, *sinks: str, shares: int = 2) -> Decision:
    """A decision that may follow `tail`, with `shares` shares in each of the sinks."""
    generation, epoch = tail.generation, tail.prepare.epoch
    by = DecisionId(tail.prepare.ledger, tail.number + 1)
    decided = {}
    for name in sinks:
        origin = None if epoch.number == 0 else Marker(Owner(QUERY, name), epoch_of(epoch.number - 1), str(by))
        voted = (
            VotedShare(
                slot, Attempt(generation, 100 + slot), 3, "c0ffee", canonical_json({"version": 1, "file": f"{slot}"})
            )
            for slot in range(shares)
        )
        enrolment = tail.sinks.get(name, Enrolment(epoch.number, 0))
        decided[name] = SinkDecision(by, enrolment.joined, enrolment.base, origin, tuple(voted))
    return Decision(by, generation, epoch, 0, decided)


def prepare(ledger: Ledger, number: int, **more: Any) -> Prepare:
    """Prepare an epoch after whatever is there."""
    return ledger.prepare(ledger.read(), query=QUERY, epoch=epoch_of(number), **more)


def decide(ledger: Ledger, *sinks: str) -> Decision:
    """Decide what was prepared last."""
    tail = read(ledger)
    decision = decision_after(tail, *sinks)
    ledger.decide(tail, decision)
    return decision


def run_epoch(ledger: Ledger, number: int, *sinks: str) -> Decision:
    prepare(ledger, number)
    return decide(ledger, *(sinks or ("orders",)))


def read(ledger: Ledger) -> Tail:
    tail = ledger.read()
    assert tail is not None
    return tail


def publish_after(ledger: Ledger, tail: Tail | None, *, is_decision: bool) -> None:
    if is_decision:
        assert tail is not None
        ledger.decide(tail, decision_after(tail, "orders"))
    else:
        ledger.prepare(tail, query=QUERY, epoch=epoch_of(0))


# -- what lies in the folder -----------------------------------------------------------------------------------------


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in the folder, temporary ones included."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def path_of(folder: Path, number: int) -> Path:
    return folder / f"{number:020d}.record"


def records(folder: Path) -> dict[int, Record]:
    """Every record in the folder; fails if there is anything else."""
    found = {}
    for name, data in contents(folder).items():
        number = int(name.removesuffix(".record"))
        assert path_of(folder, number).name == name
        found[number] = decode(data, path=name, number=number)
    return found


def kinds(folder: Path) -> dict[int, str]:
    return {number: type(record).__name__ for number, record in records(folder).items()}


def copied(folder: Path, name: str) -> Path:
    target = folder.parent.parent / name / "twophase"
    shutil.copytree(folder, target)
    return target


def framed(body: bytes, *, version: int = RECORD_FORMAT) -> bytes:
    """A body with the header that belongs to it, made without the code under test."""
    return f"twophase-ledger {version} sha256={hashlib.sha256(body).hexdigest()}\n".encode() + body


# -- storages in front of another one --------------------------------------------------------------------------------


class Relay:
    """A storage in front of another one: what a subclass does not change is passed on."""

    def __init__(self, inner: Storage | None = None):
        self.inner = LocalStorage() if inner is None else inner

    def normalise(self, path: str) -> str:
        return self.inner.normalise(path)

    def publish(self, path: str, data: bytes) -> None:
        self.inner.publish(path, data)

    def rename(self, source: str, target: str) -> None:
        self.inner.rename(source, target)

    def read(self, path: str) -> bytes:
        return self.inner.read(path)

    def list(self, folder: str) -> list[Entry]:
        return self.inner.list(folder)

    def make_folder(self, folder: str) -> None:
        self.inner.make_folder(folder)

    def delete(self, path: str) -> None:
        self.inner.delete(path)

    def sweep_temporary(self, folder: str, older_than_s: float) -> int:
        return self.inner.sweep_temporary(folder, older_than_s)

    def sync(self, folder: str) -> None:
        self.inner.sync(folder)


Fate = Literal["answered", "reply lost", "lost", "late", "after the late ones"]


LATE: list[Fate] = ["late"] * PUBLISH_TRIES


class Network(Relay):
    """A storage behind a network: each publication meets the next fate, and is answered when there is none left.

    What is late is under way until `arrive`, or until a publication comes after it.
    """

    def __init__(self, *fates: Fate, inner: Storage | None = None):
        super().__init__(inner)
        self.fates = list(fates)
        self.under_way: list[tuple[str, bytes]] = []

    def publish(self, path: str, data: bytes) -> None:
        fate = self.fates.pop(0) if self.fates else "answered"
        if fate == "late":
            self.under_way.append((path, data))
        if fate == "after the late ones":
            self.arrive()
        if fate == "reply lost":
            with suppress(FileExistsError):
                super().publish(path, data)
        if fate in ("reply lost", "lost", "late"):
            raise TimeoutError(f"no answer about {path}")
        super().publish(path, data)

    def arrive(self) -> None:
        for path, data in self.under_way:
            with suppress(FileExistsError):
                super().publish(path, data)
        self.under_way.clear()
