"""Whatever a server, a network or a person does in the middle of an epoch: it is tried again, or said, and no row is lost or
doubled.

The epochs here are those of a real coordinator with a real checkpoint. After an error the query is started again, as Spark does.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import psycopg
import pyarrow as pa
import pytest

from integration_tests.postgres_tables import TableUnderTest, ask, close_sessions, hidden_in, prepared_in, staged_in
from integration_tests.test_postgres_sink import WITHIN_S, wait_for_lock
from twophase import failpoints
from twophase.clients.postgres.database import close_idle
from twophase.errors import NotCommitted, SchemaMismatch, TargetUnavailable, TwophaseError
from twophase.sink import Outcome
from twophase.sinks.postgres.sink import PostgresSink
from twophase.testing.framing import postgres_messages
from twophase.testing.query_steps import QuerySteps
from twophase.testing.servers import postgres
from twophase.testing.servers.server import Server
from twophase.testing.sink_steps import SinkSteps
from twophase.testing.tcp_proxy import Fault, TcpProxy

pytestmark = pytest.mark.servers

WAYS = ("wal", "wal upsert", "mvcc", "mvcc upsert", "xa")
SLOW_WAYS = ("wal upsert", "mvcc upsert", "xa")
"""For what takes seconds."""
FAULTS = (Fault.CUT_BEFORE, Fault.CUT_AFTER, Fault.DROP_REPLY_AND_CUT)


class Written(TableUnderTest):
    """A table in one of the ways to write to it; `through` is how its sink connects, if not as its readers do."""

    def __init__(self, dsn: str, way: str):
        super().__init__(dsn)
        self.mode, _, self.write_mode = way.partition(" ")
        self.through = dsn
        self.lock_timeout_ms = 10_000

    @property
    def holds(self) -> str:
        """The table that rows lie in."""
        return f"{self.table}_versions" if self.mode == "mvcc" else self.table

    def sink(self) -> PostgresSink:
        return PostgresSink(
            self.through,
            self.table,
            mode=self.mode,  # type: ignore[arg-type]
            write_mode=self.write_mode or "append",  # type: ignore[arg-type]
            key_columns=["value"] if self.write_mode else [],
            create_table=True,
            retain_epochs=2 if (self.mode, self.write_mode) == ("mvcc", "upsert") else None,
            lock_timeout_ms=self.lock_timeout_ms,
            request_timeout_ms=20_000,
        )

    def residue(self) -> Sequence[str]:
        look = {"wal": staged_in, "mvcc": hidden_in, "xa": prepared_in}[self.mode]
        return look(self.dsn, self.table)


@pytest.fixture(params=WAYS)
def target(request: pytest.FixtureRequest, postgres_server: Server[str]) -> Iterator[Written]:
    target = Written(postgres_server.endpoint, request.param)
    yield target
    for gid in prepared_in(target.dsn, target.table):
        ask(target.dsn, f"ROLLBACK PREPARED '{gid}'")


@pytest.fixture
def steps(target: Written) -> SinkSteps:
    return SinkSteps(target)


def finished(query: QuerySteps, *slots: Sequence[int], within: int = 4) -> tuple[QuerySteps, list[TwophaseError]]:
    """The epoch that is logged, with as many restarts as it takes; and what was said before each."""
    said = list[TwophaseError]()
    while True:
        try:
            query.finish(*slots)
        except TwophaseError as error:
            said.append(error)
            assert len(said) < within, f"it does not come to its end: {said}"
            query = query.restart()
        else:
            return query, said


def unseen(query: QuerySteps, *slots: Sequence[int], is_prepared: bool = False) -> None:
    """An epoch that no reader looks at: there may be nothing to look at, or somebody who keeps readers out."""
    if not is_prepared:
        query.prepare()
    query.run(*slots)
    query.commit()
    query.log_commit()


# ---- connections and servers ----


@contextmanager
def proxied(target: Written) -> Iterator[TcpProxy]:
    told = psycopg.conninfo.conninfo_to_dict(target.dsn)
    with TcpProxy(int(str(told["port"])), server_host=str(told["host"]), framing=postgres_messages) as proxy:
        dsn = psycopg.conninfo.make_conninfo(target.dsn, host="127.0.0.1", port=proxy.port, sslmode="disable")
        target.through = dsn
        yield proxy
        target.through = target.dsn
        close_idle()


def is_asked(message: bytes) -> bool:
    """A statement, or rows: not each of the five messages that a statement with parameters is."""
    return message[:1] in (b"Q", b"S", b"d", b"c")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", SLOW_WAYS, indirect=True)
def test_a_connection_that_is_lost_at_any_message_of_an_epoch_loses_and_doubles_nothing(
    target: Written, tmp_path: Path
) -> None:
    """Before it, after it, or with its reply: an epoch for each message that an epoch sends, of its prepare, its tasks, its
    decision, its commit, and what is swept and deleted after it."""
    query, struck = QuerySteps(tmp_path / "checkpoint", target), 0
    with proxied(target) as proxy:
        query.epoch(0, [0], [1])
        for number in itertools.count(1):
            query.log(number)
            armed = proxy.arm(FAULTS[number % 3], matching=is_asked, occurrence=2 * number - number % 2)
            query, _ = finished(query, [10 * number, 10 * number + 1], [10 * number + 2])
            if not any(fired.armed is armed for fired in proxy.fired):
                break
            struck += 1
    assert struck > 15
    assert query.findings() == []
    assert query.residue() == []


POINTS = (
    "prepare.published",
    "prepare.fenced",
    "prepare.planned",
    "task.begun",
    "task.written",
    "task.before_pre_commit",
    "task.pre_committed",
    "decide.before_alive",
    "decide.published",
    "commit.after_sink",
)
WITHIN_COMMIT = {"xa": ("postgres.slot_committed",)}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("target", SLOW_WAYS, indirect=True)
def test_a_server_that_is_killed_at_any_step_of_an_epoch_loses_and_doubles_nothing(
    target: Written, tmp_path: Path, postgres_server: Server[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 and a start, at each step in turn; open sessions die with it."""
    query = QuerySteps(tmp_path / "checkpoint", target)
    query.epoch(0, [0], [1])
    own = WITHIN_COMMIT.get(target.mode, ("postgres.locked", "postgres.inserted", "postgres.committed"))
    for number, point in enumerate((*POINTS, *own), start=1):
        struck = list[str]()

        def hit(name: str, point: str = point, struck: list[str] = struck, **_: object) -> None:
            if name == point and not struck:
                struck.append(name)
                postgres_server.kill()
                postgres_server.start()

        monkeypatch.setattr(failpoints, "hit", hit)
        query.log(number)
        query, _ = finished(query, [10 * number, 10 * number + 1], [10 * number + 2])
        assert struck == [point], "the query did not come there, so nothing was tested"
    monkeypatch.undo()
    assert query.findings() == []
    assert query.residue() == []


