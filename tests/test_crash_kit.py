"""The crash kit's own parts, without Spark: names of cells, chains, what the polling reader calls a fault, and the report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from twophase.failpoints import POINTS, VARIABLE, Hit, of_others
from twophase.query import AnySink
from twophase.testing.class_archive import without_failpoints
from twophase.testing.crash import chain, company
from twophase.testing.crash.__main__ import main
from twophase.testing.crash.cell import Cell, Kill
from twophase.testing.crash.chain import Verdict, links_of
from twophase.testing.crash.matrix import DECIDED, cells
from twophase.testing.crash.orders import Order, compare, order, write_orders
from twophase.testing.crash.program import QueryDescription
from twophase.testing.crash.reader import PollingReader, written_by_epoch
from twophase.testing.crash.report import Findings, as_json, cells_on, from_json, line_of, merged, page
from twophase.testing.crash.run import LONGEST_CHAIN, groups, run_cells
from twophase.testing.crash.target import CrashTarget, Surroundings, load, path_of
from twophase.testing.crash.victim import require_own

pytestmark = pytest.mark.kit


class Sleeper:
    """A driver that is said to have come to its step, and ends as a test says."""

    def __init__(self, said: Mapping[str, str]):
        self.said = said

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def result(self, timeout_s: float) -> Mapping[str, str]:
        return self.said


class Undead:
    """A server that is killed, and runs on."""

    def __init__(self, ended: Sequence[str]):
        self._ended = ended

    def kill(self) -> None: ...

    def restart(self) -> None: ...

    def ended(self) -> Sequence[str]:
        return self._ended


class Shelf(CrashTarget):
    """A target that shows whatever a test puts there."""

    title = "shelf"
    format: ClassVar[str | None] = "shelf"
    points: ClassVar[Sequence[str]] = ("files.sealed",)
    one_owner = True
    not_covered = ("Whatever happens to shelves.",)

    def __init__(self, folder: Path, name: str = "table", settings: Mapping[str, str] | None = None):
        super().__init__(folder, name, settings)
        self.rows: list[Order] = []

    def options(self) -> Mapping[str, str]:
        return {}

    def sink(self) -> AnySink:
        raise AssertionError("nothing is written here")

    def read(self) -> Sequence[Order]:
        return list(self.rows)

    def residue(self) -> Sequence[str]:
        return []


class TwoServers(Shelf):
    format = None
    one_owner = False


# ---- cells ----


def test_a_cell_is_found_again_by_its_name() -> None:
    every = cells(Shelf, ["broker"])

    assert [Cell.parse(str(cell)) for cell in every] == every
    assert len(set(map(str, every))) == len(every)


@pytest.mark.parametrize("name", ["", "files", "files/format/driver", "files/nothing/driver/commit.done#1"])
def test_a_name_that_is_no_cells_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a cell"):
        Cell.parse(name)


def test_a_step_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no failpoint 'commit\.dnoe'"):
        Cell.parse("files/format/driver/commit.dnoe#1")


def test_a_new_target_gets_a_cell_for_every_step_of_the_protocol_and_of_its_own() -> None:
    of_other_sinks = of_others() - set(Shelf.points)

    assert {cell.kills[-1].point for cell in cells(Shelf)} == set(POINTS) - of_other_sinks


def test_a_target_without_format_or_owner_gets_the_cells_that_make_sense_there() -> None:
    every = cells(TwoServers, ["broker", "store"])

    assert {cell.course for cell in every} == {"sink", "function"}
    assert {cell.victim for cell in every} == {"driver", "executor", "zombie", "server:broker", "server:store"}


# ---- chains ----


def test_a_chain_brings_about_a_state_once_for_all_cells_that_strike_in_it() -> None:
    first, second = (Cell("shelf", "format", "driver", (DECIDED, Kill(point, 1))) for point in sorted(POINTS)[:2])
    alone = Cell("shelf", "format", "driver", (Kill("commit.done", 2),))

    assert links_of([first, second]) == [(first, DECIDED), (first, first.kills[1]), (second, second.kills[1])]
    assert links_of([alone]) == [(alone, alone.kills[0])]


def test_every_cell_is_in_exactly_one_group_and_no_chain_is_too_long() -> None:
    every = cells(Shelf, ["broker"])

    together = list(groups(every))

    assert [cell for group in together for cell in group] == every
    assert max(len(group) for group in together if group[0].victim == "driver") <= LONGEST_CHAIN
    for group in together:
        assert len({(cell.course, cell.victim, cell.kills[:-1]) for cell in group}) == 1


# ---- rows ----


def test_the_comparison_names_what_is_lost_doubled_and_strange(tmp_path: Path) -> None:
    ids = write_orders(tmp_path, 1, rows_per_file=4)
    altered = (3, "order 3", 0.75)

    found = compare(ids, [order(0), order(1), order(1), altered])

    assert (found.lost, found.duplicated, found.strange) == ((2,), (1,), (altered,))
    assert not compare(ids, map(order, ids))


def reader_of(tmp_path: Path, *, committed: int | None) -> tuple[Shelf, PollingReader]:
    """Of a query with three epochs of 50 rows, of which Spark has logged these, and the ledger has decided none."""
    shelf = Shelf(tmp_path)
    (tmp_path / "checkpoint" / "commits").mkdir(parents=True)
    for number in range(-1 if committed is None else committed, -1, -1):
        (tmp_path / "checkpoint" / "commits" / str(number)).touch()
    return shelf, PollingReader(shelf, written_by_epoch(3, 1, lambda _: True), str(tmp_path / "checkpoint"))


def test_the_reader_finds_a_committed_row_missing(tmp_path: Path) -> None:
    shelf, reader = reader_of(tmp_path, committed=0)
    shelf.rows = [order(i) for i in range(49)]

    reader.look()

    assert any("epoch 0 was committed, and row" in fault for fault in reader.faults)


def test_the_reader_finds_rows_that_nobody_has_decided(tmp_path: Path) -> None:
    shelf, reader = reader_of(tmp_path, committed=None)
    shelf.rows = [order(i) for i in range(50)]

    reader.look()

    assert any("was not decided" in fault for fault in reader.faults)


def test_the_reader_finds_rows_that_vanish(tmp_path: Path) -> None:
    shelf, reader = reader_of(tmp_path, committed=None)
    shelf.rows = [order(0)]
    reader.look()
    before = list(reader.faults)
    shelf.rows = []

    reader.look()

    assert any("not there any more" in fault for fault in reader.faults if fault not in before), reader.faults


def test_rows_are_told_apart_by_epoch_and_by_target() -> None:
    written = written_by_epoch(3, 2, lambda i: i % 2 == 0)

    assert sorted(written) == [0, 1]
    assert written[1] == [[order(number) for number in range(100, 150, 2)]]


# ---- targets and reports ----


def test_a_child_finds_the_target_by_its_path() -> None:
    assert load(path_of(Shelf)) is Shelf
    with pytest.raises(TypeError, match="is not a CrashTarget"):
        load("twophase.testing.crash.target:Surroundings")


def test_a_fault_that_struck_another_query_is_no_proof(tmp_path: Path) -> None:
    """Such as the one whose classes are kept, which runs before the first query on a new machine."""
    told, kill = QueryDescription(path_of(Shelf), str(tmp_path)), Kill("commit.done", 2)
    own = Hit("commit.done", 2, 1, "our-query/sink", 1, None, "pause", 0.0)

    with pytest.raises(AssertionError, match="before the query had a checkpoint"):
        require_own(own, told, kill)
    Path(told.checkpoint).mkdir()
    Path(told.checkpoint, "metadata").write_text('{"id": "our-query"}')

    require_own(own, told, kill)
    with pytest.raises(AssertionError, match="fired in other-query, and not in our-query"):
        require_own(replace(own, owner="other-query"), told, kill)
    with pytest.raises(AssertionError, match=r"when it was hit for the 1\. time"):
        require_own(replace(own, hit=1), told, kill)


def test_the_query_whose_classes_are_kept_meets_no_failpoint() -> None:
    assert without_failpoints({VARIABLE: "armed", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("course", ["poison", "long"])
def test_a_course_that_would_die_before_it_has_shown_anything_is_no_success(course: str) -> None:
    cell = Cell.parse(f"shelf/{course}/driver/prepare.published#1")

    (verdict,) = run_cells(Shelf, [cell], Surroundings())

    assert not verdict.passed
    assert f"the course {course} is for the points" in (verdict.error or "")


def test_a_fault_that_did_not_fire_is_no_success() -> None:
    verdict = Verdict(cells(Shelf)[0], fired=False)

    assert not verdict.passed
    assert line_of(verdict).startswith("MISSED")


def test_the_page_counts_cells_faults_and_failures_and_lists_every_cell() -> None:
    every = cells(Shelf)
    verdicts = [Verdict(cell, fired=True, recovery_s=float(at)) for at, cell in enumerate(every)]
    verdicts[3] = Verdict(every[3], fired=True, error="row 7 is there 2 times")
    verdicts[4] = Verdict(every[4], fired=False)

    text = page([Findings("shelf", verdicts, {"Spark": "9"}, Shelf.not_covered)])

    assert f"**{len(every)} cells, {len(every) - 1} faults fired, 2 failures.**" in text
    assert f"Slowest recovery: {len(every) - 1} s, after `{every[-1]}`" in text
    assert "- Whatever happens to shelves." in text
    assert "- shelf: run with Spark 9." in text
    assert cells_on(text) == every


def test_a_target_that_is_run_again_leaves_what_was_found_of_the_others() -> None:
    first, second = cells(Shelf)[:2]
    files = Findings("files", [Verdict(first, fired=True, recovery_s=3.0)], {"Spark": "9"}, ("Floods.",))
    kafka = Findings("kafka", [Verdict(first, fired=False)])
    again = Findings("kafka", [Verdict(second, fired=True, error="row 7 is there 2 times")])

    recorded = from_json(as_json([files, kafka]))

    assert recorded == [files, kafka]
    assert merged(recorded, [again]) == [files, again]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no_such_module:Target"], "No module named 'no_such_module'"),
        (["integration_tests.tables:Nothing"], "has no attribute 'Nothing'"),
        (["integration_tests.tables:FilesTarget", "--cell", "files/format/driver/nothing#1"], "no failpoint 'nothing'"),
        (
            ["integration_tests.tables:FilesTarget", "--cell", "files/format/driver/decide.published#0"],
            "counted from 1",
        ),
    ],
    ids=["module", "class", "step", "hit"],
)
def test_a_wrong_name_on_the_command_line_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


# ---- what is not a pass ----


@pytest.fixture
def without_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> QueryDescription:
    """Every victim comes to its step, and no query is run."""

    @contextmanager
    def victim(*_: object, **__: object) -> Iterator[Sleeper]:
        yield Sleeper({"error": "[FENCED] another driver has come"})

    @contextmanager
    def readers_of(*_: object) -> Iterator[list[PollingReader]]:
        yield []

    hit = Hit("decide.published", 2, 1, None, None, None, "pause", 0.0)
    for module in (chain, company):
        monkeypatch.setattr(module, "victim", victim)
        monkeypatch.setattr(module, "readers_of", readers_of)
        monkeypatch.setattr(module, "stand_at", lambda *_: hit)
        monkeypatch.setattr(module, "finish", lambda *_, **__: None)
    monkeypatch.setattr(company, "check_rows", lambda *_, **__: None)
    return QueryDescription(path_of(Shelf), str(tmp_path))


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ({"error": "[FENCED] another driver has come"}, True),
        ({"error": "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log"}, True),
        ({"error": "java.lang.OutOfMemoryError: Java heap space"}, False),
        ({"epochs": "3"}, False),
    ],
)
def test_a_driver_that_slept_must_be_refused_and_not_only_fail(
    without_spark: QueryDescription, monkeypatch: pytest.MonkeyPatch, said: Mapping[str, str], passes: bool
) -> None:
    @contextmanager
    def victim(*_: object, **__: object) -> Iterator[Sleeper]:
        yield Sleeper(said)

    monkeypatch.setattr(company, "victim", victim)
    verdict = company.run_zombie(without_spark, Cell.parse("shelf/format/zombie/decide.published#2"))
    assert (verdict.fired, verdict.passed) == (True, passes)


@pytest.mark.parametrize("ended", [["broker"], []], ids=["killed", "not killed"])
def test_a_server_that_was_not_killed_is_no_pass(without_spark: QueryDescription, ended: list[str]) -> None:
    verdict = company.run_server(
        without_spark, Cell.parse("shelf/format/server:broker/decide.published#2"), Undead(ended)
    )
    assert verdict.passed is bool(ended)


def test_no_cell_of_a_chain_has_passed_whose_end_is_wrong(
    without_spark: QueryDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left behind may be the first one's doing, and a later run would leave out what has passed."""

    def finish(*_: object, **__: object) -> None:
        raise AssertionError("left behind: a folder")

    monkeypatch.setattr(chain, "finish", finish)
    points = ("prepare.swept", "decide.published", "commit.done")
    verdicts = chain.run_chain(without_spark, [Cell.parse(f"shelf/format/driver/{point}#2") for point in points])
    assert [verdict.cell.kills[-1].point for verdict in verdicts] == list(points)
    assert [verdict.passed for verdict in verdicts] == [False] * 3
