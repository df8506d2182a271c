"""Receiving: connections that end, senders that talk and senders that listen, full journals, lines that are too long."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.line_sender import LOOPBACK, PlainSender, SpoolingSender, wait_for
from tests.socket_journals import journal_in, lines_of, writer_of
from twophase.errors import DataLost, Fenced, OptionError, TargetUnavailable, TwophaseError, Unreadable
from twophase.local_storage import LocalStorage
from twophase.source import ReadLimit
from twophase.sources.socket import SocketSource
from twophase.sources.socket.source import SocketOffset

SEGMENT = 1 << 17


class Place:
    """A journal, and the sources on it, which are stopped in the end."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.sources: list[SocketSource] = []

    def source(self, port: int, name: str = "journal", **options: Any) -> SocketSource:
        made = SocketSource(
            LOOPBACK,
            port,
            str(self.folder / name),
            **{"segment_bytes": SEGMENT, "max_line_bytes": 1000, "connect_timeout_ms": 20_000, **options},
        )
        self.sources.append(made)
        return made


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    for source in place.sources:
        source.stop()


@pytest.fixture
def plain() -> Iterator[PlainSender]:
    sender = PlainSender()
    yield sender
    sender.close()


@pytest.fixture
def spooling(tmp_path: Path) -> Iterator[SpoolingSender]:
    sender = SpoolingSender(tmp_path)
    yield sender
    sender.close()


def line_of(offset: str) -> int:
    return SocketOffset.parse(offset).line


def rows(source: SocketSource, start: str, end: str) -> list[Any]:
    return [row for split in source.plan(start, end) for batch in source.read(split) for row in batch.to_pylist()]


def values(source: SocketSource, start: str, end: str) -> list[str]:
    return [row["value"] for row in rows(source, start, end)]


def wait_for_lines(source: SocketSource, count: int) -> None:
    wait_for(lambda: line_of(source.newest()) >= count, f"{count} lines")


def failure(source: SocketSource) -> TwophaseError:
    """What stops the query, from now on until somebody starts it again."""
    found: list[TwophaseError] = []

    def failed() -> bool:
        try:
            source.latest(source.earliest())
        except TwophaseError as error:
            found.append(error)
        return bool(found)

    wait_for(failed, "a failure")
    return found[0]


# ---- lines ----


def test_lines_are_those_of_the_sender(place: Place, plain: PlainSender) -> None:
    """Empty ones, ends of both kinds, a return in the middle, and what is not UTF-8; without the one that has no end yet."""
    source = place.source(plain.port, include_timestamp=True)
    start, before = source.earliest(), time.time()
    plain.send("a\n\nb\r\n\r\nc\rd\n\r\r\nä€𝄞\n".encode() + b"x\xff\xfey\x00z\nno end")
    wait_for_lines(source, 8)
    found = rows(source, start, source.latest(start))
    assert [row["value"] for row in found] == ["a", "", "b", "", "c\rd", "\r", "ä€𝄞", "x��y\x00z"]
    assert all(before - 1 <= row["timestamp"].timestamp() <= time.time() for row in found)
    assert source.schema().names == ["value", "timestamp"]
    plain.send(b", but now\n")
    wait_for_lines(source, 9)
    assert values(source, start, source.newest())[8] == "no end, but now"


def test_a_limit_of_bytes_is_kept_line_by_line(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port)
    start = source.earliest()
    for number in range(4):
        plain.send(b"".join(b"%08d\n" % (number * 5 + each) for each in range(5)))
        wait_for_lines(source, 5 * (number + 1))
    for most, expected in ((1, 1), (9, 1), (17, 1), (18, 2), (10**9, 20)):
        assert line_of(source.latest(start, ReadLimit(bytes=most))) == expected
        assert line_of(place.source(plain.port, max_bytes_per_trigger=most).latest(start)) == expected
    at, sizes = start, []
    while (end := source.latest(at, ReadLimit(bytes=60))) != at:
        sizes.append(sum(len(value) + 1 for value in values(source, at, end)))
        at = end
    assert max(sizes) <= 60
    assert sum(sizes) == 180
    assert line_of(place.source(plain.port, max_rows_per_trigger=7).latest(start)) == 7


def test_many_lines_are_read_whole_in_many_tasks(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port, parallelism=4, segment_bytes=1 << 19)
    start = source.earliest()
    sent = [f"{number} " + "x" * (number % 90) for number in range(150_000)]
    threading.Thread(target=plain.send, args=("".join(f"{line}\n" for line in sent).encode(),), daemon=True).start()
    wait_for_lines(source, len(sent))
    end = source.latest(start)
    assert len(source.plan(start, end)) >= 4
    assert values(source, start, end) == sent
    middle = SocketOffset(SocketOffset.parse(start).journal, 70_001).to_text()
    assert values(source, middle, end) == sent[70_001:]
    assert values(source, start, middle) == sent[:70_001]