# ---- locks, deadlocks and what serializable transactions of others do ----


def test_a_lock_that_somebody_holds_is_waited_for_and_then_named(target: Written, tmp_path: Path) -> None:
    """On the table, while tasks write and while an epoch is committed; and on the row that commits lock."""
    query = QuerySteps(tmp_path / "checkpoint", target)
    query.epoch(0, [0])
    target.lock_timeout_ms = 200
    row = {"mvcc": "lines", "wal": "markers", "xa": "generations"}[target.mode]
    for number, statement in enumerate(
        (
            f"LOCK TABLE {target.holds} IN ACCESS EXCLUSIVE MODE",
            f"SELECT 1 FROM twophase.{row} WHERE target = '{target.table}' FOR UPDATE",
        ),
        start=1,
    ):
        query.log(number)
        with psycopg.connect(target.dsn) as holder:
            holder.execute(statement.encode())
            # A row that a newer driver may have locked is in doubt, and said to be.
            with pytest.raises(TwophaseError, match="lockTimeoutMs"):
                unseen(query, [number])
        query, said = finished(query.restart(), [number])
        assert said == []
    assert query.findings() == []
    assert query.residue() == []


def test_a_deadlock_with_a_stranger_within_the_commit_is_tried_again(
    postgres_server: Server[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the mode mvcc: a stranger has an attempt's row, and waits for the line. (test_postgres_sink.py has that of wal.)"""
    target = Written(postgres_server.endpoint, "mvcc")
    steps = SinkSteps(target)
    order = steps.decided(0, [1])
    locked, told, hits = threading.Event(), list[Outcome](), list[str]()

    def hit(point: str, **_: object) -> None:
        hits.append(point)
        if hits == ["postgres.locked"]:
            locked.set()
            wait_for_lock(target.dsn, "twophase.lines")

    monkeypatch.setattr(failpoints, "hit", hit)
    with psycopg.connect(target.dsn) as stranger:
        stranger.execute("SET deadlock_timeout = '5min'")  # so that the one which looks, and is rolled back, is ours
        stranger.execute("SELECT 1 FROM twophase.attempts WHERE target = %s FOR UPDATE", (target.table,))
        ours = threading.Thread(target=lambda: told.append(steps.commit(order)))
        ours.start()
        assert locked.wait(WITHIN_S)
        stranger.execute("SELECT 1 FROM twophase.lines WHERE target = %s FOR UPDATE", (target.table,))
        stranger.rollback()
    ours.join(WITHIN_S)
    assert (told, hits.count("postgres.locked"), steps.visible()) == ([Outcome.COMMITTED], 2, [1])


def raising(target: Written, state: str, times: int) -> None:
    """The table raises this error for the first rows that come to it; a sequence counts, which no rollback sets back."""
    name = target.holds
    ask(target.dsn, f"CREATE SEQUENCE {name}_times")
    ask(
        target.dsn,
        f"CREATE FUNCTION {name}_raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF nextval('{name}_times') <= {times} THEN RAISE EXCEPTION 'on purpose' USING ERRCODE = '{state}'; END IF; "
        "RETURN NULL; END $$",
    )
    ask(
        target.dsn,
        f"CREATE TRIGGER raises AFTER INSERT ON {name} FOR EACH STATEMENT EXECUTE FUNCTION {name}_raise()",
    )


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_transaction_that_others_stood_in_the_way_of_is_tried_again(
    target: Written, tmp_path: Path, state: str
) -> None:
    """A serialization failure or a deadlock, twice. Within a commit nobody notices; a task can't write its rows again by itself:
    it says so, and is run again."""
    query = QuerySteps(tmp_path / "checkpoint", target)
    query.epoch(0, [0])
    raising(target, state, times=2)
    query.log(1)
    query, said = finished(query, [1, 2], [3])
    assert [state in error.message for error in said] == ([] if target.mode == "wal" else [True, True])
    assert query.findings() == []
    assert query.residue() == []


# ---- a disk that is full ----


@pytest.fixture
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server[str], Path]]:
    """A server with a tablespace on a disk of 24 MB, and where that is."""
    folder = Path(tempfile.mkdtemp(prefix="twophase-small-disk-"))  # the server's user may not enter pytest's own
    folder.chmod(0o755)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m,mode=777", "tmpfs", str(folder)], capture_output=True, check=False
    )
    try:
        if mounted.returncode != 0:
            assert "CI" not in os.environ, mounted.stderr
            pytest.skip("a disk of a given size can be made only by root, and outside of most containers")
        with postgres.on_this_machine(tmp_path_factory.mktemp("server")) as server:
            space = folder / "space"
            space.mkdir()
            space.chmod(0o777)
            ((owner,),) = ask(server.endpoint, "SELECT current_setting('data_directory')")
            status = Path(owner).stat()
            subprocess.run(["chown", f"{status.st_uid}:{status.st_gid}", str(space)], check=True)
            ask(server.endpoint, f"CREATE TABLESPACE small LOCATION '{space}'")
            yield server, folder
            close_idle()
            close_sessions()
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", str(folder)], check=True)
        folder.rmdir()


