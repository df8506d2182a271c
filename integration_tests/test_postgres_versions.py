"""The mode mvcc where the suite can't look: late twins, names that are taken, time travel, and who may read what."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from integration_tests.postgres_tables import VersionsUnderTest, ask
from integration_tests.test_postgres_sink import WITHIN_S, wait_for_lock
from twophase import failpoints
from twophase.errors import CheckpointMismatch, Fenced, OptionError, SchemaMismatch
from twophase.identity import Owner
from twophase.sink import Outcome
from twophase.sinks.postgres.control_schema import LAYOUT
from twophase.sinks.postgres.sink import PostgresSink
from twophase.testing.query_steps import QuerySteps
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps

pytestmark = pytest.mark.servers


@pytest.fixture
def target(postgres_server: Server[str]) -> VersionsUnderTest:
    return VersionsUnderTest(postgres_server.endpoint)


@pytest.fixture
def steps(target: VersionsUnderTest) -> SinkSteps:
    return SinkSteps(target)


def test_a_twin_that_votes_while_its_epoch_commits_is_refused_and_never_visible(
    steps: SinkSteps, target: VersionsUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its generation is the newest, and its rows are in the table: only the pointer tells it that it comes too late."""
    steps.epoch(0, [1])
    plan = steps.prepare(1)
    task, batch, told = steps.task(plan, 0), target.batch([99]), list[BaseException]()
    twin = steps.sink().begin(plan, task)
    twin.write(batch)
    order = steps.order(plan, steps.share(plan, 0, [2]))

    def votes() -> None:
        try:
            twin.pre_commit()
        except Fenced as error:
            told.append(error)

    late = threading.Thread(target=votes)

    def hit(point: str, **_: object) -> None:
        if point == "postgres.locked":
            late.start()
            wait_for_lock(target.dsn, "twophase.lines")

    monkeypatch.setattr(failpoints, "hit", hit)
    assert steps.commit(order) is Outcome.COMMITTED
    late.join(WITHIN_S)
    assert len(told) == 1
    twin.abort()
    assert (steps.visible(), list(target.residue())) == ([1, 2], [])


def test_what_losers_staged_is_gone_before_the_pointer_moves(steps: SinkSteps, target: VersionsUnderTest) -> None:
    """A twin of the same generation, one of an older generation, and one of another ledger: all for the same epoch."""
    steps.epoch(0, [1])
    old = steps.decided(1, [97])
    other = SinkSteps(target, ledger="other0ledger").decided(1, [98])
    plan = steps.prepare(1)
    steps.share(plan, 0, [99])
    assert steps.commit(steps.order(plan, steps.share(plan, 0, [2]), steps.share(plan, 1, []))) is Outcome.COMMITTED
    assert steps.visible() == [1, 2]
    assert ask(target.dsn, f"SELECT count(*) FROM {target.table}_versions") == [(2,)]
    for lost in (old, other):
        with pytest.raises(Fenced):
            steps.commit(lost)
    steps.sweep()
    assert (steps.visible(), list(target.residue())) == ([1, 2], [])


def test_earlier_epochs_stay_and_are_shown_as_they_were(steps: SinkSteps, target: VersionsUnderTest) -> None:
    for number in range(3):
        steps.epoch(number, [number], [10 + number])
    steps.decided(3, [99])
    as_of = f"SELECT value FROM {target.table}_as_of(%s) ORDER BY value"
    assert [[value for (value,) in ask(target.dsn, as_of, epoch)] for epoch in (-1, 0, 1, 2, 3, 99)] == [
        *([], [0, 10], [0, 1, 10, 11], [0, 1, 2, 10, 11, 12]),
        *([0, 1, 2, 10, 11, 12], [0, 1, 2, 10, 11, 12]),
    ]


