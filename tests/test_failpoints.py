"""Failpoints: what is armed happens once, in a real process, and leaves its trace; what is not armed costs nothing."""

from __future__ import annotations

import ast
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from twophase import failpoints
from twophase.errors import ProtocolViolation
from twophase.failpoints import POINTS, Fault, InjectedFault, arm, release, trace

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("twophase", "sinks", "sources", "connectors")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The arming file of this process and its children; not there yet."""
    path = tmp_path / "failpoints"
    monkeypatch.setenv(failpoints.VARIABLE, str(path))
    failpoints.reload()
    yield path
    monkeypatch.undo()
    failpoints.reload()


def start(code: str) -> subprocess.Popen[str]:
    """A process of its own that runs `code`, with hit() at hand."""
    return subprocess.Popen(
        [sys.executable, "-c", f"from twophase.failpoints import hit\n{code}"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(code: str) -> tuple[int, str, str]:
    process = start(code)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_kill_really_kills_at_that_point_and_the_trace_shows_it(file: Path) -> None:
    arm(file, Fault("decide.published", "kill"))
    process = start(
        "hit('decide.before_publish'); hit('decide.published', owner='q/s', epoch=7, slot=3); print('alive')"
    )
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert out == ""
    before, killed = trace(file)
    assert (before.point, before.hit, before.action) == ("decide.before_publish", 1, None)
    assert (before.owner, before.epoch, before.slot) == (None, None, None)
    assert (killed.point, killed.hit, killed.action) == ("decide.published", 1, "kill")
    assert (killed.owner, killed.epoch, killed.slot, killed.pid) == ("q/s", 7, 3, process.pid)
    assert before.time <= killed.time <= time.time()


def test_a_restarted_process_counts_on_and_is_not_killed_again(file: Path) -> None:
    arm(file, Fault("task.begun", "kill"))
    assert run("hit('task.begun')")[0] == -signal.SIGKILL
    assert run("hit('task.begun')\nprint('alive')")[:2] == (0, "alive\n")
    assert [(each.hit, each.action) for each in trace(file)] == [(1, "kill"), (2, None)]


def test_hits_are_counted_over_all_processes(file: Path) -> None:
    arm(file)
    processes = [start("for _ in range(25): hit('task.written'); hit('task.begun')") for _ in range(4)]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0, 0]
    for process in processes:
        process.communicate()
    for point in ("task.written", "task.begun"):
        hits = [each for each in trace(file) if each.point == point]
        assert [each.hit for each in hits] == list(range(1, 101))
        assert {each.pid for each in hits} == {process.pid for process in processes}


def test_hits_are_counted_over_all_threads(file: Path) -> None:
    arm(file)
    threads = [threading.Thread(target=failpoints.hit, args=("task.begun",)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.hit for each in trace(file)] == list(range(1, 17))


def test_the_second_process_that_gets_there_is_the_one_that_is_killed(file: Path) -> None:
    arm(file, Fault("task.begun", "kill", hit=2))
    assert [run("hit('task.begun')")[0] for _ in range(3)] == [0, -signal.SIGKILL, 0]


def test_raise_raises_an_injected_fault_that_travels(file: Path) -> None:
    arm(file, Fault("commit.before_sink", "raise", hit=2))
    failpoints.hit("commit.before_sink")
    with pytest.raises(InjectedFault, match=r"failpoint commit\.before_sink, hit 2: armed to raise") as caught:
        failpoints.hit("commit.before_sink")
    failpoints.hit("commit.before_sink")
    assert [each.action for each in trace(file)] == [None, "raise", None]
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_pause_holds_a_process_until_its_point_is_released(file: Path) -> None:
    arm(file, Fault("decide.published", "pause"))
    process = start("hit('decide.published'); print('went on')")
    wait_for(lambda: bool(trace(file)))
    assert trace(file)[0].action == "pause"
    release(file, "decide.before_publish")
    release(file, "decide.published", hit=2)
    time.sleep(0.2)
    assert process.poll() is None
    release(file, "decide.published")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "went on\n", "")


def test_a_release_of_one_hit_leaves_the_others_paused(file: Path) -> None:
    arm(file, Fault("task.begun", "pause"), Fault("task.begun", "pause", hit=2, timeout_s=0.1))
    release(file, "task.begun", hit=1)
    failpoints.hit("task.begun")
    with pytest.raises(InjectedFault):
        failpoints.hit("task.begun")


def test_a_paused_process_does_not_hold_up_the_hits_of_others(file: Path) -> None:
    arm(file, Fault("task.begun", "pause"))
    process = start("hit('task.begun')")
    wait_for(lambda: bool(trace(file)))
    failpoints.hit("task.begun")
    assert [each.pid for each in trace(file)] == [process.pid, os.getpid()]
    release(file, "task.begun")
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_pause_that_nobody_releases_ends_in_an_injected_fault_and_not_in_a_lost_reply(file: Path) -> None:
    arm(file, Fault("task.begun", "pause", timeout_s=0.05))
    with pytest.raises(InjectedFault, match=r"not released within 0\.05 s") as caught:
        failpoints.hit("task.begun")
    assert not isinstance(caught.value, OSError)


def test_without_the_variable_nothing_happens(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arm(file, Fault("task.begun", "kill"))
    for value in (None, ""):
        if value is None:
            monkeypatch.delenv(failpoints.VARIABLE)
        else:
            monkeypatch.setenv(failpoints.VARIABLE, value)
        failpoints.reload()
        failpoints.hit("task.begun")
        assert run("hit('task.begun')\nprint('alive')")[:2] == (0, "alive\n")
    assert trace(file) == []


def test_a_line_that_is_still_being_written_is_not_read(file: Path) -> None:
    arm(file)
    failpoints.hit("decide.published")
    with open(f"{file}.trace", "a") as other:
        other.write('{"point": "commit.done", "hit": 1, ')

    assert [each.point for each in trace(file)] == ["decide.published"]


def test_a_line_that_a_killed_process_did_not_end_is_not_joined_with_the_next(file: Path) -> None:
    arm(file)
    with open(f"{file}.trace", "a") as killed:
        killed.write('{"point": "decide.published", "hit": 1, ')

    failpoints.hit("decide.published")

    assert [(each.point, each.hit) for each in trace(file)] == [("decide.published", 1)]


def test_without_the_file_nothing_happens_and_nothing_is_traced(file: Path) -> None:
    failpoints.hit("task.begun")
    assert run("hit('task.begun')")[0] == 0
    assert list(file.parent.iterdir()) == []


def test_a_file_that_comes_and_goes_is_seen_by_a_running_process(file: Path) -> None:
    failpoints.hit("task.begun")
    arm(file, Fault("task.begun", "raise"))
    with pytest.raises(InjectedFault):
        failpoints.hit("task.begun")
    file.unlink()
    failpoints.hit("task.begun")
    assert [each.hit for each in trace(file)] == [1]


def test_arming_again_begins_afresh(file: Path) -> None:
    arm(file, Fault("task.begun", "raise"))
    release(file, "task.begun")
    with pytest.raises(InjectedFault):
        failpoints.hit("task.begun")
    arm(file, Fault("task.begun", "pause", timeout_s=0.05))
    assert trace(file) == []
    with pytest.raises(InjectedFault, match="not released"):
        failpoints.hit("task.begun")
    assert [each.hit for each in trace(file)] == [1]


def test_a_file_written_by_hand_arms_too(file: Path) -> None:
    file.write_text('{"point": "task.begun", "hit": 2, "action": "raise"}\n')
    failpoints.hit("task.begun")
    with pytest.raises(InjectedFault):
        failpoints.hit("task.begun")


GOOD = '{"point": "task.begun", "hit": 9, "action": "kill"}\n'


@pytest.mark.parametrize(
    "line",
    [
        "kill task.begun",
        "",
        "[]",
        '"task.begun"',
        "{}",
        '{"point": "task.begun"}',
        '{"point": "task.begunn", "action": "kill"}',
        '{"point": ["task.begun"], "action": "kill"}',
        '{"point": "task.begun", "action": "explode"}',
        '{"point": "task.begun", "action": "kill", "hit": 0}',
        '{"point": "task.begun", "action": "kill", "hit": "1"}',
        '{"point": "task.begun", "action": "kill", "hit": true}',
        '{"point": "task.begun", "action": "kill", "times": 2}',
        '{"point": "task.begun", "action": "pause", "timeout_s": 0}',
        '{"point": "task.begun", "action": "pause", "timeout_s": "1"}',
        '{"point": "task.begun", "action": "pause", "timeout_s": NaN}',
        GOOD.strip(),
    ],
)
def test_a_malformed_arming_file_is_an_error_at_every_hit(line: str, file: Path) -> None:
    file.write_text(GOOD + line + "\n")
    for _ in range(2):
        with pytest.raises(ValueError, match="line 2: "):
            failpoints.hit("commit.done")
    assert trace(file) == []


def test_arming_the_same_hit_twice_is_refused_and_changes_nothing(file: Path) -> None:
    arm(file, Fault("task.begun", "kill"))
    with pytest.raises(ValueError, match="armed already"):
        arm(file, Fault("task.begun", "raise", hit=2), Fault("task.begun", "kill", hit=2))
    assert json.loads(file.read_text())["hit"] == 1


def test_an_undeclared_point_is_refused_when_armed(file: Path) -> None:
    with pytest.raises(ValueError, match="no failpoint"):
        Fault("task.finished", "kill")
    arm(file)
    with pytest.raises(ProtocolViolation, match=r"task\.finished"):
        failpoints.hit("task.finished")
    assert trace(file) == []


@pytest.mark.usefixtures("file")
def test_a_relative_path_is_refused_because_workers_would_look_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(failpoints.VARIABLE, "failpoints")
    with pytest.raises(ValueError, match="absolute"):
        failpoints.reload()
    status, _, err = run("")
    assert status != 0
    assert "absolute" in err


@pytest.mark.usefixtures("file")
def test_an_unarmed_hit_costs_about_as_much_as_calling_an_empty_function(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(point: str, *, owner: str | None = None, epoch: int | None = None, slot: int | None = None) -> None:
        pass

    def cost_s(function: Callable[..., None]) -> float:
        names = {"function": function}
        call = "function('task.written', owner='query/sink', epoch=7, slot=3)"
        return min(timeit.repeat(call, globals=names, number=20_000, repeat=9))

    monkeypatch.delenv(failpoints.VARIABLE)
    failpoints.reload()
    assert cost_s(failpoints.hit) < 5 * cost_s(empty)


def points_in(source: str) -> list[str | None]:
    """The name in each call of failpoints.hit, None where it is no literal."""
    tree = ast.parse(source)
    imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    modules = {
        alias.asname or alias.name
        for each in imports
        for alias in each.names
        if (each.module, alias.name) == ("twophase", "failpoints")
    }
    functions = {
        alias.asname or alias.name
        for each in imports
        for alias in each.names
        if (each.module, alias.name) == ("twophase.failpoints", "hit")
    }
    spellings = {f"{module}.hit" for module in modules} | functions | {"twophase.failpoints.hit"}
    calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and ast.unparse(each.func) in spellings]
    names = [call.args[0] if call.args else None for call in calls]
    return [name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None for name in names]


def points_hit() -> dict[str, list[str | None]]:
    files = [file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py"))]
    return {str(file.relative_to(ROOT)): points_in(file.read_text(encoding="utf-8")) for file in files}


def test_every_failpoint_that_is_hit_is_declared() -> None:
    hits = [(file, name) for file, names in points_hit().items() for name in names]
    assert hits
    assert [(file, name) for file, name in hits if name not in POINTS] == []


def test_every_declared_failpoint_is_hit_somewhere() -> None:
    assert set(POINTS) - {name for names in points_hit().values() for name in names} == set()


def test_the_scan_sees_every_way_to_call_hit() -> None:
    ways = [
        "from twophase import failpoints\nfailpoints.hit('a', epoch=1)",
        "from twophase import failpoints as f\ndef g():\n    f.hit('a')",
        "from twophase.failpoints import hit\nhit('a')",
        "from twophase.failpoints import hit as h\nh('a')",
        "import twophase.failpoints\ntwophase.failpoints.hit('a')",
    ]
    assert [points_in(way) for way in ways] == [["a"]] * len(ways)
    assert points_in("from twophase import failpoints\nfailpoints.hit(name)\nfailpoints.hit()") == [None, None]
    assert points_in("target.hit('a')\nhit('b')") == []


def test_every_failpoint_says_what_is_true_there() -> None:
    for point, sentence in POINTS.items():
        step, _, where = point.partition(".")
        assert step.isidentifier()
        assert where.isidentifier()
        assert sentence.endswith(".")
    assert len(set(POINTS.values())) == len(POINTS)
