"""The suites catch faults: sinks and sources with one mistake each, and the test that must fail because of it.

A mistake that no test catches is a hole in the suite. That the same tests pass without the mistake is what the other
test_conformance files show. The mistakes are in tests/mistakes/.
"""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.mistakes import (
    heap_sinks,
    slot_sinks,
    sources,
    sqlite_failures,
    sqlite_processes,
    sqlite_sinks,
    sqlite_upserts,
    values,
)
from tests.mistakes.sources import Numbers
from tests.model.slot_sink import SlotSink
from tests.test_conformance_heap import HeapUnderTest
from tests.test_conformance_slots import SlotsUnderTest
from tests.test_conformance_sqlite import OrdersTable
from twophase.query import AnySink
from twophase.sink import Description
from twophase.sinks.heap import HeapSink
from twophase.source import ReadLimit
from twophase.testing.query_steps import QuerySteps
from twophase.testing.sink_steps import SinkSteps
from twophase.testing.sink_suite import SinkSuite, SinkTarget
from twophase.testing.source_suite import UNITS, SourceOrigin, SourceSuite

pytestmark = pytest.mark.kit

# ---- running one test of the suite on one of them ----


class Heap(HeapUnderTest):
    def __init__(self, kind: Callable[[str], AnySink]):
        super().__init__(uuid.uuid4().hex)
        self.kind = kind

    def sink(self) -> Any:
        return self.kind(self.name)

    def rebuilt(self, description: Description) -> Any:
        return self.kind(description.options["target"])

    def short_lived(self) -> SinkTarget | None:
        return None if self.sink().capabilities.share_lives_ms is None else self


class Orders(OrdersTable):
    failpoints = ("sqlite.rows_shown",)  # where the sink that commits in two steps can die

    def __init__(self, folder: Path, kind: Callable[[str, str], AnySink]):
        super().__init__(folder)
        self.kind = kind

    def sink(self) -> Any:
        return self.kind(self.path, "orders")


class Slots(SlotsUnderTest):
    def __init__(self, kind: Callable[[Any], AnySink]):
        super().__init__()
        self.kind = kind

    def sink(self) -> Any:
        return self.kind(self.topic)


def mistake(kind: type, test: str, /, **parameters: Any) -> Any:
    """A sink or source, and the test of the suite that must fail because of it."""
    given = "".join(f", {name}={value}" for name, value in parameters.items())
    return pytest.param(kind, test, parameters, id=f"{kind.__name__}: {test}{given}")


