"""PostgresSink where the suite can't look: replies that are lost, a server that dies, and tables that change or refuse rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import psycopg
import pyarrow as pa
import pytest

from integration_tests.postgres_tables import TableUnderTest, VersionsUnderTest, ask
from twophase import failpoints
from twophase.clients.postgres.database import close_idle
from twophase.errors import NotCommitted, OutcomeUnknown, SchemaMismatch, TargetUnavailable
from twophase.sink import WHOLE, CommitOrder, Outcome
from twophase.sinks.postgres.sink import PostgresSink
from twophase.sinks.postgres.transaction import PostgresHandle
from twophase.testing.framing import postgres_messages
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps
from twophase.testing.tcp_proxy import Fault, TcpProxy

pytestmark = pytest.mark.servers

WITHIN_S = 60.0


@pytest.fixture
def target(postgres_server: Server[str]) -> TableUnderTest:
    return TableUnderTest(postgres_server.endpoint)


@pytest.fixture
def steps(target: TableUnderTest) -> SinkSteps:
    return SinkSteps(target)


@pytest.fixture(params=["wal", "mvcc"])
def in_each_mode(request: pytest.FixtureRequest, postgres_server: Server[str]) -> SinkSteps:
    """For what must hold however an epoch is committed."""
    target = TableUnderTest if request.param == "wal" else VersionsUnderTest
    return SinkSteps(target(postgres_server.endpoint))


# ---- the reply to COMMIT ----


@contextmanager
def proxied(target: TableUnderTest) -> Iterator[tuple[TcpProxy, PostgresSink]]:
    """The same table, through a proxy."""
    told = psycopg.conninfo.conninfo_to_dict(target.dsn)
    with TcpProxy(int(str(told["port"])), server_host=str(told["host"]), framing=postgres_messages) as proxy:
        dsn = psycopg.conninfo.make_conninfo(target.dsn, host="127.0.0.1", port=proxy.port, sslmode="disable")
        mode: Literal["wal", "mvcc"] = "mvcc" if isinstance(target, VersionsUnderTest) else "wal"
        yield proxy, PostgresSink(dsn, target.table, mode=mode, request_timeout_ms=3_000)
        close_idle()


def is_commit(message: bytes) -> bool:
    return message.rstrip(b"\0").endswith(b"COMMIT")  # and not the BEGIN of a transaction that is READ COMMITTED


@pytest.mark.parametrize("fault", [Fault.DROP_REPLY_AND_CUT, Fault.CUT_BEFORE, Fault.CUT_AFTER])
def test_an_epoch_is_there_once_when_its_commit_or_the_reply_to_it_was_lost(
    in_each_mode: SinkSteps, fault: Fault
) -> None:
    """The server has done it, or not, and the client can't know: it looks, under the lock that the lost commit holds."""
    steps = in_each_mode
    assert isinstance(steps.target, TableUnderTest)
    order = steps.decided(0, [1, 2], [3])
    with proxied(steps.target) as (proxy, sink):
        struck = proxy.arm(fault, matching=is_commit)
        outcome = sink.commit(order)
        proxy.wait_until_fired(struck)
        assert outcome is (Outcome.ALREADY_COMMITTED if fault is Fault.DROP_REPLY_AND_CUT else outcome)
        assert (steps.visible(), steps.marker()) == ([1, 2, 3], order.marker)
        assert sink.commit(order) is Outcome.ALREADY_COMMITTED
    assert (steps.visible(), list(steps.target.residue())) == ([1, 2, 3], [])


def test_where_a_lost_reply_can_not_be_looked_up_the_outcome_is_unknown_and_nothing_is_deleted(
    in_each_mode: SinkSteps,
) -> None:
    steps = in_each_mode
    assert isinstance(steps.target, TableUnderTest)
    order = steps.decided(0, [1], [2])
    with proxied(steps.target) as (proxy, sink):
        sink.status(steps.owner, settled=True)  # a session is open, and no other can be made from here on
        proxy.refuse()
        struck = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=is_commit)
        with pytest.raises(OutcomeUnknown, match="does not answer"):
            sink.commit(order)
        proxy.wait_until_fired(struck)
    assert steps.visible() == [1, 2]
    assert (steps.target.residue() != []) is not isinstance(steps.target, VersionsUnderTest)
    assert steps.commit(order) is Outcome.ALREADY_COMMITTED
    assert (steps.visible(), list(steps.target.residue())) == ([1, 2], [])


