"""Upserts in the mode mvcc: what the newest version of a key is, now and earlier, and what a vacuum may take."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from integration_tests.postgres_tables import POINTS, VersionsUnderTest, ask
from integration_tests.test_postgres_sink import WITHIN_S, wait_for_lock
from integration_tests.test_postgres_upsert import Change, UpsertedVersions, decided
from twophase.errors import CheckpointMismatch, DataLost, OptionError, SchemaMismatch, TargetUnavailable
from twophase.sink import Outcome
from twophase.sinks.postgres.sink import PostgresSink
from twophase.source import ReadLimit
from twophase.sources import PostgresVersions
from twophase.testing.query_steps import QuerySteps, dies_at
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps

pytestmark = pytest.mark.servers


@pytest.fixture
def target(postgres_server: Server[str]) -> UpsertedVersions:
    return UpsertedVersions(postgres_server.endpoint)


@pytest.fixture
def steps(target: UpsertedVersions) -> SinkSteps:
    return SinkSteps(target)


EPOCHS: Sequence[tuple[Sequence[Change], dict[int, str]]] = (
    ([(1, "a"), (2, "b"), (9, None)], {1: "a", 2: "b"}),
    ([(2, "x"), (2, "c"), (3, "d")], {1: "a", 2: "c", 3: "d"}),
    ([(1, None), (3, None)], {2: "c"}),
    ([], {2: "c"}),
    ([(1, "e"), (4, "f")], {1: "e", 2: "c", 4: "f"}),
    ([(4, None)], {1: "e", 2: "c"}),
)
"""The changes of each epoch, and the table after it."""


def written(steps: SinkSteps, upto: int = len(EPOCHS)) -> None:
    for number, (changes, _) in enumerate(EPOCHS[:upto]):
        half = len(changes) // 2
        assert steps.commit(decided(steps, number, [changes[:half]], [changes[half:]])) is Outcome.COMMITTED


def kept(target: UpsertedVersions) -> int | None:
    ((found,),) = ask(target.dsn, "SELECT kept_from FROM twophase.lines WHERE target = %s", target.table)
    return None if found in (None, -1) else int(found)


def versions(target: UpsertedVersions) -> list[tuple[int, int]]:
    """Position and key of everything that is there."""
    found = ask(target.dsn, f"SELECT twophase_position, value FROM {target.table}_versions ORDER BY 1, 2")
    return [(int(position), int(key)) for position, key in found]


# ---- now and earlier ----


def test_the_table_can_be_read_as_it_was_after_every_epoch(steps: SinkSteps, target: UpsertedVersions) -> None:
    written(steps)
    decided(steps, len(EPOCHS), [[(1, "undecided"), (2, None)]])
    assert [target.as_of(epoch) for epoch in range(-1, 8)] == [
        {},
        *(after for _, after in EPOCHS),
        *[EPOCHS[-1][1]] * 2,
    ]
    assert target.now() == EPOCHS[-1][1]


def test_a_reader_that_looks_for_a_key_uses_the_primary_key(steps: SinkSteps, target: UpsertedVersions) -> None:
    plan = steps.prepare(0)
    rows: list[Change] = [(key, "x") for key in range(20_000)]
    steps.commit(steps.order(plan, steps.write(plan, 0, target.changes(rows))))
    ask(target.dsn, f"ANALYZE {target.table}_versions")
    plan_of = "\n".join(line for (line,) in ask(target.dsn, f"EXPLAIN SELECT * FROM {target.table} WHERE value = 7"))
    assert "Index" in plan_of, plan_of
    assert "_pkey" in plan_of, plan_of


def test_a_driver_that_dies_within_the_commit_loses_and_repeats_nothing(
    target: UpsertedVersions, tmp_path: Path
) -> None:
    """With a vacuum after each commit: one that was not made, or is made twice, takes nothing that is kept."""
    target.retain_epochs = 1
    query, number = QuerySteps(tmp_path / "checkpoint", target), 1
    query.epoch(0, [1, 2])
    for _ in range(2):
        for point in POINTS:
            query.log(number)
            with dies_at(tmp_path, point):
                query.finish([1, number], [100 + number])
            query = query.restart()
            query.finish([1, number], [100 + number])
            query.epoch(number + 1, [1, number + 1], [101 + number])
            number += 2
    assert target.now() == {key: str(key) for key in (*range(1, number), *range(101, 100 + number))}
    first = kept(target)
    assert first == number - 2
    assert target.as_of(first).keys() == {*range(1, first + 1), 2, *range(101, 101 + first)}
    assert query.residue() == []


# ---- a vacuum ----


def test_a_vacuum_takes_what_is_superseded_and_nothing_that_can_be_asked_for(
    steps: SinkSteps, target: UpsertedVersions
) -> None:
    """By hand, to each epoch in turn: everything from there on stays as it was; before it, the error says from where on."""
    written(steps)
    for retain in range(len(EPOCHS), -1, -1):
        ask(target.dsn, f"SELECT {target.table}_vacuum({retain})")
        first = len(EPOCHS) - 1 - retain
        assert kept(target) == (first if first >= 0 else None)
        for epoch in range(len(EPOCHS)):
            if epoch < first:
                with pytest.raises(psycopg.errors.InvalidParameterValue, match=f"epoch {epoch} .* first .* is {first}"):
                    target.as_of(epoch)
            else:
                assert target.as_of(epoch) == EPOCHS[epoch][1], f"epoch {epoch}, and {first} are kept"
        assert target.now() == EPOCHS[-1][1]
    assert versions(target) == [(1, 2), (4, 1)], "nothing but the newest of each key is left, and no deleted key"


def test_a_vacuum_after_each_commit_keeps_up_and_keeps_what_it_must(steps: SinkSteps, target: UpsertedVersions) -> None:
    target.retain_epochs = 2
    chance, history = random.Random(7), list[dict[int, str]]()
    for number in range(25):
        now = dict(history[-1]) if history else {}
        changes: list[Change] = [
            (chance.randrange(12), chance.choice([None, "x", "y"]) and str(chance.random())) for _ in range(8)
        ]
        for key, text in changes:
            now.pop(key, None)
            if text is not None:
                now[key] = text
        history.append(now)
        steps.commit(decided(steps, number, [changes[:3]], [changes[3:]]))
        assert target.now() == now
        first = kept(target)
        assert (first or 0) == max(number - 2, 0)
        for epoch in range(first or 0, number + 1):
            assert target.as_of(epoch) == history[epoch]
    assert len(versions(target)) <= 12 + 2 * 8


def test_a_vacuum_that_comes_late_catches_up_two_epochs_a_commit(steps: SinkSteps, target: UpsertedVersions) -> None:
    """The option is set on a table with a history: no commit has to wait for all of it."""
    for number in range(8):
        steps.commit(decided(steps, number, [[(1, str(number))]]))
    target.retain_epochs = 1
    seen = []
    for number in range(8, 16):
        steps.commit(decided(steps, number, [[(1, str(number))]]))
        seen.append(kept(target))
    assert seen == [1, 3, 5, 7, 9, 11, 13, 14]


def test_a_vacuum_that_fails_does_not_fail_the_commit(
    steps: SinkSteps, target: UpsertedVersions, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger holds what it wants to delete. The epoch is committed all the same, and the next vacuum takes both."""
    written(steps, 3)
    target.retain_epochs = 1
    order = decided(steps, 3, [[(2, "z")]])
    impatient = PostgresSink.from_options(
        {**(target.sink().describe() or pytest.fail("it can be described")).options, "lockTimeoutMs": "200"}
    )
    with psycopg.connect(target.dsn) as stranger:
        stranger.execute(f"SELECT 1 FROM {target.table}_versions FOR UPDATE".encode())
        assert impatient.commit(order) is Outcome.COMMITTED
    assert "superseded versions stay" in caplog.text
    assert (target.now(), kept(target)) == ({2: "z"}, None)
    steps.commit(decided(steps, 4, []))
    assert (target.now(), kept(target)) == ({2: "z"}, 1)