SINKS_CAUGHT_BY = [
    mistake(heap_sinks.SetsTheMarker, "commit_again_from_any_process_changes_nothing"),
    mistake(heap_sinks.SetsTheMarker, "commit_moves_the_marker_only_from_where_the_order_says"),
    mistake(heap_sinks.SetsTheMarker, "an_order_of_another_epoch_can_not_set_the_marker_back"),
    mistake(heap_sinks.RefusesOnlyWhatItPrepares, "whoever_may_not_prepare_is_told_before_a_take_over"),
    mistake(heap_sinks.PreparesWhenAsked, "asking_whether_rows_fit_creates_nothing"),
    mistake(sqlite_upserts.MakesRoomEarly, "a_row_takes_the_place_of_the_one_with_its_key"),
    mistake(sqlite_upserts.KeepsTheFirstOfABatch, "a_row_takes_the_place_of_the_one_with_its_key"),
    mistake(sqlite_upserts.ReplacesBeforeItCompares, "a_commit_that_stood_still_brings_no_replaced_row_back"),
    mistake(heap_sinks.UpsertsInName, "a_row_takes_the_place_of_the_one_with_its_key"),
    mistake(heap_sinks.DiesEarly, "a_share_lives_as_long_as_the_sink_says_and_what_dies_then_is_named"),
    mistake(heap_sinks.DecidesTheDead, "a_share_lives_as_long_as_the_sink_says_and_what_dies_then_is_named"),
    mistake(heap_sinks.TearsWhenOneExpires, "a_share_lives_as_long_as_the_sink_says_and_what_dies_then_is_named"),
    mistake(heap_sinks.NeedsColumns, "whoever_may_not_prepare_is_told_before_a_take_over"),
    mistake(heap_sinks.DescribesAnother, "a_sink_that_is_built_from_its_description_finds_and_commits_the_same"),
    mistake(heap_sinks.TakesOverAnyway, "a_take_over_is_refused_if_the_line_has_moved_on"),
    mistake(heap_sinks.DoesNotFence, "a_fence_keeps_older_generations_from_staging"),
    mistake(heap_sinks.DoesNotFence, "a_generation_that_was_overtaken_is_told_so"),
    mistake(heap_sinks.FencesDecisionsToo, "a_new_generation_does_not_hinder_the_commit_of_an_older_ones_decision"),
    mistake(heap_sinks.HidesStrangers, "a_stranger_sees_whose_line_it_is_and_can_not_write_to_it"),
    mistake(heap_sinks.NamesNoOwner, "leftovers_in_a_line_are_of_all_owners_and_say_whose_they_are"),
    mistake(heap_sinks.KeepsBatches, "memory_that_is_used_again_spoils_nothing"),
    mistake(heap_sinks.LosesPrecision, "values_of_any_type_come_back_as_they_were_or_are_refused", kind="double"),
    mistake(heap_sinks.HoldsAFile, "a_sink_travels_before_and_after_its_use"),
    mistake(sqlite_sinks.ShowsAtOnce, "nothing_is_visible_before_commit_and_all_of_it_after"),
    mistake(sqlite_sinks.ShowsAtOnce, "each_epoch_is_visible_once_after_its_commit_and_not_before"),
    mistake(sqlite_sinks.CommitsTwice, "commit_again_from_any_process_changes_nothing"),
    mistake(sqlite_sinks.CommitsInTwoSteps, "a_driver_that_dies_within_the_sinks_own_commit_loses_and_repeats_nothing"),
    mistake(sqlite_sinks.AbortsTooMuch, "abort_deletes_these_leftovers_and_nothing_else"),
    mistake(sqlite_sinks.AbortsOthers, "an_owner_sees_and_deletes_only_what_it_staged_itself"),
    mistake(sqlite_sinks.AbortsNothing, "a_failed_epoch_leaves_nothing_and_can_be_run_again"),
    mistake(sqlite_sinks.ListsVotedSharesOnly, "what_a_dead_task_left_is_listed_and_can_be_deleted", when="written"),
    mistake(sqlite_sinks.ListsVotedSharesOnly, "what_a_killed_task_left_is_gone_after_recovery", when="written"),
    mistake(sqlite_sinks.NamesSharesBySlot, "a_losing_twin_is_never_visible_and_leaves_nothing"),
    mistake(sqlite_sinks.ForgetsTheLost, "a_lost_share_is_named_before_the_decision_and_after_it"),
    mistake(sqlite_sinks.ForgetsTheLost, "a_share_that_is_lost_before_the_decision_is_not_decided"),
    mistake(sqlite_sinks.TakesVisibleForLost, "a_visible_share_counts_as_alive"),
    mistake(sqlite_sinks.SkipsEmptyEpochs, "shares_and_epochs_without_rows_are_ordinary"),
    mistake(sqlite_sinks.SkipsEmptyEpochs, "epochs_and_tasks_without_rows_and_epochs_without_tasks_are_ordinary"),
    mistake(sqlite_sinks.ShowsBackwards, "rows_of_a_slot_keep_their_order"),
    mistake(sqlite_sinks.JoinsNames, "names_that_only_look_alike_are_different_owners"),
    mistake(sqlite_sinks.DropsEqualRows, "rows_that_are_equal_are_all_kept"),
    mistake(sqlite_sinks.DropsNonces, "attempts_that_differ_in_their_nonce_alone_are_two"),
    mistake(sqlite_sinks.AbortsByPrefix, "attempts_whose_names_begin_alike_are_two"),
    mistake(
        sqlite_sinks.FoldsMarkers,
        "owners_whose_names_are_nearly_the_same_have_markers_of_their_own",
        names=("Orders", "orders"),
    ),
    mistake(sqlite_sinks.ComparesOutside, "two_that_commit_one_decision_at_once_show_it_once"),
    mistake(
        sqlite_sinks.ComparesOutsideQuickly,
        "a_commit_that_stood_still_while_another_came_to_its_end_shows_nothing_twice",
    ),
    mistake(
        sqlite_sinks.SetsTheMarkerLate, "a_commit_that_stood_still_while_another_came_to_its_end_shows_nothing_twice"
    ),
    mistake(
        sqlite_sinks.TrustsItsOwnAlive, "a_share_that_is_lost_after_it_was_asked_about_is_dead_to_the_same_object_too"
    ),
    mistake(sqlite_sinks.ForgetsTheRestOfABuffer, "one_huge_batch_and_very_many_tiny_ones"),
    mistake(sqlite_sinks.SortsLargeBatches, "rows_of_a_slot_keep_their_order"),
    mistake(sqlite_sinks.LooksAtTheFirstShares, "the_last_of_a_thousand_shares_is_looked_at_as_the_first_is"),
    mistake(sqlite_sinks.ListsTheFirstLeftovers, "the_last_of_a_thousand_shares_is_looked_at_as_the_first_is"),
    mistake(sqlite_sinks.TakesAnyRowForAll, "a_share_that_has_lost_one_of_its_rows_is_dead"),
    mistake(sqlite_sinks.ByPosition, "columns_are_told_apart_by_their_names"),
    mistake(sqlite_sinks.DropsNewColumns, "a_column_that_a_later_epoch_adds_is_shown_or_refused"),
    mistake(sqlite_sinks.FoldsText, "values_of_any_type_come_back_as_they_were_or_are_refused", kind="string"),
    mistake(sqlite_sinks.DropsRowsOfNulls, "rows_of_nulls_alone_are_rows"),
    mistake(heap_sinks.KeepsIntegersAsFloats, "values_of_any_type_come_back_as_they_were_or_are_refused", kind="int32"),
    mistake(sqlite_processes.StagesInMemory, "another_process_commits_what_this_one_staged"),
    mistake(sqlite_processes.StagesInMemory, "another_process_deletes_what_this_one_staged"),
    mistake(sqlite_processes.StagesInMemory, "a_share_outlives_the_process_that_wrote_it"),
    mistake(sqlite_processes.ListsWhatItBegan, "another_process_deletes_what_this_one_staged"),
    mistake(sqlite_processes.RemembersMarkers, "a_sink_that_has_looked_before_sees_what_another_has_moved_since"),
    mistake(sqlite_processes.RemembersMarkersByProcess, "another_process_commits_what_this_one_staged"),
    mistake(sqlite_processes.ShowsShareByShare, "rows_and_marker_become_visible_in_one_step"),
    mistake(sqlite_processes.ShowsRowsFirst, "rows_and_marker_become_visible_in_one_step"),
    mistake(sqlite_processes.MovesTheMarkerFirst, "rows_and_marker_become_visible_in_one_step"),
    mistake(sqlite_processes.SwallowsErrors, "what_can_not_be_asked_is_an_error_and_never_an_answer"),
    mistake(sqlite_processes.SwallowsItsClientsErrors, "what_can_not_be_asked_is_an_error_and_never_an_answer"),
    mistake(sqlite_processes.TakesTheUnknownForAlive, "what_can_not_be_asked_is_an_error_and_never_an_answer"),
    mistake(sqlite_processes.ListsNothingInDoubt, "what_can_not_be_asked_is_an_error_and_never_an_answer"),
    mistake(
        sqlite_processes.MovesTheMarkerLate,
        "a_commit_that_stood_still_while_another_came_to_its_end_shows_nothing_twice",
    ),
    mistake(
        sqlite_processes.ShowsRowsThatItRead,
        "a_commit_that_stood_still_while_another_came_to_its_end_shows_nothing_twice",
    ),
    mistake(
        sqlite_processes.KeepsAllMarkersTogether,
        "a_commit_that_stood_still_while_another_owner_went_on_takes_nothing_back",
    ),
    mistake(sqlite_failures.TakesAnErrorForDone, "a_call_that_fails_within_a_commit_is_no_verdict"),
    mistake(sqlite_failures.TakesALostReplyForFailure, "a_call_that_fails_within_a_commit_is_no_verdict"),
    mistake(sqlite_failures.CleansUpInTwoSteps, "a_call_that_fails_within_a_commit_is_no_verdict"),
    mistake(sqlite_failures.SwallowsErrorsOfWrites, "a_call_that_fails_within_a_task_is_no_vote"),
    mistake(sqlite_failures.RepeatsWrites, "a_call_that_fails_within_a_task_is_no_vote"),
    mistake(sqlite_failures.ListsAfterWriting, "a_call_that_fails_within_a_task_is_no_vote"),
    mistake(sqlite_failures.AbortsInTwoSteps, "a_call_that_fails_within_an_abort_hides_nothing"),
    mistake(sqlite_failures.TakesASentCommitForDone, "a_call_that_fails_within_a_commit_is_no_verdict"),
    mistake(sqlite_failures.KeepsItsConnection, "a_commit_is_called_again_after_a_call_has_failed"),
    mistake(
        sqlite_processes.LooksForTheLostOutside,
        "a_commit_that_stood_still_while_one_of_its_shares_was_lost_shows_all_or_nothing",
    ),
    mistake(sqlite_processes.NumbersRowsOutside, "a_task_that_stood_still_while_another_voted_has_its_own_rows"),
    mistake(sqlite_processes.SwallowsErrorsWhenSettled, "what_can_not_be_asked_is_an_error_and_never_an_answer"),
    mistake(sqlite_sinks.DropsVisibleRows, "a_task_that_drops_its_share_when_it_is_committed_changes_nothing"),
    mistake(sqlite_sinks.ComparesEpochsAsText, "epoch_10_comes_after_epoch_9"),
    mistake(
        sqlite_sinks.CastsToTheFirstType,
        "a_column_that_gets_another_type_is_shown_as_it_is_or_refused",
        kind=pa.int64(),
        values=[2**40],
    ),
    mistake(heap_sinks.EmptiesBeforeItReplaces, "an_overwriting_epoch_replaces_all_before_it"),
    mistake(sqlite_sinks.ForgetsAlways, "what_was_committed_just_now_is_not_forgotten"),
    mistake(sqlite_sinks.ListsLowerNumbersOnly, "everything_that_is_staged_is_listed_with_its_generation"),
    mistake(sqlite_sinks.TakesAnyOrderFirst, "a_target_without_a_marker_takes_no_order_that_moves_one"),
    mistake(sqlite_sinks.NamesPlacesForSlots, "shares_may_be_named_in_any_order"),
    mistake(sqlite_sinks.CountsInTheSink, "two_shares_may_be_written_by_one_object_by_turns"),
    mistake(values.CutsLongText, "values_of_any_type_come_back_as_they_were_or_are_refused", kind="string"),
    mistake(values.FoldsLineEnds, "values_of_any_type_come_back_as_they_were_or_are_refused", kind="string"),
    mistake(values.CutsTextAtNul, "values_of_any_type_come_back_as_they_were_or_are_refused", kind="string with NUL"),
    mistake(values.CutsLongBytes, "values_of_any_type_come_back_as_they_were_or_are_refused", kind="binary"),
    mistake(values.HalvesFloats, "values_of_any_type_come_back_as_they_were_or_are_refused", kind="float"),
    mistake(
        values.TakesLocalTimeForUtc,
        "values_of_any_type_come_back_as_they_were_or_are_refused",
        kind="timestamp[us, tz=Asia/Kolkata]",
    ),
    mistake(values.NestsDoubles, "values_of_any_type_come_back_as_they_were_or_are_refused", kind="map<string, int64>"),
    mistake(values.LooksUpNullsWithoutOffset, "a_slice_has_its_own_nulls"),
    mistake(values.BorrowsTexts, "memory_of_texts_that_is_used_again_spoils_nothing"),
    mistake(sqlite_sinks.NumbersDecisions, "decisions_of_two_ledgers_are_two"),
    mistake(slot_sinks.NamesNoDeadSlots, "a_lost_share_is_named_before_the_decision_and_after_it"),
    mistake(slot_sinks.StopsAtTheFirstDeadSlot, "a_lost_share_is_named_before_the_decision_and_after_it"),
]