# ---- connections ----


def test_a_connection_that_ends_is_made_again(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port)
    start = source.earliest()
    for number in range(3):
        connection = plain.connected(number + 1)
        connection.sendall(b"line %d\nhalf of li" % number)
        wait_for_lines(source, number + 1)
        connection.close()
    assert values(source, start, source.latest(start)) == ["line 0", "line 1", "line 2"]


def test_a_sender_that_is_not_there_yet_is_waited_for(place: Place) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = int(taken.getsockname()[1])
    source = place.source(port)
    start = source.earliest()
    assert source.latest(start) == start
    time.sleep(0.3)
    sender = PlainSender(port)
    sender.send(b"here\n")
    wait_for_lines(source, 1)
    sender.close()


def test_a_sender_that_never_comes_is_named(place: Place) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = int(taken.getsockname()[1])
    error = failure(place.source(port, connect_timeout_ms=300))
    assert isinstance(error, TargetUnavailable)
    assert f"{LOOPBACK}:{port}" in str(error)
    assert "connectTimeoutMs" in str(error)


def test_a_stopped_source_receives_nothing_and_its_connection_is_closed(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port)
    start = source.earliest()
    plain.send(b"one\n")
    wait_for_lines(source, 1)
    source.stop()
    assert plain.connected().recv(1) == b""
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("twophase-socket")]
    again = place.source(plain.port)
    assert values(again, start, again.latest(start)) == ["one"]


def test_a_plain_sender_is_told_nothing(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port)
    source.earliest()
    plain.send(b"one\n")
    wait_for_lines(source, 1)
    plain.connected().setblocking(False)
    with pytest.raises(BlockingIOError):
        plain.connected().recv(100)


def test_a_line_that_is_too_long_stops_the_query_after_those_before_it(place: Place, plain: PlainSender) -> None:
    for number, data in enumerate([b"a\n" + b"x" * 1001 + b"\nb\n", b"a\n" + b"x" * 5000]):
        source = place.source(plain.port, f"journal {number}")
        source.earliest()
        plain.connected(number + 1).sendall(data)
        error = failure(source)
        assert isinstance(error, Unreadable)
        assert "maxLineBytes" in str(error)
        assert lines_of(journal_in(place.folder / f"journal {number}")) == ["a"]


# ---- full journals ----


def held_bytes(place: Place) -> int:
    entries = LocalStorage().list(str(place.folder / "journal"))
    return sum(each.length for each in entries if each.name.endswith(".lines"))


def rest_of(source: SocketSource) -> int:
    """The newest line, once none came for a while: what was under way when the journal was full is not received all at once."""
    seen = -1

    def rests() -> bool:
        nonlocal seen
        before, seen = seen, line_of(source.newest())
        time.sleep(0.3)
        return seen == before

    wait_for(rests, "a source that receives nothing more")
    return seen


@pytest.mark.parametrize("acknowledge", [False, True])
def test_a_full_journal_makes_the_sender_wait_and_never_gets_stuck(
    place: Place, plain: PlainSender, spooling: SpoolingSender, acknowledge: bool
) -> None:
    """As Spark does it: an epoch is acknowledged only when the next one has been found."""
    sent = [f"{number} " + "x" * 500 for number in range(10_000)]
    port = spooling.port if acknowledge else plain.port
    full = 1 << 20
    source = place.source(port, max_journal_bytes=full, acknowledge=acknowledge)
    at = source.earliest()
    if acknowledge:
        spooling.put([line.encode() for line in sent])
    else:
        threading.Thread(target=plain.send, args=("".join(f"{line}\n" for line in sent).encode(),), daemon=True).start()
    wait_for(lambda: held_bytes(place) >= full, "a full journal")
    at_rest = rest_of(source)
    assert at_rest < len(sent), "the sender waits"
    assert full <= held_bytes(place) < full + 2 * SEGMENT, "the bound, and a frame"
    taken, largest = list[str](), 0
    deadline = time.monotonic() + 60
    while len(taken) < len(sent):
        assert time.monotonic() < deadline, f"stuck at {len(taken)} of {len(sent)}"
        end = source.latest(at)
        if end != at:
            source.acknowledge(at)
            taken += values(source, at, end)
            at = end
        largest = max(largest, held_bytes(place))
    assert taken == sent
    assert largest < full + 2 * SEGMENT, "the bound, and a frame"


