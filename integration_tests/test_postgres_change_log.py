"""PostgresLog: what each change becomes, whole transactions in the order of their commits, slots that are gone or held; Spark."""

from __future__ import annotations

import contextlib
import json
import re
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from integration_tests.postgres_tables import ask
from integration_tests.streams import Place, run
from twophase.clients.postgres.database import close_idle
from twophase.errors import DataLost, OptionError, TargetUnavailable, Unreadable
from twophase.sources import PostgresLog
from twophase.sources.postgres.pgoutput import Decoder
from twophase.testing.servers import postgres
from twophase.testing.servers.server import Server

pytestmark = pytest.mark.servers


@dataclass
class Published:
    """A table, a publication and a slot, all of one name."""

    dsn: str
    name: str

    def source(self, **options: Any) -> PostgresLog:
        return PostgresLog(self.dsn, self.name, self.name, request_timeout_ms=20_000, **options)

    def do(self, *statements: str) -> None:
        """One transaction; `t` is the table."""
        with psycopg.connect(self.dsn) as connection:
            for statement in statements:
                connection.execute(re.sub(r"\bt\b", self.name, statement).encode())

    def changes(self, *columns: str) -> list[tuple[Any, ...]]:
        source = self.source()
        rows = rows_of(source, source.earliest(), source.newest())
        return [tuple(row[column] for column in columns) for row in rows]


@pytest.fixture
def published(postgres_server: Server[str]) -> Iterator[Published]:
    made = Published(postgres_server.endpoint, f"orders_{uuid.uuid4().hex}")
    made.do("CREATE TABLE t (id bigint PRIMARY KEY, name text, amount numeric)", "CREATE PUBLICATION t FOR TABLE t")
    made.source().earliest()
    yield made
    ask(
        made.dsn, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", made.name
    )


def rows_of(source: PostgresLog, start: str, end: str) -> list[dict[str, Any]]:
    return [row for split in source.plan(start, end) for batch in source.read(split) for row in batch.to_pylist()]


def test_every_kind_of_change_comes_with_its_keys(published: Published) -> None:
    published.do("INSERT INTO t VALUES (1, 'a', 1.50), (2, NULL, 'NaN')", "UPDATE t SET name = 'b' WHERE id = 1")
    published.do("UPDATE t SET id = 3 WHERE id = 1", "DELETE FROM t WHERE id = 2")
    published.do("TRUNCATE t")
    published.do("ALTER TABLE t REPLICA IDENTITY FULL", "INSERT INTO t VALUES (9, '\"ä\n', -0.5)", "DELETE FROM t")

    found = published.changes("operation", "old", "new", "sequence")

    assert [(op, old and json.loads(old), new and json.loads(new), at) for op, old, new, at in found] == [
        ("insert", None, {"id": 1, "name": "a", "amount": 1.50}, 0),
        ("insert", None, {"id": 2, "name": None, "amount": "NaN"}, 1),
        ("update", None, {"id": 1, "name": "b", "amount": 1.50}, 2),
        ("update", {"id": 1}, {"id": 3, "name": "b", "amount": 1.50}, 0),
        ("delete", {"id": 2}, None, 1),
        ("truncate", None, None, 0),
        ("insert", None, {"id": 9, "name": '"ä\n', "amount": -0.5}, 0),
        ("delete", {"id": 9, "name": '"ä\n', "amount": -0.5}, None, 1),
    ]
    assert set(published.changes("schema", "table")) == {("public", published.name)}


def test_a_transaction_says_when_and_where_it_was_committed(published: Published) -> None:
    (before,) = ask(published.dsn, "SELECT now(), pg_current_wal_lsn()::text")
    with psycopg.connect(published.dsn) as connection:
        connection.execute(f"INSERT INTO {published.name} VALUES (1)".encode())
        (xid,) = connection.execute("SELECT txid_current()").fetchall()[0]
    (after,) = ask(published.dsn, "SELECT now(), pg_current_wal_lsn()::text")

    ((found, lsn, committed),) = published.changes("xid", "lsn", "commit_time")

    assert found == xid % 2**32
    assert before[0] <= committed <= after[0]
    ((ordered,),) = ask(published.dsn, f"SELECT '{before[1]}'::pg_lsn < '{lsn}' AND '{lsn}' <= '{after[1]}'::pg_lsn")
    assert ordered