def test_a_task_whose_vote_is_lost_is_given_up_and_swept(in_each_mode: SinkSteps) -> None:
    """The reply to its commit is lost: it may have staged a share, which nobody will name."""
    steps = in_each_mode
    assert isinstance(steps.target, TableUnderTest)
    plan = steps.prepare(0)
    with proxied(steps.target) as (proxy, sink):
        transaction = sink.begin(plan, steps.task(plan, 0))
        transaction.write(steps.target.batch([99]))
        struck = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=is_commit)
        with pytest.raises(OutcomeUnknown):
            transaction.pre_commit()
        proxy.wait_until_fired(struck)
    assert len(steps.leftovers()) == 1
    order = steps.order(plan, steps.share(plan, 0, [1]))
    assert steps.commit(order) is Outcome.COMMITTED
    steps.sweep()
    assert (steps.visible(), list(steps.target.residue())) == ([1], [])


# ---- a server that dies, and a driver that sleeps ----


def test_an_epoch_can_be_committed_when_the_server_was_killed_after_the_votes(
    in_each_mode: SinkSteps, postgres_server: Server[str]
) -> None:
    steps = in_each_mode
    steps.epoch(0, [1])
    order = steps.decided(1, [2, 3], [4], [])
    postgres_server.kill()
    postgres_server.start()
    assert steps.sink().alive(order) == {}
    assert steps.commit(order) is Outcome.COMMITTED
    assert (steps.visible(), list(steps.target.residue())) == ([1, 2, 3, 4], [])


def test_verbs_wait_for_a_server_that_is_away(steps: SinkSteps, postgres_server: Server[str]) -> None:
    """It comes back while the driver asks and a task connects; nobody has to start anything again."""
    order = steps.decided(0, [1])
    postgres_server.kill()
    starter = threading.Thread(target=postgres_server.start)
    starter.start()
    outcome = steps.commit(order)
    starter.join(WITHIN_S)
    assert outcome is Outcome.COMMITTED
    assert steps.visible() == [1]