def test_a_vacuum_whose_session_is_ended_in_the_middle_is_made_again(
    steps: SinkSteps, target: UpsertedVersions
) -> None:
    written(steps, 5)
    target.retain_epochs = 1
    told = list[Outcome]()
    with psycopg.connect(target.dsn) as holder:
        holder.execute(f"SELECT 1 FROM {target.table}_versions WHERE twophase_position = 0 FOR UPDATE".encode())
        order = decided(steps, 5, [[(4, None)]])
        ours = threading.Thread(target=lambda: told.append(steps.commit(order)))
        ours.start()
        wait_for_lock(target.dsn, "_vacuum")
        ((ended,),) = ask(
            target.dsn,
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE wait_event_type = 'Lock' AND strpos(query, %s) > 0",
            "_vacuum",
        )
        assert ended == 1
        wait_for_lock(target.dsn, "_vacuum")
    ours.join(WITHIN_S)
    assert told == [Outcome.COMMITTED]
    assert (target.now(), kept(target)) == (EPOCHS[5][1], 1)
    assert [target.as_of(epoch) for epoch in range(1, 6)] == [after for _, after in EPOCHS[1:]]


def test_two_vacuums_at_once_do_what_one_does(steps: SinkSteps, target: UpsertedVersions) -> None:
    written(steps)
    with psycopg.connect(target.dsn) as first:
        first.execute(f"SELECT {target.table}_vacuum(3)".encode())
        second = threading.Thread(target=ask, args=(target.dsn, f"SELECT {target.table}_vacuum(1)"))
        second.start()
        with psycopg.connect(target.dsn, autocommit=True) as looking:
            while not looking.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted").fetchall():
                pass
    second.join(WITHIN_S)
    assert kept(target) == 4
    assert [target.as_of(epoch) for epoch in (4, 5)] == [after for _, after in EPOCHS[4:]]


