"""Executors in other processes, and twins of tasks: `local-cluster`, and a standalone master with two workers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from integration_tests.conftest import require_java
from integration_tests.streams import Place
from integration_tests.tables import FILES, compare, residue_of
from twophase.failpoints import VARIABLE, Hit, arm, trace
from twophase.testing.child import Child
from twophase.testing.crash.program import QueryDescription
from twophase.testing.crash.victim import run_to_the_end

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
STARTS_WITHIN_S = 120.0
WORKERS = ("127.0.0.1", "127.0.0.2")
"""Addresses of their own: Spark never runs a twin on the host of its twin."""
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.speculation.interval": "100ms",
}


def described(
    place: Place, *, failpoints: Path, master: str, conf: Mapping[str, str] | None = None
) -> QueryDescription:
    return QueryDescription(
        FILES,
        str(place.root),
        master=master,
        # The environment of a standalone cluster's executors is the worker's.
        conf={f"spark.executorEnv.{VARIABLE}": str(failpoints), **(conf or {})},
    )


def run_on(told: QueryDescription, failpoints: Path) -> list[Hit]:
    """Run the query to its end; what its tasks were seen to do."""
    arm(failpoints)
    result = run_to_the_end(told, failpoints=failpoints)
    assert "error" not in result, result["error"]
    return [hit for hit in trace(failpoints) if hit.point.startswith("task.")]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a standalone master with two workers, all from the wheel."""
    require_java()
    folder = tmp_path_factory.mktemp("standalone")
    with ExitStack() as stack:
        arguments = ["org.apache.spark.deploy.master.Master", "--host", WORKERS[0], "--port", "0", "--webui-port", "0"]
        boss = stack.enter_context(daemon(arguments, folder / "master.txt", WORKERS[0]))
        address = said_by(boss, r"Starting Spark master at (spark://\S+)")
        workers = []
        for host in WORKERS:
            arguments = ["org.apache.spark.deploy.worker.Worker", "--host", host, "--cores", "1", "--memory", "1g"]
            arguments += ["--webui-port", "0", "--work-dir", str(folder / host), address]
            workers.append(stack.enter_context(daemon(arguments, folder / f"{host}.txt", host)))
        for worker in workers:
            said_by(worker, r"Successfully (registered) with master")
        yield address


@contextmanager
def daemon(arguments: Sequence[str], output: Path, host: str) -> Iterator[Child]:
    environment = {"SPARK_LOCAL_IP": host, "SPARK_DAEMON_MEMORY": "256m"}
    child = Child([str(SPARK_CLASS), *arguments], output=output, cwd=output.parent, environment=environment)
    try:
        yield child
    finally:
        child.kill()


def said_by(child: Child, pattern: str) -> str:
    child.wait_for(lambda: bool(re.search(pattern, child.output())), pattern, timeout_s=STARTS_WITHIN_S)
    found = re.search(pattern, child.output())
    assert found is not None
    return found[1]


@pytest.mark.timeout(400)
def test_two_sinks_hold_every_row_once_in_a_local_cluster(place: Place, tmp_path: Path) -> None:
    place.add_orders(6)
    told = described(place, failpoints=tmp_path / "failpoints", master="local-cluster[2,1,1024]")
    second = place.root / "second"

    hits = run_on(replace(told, way="function"), tmp_path / "failpoints")

    assert len({hit.pid for hit in hits}) >= 2, "one worker did it all"
    assert not compare([i for i in place.ids if i % 2 == 0], place.table)
    assert not compare([i for i in place.ids if i % 2 == 1], second)
    assert residue_of(place.table) == residue_of(second) == []


@pytest.mark.timeout(400)
def test_a_table_holds_every_row_once_on_a_standalone_master_with_two_workers(
    place: Place, tmp_path: Path, master: str
) -> None:
    place.add_orders(6)
    told = described(place, failpoints=tmp_path / "failpoints", master=master)

    hits = run_on(told, tmp_path / "failpoints")

    assert {(hit.epoch, hit.slot) for hit in hits if hit.point == "task.pre_committed"} == {
        (epoch, slot) for epoch in range(3) for slot in range(2)
    }
    assert not place.difference()
    assert place.epochs() == [0, 1, 2]
    assert residue_of(place.table) == []


@pytest.mark.timeout(400)
def test_a_twin_of_a_slow_task_doubles_nothing_and_leaves_nothing(place: Place, tmp_path: Path, master: str) -> None:
    place.add_orders(6)
    told = described(place, failpoints=tmp_path / "failpoints", master=master, conf=SPECULATION)

    hits = run_on(replace(told, linger_s=60.0), tmp_path / "failpoints")

    twins = [hit.pid for hit in hits if (hit.point, hit.epoch, hit.slot) == ("task.begun", 1, 0)]
    assert len(set(twins)) >= 2, f"no twin ran: {hits}"
    assert not place.difference()
    assert place.epochs() == [0, 1, 2]
    assert residue_of(place.table) == []
