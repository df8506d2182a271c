"""PostgresSink in the mode xa, where the suite can't look: lost replies, a server without room, keys, and operators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from integration_tests.postgres_tables import PreparedUnderTest, ask, close_sessions
from twophase.clients.postgres.database import close_idle
from twophase.errors import NotCommitted, OutcomeUnknown, SchemaMismatch, TargetUnavailable
from twophase.sink import Outcome
from twophase.sinks.postgres.sink import PostgresSink
from twophase.testing.framing import postgres_messages
from twophase.testing.servers import postgres
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps
from twophase.testing.tcp_proxy import Fault, TcpProxy

pytestmark = pytest.mark.servers


@pytest.fixture
def target(postgres_server: Server[str]) -> Iterator[PreparedUnderTest]:
    target = PreparedUnderTest(postgres_server.endpoint)
    yield target
    target.end()


@pytest.fixture
def steps(target: PreparedUnderTest) -> SinkSteps:
    return SinkSteps(target)


@pytest.fixture
def proxy(target: PreparedUnderTest) -> Iterator[TcpProxy]:
    told = psycopg.conninfo.conninfo_to_dict(target.dsn)
    with TcpProxy(int(str(told["port"])), server_host=str(told["host"]), framing=postgres_messages) as proxy:
        yield proxy
        close_idle()


def through(proxy: TcpProxy, target: PreparedUnderTest) -> PostgresSink:
    dsn = psycopg.conninfo.make_conninfo(target.dsn, host="127.0.0.1", port=proxy.port, sslmode="disable")
    return PostgresSink(dsn, target.table, mode="xa", request_timeout_ms=3_000)


def commits_prepared(message: bytes) -> bool:
    return b"COMMIT PREPARED" in message


# ---- replies that are lost ----


@pytest.mark.parametrize("fault", [Fault.DROP_REPLY_AND_CUT, Fault.CUT_BEFORE, Fault.CUT_AFTER])
def test_an_epoch_is_there_once_when_a_commit_of_a_slot_or_the_reply_to_it_was_lost(
    steps: SinkSteps, target: PreparedUnderTest, proxy: TcpProxy, fault: Fault
) -> None:
    """Asked for again, a transaction that was committed is as unknown as one that was rolled back: the marker tells."""
    order = steps.decided(0, [1, 2], [3], [4])
    struck = proxy.arm(fault, matching=commits_prepared, occurrence=2)
    assert through(proxy, target).commit(order) is Outcome.COMMITTED
    proxy.wait_until_fired(struck)
    assert through(proxy, target).commit(order) is Outcome.ALREADY_COMMITTED
    assert (steps.visible(), target.residue()) == ([1, 2, 3, 4], [])


def test_where_a_lost_reply_can_not_be_looked_up_the_outcome_is_unknown_and_nothing_is_rolled_back(
    steps: SinkSteps, target: PreparedUnderTest, proxy: TcpProxy
) -> None:
    order = steps.decided(0, [1], [2])
    sink = through(proxy, target)
    sink.status(steps.owner, settled=True)  # a session is open, and no other can be made from here on
    proxy.refuse()
    struck = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=commits_prepared)
    with pytest.raises(OutcomeUnknown, match="does not answer"):
        sink.commit(order)
    proxy.wait_until_fired(struck)
    assert (steps.visible(), len(target.residue())) == ([1], 1)
    assert steps.commit(order) is Outcome.COMMITTED
    assert (steps.visible(), target.residue()) == ([1, 2], [])


def test_a_task_whose_vote_is_lost_is_given_up_and_swept(
    steps: SinkSteps, target: PreparedUnderTest, proxy: TcpProxy
) -> None:
    plan = steps.prepare(0)
    transaction = through(proxy, target).begin(plan, steps.task(plan, 0))
    transaction.write(target.batch([99]))
    struck = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=lambda message: b"PREPARE TRANSACTION" in message)
    with pytest.raises(OutcomeUnknown):
        transaction.pre_commit()
    proxy.wait_until_fired(struck)
    assert len(steps.leftovers()) == 1
    assert steps.commit(steps.order(plan, steps.share(plan, 0, [1]))) is Outcome.COMMITTED
    assert (steps.visible(), target.residue()) == ([1], []), "a commit rolls the losers of its generation back"


# ---- the server ----


def test_an_epoch_can_be_committed_when_the_server_was_killed_after_the_votes_and_within_the_commit(
    steps: SinkSteps, target: PreparedUnderTest, postgres_server: Server[str]
) -> None:
    steps.epoch(0, [1])
    order = steps.decided(1, [2, 3], [4], [])
    postgres_server.kill()
    postgres_server.start()
    assert steps.sink().alive(order) == {}
    ask(target.dsn, f"COMMIT PREPARED '{target.residue()[0]}'")
    postgres_server.kill()
    postgres_server.start()
    assert steps.sink().alive(order) == {}
    assert steps.commit(order) is Outcome.COMMITTED
    assert (steps.visible(), target.residue()) == ([1, 2, 3, 4], [])


@pytest.mark.parametrize(("room", "tasks"), [(0, 0), (2, 3)], ids=["off", "too small"])
def test_a_server_without_room_for_prepared_transactions_is_told_which_setting_to_raise(
    tmp_path: Path, room: int, tasks: int
) -> None:
    with postgres.on_this_machine(tmp_path, {"max_prepared_transactions": str(room)}) as server:
        steps = SinkSteps(PreparedUnderTest(server.endpoint))
        with pytest.raises(TargetUnavailable, match="set max_prepared_transactions to more than the tasks of an epoch"):
            steps.decided(0, *([number] for number in range(tasks)))
        assert steps.visible() == []
        close_idle()
        close_sessions()


# ---- tables that keep something unique ----


def test_another_attempt_at_a_slot_does_not_wait_for_the_first_where_rows_are_unique(
    steps: SinkSteps, target: PreparedUnderTest
) -> None:
    """Its process is dead, and nobody but the driver could end what it has prepared: the second would wait for ever."""
    ask(target.dsn, f"CREATE TABLE {target.table} (value bigint PRIMARY KEY)")
    plan = steps.prepare(0)
    steps.share(plan, 0, [1, 2])
    other, again = steps.share(plan, 1, [3]), steps.share(plan, 0, [1, 2])
    assert len(target.residue()) == 2
    assert steps.commit(steps.order(plan, again, other)) is Outcome.COMMITTED
    assert (steps.visible(), target.residue()) == ([1, 2, 3], [])


def test_an_attempt_that_another_has_rolled_back_is_not_decided(steps: SinkSteps, target: PreparedUnderTest) -> None:
    """Both have voted, and Spark has chosen the first: it is dead, and the epoch is run again."""
    ask(target.dsn, f"CREATE TABLE {target.table} (value bigint PRIMARY KEY)")
    plan = steps.prepare(0)
    first, _ = steps.share(plan, 0, [1]), steps.share(plan, 0, [1])
    order = steps.order(plan, first)
    assert set(steps.sink().alive(order)) == {0}
    with pytest.raises(NotCommitted):
        steps.commit(order)
    assert steps.visible() == []


def test_a_row_that_breaks_a_key_fails_its_task_and_not_the_commit(steps: SinkSteps, target: PreparedUnderTest) -> None:
    ask(target.dsn, f"CREATE TABLE {target.table} (value bigint PRIMARY KEY)")
    steps.epoch(0, [1])
    plan = steps.prepare(1)
    with pytest.raises(SchemaMismatch, match="do not fit the table's constraints"):
        steps.share(plan, 0, [2, 1])
    assert (steps.visible(), target.residue()) == ([1], [])


# ---- people ----


def test_a_share_that_an_operator_has_rolled_back_is_dead_and_the_others_are_committed(
    steps: SinkSteps, target: PreparedUnderTest
) -> None:
    order = steps.decided(0, [1], [2])
    ask(target.dsn, f"ROLLBACK PREPARED '{target.residue()[0]}'")
    with pytest.raises(NotCommitted, match="rolled back by somebody") as caught:
        steps.commit(order)
    assert caught.value.dead_slots == (0,)
    assert (steps.visible(), target.residue()) == ([2], [])


def test_markers_do_not_pile_up(steps: SinkSteps, target: PreparedUnderTest) -> None:
    for number in range(4):
        steps.epoch(number, [2 * number], [2 * number + 1])
    rows = ask(target.dsn, "SELECT slot, epoch, rows FROM twophase.slots WHERE target = %s ORDER BY slot", target.table)
    assert rows == [(0, 3, 1), (1, 3, 1)]
    assert steps.visible() == list(range(8))


def test_a_reader_sees_nothing_of_a_share_before_it_is_committed_at_any_isolation_level(
    steps: SinkSteps, target: PreparedUnderTest
) -> None:
    steps.epoch(0, [1])
    steps.decided(1, [2])
    with psycopg.connect(target.dsn) as reader:
        reader.isolation_level = psycopg.IsolationLevel.READ_UNCOMMITTED
        assert reader.execute(f"SELECT value FROM {target.table}".encode()).fetchall() == [(1,)]
