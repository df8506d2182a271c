"""Errors: named by outcome, and whole after they have travelled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator

import pytest

import twophase
from twophase import errors
from twophase.errors import NotCommitted, OptionError, TwophaseError

# Dashboards and alerts match these: a changed one is a breaking change.
CONDITIONS = {
    "AlreadyDecided": "ALREADY_DECIDED",
    "CheckpointMismatch": "CHECKPOINT_MISMATCH",
    "DataLost": "DATA_LOST",
    "Fenced": "FENCED",
    "LedgerCorrupt": "LEDGER_CORRUPT",
    "MissingExtra": "MISSING_EXTRA",
    "NotCommitted": "NOT_COMMITTED",
    "OptionError": "OPTION",
    "OutcomeUnknown": "OUTCOME_UNKNOWN",
    "ProtocolViolation": "PROTOCOL_VIOLATION",
    "ReplayDiffers": "REPLAY_DIFFERS",
    "SchemaMismatch": "SCHEMA_MISMATCH",
    "TableCorrupt": "TABLE_CORRUPT",
    "TargetUnavailable": "TARGET_UNAVAILABLE",
    "TwophaseError": "TWOPHASE",
    "Unreadable": "UNREADABLE",
}


def kinds(kind: type[TwophaseError] = TwophaseError) -> Iterator[type[TwophaseError]]:
    yield kind
    for subclass in kind.__subclasses__():
        if subclass.__module__.partition(".")[0] == "twophase":
            yield from kinds(subclass)


KINDS = sorted(set(kinds()), key=lambda kind: kind.__name__)


def test_condition_names_are_unique_and_stable() -> None:
    assert {kind.__name__: kind.condition for kind in KINDS} == CONDITIONS
    assert len(set(CONDITIONS.values())) == len(CONDITIONS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_has_the_one_base_and_a_public_name(kind: type[TwophaseError]) -> None:
    assert issubclass(kind, TwophaseError)
    assert not issubclass(kind, OSError), "a lost reply of storage would be taken for it"
    assert getattr(twophase, kind.__name__) is kind
    assert kind.__doc__


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_travels_with_all_it_says(kind: type[TwophaseError], protocol: int) -> None:
    error = kind("what happened", owner="orders/heap", epoch=7, slot=3)
    error.add_note("seen by the driver")
    for other in (pickle.loads(pickle.dumps(error, protocol)), copy.copy(error), copy.deepcopy(error)):
        assert type(other) is kind
        assert (other.message, other.owner, other.epoch, other.slot) == ("what happened", "orders/heap", 7, 3)
        assert other.args == error.args
        assert vars(other) == vars(error)
        assert str(other) == str(error)


def test_the_slots_that_died_travel() -> None:
    error = pickle.loads(pickle.dumps(NotCommitted("gone", dead_slots=[2, 5], epoch=1)))
    assert isinstance(error, NotCommitted)
    assert error.dead_slots == (2, 5)
    assert NotCommitted("gone").dead_slots == ()


def test_all_problems_with_options_travel() -> None:
    error = pickle.loads(pickle.dumps(OptionError("two are wrong", problems=["a", "b"])))
    assert isinstance(error, OptionError)
    assert error.problems == ("a", "b")
    assert OptionError("wrong").problems == ()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_text_has_the_condition_the_message_and_whose_epoch_it_is(kind: type[TwophaseError]) -> None:
    assert str(kind("gone")) == f"[{kind.condition}] gone"
    assert str(kind("gone", epoch=0, slot=0)) == f"[{kind.condition}] gone (epoch=0, slot=0)"
    text = str(kind("gone", owner="orders/heap", epoch=7, slot=3))
    assert text == f"[{kind.condition}] gone (owner=orders/heap, epoch=7, slot=3)"


def test_every_error_of_the_package_is_defined_in_one_place() -> None:
    assert {kind.__module__ for kind in KINDS} == {errors.__name__}
