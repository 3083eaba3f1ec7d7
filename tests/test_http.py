"""Who answers probes: on one thread, however clients behave."""

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from eventually import eventually

from cmdbus.supervisor.host import ListenError, listen
from cmdbus.worker.probes.http import Server, respond
from cmdbus.worker.probes.responses import Response

PAGE = "good\n" * 50_000


def site(path: str) -> Response | None:
    if path == "/broken":
        raise RuntimeError("broken")
    return {"/livez": Response(200, "yes\n"), "/long": Response(200, PAGE)}.get(path)


@contextmanager
def serving(timeout: float = 60.0) -> Iterator[int]:
    with closing(listen("127.0.0.1", 0)) as listener:
        server = Server(listener, site, host="127.0.0.1", timeout=timeout)
        server.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.stop(5)


@pytest.fixture
def port() -> Iterator[int]:
    with serving() as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def read(client: socket.socket) -> bytes:
    received = b""
    while data := client.recv(65536):
        received += data
    return received


def ask(port: int, request: bytes) -> bytes:
    with connect(port) as client:
        client.sendall(request)
        return read(client)


def is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True


def get(port: int, path: str = "/livez") -> bytes:
    return ask(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())


def is_answered(port: int) -> bool:
    with suppress(ConnectionError):
        return get(port).startswith(b"HTTP/1.1 200 ")
    return False


def status(head: str, host: str | None = "127.0.0.1") -> int:
    return respond(head.encode("latin-1"), site, host=host)[0].status


# What is asked for.


def test_a_page_says_its_length_and_ends_the_connection(port: int) -> None:
    head, _, body = get(port).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and body == b"yes\n"
    assert b"\r\nContent-Length: 4" in head and b"\r\nConnection: close" in head
    assert b"Access-Control" not in head
    assert get(port, "/long").endswith(PAGE.encode())
    assert get(port, "/livez?verbose").endswith(b"\r\n\r\nyes\n")
    head = ask(port, b"HEAD /livez HTTP/1.0\r\n\r\n")
    assert b"Content-Length: 4" in head and head.endswith(b"\r\n\r\n")


def test_only_get_and_head_of_what_is_there_are_answered(port: int) -> None:
    assert get(port, "/").startswith(b"HTTP/1.1 404 ")
    assert get(port, "/livez/").startswith(b"HTTP/1.1 404 ")
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"):
        answer = ask(port, f"{method} /livez HTTP/1.1\r\nHost: localhost\r\n\r\nbody".encode())
        assert answer.startswith(b"HTTP/1.1 405 ") and b"\r\nAllow: GET, HEAD\r\n" in answer


def test_an_error_of_a_page_is_told_and_the_next_client_is_answered(port: int) -> None:
    assert get(port, "/broken").startswith(b"HTTP/1.1 500 ")
    assert get(port).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "head",
    [
        "",
        "GET",
        "GET /livez",
        "GET /livez HTTP/2.0",
        "GET /livez HTTP/1.1 more",
        "GET  /livez HTTP/1.1",
        "get /livez HTTP/1.1",
        "GET livez HTTP/1.1",
        "GET http://localhost/livez HTTP/1.1",
        "PRI * HTTP/2.0",
        "\x16\x03\x01\x02\x00\x01",
        "GET /" + "a" * 3000 + " HTTP/1.1",
        "\0\0\0",
    ],
)
def test_garbage_is_refused(head: str) -> None:
    assert status(head) == 400
    assert status(f"{head}\r\nHost: localhost", host=None) == 400


def test_a_name_that_is_not_this_machine_is_refused_where_only_it_is_listened_to() -> None:
    """DNS rebinding."""
    allowed = ["localhost", "localhost:8080", "127.0.0.1", "127.8.8.8:1", "[::1]:80", "LocalHost."]
    refused = ["evil.example", "evil.example:8080", "10.0.0.1", "127.0.0.1.evil.example", "", "a:b"]
    for name in allowed:
        assert status(f"GET /livez HTTP/1.1\r\nHost: {name}") == 200, name
    for name in refused:
        head = f"GET /livez HTTP/1.1\r\nhOST : {name}"
        assert (status(head), status(head, host=None)) == (421, 200), name
    assert status("GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: evil.example") == 421
    assert status("GET /livez HTTP/1.1\r\nHost: shop", host="shop") == 200
    assert status("GET /livez HTTP/1.0") == 200