# ---- senders that listen ----


def test_a_sender_is_told_what_is_safe_and_where_to_go_on(place: Place, plain: PlainSender) -> None:
    """Word by word."""
    source = place.source(plain.port, acknowledge=True)
    start = source.earliest()
    journal = SocketOffset.parse(start).journal
    with plain.connected().makefile("rwb", buffering=0) as sender:
        assert sender.readline() == f"twophase-socket 1 journal={journal} stream=- next=-\n".encode()
        sender.write(b"twophase-socket 1 stream=orders-7 first=40\nforty\nforty-one\n")
        assert sender.readline() in (b"ack=40\n", b"ack=42\n")
        sender.write(b"forty-two\nforty-th")
        while sender.readline() != b"ack=43\n":
            pass
    plain.connected().close()
    with plain.connected(2).makefile("rwb", buffering=0) as sender:
        assert sender.readline() == f"twophase-socket 1 journal={journal} stream=orders-7 next=43\n".encode()
        sender.write(b"twophase-socket 1 stream=orders-7 first=41\nforty-one\nforty-two\nforty-three\n")
        while sender.readline() != b"ack=44\n":
            pass
    source.stop()
    again = place.source(plain.port, acknowledge=True)
    again.earliest()
    with plain.connected(3).makefile("rwb", buffering=0) as sender:
        assert sender.readline() == f"twophase-socket 1 journal={journal} stream=orders-7 next=44\n".encode()
    assert values(again, start, again.newest()) == ["forty", "forty-one", "forty-two", "forty-three"]


@pytest.mark.parametrize(
    ("words", "error", "named"),
    [
        (b"twophase-socket 1 stream=other first=2\n", OptionError, "'other'"),
        (b"twophase-socket 1 stream=orders first=3\n", DataLost, "lines 2 to 2"),
        (b"twophase-socket 2 stream=orders first=2\n", OptionError, "version 2"),
        (b"twophase-socket 1 refuse=not you\n", TargetUnavailable, "not you"),
        (b"just a line\n", OptionError, "'just a line'"),
        (b"x" * 5000, OptionError, "does not speak the protocol"),
    ],
)
def test_a_sender_that_does_not_fit_stops_the_query(
    place: Place, plain: PlainSender, words: bytes, error: type[TwophaseError], named: str
) -> None:
    source = place.source(plain.port, acknowledge=True)
    source.earliest()
    plain.send(b"twophase-socket 1 stream=orders first=0\nzero\none\n")
    wait_for_lines(source, 2)
    plain.connected().close()
    plain.connected(2).sendall(words)
    found = failure(source)
    assert isinstance(found, error)
    assert named in str(found)
    assert lines_of(journal_in(place.folder / "journal")) == ["zero", "one"]


def test_a_sender_that_says_nothing_is_not_waited_for_for_ever(place: Place, plain: PlainSender) -> None:
    error = failure(place.source(plain.port, acknowledge=True, connect_timeout_ms=300))
    assert isinstance(error, TargetUnavailable)
    assert "protocol" in str(error)


def test_a_sender_that_reads_no_acknowledgement_is_listened_to_all_the_same(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port, acknowledge=True)
    source.earliest()
    connection = plain.connected()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    connection.sendall(b"twophase-socket 1 stream=orders first=0\n")
    for number in range(3000):
        connection.sendall(b"%d\n" % number)
        if number % 100 == 0:
            wait_for_lines(source, number + 1)
    wait_for_lines(source, 3000)


def test_a_journal_of_numbered_lines_takes_no_others(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port, acknowledge=True)
    source.earliest()
    plain.send(b"twophase-socket 1 stream=orders first=0\nzero\n")
    wait_for_lines(source, 1)
    source.stop()
    with pytest.raises(OptionError, match="acknowledge must stay true"):
        place.source(plain.port).earliest()


def test_plain_lines_may_be_followed_by_numbered_ones(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port)
    start = source.earliest()
    plain.send(b"plain\n")
    wait_for_lines(source, 1)
    source.stop()
    again = place.source(plain.port, acknowledge=True)
    again.earliest()
    plain.connected(2).sendall(b"twophase-socket 1 stream=orders first=10\nten\n")
    wait_for_lines(again, 2)
    plain.connected(2).close()
    with plain.connected(3).makefile("rb") as sender:
        assert sender.readline().endswith(b" stream=orders next=11\n")
    assert values(again, start, again.newest()) == ["plain", "ten"]