def test_values_in_json_are_what_they_are(published: Published) -> None:
    published.do(
        "ALTER TABLE t ADD b boolean, ADD d double precision, ADD j jsonb, ADD x bytea, ADD a int[], ADD w timestamptz",
        "SET LOCAL timezone = 'Asia/Tokyo'",
        """INSERT INTO t VALUES (9007199254740993, '', 12345678901234567890.123, false, 'Infinity', '{"k": [1, null]}', '\\x00ff',
        '{1,NULL}', '2024-02-29 12:00:00+00')""",
    )

    ((text,),) = published.changes("new")

    assert '"amount": 12345678901234567890.123' in text  # as digits, not as a float
    new = json.loads(text)
    assert (new["id"], new["name"], new["b"], new["d"]) == (2**53 + 1, "", False, "Infinity")
    assert (new["j"], new["x"], new["a"]) == ({"k": [1, None]}, "\\x00ff", "{1,NULL}")
    assert new["w"] == "2024-02-29 12:00:00+00"


def test_a_large_value_that_was_not_changed_is_not_sent(published: Published) -> None:
    published.do("ALTER TABLE t ALTER name SET STORAGE EXTERNAL")
    published.do("INSERT INTO t VALUES (1, repeat('x', 100000), 1)")
    published.do("UPDATE t SET amount = 2")

    (first,), (second,) = published.changes("new")

    assert len(json.loads(first)["name"]) == 100_000
    assert json.loads(second) == {"id": 1, "amount": 2}


def test_transactions_come_whole_in_the_order_of_their_commits(published: Published) -> None:
    """Two are open at the same time, the one that began later commits first; a part of one is rolled back."""
    insert = f"INSERT INTO {published.name} VALUES (%s)".encode()
    with psycopg.connect(published.dsn) as one, psycopg.connect(published.dsn) as other:
        one.execute(insert, (1,))
        other.execute(insert, (2,))
        one.execute(insert, (3,))
        with one.transaction(force_rollback=True):
            one.execute(insert, (99,))
        source = published.source()
        assert source.newest() == source.earliest(), "what is not committed is not there"
        other.commit()
        one.execute(insert, (4,))
    source = published.source()
    start = source.earliest()
    first = source.latest(start)
    ranges, at = [], start
    while at != first:
        end = published.source(max_rows_per_trigger=1).latest(at)
        ranges.append([json.loads(row["new"])["id"] for row in rows_of(source, at, end)])
        at = end

    assert ranges == [[2], [1, 3, 4]]


def test_columns_are_those_of_the_moment_of_the_change(published: Published) -> None:
    published.do("INSERT INTO t VALUES (1, 'a', 1)")
    published.do("ALTER TABLE t RENAME name TO title")
    published.do("ALTER TABLE t DROP amount")
    published.do("INSERT INTO t VALUES (2, 'b')")

    (first,), (second,) = published.changes("new")

    assert (json.loads(first), json.loads(second)) == (
        {"id": 1, "name": "a", "amount": 1},
        {"id": 2, "title": "b"},
    )


def test_a_prepared_transaction_comes_when_it_is_committed(published: Published) -> None:
    gid = f"gid-{published.name}"
    with psycopg.connect(published.dsn, autocommit=True) as connection:
        for statement in ("BEGIN", f"INSERT INTO {published.name} VALUES (1)", f"PREPARE TRANSACTION '{gid}'"):
            connection.execute(statement.encode())
        assert published.changes("new") == []
        connection.execute(f"COMMIT PREPARED '{gid}'".encode())
    assert len(published.changes("new")) == 1


def test_a_range_is_there_until_it_is_acknowledged_and_then_refused(published: Published) -> None:
    published.do("INSERT INTO t VALUES (1)")
    source = published.source()
    start, end = source.earliest(), source.newest()
    assert len(rows_of(source, start, end)) == len(rows_of(source, start, end)) == 1
    for _ in range(2):
        source.acknowledge(end)
        source.acknowledge(start)
    assert source.earliest() == end
    for call in (lambda: source.plan(start, end), lambda: source.latest(start)):
        with pytest.raises(DataLost, match=f"the slot {published.name} is at .* and changes from .* on are to be read"):
            call()
    published.do("INSERT INTO t VALUES (2)")
    assert len(rows_of(source, end, source.latest(end))) == 1


