"""Upserts: after every epoch the table is what the newest row of each key says, whatever dies in between."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import twophase
from integration_tests.postgres_tables import POINTS, TableUnderTest, ask, hidden_in
from integration_tests.streams import Place, orders, run, write_by
from twophase.errors import NotCommitted, OptionError, SchemaMismatch, TargetUnavailable
from twophase.sink import CommitOrder, Outcome
from twophase.sinks.postgres.sink import PostgresSink
from twophase.testing.query_steps import QuerySteps, dies_at
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps

pytestmark = pytest.mark.servers

Change = tuple[int, str | None]
"""A key and its text; None deletes it."""


class Upserted(TableUnderTest):
    """Keys, each with a text. Where a test gives numbers alone, each is a key."""

    mode: Literal["wal", "mvcc"] = "wal"
    retain_epochs: int | None = None

    def sink(self) -> PostgresSink:
        return PostgresSink(
            self.dsn,
            self.table,
            mode=self.mode,
            write_mode="upsert",
            key_columns=["value"],
            delete_column="gone",
            create_table=True,
            retain_epochs=self.retain_epochs,
        )

    def batch(self, values: Sequence[int]) -> pa.RecordBatch:
        return self.changes([(value, str(value)) for value in values])

    def changes(self, changes: Sequence[Change]) -> pa.RecordBatch:
        keys, texts = [key for key, _ in changes], [text for _, text in changes]
        gone = [True if text is None else random.choice([False, None]) for text in texts]
        return pa.record_batch(
            [pa.array(texts, pa.string()), pa.array(gone, pa.bool_()), pa.array(keys, pa.int64())],
            names=["text", "gone", "value"],
        )

    def now(self) -> dict[int, str]:
        return self._found(self.table)

    def _found(self, selected_from: str) -> dict[int, str]:
        rows = ask(self.dsn, f"SELECT value, text FROM {selected_from}")
        assert len(rows) == len(dict(rows)), "a key is there twice"
        return dict(rows)


class UpsertedVersions(Upserted):
    """The same in the mode mvcc."""

    mode = "mvcc"

    def residue(self) -> Sequence[str]:
        return hidden_in(self.dsn, self.table)

    def as_of(self, epoch: int) -> dict[int, str]:
        return self._found(f"{self.table}_as_of({epoch})")


@pytest.fixture(params=[Upserted, UpsertedVersions], ids=["wal", "mvcc"])
def in_each_mode(request: pytest.FixtureRequest, postgres_server: Server[str]) -> Upserted:
    """For what must hold however an epoch is committed."""
    made = request.param(postgres_server.endpoint)
    assert isinstance(made, Upserted)
    return made


@pytest.fixture
def target(postgres_server: Server[str]) -> Upserted:
    return Upserted(postgres_server.endpoint)


@pytest.fixture
def steps(target: Upserted) -> SinkSteps:
    return SinkSteps(target)


def decided(steps: SinkSteps, number: int, *slots: Sequence[Sequence[Change]]) -> CommitOrder[Any]:
    """Each slot has batches of changes."""
    assert isinstance(steps.target, Upserted)
    plan = steps.prepare(number)
    shares = []
    for slot, batches in enumerate(slots):
        shares.append(steps.write(plan, slot, *map(steps.target.changes, batches)))
    return steps.order(plan, *shares)


def test_the_newest_row_of_a_key_is_what_the_table_has(in_each_mode: Upserted) -> None:
    """Over epochs: inserted, replaced, deleted, inserted again; a key that was never there is deleted too."""
    target, steps = in_each_mode, SinkSteps(in_each_mode)
    epochs: list[tuple[list[Change], dict[int, str]]] = [
        ([(1, "a"), (2, "b"), (9, None)], {1: "a", 2: "b"}),
        ([(2, "c"), (3, "d")], {1: "a", 2: "c", 3: "d"}),
        ([(1, None), (3, None)], {2: "c"}),
        ([(1, "e")], {1: "e", 2: "c"}),
        ([], {1: "e", 2: "c"}),
    ]
    for number, (changes, expected) in enumerate(epochs):
        order = decided(steps, number, [changes], [])
        assert steps.commit(order) is Outcome.COMMITTED
        assert target.now() == expected
        assert steps.commit(order) is Outcome.ALREADY_COMMITTED
    assert target.now() == expected
    assert list(target.residue()) == []


def test_of_rows_with_one_key_in_an_epoch_the_last_of_the_highest_slot_counts(in_each_mode: Upserted) -> None:
    target, steps = in_each_mode, SinkSteps(in_each_mode)
    order = decided(
        steps,
        0,
        [[(1, "a"), (2, "a"), (2, "b")], [(2, "c"), (3, "a")]],
        [[(1, "z"), (3, None), (4, None), (4, "y")]],
        [[(5, "v"), (5, None)], [(1, "w")]],
    )
    steps.commit(order)

    assert target.now() == {1: "w", 2: "c", 4: "y"}


@pytest.mark.parametrize("seed", range(2))
def test_random_epochs_give_what_a_dictionary_gives(in_each_mode: Upserted, seed: int) -> None:
    target, steps = in_each_mode, SinkSteps(in_each_mode)
    chance, expected = random.Random(seed), dict[int, str]()
    for number in range(12):
        slots = []
        for _ in range(chance.randrange(4)):
            changes: list[Change] = [
                (chance.randrange(20), chance.choice([None, "x", "y"]) and str(chance.random()))
                for _ in range(chance.randrange(12))
            ]
            at = chance.randrange(len(changes) + 1)
            slots.append([changes[:at], changes[at:]])
            for key, text in changes:
                expected.pop(key, None)
                if text is not None:
                    expected[key] = text
        steps.commit(decided(steps, number, *slots))
        assert target.now() == expected


def test_a_driver_that_dies_within_the_commit_loses_and_repeats_nothing(target: Upserted, tmp_path: Path) -> None:
    """Each epoch counts one up in the text of every key: an epoch that was applied twice, or not at all, would show."""
    query = QuerySteps(tmp_path / "checkpoint", target)
    ask(target.dsn, f"CREATE TABLE {target.table} (value bigint PRIMARY KEY, text text, times int NOT NULL DEFAULT 1)")
    ask(
        target.dsn,
        f"CREATE FUNCTION {target.table}_count() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN NEW.times := OLD.times + 1; RETURN NEW; END'",
    )
    ask(
        target.dsn,
        f"CREATE TRIGGER counts BEFORE UPDATE ON {target.table} FOR EACH ROW EXECUTE FUNCTION {target.table}_count()",
    )
    query.epoch(0, [1, 2])
    for number, point in enumerate(POINTS, start=1):
        query.log(number)
        with dies_at(tmp_path, point):
            query.finish([1, 2], [3])
        query = query.restart()
        query.finish([1, 2], [3])
    assert ask(target.dsn, f"SELECT value, times FROM {target.table} ORDER BY 1") == [(1, 4), (2, 4), (3, 3)]
    assert query.residue() == []


def test_staging_that_lost_rows_is_dead_and_changes_nothing(steps: SinkSteps, target: Upserted) -> None:
    steps.commit(decided(steps, 0, [[(1, "a")]]))
    order = decided(steps, 1, [[(1, "b"), (2, "b")]], [[(3, "c")]])
    [(staging,)] = ask(target.dsn, "SELECT staging FROM twophase.staged WHERE target = %s AND slot = 0", target.table)
    ask(target.dsn, f"DELETE FROM twophase.{staging} WHERE value = 2")
    with pytest.raises(NotCommitted) as caught:
        steps.commit(order)
    assert caught.value.dead_slots == (0,)
    assert target.now() == {1: "a"}


def test_a_decided_epoch_is_executed_as_it_was_written_whatever_the_options_say_now(
    steps: SinkSteps, target: Upserted
) -> None:
    steps.commit(decided(steps, 0, [[(1, "a")]]))
    order = decided(steps, 1, [[(1, None), (2, "b")]])
    assert PostgresSink(target.dsn, target.table).commit(order) is Outcome.COMMITTED
    assert target.now() == {2: "b"}


def test_staging_has_the_collations_of_the_table(steps: SinkSteps, target: Upserted) -> None:
    """Two texts are one key or two by their collation: what is one in the table must be one in staging, or a commit would fail."""
    ask(target.dsn, f'CREATE TABLE {target.table} (value bigint PRIMARY KEY, text text COLLATE "C")')
    steps.prepare(0)
    order = decided(steps, 0, [[(1, "a")]])
    [(staging,)] = ask(target.dsn, "SELECT staging FROM twophase.staged WHERE target = %s", target.table)
    collated = (
        "SELECT collation_name FROM information_schema.columns "
        "WHERE table_schema = 'twophase' AND table_name = %s AND column_name = 'text'"
    )
    assert ask(target.dsn, collated, staging) == [("C",)]
    assert steps.commit(order) is Outcome.COMMITTED
    assert target.now() == {1: "a"}


def test_a_row_without_a_key_fails_its_task_and_one_that_deletes_needs_nothing_else(
    steps: SinkSteps, target: Upserted
) -> None:
    ask(target.dsn, f"CREATE TABLE {target.table} (value bigint PRIMARY KEY, text text NOT NULL CHECK (text <> ''))")
    steps.commit(decided(steps, 0, [[(1, "a"), (2, "b")]]))
    steps.commit(decided(steps, 1, [[(1, None)]]))
    assert target.now() == {2: "b"}
    plan = steps.prepare(2)
    names = ["value", "text", "gone"]
    for key, text, gone in ((None, "x", False), (3, None, False), (3, "", None), (None, None, True)):
        kinds = (pa.int64(), pa.string(), pa.bool_())
        wrong = pa.record_batch([pa.array([v], k) for v, k in zip((key, text, gone), kinds, strict=True)], names=names)
        with pytest.raises(SchemaMismatch, match="violates"):
            steps.write(plan, 0, wrong)
    assert list(target.residue()) == []


@pytest.mark.parametrize(
    ("columns", "index", "fits"),
    [
        ("value bigint, text text", None, False),
        ("value bigint, text text", "CREATE UNIQUE INDEX ON {} (value) WHERE text <> ''", False),
        ("value bigint, text text", "CREATE UNIQUE INDEX ON {} (value, text)", False),
        ("value bigint UNIQUE DEFERRABLE, text text", None, False),
        ("value bigint, text text", "CREATE UNIQUE INDEX ON {} (value) INCLUDE (text)", True),
        ("value bigint UNIQUE, text text", None, True),
    ],
)
def test_the_key_must_be_one_that_the_table_keeps_unique(
    steps: SinkSteps, target: Upserted, columns: str, index: str | None, fits: bool
) -> None:
    ask(target.dsn, f"CREATE TABLE {target.table} ({columns})")
    if index is not None:
        ask(target.dsn, index.format(target.table))
    if fits:
        steps.commit(decided(steps, 0, [[(1, "a")]]))
        steps.commit(decided(steps, 1, [[(1, "b")]]))
        assert target.now() == {1: "b"}
    else:
        with pytest.raises(SchemaMismatch, match="CREATE UNIQUE INDEX"):
            steps.prepare(0)


def test_what_is_wrong_with_keys_is_said_at_once(steps: SinkSteps, target: Upserted) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        steps.prepare(0, schema=pa.schema([("text", pa.string()), ("gone", pa.string())]))
    assert "no column 'value', which is one of keyColumns" in caught.value.message
    assert "no boolean column 'gone'" in caught.value.message
    for given in (
        {"writeMode": "upsert"},
        {"keyColumns": "a"},
        {"deleteColumn": "a"},
        {"writeMode": "upsert", "keyColumns": "a,a"},
        {"writeMode": "upsert", "keyColumns": "a", "deleteColumn": "a"},
    ):
        with pytest.raises(OptionError, match=r"keyColumns|deleteColumn"):
            PostgresSink.from_options({"dsn": target.dsn, "table": "t", **given})


def test_a_role_that_may_only_insert_is_told_what_it_lacks(steps: SinkSteps, target: Upserted) -> None:
    role = target.table.partition(".")[2].replace("orders", "role")
    steps.commit(decided(steps, 0, [[(1, "a")]]))
    ask(target.dsn, f"CREATE ROLE {role} LOGIN")
    ask(target.dsn, f"GRANT INSERT ON {target.table} TO {role}")
    ask(target.dsn, f"GRANT USAGE ON SCHEMA twophase TO {role}")
    ask(target.dsn, f"GRANT ALL ON ALL TABLES IN SCHEMA twophase TO {role}")
    plan = steps.prepare(1)
    target.dsn = target.dsn.replace("postgres@", f"{role}@")
    with pytest.raises(TargetUnavailable, match="GRANT DELETE, SELECT, UPDATE ON"):
        target.sink().prepare(plan.prepared)


def test_a_running_count_by_exactly_once_is_what_a_batch_counts(
    spark: SparkSession, place: Place, in_each_mode: Upserted
) -> None:
    """Aggregations in update mode: each epoch has the keys that changed."""
    target = in_each_mode
    sink = PostgresSink(
        target.dsn, target.table, mode=target.mode, write_mode="upsert", key_columns=["k"], create_table=True
    )
    place.add_orders(4)
    counts = orders(spark, place, files_per_epoch=1).selectExpr("id % 7 AS k").groupBy("k").count()
    for _ in range(2):
        run(write_by(twophase.exactly_once(sink), counts, place, mode="update"))
        place.forget_commit(3)
    expected = {key: len([i for i in place.ids if i % 7 == key]) for key in range(7)}
    assert dict(ask(target.dsn, f"SELECT k, count FROM {target.table}")) == expected
    assert list(target.residue()) == []


def test_upserts_chain_through_spark_and_can_be_read_as_they_were(
    spark: SparkSession, place: Place, postgres_server: Server[str]
) -> None:
    """A count by key into a table with versions; a second query follows that, and has the same table in the end."""
    first, second = UpsertedVersions(postgres_server.endpoint), Upserted(postgres_server.endpoint)
    sink = PostgresSink(
        first.dsn, first.table, mode="mvcc", write_mode="upsert", key_columns=["k"], create_table=True, retain_epochs=3
    )
    told = {"dsn": first.dsn, "versionsOf": first.table}
    to = {"dsn": first.dsn, "table": second.table, "writeMode": "upsert", "keyColumns": "k", "deleteColumn": "gone"}
    for _ in range(2):
        place.add_orders(3)
        counts = orders(spark, place, files_per_epoch=1).selectExpr("id % 7 AS k").groupBy("k").count()
        run(write_by(twophase.exactly_once(sink), counts, place, mode="update"))
        changes = (
            spark.readStream.format("twophase-postgres").options(**told, deleteColumn="gone", reader="second").load()
        )
        following = changes.writeStream.format("twophase-postgres").options(**to, createTable="true")
        run(following.option("checkpointLocation", str(place.root / "second")).trigger(availableNow=True).start())
    expected = {key: len([i for i in place.ids if i % 7 == key]) for key in range(7)}
    for table in (first.table, second.table):
        assert dict(ask(first.dsn, f"SELECT k, count FROM {table}")) == expected
    read = spark.read.format("twophase-postgres").options(**told)
    assert {row.k: row["count"] for row in read.load().collect()} == expected
    assert sum(row["count"] for row in read.option("asOfEpoch", 4).load().collect()) == 250
    # What the second query has not acknowledged is kept for it, and a stream acknowledges an epoch when the next one begins.
    assert read.option("asOfEpoch", 0).load().count() > 0
    ask(first.dsn, "DELETE FROM twophase.readers WHERE target = %s", first.table)
    ask(first.dsn, f"SELECT {first.table}_vacuum(3)")
    with pytest.raises(Exception, match=r"asOfEpoch is 0, and .* only from epoch 2 on"):
        read.option("asOfEpoch", 0).load().count()
