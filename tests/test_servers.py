"""Test servers, as far as no server is needed: which one is chosen, how processes live and die, how jars come into the cache.

The real ones are in integration_tests/test_servers.py. Here a server is a Python process that listens, and Java a shell script.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from twophase.testing.child import is_running, pids_below
from twophase.testing.servers import hdfs, kafka, postgres, pravega
from twophase.testing.servers.container import has_image
from twophase.testing.servers.jars import fetch
from twophase.testing.servers.ports import free_ports, host_and_port, why_unreachable
from twophase.testing.servers.process import Command, ProcessPart
from twophase.testing.servers.server import NotOurServer, Server, ServerUnavailable, Way
from twophase.testing.servers.vendor import Vendor, choose

pytestmark = pytest.mark.kit

ROOT = Path(__file__).resolve().parent.parent
WITHIN_S = 30.0
LISTEN = (
    "import socket, subprocess, sys, time\n"
    "listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
    "worker = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    "print('worker', worker.pid, flush=True)\n"
    "time.sleep(600)\n"
)
VENDORS: list[Vendor[Any]] = [kafka.VENDOR, postgres.VENDOR, hdfs.VENDOR, pravega.VENDOR]


def no_image(_: str) -> bool:
    return False


def part(folder: Path, program: str, *arguments: str, name: str = "part") -> ProcessPart:
    command = Command((sys.executable, "-c", program, *arguments), folder)
    return ProcessPart(name, command, log=folder / f"{name}.log")


def server(part: ProcessPart, port: int, *, up_within_s: float = WITHIN_S) -> Server[int]:
    ready = lambda: why_unreachable("127.0.0.1", port)  # noqa: E731 - a name for the argument
    return Server("Listener", port, way=Way.PROCESS, parts=[part], ready=ready, up_within_s=up_within_s)


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[tuple[Server[int], ProcessPart]]:
    (port,) = free_ports(1)
    only = part(tmp_path, LISTEN, str(port))
    with server(only, port) as started:
        yield started, only


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_an_endpoint_is_taken_before_a_container_and_a_container_before_a_process(vendor: Vendor[Any]) -> None:
    asked: list[str] = []

    def image_is_here(name: str) -> bool:
        asked.append(name)
        return True

    given = dict.fromkeys(vendor.variables, "127.0.0.1:1")

    assert choose(vendor, given, image_is_here=image_is_here) is Way.GIVEN
    assert asked == []
    assert choose(vendor, {}, image_is_here=image_is_here) is Way.CONTAINER
    assert choose(vendor, {vendor.image_variable: "mine:1"}, image_is_here=image_is_here) is Way.CONTAINER
    assert asked == [vendor.image, "mine:1"]
    assert choose(vendor, {}, image_is_here=no_image) is Way.PROCESS
    assert choose(vendor, dict.fromkeys(vendor.variables, ""), image_is_here=no_image) is Way.PROCESS


def test_an_endpoint_that_is_given_in_part_is_refused() -> None:
    with pytest.raises(ValueError, match="TWOPHASE_WEBHDFS_URL must be set too"):
        choose(hdfs.VENDOR, {"TWOPHASE_HDFS_URL": "hdfs://127.0.0.1:1"}, image_is_here=no_image)


def test_without_a_docker_daemon_there_is_no_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert not has_image("postgres:18")

    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(f"{tmp_path}/dead.sock")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/dead.sock")
    assert not has_image("postgres:18")


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.name)
def test_a_server_that_is_given_can_not_be_killed(vendor: Vendor[Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        address = f"127.0.0.1:{somebody.getsockname()[1]}"
        scheme = "hdfs" if vendor is hdfs.VENDOR else "postgresql" if vendor is postgres.VENDOR else None
        told = dict.fromkeys(vendor.variables, address if scheme is None else f"{scheme}://{address}")
        with vendor.given(told) as theirs:
            assert (theirs.way, theirs.can_be_killed, theirs.parts) == (Way.GIVEN, False, ())
            for verb in (theirs.kill, theirs.stop, theirs.restart):
                with pytest.raises(NotOurServer, match="ask can_be_killed first"):
                    verb()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("example.org:9", ("example.org", 9)),
        ("example.org", ("example.org", 1)),
        ("tcp://example.org:9", ("example.org", 9)),
        ("[::1]:9", ("::1", 9)),
    ],
)
def test_an_address_is_taken_as_clients_take_it(address: str, expected: tuple[str, int]) -> None:
    assert host_and_port(address, 1) == expected


def test_a_given_server_that_does_not_answer_is_named() -> None:
    (port,) = free_ports(1)

    with pytest.raises(
        ServerUnavailable, match=rf"Kafka, an endpoint .*, does not answer: 127.0.0.1:{port}: .*refused"
    ):
        kafka.given(f"127.0.0.1:{port}").start()


def test_a_killed_server_takes_its_processes_with_it_and_comes_back_on_its_port(
    listener: tuple[Server[int], ProcessPart],
) -> None:
    started, only = listener
    wait_until(lambda: "worker" in started.log())
    (worker,) = pids_below(only.pid)
    first = only.pid

    started.kill()

    assert started.ended() == ["part"]
    assert not is_running(first)
    assert not is_running(worker)
    assert "refused" in why_unreachable("127.0.0.1", started.endpoint)
    started.start()
    assert started.ended() == []
    assert why_unreachable("127.0.0.1", started.endpoint) == ""


def test_to_start_what_runs_and_to_kill_what_is_dead_changes_nothing(
    listener: tuple[Server[int], ProcessPart],
) -> None:
    started, only = listener
    pid = only.pid
    started.start()
    assert only.pid == pid
    started.kill()
    started.kill()
    started.stop()
    assert started.ended() == ["part"]
    started.restart()


def test_an_unknown_part_is_refused(listener: tuple[Server[int], ProcessPart]) -> None:
    with pytest.raises(ValueError, match="Listener has no part 'broker-9'; it has part"):
        listener[0].kill("broker-9")


def test_a_server_that_ends_at_once_fails_with_the_end_of_its_log(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    only = part(tmp_path, "print('filler ' * 5000); raise SystemExit('no room for the heap')")

    with pytest.raises(ServerUnavailable, match="no room for the heap") as caught, server(only, port):
        pass

    assert "Listener, a process on this machine: ended: part" in str(caught.value)
    assert len(str(caught.value)) < 7000


def test_a_server_that_does_not_come_up_in_time_is_killed(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    only = part(tmp_path, "print('still thinking', flush=True); import time; time.sleep(600)")

    starting = server(only, port, up_within_s=1.0)
    with pytest.raises(ServerUnavailable, match=r"not ready within 1 s: .*refused[^$]*still thinking"), starting:
        pass

    assert not only.is_running


def test_a_server_does_not_outlive_a_test_run_that_was_killed(tmp_path: Path) -> None:
    program = f"""
        import sys, time
        from pathlib import Path
        from twophase.testing.servers.process import Command, ProcessPart
        part = ProcessPart("part", Command(("sleep", "600"), Path("/")), log=Path({str(tmp_path)!r}) / "log")
        part.start()
        print(part.pid, flush=True)
        time.sleep(600)
    """
    run = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    assert is_running(pid)

    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=WITHIN_S)

    wait_until(lambda: not is_running(pid))


def test_ports_are_apart_from_those_of_clients_and_do_not_follow_a_seed() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    random.seed(1)
    first = free_ports(20)
    random.seed(1)
    second = free_ports(20)

    assert len(set(first)) == 20
    assert max(first) < lowest
    assert first != second


def test_a_port_is_given_once_whoever_asks() -> None:
    """Nobody listens on the ports that were given: only the claim keeps them apart."""
    taken = set(free_ports(50))
    tried = [*sorted(taken), *range(13_000, 13_100)]
    program = f"""if True:
        import random
        from twophase.testing.servers.ports import free_ports
        tried = iter({tried})
        random.SystemRandom.choice = lambda self, candidates: next(tried)
        print(free_ports(1)[0])
    """
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=WITHIN_S, check=True
    )

    assert int(other.stdout) in set(range(13_000, 13_100)) - taken
    assert not taken & set(free_ports(50))


def fake_java(folder: Path, body: str) -> str:
    """A Java home whose java notes that it was called, and then does this; $folder is where the jars go."""
    script = folder / "home" / "bin" / "java"
    script.parent.mkdir(parents=True)
    # The last argument is the pattern of the jars' names.
    head = f'#!/bin/bash\necho called >> {folder}/calls\nfolder=$(dirname "${{@: -1}}")\n'
    script.write_text(head + body)
    script.chmod(0o755)
    return str(folder / "home")


GOOD = 'mkdir -p "$folder"; sleep 0.3; touch "$folder/b.jar" "$folder/a.jar"\n'


def calls(folder: Path) -> int:
    return (folder / "calls").read_text().count("called")


def test_jars_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, GOOD))

    first = fetch("kafka", into=tmp_path / "cache")

    assert [jar.name for jar in first] == ["a.jar", "b.jar"]
    assert fetch("kafka", into=tmp_path / "cache") == first
    assert calls(tmp_path) == 1
    assert fetch("hdfs", into=tmp_path / "cache") != first
    assert calls(tmp_path) == 2


def test_two_that_fetch_at_once_fetch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, GOOD))
    found: list[list[Path]] = []
    threads = [threading.Thread(target=lambda: found.append(fetch("kafka", into=tmp_path / "cache"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)

    assert [len(jars) for jars in found] == [2] * 4
    assert calls(tmp_path) == 1


def test_an_interrupted_fetch_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one is killed in the middle, as by the end of a test run; its jar is half there."""
    home = fake_java(tmp_path, f'mkdir -p "$folder"; touch "$folder/half.jar"; touch {tmp_path}/begun; sleep 600\n')
    program = (
        "from pathlib import Path; from twophase.testing.servers.jars import fetch\n"
        f"fetch('kafka', into=Path({str(tmp_path / 'cache')!r}))"
    )
    environment = {**os.environ, "JAVA_HOME": home}
    run = subprocess.Popen([sys.executable, "-c", program], env=environment, cwd=ROOT, start_new_session=True)
    wait_until((tmp_path / "begun").exists)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait(WITHIN_S)
    (tmp_path / "home" / "bin" / "java").unlink()
    (tmp_path / "home" / "bin").rmdir()
    (tmp_path / "home").rmdir()

    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, GOOD))
    assert [jar.name for jar in fetch("kafka", into=tmp_path / "cache")] == ["a.jar", "b.jar"]