# How it is asked for.


def test_a_request_may_come_byte_by_byte(port: int) -> None:
    with connect(port) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n":
            client.sendall(bytes([byte]))
        assert read(client).startswith(b"HTTP/1.1 200 ")


def test_a_head_that_is_too_long_is_refused(port: int) -> None:
    answer = ask(port, b"GET /livez HTTP/1.1\r\nA: " + b"a" * 9000)
    assert answer.startswith(b"HTTP/1.1 431 ")


def test_slow_clients_keep_no_other_waiting_and_make_room(port: int) -> None:
    """More clients than are served at a time, which send or read nothing."""
    with ExitStack() as stack:
        slow = [stack.enter_context(closing(connect(port))) for _ in range(100)]
        for number, client in enumerate(slow):
            with suppress(ConnectionError):  # The first have had to make room already.
                client.sendall(b"GET /long HTTP/1.1\r\n\r\n" if number % 2 else b"GET /livez HT")
        assert get(port).startswith(b"HTTP/1.1 200 ")
        assert is_closed(slow[0])
        slow[-2].setblocking(False)
        with pytest.raises(BlockingIOError):
            slow[-2].recv(1)


def test_a_client_whose_time_is_over_is_closed() -> None:
    with serving(timeout=0.2) as port, connect(port) as silent, connect(port) as slow:
        slow.sendall(b"GET /livez HTTP/1.1\r\n")
        assert is_closed(silent) and is_closed(slow)
        # A busy machine may let the time of a quick client be over, too.
        eventually(lambda: is_answered(port))


def test_many_clients_at_once_are_all_answered(port: int) -> None:
    answers: list[bytes] = []

    def client() -> None:
        for _ in range(40):
            answers.append(get(port, "/long"))

    threads = [threading.Thread(target=client) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [answer[-len(PAGE) :] == PAGE.encode() for answer in answers] == [True] * 640


def test_a_client_that_goes_away_harms_no_other(port: int) -> None:
    for _ in range(50):
        with connect(port) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            client.sendall(b"GET /long HTTP/1.1\r\n\r\n")
    assert get(port).startswith(b"HTTP/1.1 200 ")


def test_a_successor_answers_the_clients_that_came_before_it() -> None:
    """A steward dies, the socket stays."""
    with closing(listen("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        first = Server(listener, site, host="127.0.0.1")
        first.start()
        assert get(port).startswith(b"HTTP/1.1 200 ")
        first.stop(5)
        with connect(port) as waiting:
            waiting.sendall(b"GET /livez HTTP/1.1\r\n\r\n")
            second = Server(listener, site, host="127.0.0.1")
            second.start()
            assert read(waiting).startswith(b"HTTP/1.1 200 ")
            second.stop(5)


def test_a_server_is_stopped_whose_thread_ends_before_it_is_woken() -> None:
    """A client's request wakes it between the two steps of `stop`."""
    with closing(listen("127.0.0.1", 0)) as listener:
        server = Server(listener, site, host="127.0.0.1")
        server.start()
        server._stopping = True
        with connect(listener.getsockname()[1]):
            server.thread.join(5)
        assert not server.thread.is_alive()
        server.stop(5)


# The socket.


def test_a_port_that_cannot_be_had_is_one_clear_sentence() -> None:
    with closing(listen("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=re.escape(f"127.0.0.1:{port} (--http): the port is")):
            listen("127.0.0.1", port)
    with pytest.raises(ListenError, match=r"192\.0\.2\.1:0 .*this machine has no such address"):
        listen("192.0.2.1", 0)
    with pytest.raises(ListenError, match=r"cannot listen on no\.such\.host\.invalid:80 "):
        listen("no.such.host.invalid", 80)


def test_an_address_that_lets_other_machines_in_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listen("127.0.0.1", 0).close()
    assert not caplog.records
    listen("0.0.0.0", 0).close()
    [record] = caplog.records
    assert "any client that reaches http://0.0.0.0:" in record.getMessage()


def test_the_port_of_a_process_that_is_about_to_die_is_waited_for() -> None:
    """As the steward of a supervisor that was just killed."""
    with closing(listen("127.0.0.1", 0)) as dying:
        address = dying.getsockname()
        end = threading.Timer(0.3, dying.close)
        end.start()
        with closing(listen(*address)) as listener:
            assert listener.getsockname() == address
        end.join()