def test_a_slot_that_somebody_reads_from_is_waited_for(published: Published) -> None:
    """By another peek, of a transaction that is large enough for it to be met."""
    published.do("INSERT INTO t SELECT generate_series(1, 200000)")
    source = published.source()
    start, end = source.earliest(), source.newest()
    (split,) = source.plan(start, end)
    asked = f"SELECT count(*) FROM pg_logical_slot_peek_binary_changes('{published.name}', NULL, NULL, 'proto_version', '1', "
    asked += f"'publication_names', '{published.name}')"
    active = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{published.name}' AND active"
    for call in (source.newest, lambda: [batch.num_rows for batch in source.read(split)]):
        with ThreadPoolExecutor(1) as thread, psycopg.connect(published.dsn) as holder:
            held = thread.submit(holder.execute, asked.encode())
            while not ask(published.dsn, active):
                assert not held.done(), "it was not met"
            assert call() in (end, [10_000] * 20)
            held.result(60)


def test_a_range_of_which_a_part_was_acknowledged_meanwhile_is_refused(published: Published) -> None:
    """Another moves the slot after the range was planned, at any moment of its reading."""
    source = published.source()
    start = source.earliest()
    ends = []
    for at in range(2):
        published.do(f"INSERT INTO t VALUES ({at})")
        ends.append(source.newest())
    (split,) = source.plan(start, ends[1])
    for delay_ms in range(12):
        name = f"{published.name[:50]}_{delay_ms}"
        ask(published.dsn, "SELECT pg_copy_logical_replication_slot(%s, %s)", published.name, name)
        copy = PostgresLog(published.dsn, published.name, name, request_timeout_ms=20_000)
        with ThreadPoolExecutor(1) as thread:
            reading = thread.submit(list, copy.read(split))
            time.sleep(delay_ms / 1000)
            copy.acknowledge(ends[0])
            with contextlib.suppress(DataLost):
                assert sum(batch.num_rows for batch in reading.result(60)) == 2, "a part of a range"
        ask(published.dsn, "SELECT pg_drop_replication_slot(%s)", name)


def test_changes_of_a_time_without_the_publication_are_data_lost(published: Published) -> None:
    published.do("INSERT INTO t VALUES (1)")
    source = published.source()
    start, end = source.earliest(), source.newest()
    published.do("DROP PUBLICATION t")
    published.do("INSERT INTO t VALUES (2)")
    for call in (lambda: source.latest(end), lambda: source.plan(start, end)):
        with pytest.raises(TargetUnavailable, match="there is no publication"):
            call()
    published.do("CREATE PUBLICATION t FOR TABLE t")
    published.do("INSERT INTO t VALUES (3)")
    with pytest.raises(DataLost, match="was not there when some of the changes were made"):
        source.latest(end)
    assert [json.loads(row["new"])["id"] for row in rows_of(source, start, end)] == [1]