def test_a_fetch_that_fails_says_what_ivy_said_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, 'mkdir -p "$folder"; echo UNRESOLVED: kafka; exit 1\n'))

    for _ in range(2):
        with pytest.raises(ServerUnavailable, match=r"TWOPHASE_IVY_SETTINGS[^$]*UNRESOLVED: kafka"):
            fetch("kafka", into=tmp_path / "cache")
    assert calls(tmp_path) == 2


@pytest.mark.parametrize("home", [None, "/none"])
def test_without_java_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if home is None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
    else:
        monkeypatch.setenv("JAVA_HOME", home)

    with pytest.raises(ServerUnavailable, match=r"Java 17 or newer.*install a JRE"):
        fetch("kafka", into=tmp_path / "cache")


@pytest.mark.parametrize("environment", [{}, {"CI": "true"}], ids=["here", "in-ci"])
def test_a_server_that_can_not_be_had_is_an_error_and_no_skip(tmp_path: Path, environment: Mapping[str, str]) -> None:
    ran = run_pytest(tmp_path, "def test_it(kafka_server): pass", {**environment, "JAVA_HOME": "/none"})

    assert "1 error in" in ran.stdout
    assert "Kafka is needed, and can't be had: this needs Java 17" in ran.stdout
    assert ran.returncode == 1