@pytest.mark.parametrize("way", SLOW_WAYS)
def test_a_full_disk_is_said_and_when_there_is_room_again_nothing_is_missing(
    small_disk: tuple[Server[str], Path], tmp_path: Path, way: str
) -> None:
    """In a task; and, in the mode wal, in the commit, whose epoch is decided."""
    server, disk = small_disk
    target = Written(server.endpoint, way)
    target.through = psycopg.conninfo.make_conninfo(server.endpoint, options="-c default_tablespace=small")
    query = QuerySteps(tmp_path / "checkpoint", target)
    query.epoch(0, [0])
    rows = range(1, 60_000)
    filler = disk / "filler"
    for number, free_mb in enumerate((1, 4) if target.mode == "wal" else (1,), start=1):
        values = [number * 100_000 + value for value in rows]
        query.log(number)
        fill(filler, disk, free_mb)
        with pytest.raises(TargetUnavailable, match="disk is full"):
            query.finish(values)
        decided = query.tail()
        assert decided is not None
        is_decided = decided.decision is not None and decided.decision.epoch.number == number
        assert is_decided == (free_mb == 4), "the disk was to be full in a task first, and then in the commit"
        filler.unlink()
        query, said = finished(query.restart(), values)
        assert said == []
    assert query.findings() == []
    assert query.residue() == []