# ---- the example's sender ----


def test_lines_of_a_spool_come_once_through_any_number_of_connections(place: Place, spooling: SpoolingSender) -> None:
    """The source is stopped and started again while lines are being put and sent."""
    sent = [f"line {number}".encode() for number in range(3000)]
    start = place.source(spooling.port, acknowledge=True).earliest()
    for number in range(0, len(sent), 100):
        spooling.put(sent[number : number + 100])
        source = place.source(spooling.port, acknowledge=True)
        source.earliest()
        time.sleep(0.002 * (number % 700) / 100)
        source.stop()
    source = place.source(spooling.port, acknowledge=True)
    source.earliest()
    spooling.wait()
    assert values(source, start, source.latest(start)) == [line.decode() for line in sent]


def test_a_spool_refuses_a_second_journal_and_one_that_has_more(place: Place, spooling: SpoolingSender) -> None:
    source = place.source(spooling.port, acknowledge=True)
    source.earliest()
    spooling.put([b"one"])
    spooling.wait()
    error = failure(place.source(spooling.port, "second", acknowledge=True))
    assert "one journal alone" in str(error)
    source.stop()
    spooling.spool._database.execute("UPDATE stream SET following = 0")
    assert "old copy" in str(failure(place.source(spooling.port, acknowledge=True)))


# ---- two drivers, lost journals ----


def test_a_receiver_that_was_overtaken_stops_and_its_query_is_told(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port)
    source.earliest()
    plain.send(b"one\n")
    wait_for_lines(source, 1)
    new = writer_of(journal_in(place.folder / "journal"))
    error = failure_of_running(source)
    assert isinstance(error, Fenced)
    assert f"process {os.getpid()}" in str(error)
    new.add(b"two\n", 1, 0)
    assert lines_of(journal_in(place.folder / "journal")) == ["one", "two"]


def failure_of_running(source: SocketSource) -> TwophaseError:
    found: list[TwophaseError] = []

    def failed() -> bool:
        try:
            source.newest()
        except TwophaseError as error:
            found.append(error)
        return bool(found)

    wait_for(failed, "a failure")
    return found[0]


def test_a_journal_that_is_gone_or_another_is_a_loss(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port)
    start = source.earliest()
    source.stop()
    (place.folder / "journal").rename(place.folder / "away")
    again = place.source(plain.port)
    for ask in (
        lambda: again.latest(start),
        lambda: again.plan(start, start.replace("0", "1")),
        lambda: again.acknowledge(start),
    ):
        with pytest.raises(DataLost, match="is gone"):
            ask()
    again.earliest()
    with pytest.raises(DataLost, match="begun anew"):
        again.latest(start)


def test_asking_what_is_newest_begins_nothing(place: Place, plain: PlainSender) -> None:
    """Spark asks, with the trigger availableNow, before the query has said which journal it has read from."""
    source = place.source(plain.port)
    assert line_of(source.newest()) == 0
    assert not (place.folder / "journal").exists()
    start = source.earliest()
    plain.send(b"one\ntwo\n")
    wait_for_lines(source, 2)
    source.stop()
    again = place.source(plain.port)
    assert line_of(again.newest()) == 2
    assert len(plain.connections) == 1
    assert values(again, start, again.newest()) == ["one", "two"]


def test_a_task_on_a_machine_without_the_journal_is_refused(place: Place, plain: PlainSender) -> None:
    source = place.source(plain.port)
    start = source.earliest()
    plain.send(b"one\n")
    wait_for_lines(source, 1)
    [split] = source.plan(start, source.newest())
    source.stop()
    (place.folder / "journal").rename(place.folder / "away")
    with pytest.raises(OptionError, match="same place for the driver and for all executors"):
        list(source.read(split))
    place.source(plain.port).earliest()  # another journal under the same path
    with pytest.raises(OptionError, match="same place for the driver and for all executors"):
        list(source.read(split))


def test_wrong_options_are_named_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(OptionError) as caught:
        SocketSource.from_options({"port": "0", "journall": "/x"})
    assert [word for word in ("host is required", "port is 0", "journal is required") if word in str(caught.value)] == [
        "host is required",
        "port is 0",
        "journal is required",
    ]
    assert "did you mean journal" in str(caught.value)
    with pytest.raises(OptionError, match="segmentBytes"):
        SocketSource("h", 1, str(tmp_path), segment_bytes=1 << 20, max_journal_bytes=1 << 20)
    with pytest.raises(OptionError, match="there is no storage for s3"):
        SocketSource("h", 1, "s3://bucket/journal")