def test_a_fixture_gives_the_endpoint_of_the_environment(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        endpoint = f"127.0.0.1:{somebody.getsockname()[1]}"
        test = f"def test_it(kafka_server): assert kafka_server.endpoint == {endpoint!r}"
        ran = run_pytest(tmp_path, test, {"TWOPHASE_KAFKA_BOOTSTRAP": endpoint})

    assert ran.returncode == 0, ran.stdout


def test_a_server_that_is_left_dead_fails_that_test_alone_and_a_failure_shows_its_log(tmp_path: Path) -> None:
    """A listener takes the place of Kafka."""
    (tmp_path / "listen.py").write_text(LISTEN)
    stand_in = """
        import sys
        from dataclasses import replace
        from twophase.testing.servers import kafka
        from twophase.testing.servers.ports import free_ports, host_and_port, why_unreachable
        from twophase.testing.servers.process import Command, ProcessPart
        from twophase.testing.servers.server import Server, Way

        def listener(folder):
            (port,) = free_ports(1)
            command = Command((sys.executable, "listen.py", str(port)), folder.cwd())
            part = ProcessPart("listener", command, log=folder / "log")
            return Server("Stand-in", port, way=Way.PROCESS, parts=[part], ready=lambda: why_unreachable("127.0.0.1", port))

        kafka.VENDOR = replace(kafka.VENDOR, name="Stand-in", on_this_machine=listener)

        def test_1_leaves_it_dead(kafka_server): kafka_server.kill()
        def test_2_finds_it_alive(kafka_server): assert kafka_server.ended() == []
        def test_3_fails(kafka_server): assert kafka_server is None
    """
    ran = run_pytest(tmp_path, textwrap.dedent(stand_in), {})

    assert "not running at the end of this test, and started again: Stand-in (listener)" in ran.stdout
    assert "log of Stand-in" in ran.stdout
    assert "2 passed, 1 failed, 1 error" in ran.stdout or "1 failed, 2 passed, 1 error" in ran.stdout, ran.stdout


def run_pytest(folder: Path, tests: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """A project of its own that uses the plugin, where there is no Docker."""
    (folder / "conftest.py").write_text('pytest_plugins = ["twophase.testing.servers.plugin"]\n')
    (folder / "test_it.py").write_text(tests)
    unwanted = {"CI", "JAVA_HOME", *kafka.VENDOR.variables}
    inherited = {name: value for name, value in os.environ.items() if name not in unwanted}
    told = {**inherited, "DOCKER_HOST": "unix:///none.sock", "XDG_CACHE_HOME": str(folder / "cache"), **environment}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:randomly",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
        str(folder),
    ]
    return subprocess.run(command, cwd=folder, env=told, capture_output=True, text=True, timeout=120, check=False)


def test_the_password_of_a_given_server_is_in_no_error() -> None:
    server = postgres.given("postgresql://somebody:hunter2@127.0.0.1:1/x")

    with pytest.raises(ServerUnavailable) as silent:
        server.start()
    with pytest.raises(NotOurServer) as refused:
        server.kill()

    assert "hunter2" not in f"{silent.value}{refused.value}"