def fill(filler: Path, disk: Path, free_mb: int) -> None:
    """Until so much is left."""
    stat = subprocess.run(["df", "-B1", "--output=avail", str(disk)], capture_output=True, check=True, text=True)
    available = int(stat.stdout.split()[-1])
    with filler.open("wb") as file:
        for _ in range((available - free_mb * 1024 * 1024) // 4096):
            file.write(bytes(4096))


# ---- people ----


def test_a_right_that_is_taken_away_is_named_and_when_it_is_back_nothing_is_missing(
    target: Written, tmp_path: Path
) -> None:
    """Before the tasks write, and after an epoch is decided."""
    role = target.table.partition(".")[2].replace("orders", "role")
    ask(target.dsn, f"CREATE ROLE {role} LOGIN")
    for grant in (
        f"GRANT ALL ON SCHEMA public TO {role}",
        f"GRANT ALL ON SCHEMA twophase TO {role}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA twophase TO {role}",
    ):
        ask(target.dsn, "CREATE SCHEMA IF NOT EXISTS twophase")
        ask(target.dsn, grant)
    SinkSteps(Written(target.dsn, "wal")).epoch(0, [1])  # the schema's tables are there
    ask(target.dsn, f"GRANT ALL ON ALL TABLES IN SCHEMA twophase TO {role}")
    target.through = target.dsn.replace("postgres@", f"{role}@")
    query = QuerySteps(tmp_path / "checkpoint", target)
    query.epoch(0, [0])
    ask(target.dsn, f"ALTER TABLE {target.holds} OWNER TO postgres")
    ask(target.dsn, f"GRANT ALL ON {target.holds} TO {role}")

    query.log(1)
    query.prepare()
    ask(target.dsn, f"REVOKE INSERT ON {target.holds} FROM {role}")
    # With wal, tasks have tables of their own: there the next start is told.
    write = query.restart().finish if target.mode == "wal" else query.run
    with pytest.raises(TargetUnavailable, match="lacks a right"):
        write([1])
    ask(target.dsn, f"GRANT INSERT ON {target.holds} TO {role}")
    query, said = finished(query.restart(), [1])
    assert said == []

    query.log(2)
    query.prepare()
    query.run([2])
    taken = {"wal": f"INSERT ON {target.holds}", "mvcc": "UPDATE ON twophase.lines", "xa": "SELECT ON twophase.slots"}
    ask(target.dsn, f"REVOKE {taken[target.mode]} FROM {role}")
    with pytest.raises(TargetUnavailable, match="lacks a right"):
        query.commit()
    ask(target.dsn, f"GRANT {taken[target.mode]} TO {role}")
    query, said = finished(query.restart(), [2])
    assert said == []
    assert query.findings() == []
    assert query.residue() == []


@pytest.mark.parametrize("way", ["mvcc", "mvcc upsert", "xa"])
@pytest.mark.parametrize("kind", ["double precision", "timestamp", "numeric"])
def test_a_column_that_gets_another_type_before_its_rows_come_is_noticed(
    postgres_server: Server[str], way: str, kind: str
) -> None:
    """Eight bytes are eight bytes: what was meant as a number would be another one, or a date."""
    target = Written(postgres_server.endpoint, way)
    steps = SinkSteps(target)
    batch = pa.record_batch({"value": [1, 2], "amount": [10, 20]})
    plan = steps.prepare(0, schema=batch.schema)
    if target.mode == "mvcc":
        ask(target.dsn, f"DROP VIEW {target.table} CASCADE")
    ask(target.dsn, f"ALTER TABLE {target.holds} ALTER amount TYPE {kind} USING NULL")
    with pytest.raises(
        SchemaMismatch, match=r"was altered while the epoch was written: amount|does not fit its column"
    ):
        steps.write(plan, 0, batch)
    assert (ask(target.dsn, f"SELECT * FROM {target.holds}"), list(target.residue())) == ([], [])


Change = Literal["drop", "rename", "drop column"]


@pytest.mark.parametrize("change", ["drop", "rename", "drop column"])
def test_a_table_that_goes_while_its_tasks_write_is_said_and_nothing_is_made_in_its_place(
    target: Written, tmp_path: Path, change: Change
) -> None:
    """After the plan, before the rows. Where it is put back, nothing is missing."""
    query = QuerySteps(tmp_path / "checkpoint", target)
    query.epoch(0, [0])
    plain = target.holds.partition(".")[2]
    there_and_back = {
        "drop": (f"ALTER TABLE {target.holds} SET SCHEMA twophase", f"ALTER TABLE twophase.{plain} SET SCHEMA public"),
        "rename": (
            f"ALTER TABLE {target.holds} RENAME TO {plain}_x",
            f"ALTER TABLE public.{plain}_x RENAME TO {plain}",
        ),
        "drop column": (
            f"ALTER TABLE {target.holds} RENAME value TO other",
            f"ALTER TABLE {target.holds} RENAME other TO value",
        ),
    }[change]
    query.log(1)
    query.prepare()
    ask(target.dsn, there_and_back[0])

    with pytest.raises(TwophaseError, match=r"not there|does not exist|altered|there is no table|gone|has no column"):
        unseen(query, [1], is_prepared=True)
    ask(target.dsn, there_and_back[1])
    query, _ = finished(query.restart(), [1])
    assert query.findings() == []
    assert query.residue() == []


@pytest.mark.parametrize("way", ["mvcc", "mvcc upsert"])
@pytest.mark.parametrize("how", ["TRUNCATE", "made anew"])
def test_versions_that_are_emptied_after_the_votes_are_not_committed(
    postgres_server: Server[str], way: str, how: str
) -> None:
    """Nothing but the pointer moves in a commit: it must not move for rows that are gone."""
    target = Written(postgres_server.endpoint, way)
    steps = SinkSteps(target)
    order = steps.decided(0, [1, 2], [], [3])
    if how == "TRUNCATE":
        ask(target.dsn, f"TRUNCATE {target.holds}")
    else:
        ask(target.dsn, f"CREATE TABLE {target.holds}_copy (LIKE {target.holds} INCLUDING ALL)")
        ask(target.dsn, f"INSERT INTO {target.holds}_copy SELECT * FROM {target.holds} LIMIT 1")
        ask(target.dsn, f"DROP TABLE {target.holds} CASCADE")
        ask(target.dsn, f"ALTER TABLE {target.holds}_copy RENAME TO {target.holds.partition('.')[2]}")
    assert set(steps.sink().alive(order)) == {0, 2}
    with pytest.raises(NotCommitted) as caught:
        steps.commit(order)
    assert caught.value.dead_slots == (0, 2)
    assert steps.marker() is None