def target_of(kind: type[AnySink], folder: Path) -> SinkTarget:
    if issubclass(kind, HeapSink):
        return Heap(kind)
    return Slots(kind) if issubclass(kind, SlotSink) else Orders(folder, kind)


def failure_of(test: Callable[..., object], arguments: Mapping[str, Any]) -> BaseException | None:
    """Why a test fails with these fixtures and parameters; None if it passes. A skip is neither."""
    wanted = inspect.signature(test)
    call = wanted.bind(**{name: value for name, value in arguments.items() if name in wanted.parameters})
    try:
        test(*call.args, **call.kwargs)
    except (Exception, pytest.fail.Exception) as failure:  # noqa: BLE001 - whatever makes a test fail
        return failure
    return None


@pytest.mark.parametrize(("kind", "test", "parameters"), SINKS_CAUGHT_BY)
def test_a_sink_with_a_mistake_fails_the_test_for_it(
    tmp_path: Path, kind: type[AnySink], test: str, parameters: dict[str, Any]
) -> None:
    target = target_of(kind, tmp_path)
    fixtures = {"steps": SinkSteps(target), "query": QuerySteps(tmp_path / "checkpoint", target), "tmp_path": tmp_path}
    failure = failure_of(getattr(SinkSuite(), f"test_{test}"), fixtures | parameters)
    assert failure is not None


