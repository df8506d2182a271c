"""The proxy between client and server: every fault happens to the request that it was meant for, and is on record.

The server is a plain socket that echoes, counts what was delivered to it, and adds an exclamation mark.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from twophase.testing.framing import kafka_frames, kafka_request, postgres_messages
from twophase.testing.tcp_proxy import Direction, Fault, TcpProxy

pytestmark = pytest.mark.kit

WITHIN_S = 30.0


class EchoServer:
    """Answers every piece that it gets with the same and `!`, and remembers what it got."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.got = b""
        self.resets = 0
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            thread = threading.Thread(target=self._serve, args=[connection])
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(1 << 16):
                self.got += data
                connection.sendall(data + b"!")
            connection.sendall(b"bye")
        except ConnectionError:
            self.resets += 1
        finally:
            connection.close()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # closed already
        for thread in self._threads:
            thread.join(WITHIN_S)
            assert not thread.is_alive()


@pytest.fixture
def server() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


@pytest.fixture
def proxy(server: EchoServer) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as proxy:
        yield proxy


def connect(proxy: TcpProxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), WITHIN_S)


def ask(client: socket.socket, request: bytes) -> bytes:
    client.sendall(request)
    return receive(client, len(request) + 1)


def receive(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (data := client.recv(count - len(found))):
        found += data
    return found


def nothing_comes(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(WITHIN_S)
    return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def test_without_a_fault_everything_passes(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        assert [ask(client, b"one"), ask(client, b"two")] == [b"one!", b"two!"]

    assert proxy.fired == ()


def test_the_end_of_the_requests_is_passed_on_and_replies_still_come(proxy: TcpProxy, server: EchoServer) -> None:
    with connect(proxy) as client:
        client.sendall(b"last")
        client.shutdown(socket.SHUT_WR)

        assert receive(client, 100) == b"last!bye"

    wait_until(lambda: proxy.connections == 0)
    assert (server.got, server.resets) == (b"last", 0)


@pytest.mark.parametrize("framing", [None, kafka_frames])
def test_megabytes_pass_unchanged_in_both_directions(framing: Callable[[bytes], int] | None) -> None:
    sent = frame(os.urandom(9_000_000))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def mirror() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(receive(connection, len(sent)))

        thread = threading.Thread(target=mirror)
        thread.start()
        port = listener.getsockname()[1]
        with TcpProxy(port, framing=framing, reply_framing=framing) as proxy, connect(proxy) as client:
            client.sendall(sent)
            assert receive(client, len(sent)) == sent
        thread.join(WITHIN_S)


def test_many_connections_are_kept_apart(proxy: TcpProxy) -> None:
    clients = [connect(proxy) for _ in range(200)]
    for number, client in enumerate(clients):
        client.sendall(b"%d" % number)

    assert [receive(client, len(str(number)) + 1) for number, client in enumerate(clients)] == [
        b"%d!" % number for number in range(200)
    ]
    assert proxy.connections == 200
    for client in clients:
        client.close()
    wait_until(lambda: proxy.connections == 0)


def test_a_reply_is_dropped_after_the_request_was_delivered_and_the_connection_is_reset(
    proxy: TcpProxy, server: EchoServer
) -> None:
    with connect(proxy) as client:
        assert ask(client, b"before") == b"before!"
        armed = proxy.arm(Fault.DROP_REPLY_AND_CUT)

        client.sendall(b"commit")
        with pytest.raises(ConnectionResetError):
            client.recv(100)

    fired = proxy.wait_until_fired(armed)
    assert (fired.fault, fired.connection, fired.message, fired.reply) == (armed.fault, 1, b"commit", b"commit!")
    assert server.got == b"beforecommit"
    with connect(proxy) as client:
        assert ask(client, b"again") == b"again!"
    assert proxy.fired == (fired,)


def test_after_a_dropped_reply_a_connection_can_hang_and_passes_nothing_more(
    proxy: TcpProxy, server: EchoServer
) -> None:
    with connect(proxy) as client, connect(proxy) as other:
        assert ask(client, b"a") == b"a!"
        armed = proxy.arm(Fault.DROP_REPLY_AND_HANG)
        client.sendall(b"commit")
        proxy.wait_until_fired(armed)
        client.sendall(b"more")

        assert nothing_comes(client)
        assert ask(other, b"other") == b"other!"
        assert server.got == b"acommitother"
        assert proxy.cut() == 2
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_every_reply_can_be_dropped_until_all_pass_again(proxy: TcpProxy, server: EchoServer) -> None:
    proxy.drop_replies()
    for request in (b"1", b"2"):
        with connect(proxy) as client, pytest.raises(ConnectionResetError):
            ask(client, request)
    proxy.pass_all()

    with connect(proxy) as client:
        assert ask(client, b"3") == b"3!"
    assert server.got == b"123"
    assert [(fired.message, fired.connection) for fired in proxy.fired] == [(b"1", 1), (b"2", 2)]


def test_a_request_can_be_lost_before_it_is_delivered(proxy: TcpProxy, server: EchoServer) -> None:
    armed = proxy.arm(Fault.CUT_BEFORE, matching=lambda request: request == b"lost")
    with connect(proxy) as client:
        assert ask(client, b"kept") == b"kept!"
        with pytest.raises(ConnectionResetError):
            ask(client, b"lost")

    assert proxy.wait_until_fired(armed).message == b"lost"
    wait_until(lambda: server.resets == 1)
    assert server.got == b"kept"


def test_a_connection_can_be_cut_once_the_request_is_delivered(proxy: TcpProxy) -> None:
    armed = proxy.arm(Fault.CUT_AFTER)
    with connect(proxy) as client, pytest.raises(ConnectionResetError):
        ask(client, b"sent")

    proxy.wait_until_fired(armed)
    wait_until(lambda: proxy.connections == 0)


def test_a_fault_strikes_the_kth_match_over_all_connections(proxy: TcpProxy) -> None:
    armed = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=lambda request: request.startswith(b"x"), occurrence=3)
    with connect(proxy) as one, connect(proxy) as two:
        assert [ask(one, b"x1"), ask(two, b"y"), ask(two, b"x2")] == [b"x1!", b"y!", b"x2!"]
        assert list(proxy.fired) == []
        with pytest.raises(ConnectionResetError):
            ask(one, b"x3")
        assert ask(two, b"x4") == b"x4!"

    assert [fired.armed for fired in proxy.fired] == [armed]


@pytest.mark.parametrize("direction", Direction)
def test_one_direction_is_held_until_it_is_released(proxy: TcpProxy, server: EchoServer, direction: Direction) -> None:
    with connect(proxy) as client:
        assert ask(client, b"a") == b"a!"
        proxy.hold(direction)
        client.sendall(b"b")

        assert nothing_comes(client)
        wait_until(lambda: len(proxy.fired) == 1)
        assert server.got == (b"a" if direction is Direction.REQUESTS else b"ab")
        proxy.release()

        assert receive(client, 2) == b"b!"
    assert [fired.fault for fired in proxy.fired] == [Fault.HOLD]


def test_one_request_is_held_while_others_pass(proxy: TcpProxy, server: EchoServer) -> None:
    armed = proxy.arm(Fault.HOLD, matching=lambda request: request == b"late")
    with connect(proxy) as client, connect(proxy) as other:
        client.sendall(b"late")
        proxy.wait_until_fired(armed)
        assert ask(other, b"other") == b"other!"
        assert server.got == b"other"
        proxy.release()

        assert receive(client, 5) == b"late!"


def test_a_held_connection_can_be_cut(proxy: TcpProxy, server: EchoServer) -> None:
    proxy.hold(Direction.REQUESTS)
    with connect(proxy) as client:
        client.sendall(b"never")
        wait_until(lambda: len(proxy.fired) == 1)
        assert proxy.cut() == 1
        proxy.release()

        with pytest.raises(ConnectionResetError):
            client.recv(1)
    wait_until(lambda: proxy.connections == 0)
    assert server.got == b""


@pytest.mark.parametrize("direction", Direction)
def test_messages_are_delayed(proxy: TcpProxy, direction: Direction) -> None:
    with connect(proxy) as client:
        ask(client, b"warm")
        proxy.delay(direction, 200)
        start = time.monotonic()
        assert ask(client, b"slow") == b"slow!"
        assert time.monotonic() - start >= 0.2
        proxy.delay(direction, 0)
        assert ask(client, b"fast") == b"fast!"

    assert [fired.fault for fired in proxy.fired] == [Fault.DELAY]


def test_all_connections_are_reset_at_once(proxy: TcpProxy, server: EchoServer) -> None:
    clients = [connect(proxy) for _ in range(5)]
    for client in clients:
        ask(client, b"x")

    assert proxy.cut() == 5
    for client in clients:
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        client.close()
    wait_until(lambda: server.resets == 5)
    assert [fired.fault for fired in proxy.fired] == [Fault.CUT] * 5


def test_new_connections_are_refused_while_the_old_ones_stay(proxy: TcpProxy) -> None:
    with connect(proxy) as client:
        ask(client, b"x")
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        assert ask(client, b"y") == b"y!"
        proxy.accept()
        with connect(proxy) as other:
            assert ask(other, b"z") == b"z!"


def test_a_server_that_is_down_is_a_reset_to_its_clients() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with (
        TcpProxy(port) as in_front_of_nobody,
        # The reset may come before the client has noticed that it is connected: connect raises it, then.
        pytest.raises(ConnectionResetError),
        connect(in_front_of_nobody) as client,
    ):
        client.recv(1)


@pytest.mark.parametrize("resetting", ["client", "server"])
def test_a_reset_of_one_side_is_a_reset_to_the_other(resetting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, TcpProxy(listener.getsockname()[1]) as proxy:
        client = connect(proxy)
        server, _ = listener.accept()
        ends = {"client": client, "server": server}
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        one = ends.pop(resetting)
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()

        (other,) = ends.values()
        other.settimeout(WITHIN_S)
        with other, pytest.raises(ConnectionResetError):
            other.recv(1)
        wait_until(lambda: proxy.connections == 0)


def test_whole_frames_are_matched_however_they_are_cut_or_joined_on_the_way(server: EchoServer) -> None:
    """Twice the same bytes in one request of another kind, and a request in three pieces: only the frame counts."""
    commit = frame(struct.pack(">hh", 26, 5) + b"transaction")
    fetch = frame(struct.pack(">hh", 1, 17) + commit)
    with TcpProxy(server.port, framing=kafka_frames) as proxy, connect(proxy) as client:
        armed = proxy.arm(Fault.DROP_REPLY_AND_CUT, matching=kafka_request(26))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(fetch)
        assert receive(client, len(fetch) + 1) == fetch + b"!"
        for piece in (commit[:2], commit[2:7]):
            client.sendall(piece)
            assert nothing_comes(client)
        assert server.got == fetch
        client.sendall(commit[7:])
        with pytest.raises(ConnectionResetError):
            client.recv(1)

        assert proxy.wait_until_fired(armed).message == commit
        assert server.got == fetch + commit


def test_with_framed_replies_those_to_earlier_requests_still_pass() -> None:
    """Two requests are under way when the second is struck: the first one's reply is not lost with it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        got: list[bytes] = []

        def answer_late() -> None:
            connection, _ = listener.accept()
            with connection:
                got.append(receive(connection, 2 * len(frame(b"1"))))
                connection.sendall(frame(b"one") + frame(b"two"))
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)

        thread = threading.Thread(target=answer_late)
        thread.start()
        with TcpProxy(port, framing=kafka_frames, reply_framing=kafka_frames) as proxy, connect(proxy) as client:
            armed = proxy.arm(Fault.DROP_REPLY_AND_HANG, occurrence=2)
            client.sendall(frame(b"1") + frame(b"2"))

            assert receive(client, len(frame(b"one"))) == frame(b"one")
            assert proxy.wait_until_fired(armed).reply == frame(b"two")
            assert nothing_comes(client)
            proxy.cut()
            thread.join(WITHIN_S)
    assert got == [frame(b"1") + frame(b"2")]


def test_the_messages_of_postgres_begin_without_a_letter() -> None:
    startup = struct.pack(">ii", 9, 196608) + b"x"
    query = b"Q" + struct.pack(">i", 4 + 7) + b"COMMIT\0"

    assert postgres_messages(startup + query) == len(startup)
    assert postgres_messages(query + startup) == len(query)
    assert [postgres_messages(b""), postgres_messages(startup[:3]), postgres_messages(query[:4])] == [0, 0, 0]


def test_a_fault_that_did_not_fire_fails_the_test_that_waits_for_it(proxy: TcpProxy) -> None:
    armed = proxy.arm(Fault.CUT_BEFORE, matching=lambda request: request == b"never")
    with connect(proxy) as client:
        ask(client, b"x")

    with pytest.raises(AssertionError, match="CUT_BEFORE did not fire within"):
        proxy.wait_until_fired(armed, timeout_s=0.05)


def test_what_can_not_be_armed_is_refused(proxy: TcpProxy) -> None:
    with pytest.raises(ValueError, match="can't wait for a request"):
        proxy.arm(Fault.CUT)
    with pytest.raises(ValueError, match="the first occurrence is 1"):
        proxy.arm(Fault.HOLD, occurrence=0)


def test_a_predicate_that_fails_is_raised_when_the_proxy_is_closed(server: EchoServer) -> None:
    proxy = TcpProxy(server.port)
    proxy.arm(Fault.CUT_BEFORE, matching=lambda request: request[100] == 1)
    with connect(proxy) as client, pytest.raises(ConnectionResetError):
        ask(client, b"short")

    with pytest.raises(ExceptionGroup) as caught:
        proxy.close()
    assert caught.group_contains(IndexError)


@pytest.mark.parametrize("held", [False, True])
def test_a_closed_proxy_leaves_neither_thread_nor_socket_behind(server: EchoServer, held: bool) -> None:
    def open_files() -> set[str]:
        folder = "/proc/self/fd"
        links = [f"{folder}/{name}" for name in os.listdir(folder)]
        return {os.readlink(link) for link in links if os.path.lexists(link)}

    threads, files = threading.active_count(), open_files()
    proxy = TcpProxy(server.port)
    clients = [connect(proxy) for _ in range(10)]
    for client in clients:
        ask(client, b"x")
    if held:
        proxy.hold(Direction.REPLIES)
        for client in clients:
            client.sendall(b"y")
        wait_until(lambda: len(proxy.fired) == 10)
    proxy.close()
    proxy.close()

    for client in clients:
        with pytest.raises(ConnectionResetError):
            client.recv(1)
        client.close()
    wait_until(lambda: threading.active_count() == threads)
    assert open_files() <= files
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