def test_values_are_written_alike_whatever_a_session_is_set_to(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    published.do(
        "ALTER TABLE t ADD w timestamptz, ADD d date, ADD f float8, ADD x bytea, ADD i interval, ADD r regclass",
        "INSERT INTO t VALUES (1, 'a', 1, '2024-02-29 12:00:00+00', '2024-02-03', 0.1::float8 + 0.2, '\\x00ff', '26 hours', 't')",
    )
    first = published.changes("new")
    close_idle()
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    others = (
        "DateStyle=SQL,DMY",
        "extra_float_digits=-3",
        "bytea_output=escape",
        "IntervalStyle=postgres",
        "search_path=public",
    )
    monkeypatch.setenv("PGOPTIONS", " ".join(f"-c {setting}" for setting in others))

    assert published.changes("new") == first
    close_idle()


def test_limits_of_a_role_do_not_stop_it_and_encodings_do_not_count(published: Published) -> None:
    published.do("INSERT INTO t SELECT generate_series(1, 50000)")
    dsn = psycopg.conninfo.make_conninfo(published.dsn, options="-c statement_timeout=30", client_encoding="latin1")
    source = PostgresLog(dsn, published.name, published.name)
    start = source.earliest()
    end = source.latest(start)

    assert len(rows_of(source, start, end)) == 50_000

    source.acknowledge(end)
    assert source.earliest() == end


def test_a_slot_that_waits_for_an_open_transaction_is_not_waited_for_without_end(published: Published) -> None:
    name = f"{published.name[:50]}_second"
    source = PostgresLog(published.dsn, published.name, name, lock_timeout_ms=500, request_timeout_ms=500)
    with psycopg.connect(published.dsn) as writer:
        writer.execute(f"INSERT INTO {published.name} VALUES (1)".encode())
        begun = time.monotonic()
        with pytest.raises(TargetUnavailable, match="lock"):
            source.earliest()
        assert time.monotonic() - begun < 20
    assert source.earliest()
    ask(published.dsn, "SELECT pg_drop_replication_slot(%s)", name)


def test_what_is_gone_or_wrong_is_named(published: Published) -> None:
    source = published.source()
    start = source.earliest()
    later = json.dumps({**json.loads(start), "lsn": "FF/0"})
    with pytest.raises(DataLost, match=r"the server's log ends at .*, and was read up to FF/0: it was set back"):
        source.latest(later)
    for other in ({"system": "1"}, {"timeline": 7}):
        with pytest.raises(DataLost, match="a standby has taken over, a backup was restored, or it is another server"):
            source.latest(json.dumps({**json.loads(start), **other}))
    ask(published.dsn, "SELECT pg_drop_replication_slot(%s)", published.name)
    for call in (lambda: source.latest(start), lambda: source.plan(start, later)):
        with pytest.raises(DataLost, match=f"the slot {published.name} is gone"):
            call()
    published.do("INSERT INTO t VALUES (1)")
    assert source.newest()  # makes it: Spark asks for it before it asks where to begin
    with pytest.raises(DataLost, match=f"the slot {published.name} is at .*, and changes from"):
        source.latest(start)
    ask(published.dsn, "SELECT pg_drop_replication_slot(%s)", published.name)
    with pytest.raises(TargetUnavailable, match="there is no publication 'nobody'"):
        PostgresLog(published.dsn, "nobody", "nobody").earliest()
    for make in ("physical_replication_slot(%s)", "logical_replication_slot(%s, 'pgoutput', false, true)"):
        ask(published.dsn, f"SELECT pg_create_{make}", published.name)
        with pytest.raises(OptionError, match="no logical slot of this database with the plugin pgoutput"):
            source.earliest()
        ask(published.dsn, "SELECT pg_drop_replication_slot(%s)", published.name)
    with pytest.raises(Unreadable, match="is none of a change log"):
        source.latest('{"position": 3}')
    for publication, slot, says in (("p", "Slot", "slot is 'Slot'"), ("", "s", "publication is empty")):
        with pytest.raises(OptionError, match=says):
            PostgresLog(published.dsn, publication, slot)
    with pytest.raises(OptionError, match="includeEpoch is for versionsOf"):
        PostgresLog(published.dsn, "p", "s", include_epoch=True)


def test_a_server_without_a_logical_log_is_told_what_to_set(tmp_path: Path) -> None:
    server = postgres.on_this_machine(tmp_path, {"wal_level": "replica"})
    server.start()
    try:
        ask(server.endpoint, "CREATE PUBLICATION p FOR ALL TABLES")
        with pytest.raises(TargetUnavailable, match="wal_level of the server is replica: set it to logical"):
            PostgresLog(server.endpoint, "p", "s").earliest()
    finally:
        server.stop()


def test_a_message_that_is_cut_or_unknown_is_no_change() -> None:
    with pytest.raises(Unreadable, match="is cut"):
        Decoder().take(b"C\0\0")
    with pytest.raises(Unreadable, match="none of pgoutput's first version"):
        Decoder().take(b"S\0\0\0\1")
    with pytest.raises(Unreadable, match="before its columns"):
        Decoder().take(b"I\0\0\0\1N\0\0")


def test_changes_stream_through_spark_once_over_restarts_and_replays(
    spark: SparkSession, place: Place, published: Published
) -> None:
    def follow() -> None:
        told = {"dsn": published.dsn, "publication": published.name, "slot": published.name, "maxRowsPerTrigger": "3"}
        rows = spark.readStream.format("twophase-postgres").options(**told).load()
        query = rows.writeStream.format("twophase-files").option("checkpointLocation", str(place.checkpoint))
        run(query.trigger(availableNow=True).start(str(place.table)))

    ask(published.dsn, "SELECT pg_drop_replication_slot(%s)", published.name)
    follow()  # makes the slot
    for first in (1, 11):
        for at in range(first, first + 4):
            published.do(f"INSERT INTO t VALUES ({at}), ({at + 100})")
        follow()
    place.forget_commit(max(int(path.name) for path in (place.checkpoint / "commits").glob("[0-9]*")))
    published.do("INSERT INTO t VALUES (1000)")
    follow()

    found = spark.read.parquet(str(place.table)).select("new").collect()
    expected = [at + more for first in (1, 11) for at in range(first, first + 4) for more in (0, 100)]
    assert sorted(json.loads(row.new)["id"] for row in found) == sorted([*expected, 1000])