# ---- sources ----


class NumbersOrigin(SourceOrigin):
    outlives_process = False

    def __init__(self, numbers: Numbers):
        self.numbers = numbers

    def source(self) -> Numbers:
        return self.numbers

    def add(self, values: Sequence[int]) -> None:
        self._add(values, ["value"])

    def add_changed(self, values: Sequence[int]) -> bool:
        self._add(values, ["added", "value"])
        return True

    def _add(self, values: Sequence[int], columns: list[str]) -> None:
        self.numbers.units.append(list(values))
        self.numbers.columns.append(columns)

    def lose(self, unit: int) -> str:
        self.numbers.gone.add(unit)
        return f"unit {unit}"

    def change(self, unit: int) -> bool:
        self.numbers.units[unit] = [-value for value in self.numbers.units[unit]]
        self.numbers.changed.add(unit)
        return True


class TestNumbers(SourceSuite):
    """Without a mistake."""

    @pytest.fixture
    def origin(self) -> NumbersOrigin:
        return NumbersOrigin(Numbers())


SOURCES_CAUGHT_BY = [
    mistake(sources.ReadsToTheEnd, "the_same_range_gives_the_same_rows_while_data_arrive"),
    mistake(sources.ReadsOnce, "the_same_range_read_twice_gives_the_same_rows"),
    mistake(sources.ReadsOnce, "a_read_that_was_given_up_can_be_begun_again"),
    mistake(sources.JumpsOverGaps, "what_vanished_is_named_and_never_jumped_over", unit=0),
    mistake(sources.LooksForGapsInFront, "what_vanished_is_named_and_never_jumped_over", unit=2),
    mistake(sources.LooksForGapsInFront, "what_vanished_is_named_and_never_jumped_over", unit=4),
    mistake(sources.ReadsWhatLiesThereNow, "what_was_changed_where_it_lies_is_refused_or_read_as_it_was"),
    mistake(sources.ForgetsWhatItHasOffered, "nothing_is_forgotten_before_it_is_acknowledged"),
    mistake(sources.GivesEqualRowsOnce, "rows_that_are_equal_are_all_given"),
    mistake(sources.ReadsByTheNewestColumns, "each_unit_is_read_by_its_own_columns"),
    mistake(sources.StandsStill, "ranges_follow_each_other_without_gap_or_overlap", limit=ReadLimit(rows=0)),
    mistake(sources.IgnoresLimits, "a_limit_of_rows_is_kept"),
    mistake(sources.IgnoresLimits, "a_limit_of_bytes_is_kept"),
    mistake(sources.GoesBack, "an_offset_never_goes_back"),
    mistake(sources.IgnoresUntil, "a_bounded_run_takes_what_was_there_when_it_began", limit=ReadLimit(rows=4)),
    mistake(
        sources.IgnoresUntilUnderBytes, "a_bounded_run_takes_what_was_there_when_it_began", limit=ReadLimit(bytes=1)
    ),
    mistake(sources.TakesOneLimitOfTwo, "a_limit_of_bytes_is_kept"),
    mistake(sources.StampsRows, "the_same_range_read_twice_gives_the_same_rows"),
    mistake(sources.ForgetsSilently, "acknowledging_again_or_late_changes_nothing"),
    mistake(sources.DropsSigns, "numbers_come_as_they_are"),
    mistake(sources.IgnoresRowsBesideBytes, "a_limit_of_rows_is_kept"),
    mistake(sources.ReadsTheFirstPage, "many_units_and_many_rows_are_all_given"),
    mistake(sources.ListsTheFirstUnits, "many_units_and_many_rows_are_all_given"),
    mistake(sources.SortsUnitsAsText, "many_units_and_many_rows_are_all_given"),
    mistake(sources.OverlapsWhereThereAreMany, "many_units_and_many_rows_are_all_given"),
    mistake(sources.JumpsWhenItOffers, "what_vanished_before_it_was_offered_is_not_jumped_over", unit=2),
    mistake(sources.ForgetsAll, "acknowledging_again_or_late_changes_nothing"),
    mistake(sources.NumbersForOffsets, "offsets_are_json_objects_as_text"),
    mistake(sources.SchemaOfItsOwn, "every_batch_has_the_schema_of_the_source"),
]