def test_an_overtaken_driver_does_not_vacuum(steps: SinkSteps, target: UpsertedVersions) -> None:
    """It keeps less than its successor does: what that one promises to its readers stays."""
    written(steps, 4)
    order = decided(steps, 4, [EPOCHS[4][0]])
    greedy = UpsertedVersions(target.dsn)
    greedy.table, greedy.retain_epochs = target.table, 1
    steps.prepare(4)  # another driver has come
    assert greedy.sink().commit(order) is Outcome.COMMITTED
    assert kept(target) is None
    assert target.as_of(0) == EPOCHS[0][1]


# ---- followers, and a batch as it was ----


def read(target: UpsertedVersions, start: str, end: str, **options: Any) -> list[dict[str, Any]]:
    source = PostgresVersions(target.dsn, target.table, **options)
    return [row for split in source.plan(start, end) for batch in source.read(split) for row in batch.to_pylist()]


def at(target: UpsertedVersions, position: int) -> str:
    newest = json.loads(PostgresVersions(target.dsn, target.table).newest())
    return json.dumps({**newest, "position": position}, sort_keys=True)


def applied(state: dict[int, str], rows: Sequence[dict[str, Any]]) -> dict[int, str]:
    """What a table is after these rows, each of which is the only one of its key."""
    assert len({row["value"] for row in rows}) == len(rows)
    gone = {row["value"] for row in rows if row["gone"]}
    changed = {row["value"]: row["text"] for row in rows if not row["gone"]}
    return {key: text for key, text in {**state, **changed}.items() if key not in gone}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_follower_gets_the_newest_row_of_each_key_in_its_range(
    steps: SinkSteps, target: UpsertedVersions, parallelism: int
) -> None:
    """Whatever ranges it takes, what it has applied after one is the table as it was."""
    written(steps)
    states = [dict[int, str](), *(after for _, after in EPOCHS)]
    for begin, end in itertools.combinations(range(-1, len(EPOCHS)), 2):
        options = {"delete_column": "gone", "parallelism": parallelism}
        rows = read(target, at(target, begin), at(target, end), **options)
        assert rows == read(target, at(target, begin), at(target, end), **options)
        assert applied(states[begin + 1], rows) == states[end + 1], f"epochs {begin + 1} to {end}"
        assert begin >= 0 or not any(row["gone"] for row in rows), "there is nothing to delete before the first"


def test_a_batch_is_the_table_as_it_was_and_the_table_as_it_is(steps: SinkSteps, target: UpsertedVersions) -> None:
    written(steps)
    for epoch in (*range(len(EPOCHS)), None):
        source = PostgresVersions(target.dsn, target.table, as_of_epoch=epoch)
        rows = read(target, *source.bounded(), as_of_epoch=epoch)
        assert {row["value"]: row["text"] for row in rows} == EPOCHS[-1 if epoch is None else epoch][1]
        assert source.schema().names == ["text", "value"]


def test_a_follower_of_upserts_says_how_it_is_told_of_deletions(steps: SinkSteps, target: UpsertedVersions) -> None:
    written(steps)
    silent = PostgresVersions(target.dsn, target.table)
    for call in (
        silent.earliest,
        lambda: silent.latest(at(target, 0)),
        lambda: silent.plan(at(target, 0), at(target, 1)),
    ):
        with pytest.raises(OptionError, match="deleteColumn"):
            call()
    with pytest.raises(OptionError, match="deleteColumn is for a stream"):
        PostgresVersions(target.dsn, target.table, delete_column="gone").bounded()
    with pytest.raises(OptionError, match="deleteColumn adds a column text"):
        PostgresVersions(target.dsn, target.table, delete_column="text").schema()
    added = VersionsUnderTest(target.dsn)
    SinkSteps(added).epoch(0, [1])
    with pytest.raises(OptionError, match="only ever added"):
        PostgresVersions(target.dsn, added.table, delete_column="gone").earliest()


