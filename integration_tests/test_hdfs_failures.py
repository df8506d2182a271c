"""HDFS that does not answer, answers too late, is not there, or is in safe mode; and writers that were killed. Both clients."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from integration_tests.hdfs_tables import CLIENTS, HdfsUnderTest, url_of
from twophase.clients.hdfs.answers import NotTaken
from twophase.errors import Fenced
from twophase.identity import Attempt
from twophase.sink import Task
from twophase.sinks import FilesSink
from twophase.storage import FileStorage
from twophase.storage_of import storage_of
from twophase.testing.query_steps import QuerySteps
from twophase.testing.servers.hdfs import HdfsEndpoint
from twophase.testing.servers.server import Server
from twophase.testing.tcp_proxy import Fault, TcpProxy

pytestmark = pytest.mark.servers

RECORD = b"a record" * 20
LARGE = os.urandom(100_000)  # more than folders spell
LOST = (Fault.DROP_REPLY_AND_CUT, Fault.DROP_REPLY_AND_HANG)
SETTINGS = {"timeoutMs": "1500", "patienceMs": "20000"}


def is_rename(request: bytes) -> bool:
    return b"rename2" in request or b"op=RENAME" in request


def is_listing(request: bytes) -> bool:
    return b"getListing" in request or b"op=LISTSTATUS" in request


@contextmanager
def through_proxy(endpoint: HdfsEndpoint, client: str) -> Iterator[tuple[TcpProxy, str]]:
    """The NameNode behind a proxy; DataNodes are reached as ever."""
    url = urlsplit(url_of(endpoint, client))
    assert url.port is not None
    with TcpProxy(url.port, server_host=str(url.hostname)) as proxy:
        yield proxy, f"{url.scheme}://127.0.0.1:{proxy.port}"


def new_folder(endpoint: HdfsEndpoint) -> tuple[FileStorage, str]:
    folder = f"/failures-{uuid.uuid4().hex}"
    storage = storage_of(f"{endpoint.url}/")
    storage.make_folder(folder)
    return storage, folder


# ---- lost replies ----


@pytest.mark.parametrize("data", [RECORD, LARGE], ids=["as folders", "as a file"])
@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_publication_whose_reply_was_lost_is_found_to_be_done(
    hdfs_server: Server[HdfsEndpoint], client: str, fault: Fault, data: bytes
) -> None:
    direct, folder = new_folder(hdfs_server.endpoint)
    with through_proxy(hdfs_server.endpoint, client) as (proxy, url):
        lost = proxy.arm(fault, matching=is_rename)

        storage_of(f"{url}/", hdfs=SETTINGS).publish(f"{folder}/1", data)

        proxy.wait_until_fired(lost)
    assert direct.read(f"{folder}/1") == data
    assert [entry.name for entry in direct.list(folder)] == ["1"]
    assert direct.sweep_temporary(folder, older_than_s=-60) == 0


@pytest.mark.parametrize("client", CLIENTS)
def test_a_publication_that_lost_the_race_and_the_reply_knows_it(
    hdfs_server: Server[HdfsEndpoint], client: str
) -> None:
    direct, folder = new_folder(hdfs_server.endpoint)
    direct.publish(f"{folder}/1", b"another's")
    with through_proxy(hdfs_server.endpoint, client) as (proxy, url):
        lost = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=is_rename)

        with pytest.raises(FileExistsError):
            storage_of(f"{url}/", hdfs=SETTINGS).publish(f"{folder}/1", RECORD)

        proxy.wait_until_fired(lost)
    assert direct.read(f"{folder}/1") == b"another's"


@pytest.mark.parametrize("client", CLIENTS)
def test_a_rename_whose_reply_was_lost_is_an_unknown_outcome_and_was_made_once(
    hdfs_server: Server[HdfsEndpoint], client: str
) -> None:
    direct, folder = new_folder(hdfs_server.endpoint)
    direct.make_folder(f"{folder}/staged")
    with through_proxy(hdfs_server.endpoint, client) as (proxy, url):
        lost = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=is_rename)

        with pytest.raises(TimeoutError):
            storage_of(f"{url}/", hdfs=SETTINGS).rename(f"{folder}/staged", f"{folder}/epoch=0")

        proxy.wait_until_fired(lost)
    assert [entry.name for entry in direct.list(folder)] == ["epoch=0"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_rename_that_was_never_delivered_is_made_again(hdfs_server: Server[HdfsEndpoint], client: str) -> None:
    direct, folder = new_folder(hdfs_server.endpoint)
    direct.make_folder(f"{folder}/staged")
    with through_proxy(hdfs_server.endpoint, client) as (proxy, url):
        cut = proxy.arm(Fault.CUT_BEFORE, matching=is_rename)

        storage_of(f"{url}/", hdfs=SETTINGS).rename(f"{folder}/staged", f"{folder}/epoch=0")

        proxy.wait_until_fired(cut)
    assert [entry.name for entry in direct.list(folder)] == ["epoch=0"]


class BehindProxy(HdfsUnderTest):
    """A table whose sink reaches the NameNode through a proxy."""

    def __init__(self, endpoint: HdfsEndpoint, client: str, proxied: str):
        super().__init__(endpoint, client)
        self.proxied = f"{proxied}{self.folder}"

    def sink(self) -> FilesSink:
        return FilesSink(self.proxied, hdfs=SETTINGS)


@pytest.mark.parametrize("step", [1, 2, 3], ids=["the seal", "the manifest", "the epoch"])
@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("client", CLIENTS)
def test_an_epoch_is_there_once_when_the_reply_to_a_rename_of_its_commit_was_lost(
    hdfs_server: Server[HdfsEndpoint], tmp_path: Path, client: str, fault: Fault, step: int
) -> None:
    with through_proxy(hdfs_server.endpoint, client) as (proxy, url):
        query = QuerySteps(tmp_path / "checkpoint", BehindProxy(hdfs_server.endpoint, client, url))
        query.epoch(0, [1, 2], [3])
        query.log(1)
        query.prepare()
        query.run([4], [5, 6])
        lost = proxy.arm(fault, matching=is_rename, occurrence=step)

        query.commit()

        proxy.wait_until_fired(lost)
        query.log_commit()
        query.epoch(2, [7], [])
        assert query.findings() == []
        assert query.residue() == []


# ---- a NameNode that is not there ----


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_a_dead_name_node_is_told_of_when_patience_ends(scheme: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"{scheme}://127.0.0.1:{free.getsockname()[1]}/folder"
        storage = storage_of(url, hdfs={"patienceMs": "1500"})
        began = time.monotonic()

        with pytest.raises(NotTaken, match="no connection to the NameNode"):
            storage.list(url)

        assert 1.0 < time.monotonic() - began < 10


@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_a_name_node_that_takes_connections_and_says_nothing_is_given_up(scheme: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/folder"
        storage = storage_of(url, hdfs={"timeoutMs": "500", "patienceMs": "1000"})
        began = time.monotonic()

        with pytest.raises(TimeoutError):
            storage.rename(f"{url}/a", f"{url}/b")

        assert time.monotonic() - began < 15


@pytest.mark.parametrize("client", CLIENTS)
def test_what_may_be_asked_twice_is_asked_for_as_long_as_there_is_patience(
    hdfs_server: Server[HdfsEndpoint], client: str
) -> None:
    direct, folder = new_folder(hdfs_server.endpoint)
    direct.make_folder(f"{folder}/staged")
    with through_proxy(hdfs_server.endpoint, client) as (proxy, url):
        storage = storage_of(f"{url}/", hdfs={"timeoutMs": "700", "patienceMs": "60000"})
        silences = [proxy.arm(Fault.DROP_REPLY_AND_HANG, matching=is_listing, occurrence=n) for n in range(1, 6)]

        assert [entry.name for entry in storage.list(folder)] == ["staged"]

        for silence in silences:
            proxy.wait_until_fired(silence)


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_asked_of_a_name_node_that_restarts_waits_until_it_is_out_of_safe_mode(
    hdfs_server: Server[HdfsEndpoint], client: str
) -> None:
    direct, folder = new_folder(hdfs_server.endpoint)
    url = url_of(hdfs_server.endpoint, client)
    patient = storage_of(f"{url}/", hdfs={"patienceMs": "90000", "timeoutMs": "5000"})
    with patient.create(f"{folder}/before") as file:
        file.write(LARGE)
    answers: list[object] = []

    def ask(number: int, call: Callable[[], object]) -> None:
        try:
            answers.append((number, call()))
        except OSError as error:
            answers.append((number, error))

    def written() -> int:
        with patient.create(f"{folder}/file") as file:
            return file.write(LARGE)

    calls: list[Callable[[], object]] = [
        lambda: patient.publish(f"{folder}/1", RECORD),
        lambda: patient.rename(f"{folder}/before", f"{folder}/after"),
        lambda: len(patient.list(folder)) > 0,
        written,
    ]
    hdfs_server.kill("namenode")
    threads = [threading.Thread(target=ask, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    hdfs_server.start("namenode")
    for thread in threads:
        thread.join(120)

    assert sorted(answers, key=str) == [(0, None), (1, None), (2, True), (3, len(LARGE))]
    assert {entry.name for entry in direct.list(folder)} == {"1", "after", "file"}
    assert direct.read(f"{folder}/file") == LARGE


def test_a_small_file_is_written_again_when_the_only_data_node_comes_back(
    hdfs_server: Server[HdfsEndpoint],
) -> None:
    direct, folder = new_folder(hdfs_server.endpoint)
    file = direct.create(f"{folder}/file")
    file.write(LARGE)
    hdfs_server.kill("datanode")
    back = threading.Timer(2, lambda: hdfs_server.start("datanode"))
    back.start()

    file.close()

    back.join()
    assert direct.read(f"{folder}/file") == LARGE


# ---- writers that were killed ----

_WRITER = """
import sys, time
from twophase.storage_of import storage_of
storage = storage_of(sys.argv[1])
file = storage.create(sys.argv[1])
file.write(bytes(6 << 20))
print("written", flush=True)
time.sleep(600)
"""


def open_files(endpoint: HdfsEndpoint) -> list[str]:
    """The files that somebody has a lease of, as the NameNode's own check lists them."""
    query = f"{endpoint.webhdfs_url}/fsck?ugi=hdfs&path=/&files=1&openforwrite=1"
    with urllib.request.urlopen(query, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return [line.split()[0] for line in lines if "OPENFORWRITE" in line]


def test_the_lease_of_a_killed_writer_goes_with_what_it_staged(hdfs_server: Server[HdfsEndpoint]) -> None:
    direct, folder = new_folder(hdfs_server.endpoint)
    writer = subprocess.Popen(
        [sys.executable, "-c", _WRITER, f"{hdfs_server.endpoint.url}{folder}/file"], stdout=subprocess.PIPE, text=True
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "written\n"
        writer.send_signal(signal.SIGKILL)
        writer.wait(30)
    assert f"{folder}/file" in open_files(hdfs_server.endpoint)

    direct.rename(folder, f"{folder}.aborted")
    direct.delete(f"{folder}.aborted")

    assert not [path for path in open_files(hdfs_server.endpoint) if folder in path]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_task_that_closes_after_its_folder_was_swept_is_fenced(
    hdfs_server: Server[HdfsEndpoint], tmp_path: Path, client: str
) -> None:
    """Its rows fit into one piece, so its file is sent only by the vote."""
    target = HdfsUnderTest(hdfs_server.endpoint, client)
    query = QuerySteps(tmp_path / "checkpoint", target)
    query.log(0)
    plan = query.prepare().sinks["sink"].plan
    assert plan is not None
    assert query.plan is not None
    late = target.sink().begin(plan, Task(0, Attempt(query.plan.generation, 7, query.plan.nonce)))
    late.write(target.batch([1, 2, 3]))
    late._flush("")

    query.restart().finish([1, 2, 3])

    with pytest.raises(Fenced):
        late.pre_commit()
    assert target.values() == [1, 2, 3]
    assert target.residue() == []