@pytest.mark.parametrize(("kind", "test", "parameters"), SOURCES_CAUGHT_BY)
def test_a_source_with_a_mistake_fails_the_test_for_it(
    kind: type[Numbers], test: str, parameters: dict[str, Any]
) -> None:
    full, origin = NumbersOrigin(kind()), NumbersOrigin(kind())
    for unit in UNITS:
        full.add(unit)
    failure = failure_of(getattr(SourceSuite(), f"test_{test}"), {"full": full, "origin": origin} | parameters)
    assert failure is not None


# ---- the suites themselves ----


def test_every_test_of_the_suites_says_its_scenario() -> None:
    tests = [test for suite in (SinkSuite, SourceSuite) for name, test in inspect.getmembers(suite) if "test_" in name]
    assert len(tests) > 60
    assert [test.__name__ for test in tests if not (test.__doc__ or "").strip()] == []


def test_a_test_is_skipped_only_by_a_capability_or_a_claim() -> None:
    folder = Path(__file__).resolve().parent.parent / "twophase" / "testing"
    reasons = [
        reason
        for file in folder.glob("*.py")
        for reason in re.findall(r"(?:skip|skipif|importorskip|xfail)\(f?\W?(.{14})", file.read_text("utf-8"))
    ]
    assert len(reasons) >= 5
    assert [reason for reason in reasons if not reason.startswith(("by capability:", "by claim: "))] == []
