"""A search that is cut into chunks, which several processes follow, finds what one that is not cut finds; and it goes on after a
stop. See docs/proof.md."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.model import journal
from tests.model.chunks import Chunks
from tests.model.explorer import Explorer
from tests.model.invariants import Violation
from tests.model.journal import Chunk, Journal
from tests.model.mistakes import MISTAKES, Mistake
from tests.model.seen import Met
from tests.model.spark import Setup
from tests.model.state import Scenario

pytestmark = pytest.mark.kit

ONE_EPOCH = Setup(0, epochs=1, slots=1)
LATE = Scenario(ONE_EPOCH, max_faults=2, kinds=frozenset({"crash", "late request", "late twin"}))
SCENARIOS = (
    LATE,
    Scenario(ONE_EPOCH, max_faults=2, kinds=frozenset({"second driver", "crash", "share dies"}), max_switches=1),
    Scenario(ONE_EPOCH, max_faults=2, kinds=frozenset({"crash", "restored", "emptied", "rival"}), max_switches=1),
    Scenario(ONE_EPOCH, max_faults=2, kinds=frozenset({"crash", "share dies", "duplicate request"})),
)
FEW_STATES = 100
"""So that even these searches are cut into many chunks."""


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: ",".join(sorted(scenario.kinds)))
def test_a_search_that_is_cut_finds_what_one_that_is_not_finds(scenario: Scenario, processes: int) -> None:
    whole, cut = Explorer(scenario), Chunks(scenario, processes, chunk_states=FEW_STATES)
    expected, found = whole.run(), cut.run()

    assert found.complete
    assert cut.ends == set(whole.ends)
    assert cut.refused == {key for key, refused in whole.ends.items() if refused}
    assert (found.ends, found.refused) == (expected.ends, expected.refused)
    if processes == 1:  # others come to some states from another side, and to some at the same moment
        assert set(cut.met.hashes.tolist()) == set(whole.seen.met)
        assert (found.states, found.steps, found.faults) == (expected.states, expected.steps, expected.faults)


CAUGHT_LATE = [mistake for mistake in MISTAKES if mistake.max_faults == 2][:3]


@pytest.mark.parametrize("mistake", CAUGHT_LATE, ids=lambda mistake: mistake.name)
def test_a_mistake_that_another_process_catches_comes_out_with_its_schedule(mistake: Mistake) -> None:
    with mistake.applied(), pytest.raises(Violation) as caught:
        Chunks(mistake.scenario, processes=2).run()
    assert caught.value.invariant == mistake.caught_by
    schedule = caught.value.__notes__[0].splitlines()
    assert schedule[:2] == ["schedule:", "  a driver starts"]
    assert len(schedule) > 5


class _Stop(Exception):
    pass


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal of a search that was stopped when its third chunk was finished."""
    merge, merged = Chunks._merge, list[Chunk]()

    def merge_two(search: Chunks, chunk: Chunk) -> None:
        merged.append(chunk)
        if len(merged) > 2:
            raise _Stop
        merge(search, chunk)

    search = Chunks(LATE, journal=tmp_path, chunk_states=FEW_STATES)
    with monkeypatch.context() as patched:
        patched.setattr(Chunks, "_merge", merge_two)
        with pytest.raises(_Stop):
            search.run()
    return tmp_path


def test_a_search_that_was_stopped_goes_on_where_it_was(stopped: Path) -> None:
    kept = Journal.of(LATE, stopped).folder
    before = {path.name for path in kept.glob("*.npz")}
    expected, found = Explorer(LATE).run(), Chunks(LATE, journal=stopped, chunk_states=FEW_STATES).run()

    assert len(before) == 3
    assert before < {path.name for path in kept.glob("*.npz")}
    assert found.journal_s > 0
    assert (found.states, found.steps, found.faults) == (expected.states, expected.steps, expected.faults)
    assert (found.ends, found.refused) == (expected.ends, expected.refused)


def test_a_search_with_other_sources_or_another_bound_begins_anew(
    stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [Journal.of(dataclasses.replace(LATE, max_faults=3), stopped)]
    monkeypatch.setattr(journal, "SOURCES", (*journal.SOURCES, "sinks/*.py"))
    others.append(Journal.of(LATE, stopped))

    assert [list(other.chunks()) for other in others] == [[], []]


def test_a_process_that_dies_has_met_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chunks, "_followed", lambda *_: os._exit(9))
    search = Chunks(LATE, processes=2, journal=tmp_path)
    with pytest.raises(RuntimeError, match="left nothing"):
        search.run()
    assert not list(Journal.of(LATE, tmp_path).chunks())


def test_a_search_that_runs_out_of_time_says_so() -> None:
    assert not Chunks(dataclasses.replace(LATE, seconds=0.5), processes=2, chunk_states=FEW_STATES).run().complete


def test_hashes_of_states_are_the_same_in_every_process() -> None:
    """Python's own hashes of texts, and so the order of sets, differ from start to start."""
    script = """
from tests.model.explorer import Explorer
from tests.test_model_parallel import SCENARIOS
explorer = Explorer(SCENARIOS[2])
explorer.run()
print(hash(frozenset(explorer.seen.met)), hash(frozenset(explorer.ends)))
"""
    told = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            text=True,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_states_that_are_met_by_several_are_known_by_all_their_bits() -> None:
    one, other = Met.of({7: 1, 2**64 - 1: 2, 30: 4}), Met.of({8: 1, 30: 1, 2**63: 8})
    both = one.with_all(other)

    assert [both.bits_of(key) for key in (7, 8, 30, 2**63, 2**64 - 1, 9)] == [1, 1, 5, 8, 2, 0]
    assert len(both) == 5
    assert [Met().with_all(one).bits_of(key) for key in (7, 30, 31)] == [1, 4, 0]