def test_a_driver_that_sleeps_in_its_commit_holds_nobody_up_for_ever(
    in_each_mode: SinkSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lock of its owner's row. The server ends its transaction, another commits, and it learns of it when it wakes
    up."""
    steps = in_each_mode
    assert isinstance(steps.target, TableUnderTest)
    order = steps.decided(0, [1], [2])
    mode: Literal["wal", "mvcc"] = "mvcc" if isinstance(steps.target, VersionsUnderTest) else "wal"
    sink = PostgresSink(steps.target.dsn, steps.target.table, mode=mode, lock_timeout_ms=6_000)
    asleep, awake, told = threading.Event(), threading.Event(), list[Outcome]()

    def hit(point: str, **_: object) -> None:
        if point == "postgres.locked" and threading.current_thread() is sleeper:
            asleep.set()
            awake.wait(WITHIN_S)

    sleeper = threading.Thread(target=lambda: told.append(sink.commit(order)))
    monkeypatch.setattr(failpoints, "hit", hit)
    sleeper.start()
    assert asleep.wait(WITHIN_S)
    assert sink.commit(order) is Outcome.COMMITTED
    awake.set()
    sleeper.join(WITHIN_S)
    assert told == [Outcome.ALREADY_COMMITTED]
    assert steps.visible() == [1, 2]


def test_a_commit_that_does_not_end_leaves_the_marker_in_doubt(in_each_mode: SinkSteps) -> None:
    """What is certainly visible is said at once; what is settled waits, and says that it is unknown."""
    steps = in_each_mode
    assert isinstance(steps.target, TableUnderTest)
    order = steps.epoch(0, [1])
    mode: Literal["wal", "mvcc"] = "mvcc" if isinstance(steps.target, VersionsUnderTest) else "wal"
    impatient = PostgresSink(steps.target.dsn, steps.target.table, mode=mode, lock_timeout_ms=200)
    held = "lines" if mode == "mvcc" else "markers"
    with psycopg.connect(steps.target.dsn) as under_way:
        under_way.execute(f"SELECT 1 FROM twophase.{held} WHERE target = %s FOR UPDATE".encode(), (steps.target.table,))
        assert impatient.status(steps.owner, settled=False).markers == {WHOLE: order.marker}
        with pytest.raises(OutcomeUnknown, match="lockTimeoutMs"):
            impatient.status(steps.owner, settled=True)
    assert impatient.status(steps.owner, settled=True).markers == {WHOLE: order.marker}


def test_settings_of_the_server_do_not_change_what_a_transaction_promises(target: TableUnderTest) -> None:
    """A role, or a database, may have any default; ours are set in every transaction."""
    defaults = "-c default_transaction_isolation=serializable -c synchronous_commit=off -c statement_timeout=1h"
    sink = PostgresSink(
        psycopg.conninfo.make_conninfo(target.dsn, options=defaults), target.table, lock_timeout_ms=3_000
    )
    names = ("transaction_isolation", "synchronous_commit", "statement_timeout", "lock_timeout")

    def work(connection: psycopg.Connection[tuple[object, ...]]) -> list[object]:
        return [connection.execute(f"SHOW {name}".encode()).fetchall()[0][0] for name in names]

    assert sink._database.run(work, doing="asking") == ["read committed", "on", "0", "3s"]


# ---- staging that is lost ----


@pytest.mark.parametrize("how", ["TRUNCATE", "DROP TABLE", "DELETE FROM"])
def test_staging_that_lost_rows_is_dead_and_shows_nothing(steps: SinkSteps, how: str) -> None:
    assert isinstance(steps.target, TableUnderTest)
    steps.epoch(0, [1])
    order = steps.decided(1, [2, 3], [4])
    doomed = ask(
        steps.target.dsn, "SELECT staging FROM twophase.staged WHERE target = %s AND slot = 0", steps.target.table
    )
    ask(steps.target.dsn, f"{how} twophase.{doomed[0][0]}")
    for _ in range(2):
        with pytest.raises(NotCommitted) as caught:
            steps.commit(order)
        assert caught.value.dead_slots == (0,)
    assert steps.visible() == [1]
    if how != "DELETE FROM":  # only a commit counts rows
        assert set(steps.sink().alive(order)) == {0}
    revised = steps.decided(1, [2, 3], [4])
    assert steps.commit(revised) is Outcome.COMMITTED
    steps.sweep()
    assert (steps.visible(), list(steps.target.residue())) == ([1, 2, 3, 4], [])


# ---- tables that refuse rows ----


def ordered(steps: SinkSteps, table: str, values: list[int]) -> CommitOrder[PostgresHandle]:
    """A table made by hand, and an epoch that is decided."""
    assert isinstance(steps.target, TableUnderTest)
    ask(steps.target.dsn, f"CREATE TABLE {steps.target.table} ({table})")
    return steps.decided(0, values)


def test_a_row_that_breaks_a_unique_key_stops_the_commit_until_the_table_is_mended(steps: SinkSteps) -> None:
    """The epoch is decided: it stays staged, nothing of it is visible, and it is committed as soon as it can be."""
    assert isinstance(steps.target, TableUnderTest)
    order = ordered(steps, "value bigint PRIMARY KEY", [1, 2])
    ask(steps.target.dsn, f"INSERT INTO {steps.target.table} VALUES (2)")
    for _ in range(2):
        with pytest.raises(SchemaMismatch, match=r"duplicate key value.*\(value\)=\(2\) already exists"):
            steps.commit(order)
        assert steps.visible() == [2]
    ask(steps.target.dsn, f"DELETE FROM {steps.target.table}")
    assert steps.commit(order) is Outcome.COMMITTED
    assert steps.visible() == [1, 2]


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("value bigint CHECK (value > 0)", [1, -1], "violates check constraint"),
        ("value bigint, CONSTRAINT large CHECK (value < 5)", [9], "violates check constraint"),
        ("value bigint NOT NULL", None, "violates not-null constraint"),
    ],
)
def test_what_a_row_breaks_by_itself_fails_its_task_and_not_the_commit(
    steps: SinkSteps, column: str, values: list[int] | None, said: str
) -> None:
    assert isinstance(steps.target, TableUnderTest)
    ask(steps.target.dsn, f"CREATE TABLE {steps.target.table} ({column})")
    plan = steps.prepare(0)
    batch = pa.record_batch({"value": pa.array([None] if values is None else values, pa.int64())})
    with pytest.raises(SchemaMismatch, match=said):
        steps.write(plan, 0, batch)
    assert list(steps.target.residue()) == []


def test_a_value_that_does_not_fit_fails_its_task_and_says_which_column(steps: SinkSteps) -> None:
    assert isinstance(steps.target, TableUnderTest)
    ask(steps.target.dsn, f"CREATE TABLE {steps.target.table} (value bigint, short varchar(3), plain text)")
    for short, plain in (("long", ""), ("", "zero\0byte")):
        batch = pa.record_batch({"value": [1], "short": [short], "plain": [plain]})
        plan = steps.prepare(0, schema=batch.schema)
        with pytest.raises(SchemaMismatch, match=r"column (short|plain)"):
            steps.write(plan, 0, batch)
    assert (steps.visible(), list(steps.target.residue())) == ([], [])


def test_rows_that_a_trigger_leaves_out_are_not_taken_for_lost(steps: SinkSteps) -> None:
    assert isinstance(steps.target, TableUnderTest)
    order = ordered(steps, "value bigint", [1, 2, 3])
    function = f"{steps.target.table}_odd"
    ask(
        steps.target.dsn,
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF NEW.value %% 2 = 0 THEN RETURN NULL; END IF; RETURN NEW; END'",
    )
    ask(
        steps.target.dsn,
        f"CREATE TRIGGER odd BEFORE INSERT ON {steps.target.table} FOR EACH ROW EXECUTE FUNCTION {function}()",
    )
    assert steps.commit(order) is Outcome.COMMITTED
    assert steps.visible() == [1, 3]


def test_a_lock_that_somebody_holds_is_named_and_nothing_is_lost(steps: SinkSteps) -> None:
    assert isinstance(steps.target, TableUnderTest)
    order = ordered(steps, "value bigint", [1])
    impatient = PostgresSink(steps.target.dsn, steps.target.table, lock_timeout_ms=200)
    with psycopg.connect(steps.target.dsn) as holder:
        holder.execute(f"LOCK TABLE {steps.target.table} IN ACCESS EXCLUSIVE MODE".encode())
        with pytest.raises(TargetUnavailable, match="lockTimeoutMs"):
            impatient.commit(order)
    assert steps.commit(order) is Outcome.COMMITTED
    assert steps.visible() == [1]


def test_a_table_that_is_dropped_or_altered_after_the_votes_stops_the_commit_until_it_is_back(steps: SinkSteps) -> None:
    assert isinstance(steps.target, TableUnderTest)
    order = ordered(steps, "value bigint", [1])
    table = steps.target.table
    for undo, redo in (
        (f"DROP TABLE {table}", f"CREATE TABLE {table} (value bigint)"),
        (f"ALTER TABLE {table} RENAME value TO other", f"ALTER TABLE {table} RENAME other TO value"),
    ):
        ask(steps.target.dsn, undo)
        with pytest.raises(TargetUnavailable):
            steps.commit(order)
        ask(steps.target.dsn, redo)
    assert steps.commit(order) is Outcome.COMMITTED
    assert steps.visible() == [1]


def test_a_deadlock_with_a_stranger_is_tried_again(steps: SinkSteps, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger has inserted the same key, and waits for the owner's row: ours is rolled back, and comes through afterwards."""
    assert isinstance(steps.target, TableUnderTest)
    order = ordered(steps, "value bigint PRIMARY KEY", [1])
    dsn, table = steps.target.dsn, steps.target.table
    locked, told, hits = threading.Event(), list[Outcome](), list[str]()

    def hit(point: str, **_: object) -> None:
        hits.append(point)
        if hits == ["postgres.locked"]:
            locked.set()
            wait_for_lock(dsn, "twophase.markers")

    monkeypatch.setattr(failpoints, "hit", hit)
    with psycopg.connect(dsn) as stranger:
        stranger.execute("SET deadlock_timeout = '5min'")  # so that the one which looks, and is rolled back, is ours
        stranger.execute(f"INSERT INTO {table} VALUES (1)".encode())
        ours = threading.Thread(target=lambda: told.append(steps.commit(order)))
        ours.start()
        assert locked.wait(WITHIN_S)
        stranger.execute("SELECT 1 FROM twophase.markers WHERE target = %s FOR UPDATE", (table,))
        stranger.rollback()
    ours.join(WITHIN_S)
    assert told == [Outcome.COMMITTED]
    assert hits.count("postgres.locked") == 2
    assert steps.visible() == [1]


def wait_for_lock(dsn: str, of: str) -> None:
    """Until somebody waits for a lock with a statement about this."""
    deadline = time.monotonic() + WITHIN_S
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND strpos(query, %s) > 0"
    while not ask(dsn, waiting, of):
        assert time.monotonic() < deadline, f"nobody waits for {of}"
        time.sleep(0.02)