def test_a_reader_needs_the_view_alone_and_sees_nothing_that_is_not_decided(
    steps: SinkSteps, target: VersionsUnderTest
) -> None:
    steps.epoch(0, [1])
    steps.decided(1, [99])
    role = target.table.partition(".")[2].replace("orders", "reader")
    ask(target.dsn, f"CREATE ROLE {role} LOGIN")
    ask(target.dsn, f"GRANT SELECT ON {target.table} TO {role}")
    reader = target.dsn.replace("postgres@", f"{role}@")
    assert ask(reader, f"SELECT value FROM {target.table}") == [(1,)]
    for hidden in (f"SELECT * FROM {target.table}_versions", f"SELECT * FROM {target.table}_as_of(9)"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            ask(reader, hidden)
    ask(target.dsn, f"GRANT EXECUTE ON FUNCTION {target.table}_as_of TO {role}")
    assert ask(reader, f"SELECT value FROM {target.table}_as_of(9)") == [(1,)]


@pytest.mark.parametrize(
    "made", ["CREATE TABLE {} (value bigint)", "CREATE VIEW {} AS SELECT 1::bigint AS value"], ids=["table", "view"]
)
def test_a_name_that_is_taken_is_refused_and_left_alone(steps: SinkSteps, target: VersionsUnderTest, made: str) -> None:
    ask(target.dsn, made.format(target.table))
    with pytest.raises(SchemaMismatch, match="is there already"):
        steps.prepare(0)
    assert ask(target.dsn, "SELECT to_regclass(%s)", f"{target.table}_versions") == [(None,)]


def test_names_of_ours_and_names_that_would_be_cut_are_refused(steps: SinkSteps, target: VersionsUnderTest) -> None:
    with pytest.raises(SchemaMismatch, match="twophase_position"):
        steps.prepare(0, schema=pa.schema([("value", pa.int64()), ("twophase_position", pa.int64())]))
    with pytest.raises(OptionError, match="_versions"):
        PostgresSink(target.dsn, "x" * 60, mode="mvcc")


def test_hostile_names_are_names_and_nothing_else(steps: SinkSteps, target: VersionsUnderTest) -> None:
    ask(target.dsn, "CREATE TABLE IF NOT EXISTS bystander (id int)")
    name = """it's \\ "%s"; DROP TABLE bystander; --"""
    target.table = 'public."' + name.replace('"', '""') + '"'
    batch = pa.record_batch({"value": [1], name: ["a"]})
    plan = steps.prepare(0, schema=batch.schema)
    assert steps.commit(steps.order(plan, steps.write(plan, 0, batch))) is Outcome.COMMITTED
    with psycopg.connect(target.dsn, autocommit=True) as connection:
        assert connection.execute(f"SELECT * FROM {target.table}".encode()).fetchall() == [(1, "a")]
        connection.execute(f'DROP TABLE {target.table[:-1]}_versions" CASCADE'.encode())
    assert ask(target.dsn, "SELECT count(*) FROM bystander") == [(0,)]


def test_a_second_query_is_refused_until_it_takes_over_by_name(target: VersionsUnderTest, tmp_path: Path) -> None:
    first, second = (QuerySteps(tmp_path / name, target, name=name) for name in ("first", "second"))
    first.epoch(0, [1])
    second.log(0)
    with pytest.raises(CheckpointMismatch, match=r"owned by first/.*takeOver"):
        second.prepare()
    assert sorted(target.values()) == [1]
    assert ask(target.dsn, "SELECT query FROM twophase.lines WHERE target = %s", target.table) == [("first",)]
    assert target.sink().status(Owner("second", "sink"), settled=True).own is None


def test_a_schema_of_an_older_release_is_completed_when_a_query_starts(postgres_server: Server[str]) -> None:
    """Layout 1 did not count the rows of epochs, 2 kept all versions, and 3 waited for no followers."""
    dsn, target = postgres_server.endpoint, VersionsUnderTest(postgres_server.endpoint)
    steps = SinkSteps(target)
    steps.epoch(0, [1])
    ask(dsn, "DROP TABLE twophase.epochs, twophase.readers")
    ask(dsn, "ALTER TABLE twophase.lines DROP COLUMN kept_from")
    ask(dsn, "ALTER TABLE twophase.attempts DROP COLUMN versions")
    ask(dsn, f"DELETE FROM twophase.layout WHERE version <> {LAYOUT}")
    ask(dsn, "UPDATE twophase.layout SET version = 1")

    steps.epoch(1, [2])

    assert steps.visible() == [1, 2]
    assert ask(dsn, "SELECT max(version) FROM twophase.layout") == [(LAYOUT,)]
    assert ask(dsn, "SELECT position, rows FROM twophase.epochs WHERE target = %s", target.table) == [(1, 1)]