def test_what_a_vacuum_took_is_data_lost_to_who_has_not_read_it(steps: SinkSteps, target: UpsertedVersions) -> None:
    written(steps)
    ask(target.dsn, f"SELECT {target.table}_vacuum(2)")
    following = PostgresVersions(target.dsn, target.table, delete_column="gone", reader="late")
    for begin, end in itertools.combinations(range(-1, len(EPOCHS)), 2):
        if 0 <= begin < 3 or end < 3:
            with pytest.raises(DataLost, match="only from epoch 3 on"):
                following.plan(at(target, begin), at(target, end))
        else:
            rows = read(target, at(target, begin), at(target, end), delete_column="gone")
            assert applied({} if begin < 0 else EPOCHS[begin][1], rows) == EPOCHS[end][1]
    with pytest.raises(DataLost, match="only from epoch 3 on"):
        following.latest(at(target, 2))
    with pytest.raises(OptionError, match=r"asOfEpoch is 2, and .* only from epoch 3 on"):
        PostgresVersions(target.dsn, target.table, as_of_epoch=2).bounded()
    assert following.latest(following.earliest()) == following.newest()


def test_a_new_follower_of_a_vacuumed_table_first_takes_the_table_as_it_is(
    steps: SinkSteps, target: UpsertedVersions
) -> None:
    """Epochs that are not there any more can't be taken one by one."""
    written(steps)
    ask(target.dsn, f"SELECT {target.table}_vacuum(2)")
    slow = PostgresVersions(target.dsn, target.table, delete_column="gone", max_epochs_per_trigger=1, reader="slow")
    end = slow.latest(slow.earliest())
    assert applied({}, read(target, slow.earliest(), end, delete_column="gone")) == EPOCHS[-1][1]


def test_a_vacuum_waits_for_followers_that_have_a_name(steps: SinkSteps, target: UpsertedVersions) -> None:
    written(steps)
    first, second = (
        PostgresVersions(target.dsn, target.table, delete_column="gone", reader=name) for name in ("first", "second")
    )
    start = {each: each.latest(at(target, -1), ReadLimit(), until=at(target, 1)) for each in (first, second)}
    assert set(start.values()) == {at(target, 1)}

    ask(target.dsn, f"SELECT {target.table}_vacuum(0)")
    assert kept(target) is None  # neither has acknowledged anything
    first.acknowledge(at(target, 3))
    second.acknowledge(at(target, 1))
    ask(target.dsn, f"SELECT {target.table}_vacuum(0)")

    assert kept(target) == 1
    rows = read(target, at(target, 1), at(target, 5), delete_column="gone")
    assert applied(EPOCHS[1][1], rows) == EPOCHS[5][1]
    second.acknowledge(at(target, 5))
    second.acknowledge(at(target, 2))  # late, from a run that was overtaken
    ask(target.dsn, f"SELECT {target.table}_vacuum(0)")
    assert kept(target) == 3
    assert target.now() == EPOCHS[-1][1]


def test_a_vacuum_after_each_commit_waits_for_a_follower(steps: SinkSteps, target: UpsertedVersions) -> None:
    target.retain_epochs = 1
    follower = PostgresVersions(target.dsn, target.table, delete_column="gone", reader="billing")
    written(steps, 1)
    follower.latest(at(target, -1))
    follower.acknowledge(at(target, 0))
    for number, (changes, _) in enumerate(EPOCHS[1:], 1):
        steps.commit(decided(steps, number, [changes]))
    assert kept(target) == 0
    end = follower.latest(at(target, 0))
    assert applied(EPOCHS[0][1], read(target, at(target, 0), end, delete_column="gone")) == EPOCHS[-1][1]
    follower.acknowledge(end)
    steps.commit(decided(steps, len(EPOCHS), [[(1, "g")]]))
    assert kept(target) in range(1, len(EPOCHS))


def test_a_follower_of_a_vacuumed_table_needs_a_name(steps: SinkSteps, target: UpsertedVersions) -> None:
    written(steps)
    nameless = PostgresVersions(target.dsn, target.table, delete_column="gone")
    nameless.latest(nameless.earliest())
    ask(target.dsn, f"SELECT {target.table}_vacuum(100)")
    for call in (nameless.earliest, lambda: nameless.latest(at(target, 0))):
        with pytest.raises(OptionError, match="nobody waits for a query without a name: set the option reader"):
            call()


def test_a_vacuum_between_plan_and_read_is_noticed_by_who_it_concerns(
    steps: SinkSteps, target: UpsertedVersions
) -> None:
    written(steps)
    following = PostgresVersions(target.dsn, target.table, delete_column="gone")
    concerned = following.plan(at(target, 0), at(target, 2))
    (from_the_beginning,) = following.plan(at(target, -1), at(target, 4))
    ask(target.dsn, f"SELECT {target.table}_vacuum(1)")
    with pytest.raises(DataLost, match="only from epoch 4 on"):
        [list(following.read(split)) for split in concerned]
    rows = [row for batch in following.read(from_the_beginning) for row in batch.to_pylist()]
    assert applied({}, rows) == EPOCHS[4][1]


def test_rows_that_somebody_took_are_noticed_beyond_what_is_kept(steps: SinkSteps, target: UpsertedVersions) -> None:
    written(steps)
    ask(target.dsn, f"SELECT {target.table}_vacuum(3)")
    ask(target.dsn, f"DELETE FROM {target.table}_versions WHERE twophase_position = 4 AND value = 4")
    with pytest.raises(DataLost, match="epoch 4 has 1 rows of 2"):
        read(target, at(target, -1), at(target, 5), delete_column="gone")


# ---- names, keys and other options ----


def test_hostile_names_are_names_and_nothing_else(target: UpsertedVersions) -> None:
    """Of the table, its columns and its keys: in the view, in both functions, and in a follower's statements."""
    ask(target.dsn, "CREATE TABLE IF NOT EXISTS bystander (id int)")
    name = """it's \\ "%s"; DROP TABLE bystander; -- $1 $$"""
    quoted = '"' + name.replace('"', '""') + '"'
    target.table = f"public.{quoted}"
    columns = [name, "began", "newer", "vacuum", "epoch"]

    class Hostile(UpsertedVersions):
        def sink(self) -> PostgresSink:
            keys = [name, "began"]
            return PostgresSink(
                self.dsn,
                self.table,
                mode="mvcc",
                write_mode="upsert",
                key_columns=keys,
                delete_column="newest",
                create_table=True,
                retain_epochs=1,
            )

    hostile = Hostile(target.dsn)
    hostile.table = target.table
    steps = SinkSteps(hostile)
    for number in range(4):
        values: dict[str, list[Any]] = {column: [number, 9] for column in columns[2:]}
        batch = pa.record_batch({name: ["a", "b"], "began": [1, 1], **values, "newest": [False, number == 3]})
        plan = steps.prepare(number, schema=batch.schema)
        assert steps.commit(steps.order(plan, steps.write(plan, 0, batch))) is Outcome.COMMITTED
    with psycopg.connect(target.dsn, autocommit=True) as connection:

        def ask_for(what: str) -> list[tuple[Any, ...]]:
            return connection.execute(f"SELECT * FROM {what} ORDER BY 1".encode()).fetchall()

        assert ask_for(target.table) == [("a", 1, 3, 3, 3)]
        assert ask_for(f'{target.table[:-1]}_as_of"(2)') == [("a", 1, 2, 2, 2), ("b", 1, 9, 9, 9)]
        assert ask_for(f'{target.table[:-1]}_vacuum"(0)') == [(3,)]
        assert ask_for(target.table) == [("a", 1, 3, 3, 3)]
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="DROP TABLE bystander"):
            ask_for(f'{target.table[:-1]}_as_of"(2)')
    source = PostgresVersions(target.dsn, target.table, delete_column="gone", include_epoch=False, reader=name)
    rows = [
        row
        for split in source.plan(source.earliest(), source.latest(source.earliest()))
        for batch in source.read(split)
        for row in batch.to_pylist()
    ]
    assert rows == [{name: "a", "began": 1, "newer": 3, "vacuum": 3, "epoch": 3, "gone": False}]
    ask(target.dsn, f'DROP TABLE {target.table[:-1]}_versions" CASCADE'.replace("%", "%%"))
    for cleared in ("lines", "markers"):
        ask(target.dsn, f"DELETE FROM twophase.{cleared} WHERE target = %s", target.table)
    assert ask(target.dsn, "SELECT count(*) FROM bystander") == [(0,)]


def test_what_a_table_was_made_for_stays(steps: SinkSteps, target: UpsertedVersions) -> None:
    """Rows that are added and rows that are upserted do not go into one table, nor rows of two keys."""
    written(steps, 1)
    schema = target.batch([]).schema
    plan = steps.prepare(1)
    for other, said in (
        ({}, "upserted by value"),
        ({"write_mode": "upsert", "key_columns": ["text"], "delete_column": "gone"}, "upserted by value"),
    ):
        sink = PostgresSink(target.dsn, target.table, mode="mvcc", **other)  # type: ignore[arg-type]
        with pytest.raises(SchemaMismatch, match=said):
            sink.require_fit(schema, overwrite=False)
        with pytest.raises(SchemaMismatch, match=said):
            sink.prepare(plan.prepared)
    added = VersionsUnderTest(target.dsn)
    SinkSteps(added).epoch(0, [1])
    upserts = PostgresSink(target.dsn, added.table, mode="mvcc", write_mode="upsert", key_columns=["value"])
    with pytest.raises(SchemaMismatch, match="only ever added"):
        upserts.require_fit(added.batch([]).schema, overwrite=False)


def test_a_row_without_a_key_fails_its_task_and_one_that_deletes_needs_nothing_else(
    steps: SinkSteps, target: UpsertedVersions
) -> None:
    written(steps, 1)
    plan = steps.prepare(1)
    kinds = (pa.int64(), pa.string(), pa.bool_())

    def row(*values: Any) -> pa.RecordBatch:
        arrays = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
        return pa.record_batch(arrays, names=["value", "text", "gone"])

    for gone in (True, None):
        with pytest.raises(SchemaMismatch, match="violates not-null"):
            steps.write(plan, 0, row(None, "x", gone))
    steps.commit(steps.order(plan, steps.write(plan, 0, row(1, None, True))))
    assert target.now() == {2: "b"}


def test_options_that_make_no_sense_are_refused(target: UpsertedVersions) -> None:
    upserts = {"writeMode": "upsert", "keyColumns": "value"}
    for given, said in (
        ({"mode": "xa", **upserts}, "writeMode upsert is for modes wal and mvcc"),
        ({"mode": "mvcc", "retainEpochs": "3"}, "retainEpochs is for writeMode upsert with mode mvcc"),
        ({"mode": "wal", "retainEpochs": "3", **upserts}, "retainEpochs is for writeMode upsert with mode mvcc"),
        ({"mode": "mvcc", "retainEpochs": "0", **upserts}, "retainEpochs"),
    ):
        with pytest.raises(OptionError, match=said):
            PostgresSink.from_options({"dsn": target.dsn, "table": "t", **given})
    with pytest.raises(SchemaMismatch, match="twophase_order"):
        SinkSteps(target).prepare(0, schema=target.batch([]).schema.append(pa.field("twophase_order", pa.int64())))


# ---- a table that is gone ----


def test_a_table_that_is_dropped_after_the_votes_is_not_committed_to(
    steps: SinkSteps, target: UpsertedVersions
) -> None:
    """The pointer alone would move, and nobody would know. What is gone is said, and not made anew without its rows."""
    written(steps, 1)
    order = decided(steps, 1, [[(5, "x")]])
    ask(target.dsn, f"DROP TABLE {target.table}_versions CASCADE")
    with pytest.raises(TargetUnavailable, match="is gone"):
        steps.commit(order)
    with pytest.raises(TargetUnavailable, match="is gone, and its line is at epoch 0"):
        steps.prepare(1)


def test_a_second_query_with_other_keys_is_refused_before_it_takes_over(
    target: UpsertedVersions, tmp_path: Path
) -> None:
    first = QuerySteps(tmp_path / "first", target, name="first")
    first.epoch(0, [1])

    class OtherKeys(UpsertedVersions):
        def sink(self) -> PostgresSink:
            return PostgresSink(self.dsn, self.table, mode="mvcc", write_mode="upsert", key_columns=["text"])

    other = OtherKeys(target.dsn)
    other.table = target.table
    second = QuerySteps(tmp_path / "second", other, name="second", take_over={"sink": "first/sink"})
    second.log(0)
    with pytest.raises(SchemaMismatch, match="upserted by value"):
        second.prepare()
    with pytest.raises(CheckpointMismatch, match="takeOver"):
        QuerySteps(tmp_path / "third", target, name="third").epoch(0, [1])
    assert ask(target.dsn, "SELECT query FROM twophase.lines WHERE target = %s", target.table) == [("first",)]
