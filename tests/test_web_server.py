"""The server of the page on real sockets: keep-alive, bounds, and clients that are slow."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

import pytest
from eventually import eventually
from web_server import PATIENCE, Client, serving

from cmdbus.web.http.settings import ServerSettings

QUICK = ServerSettings(head_seconds=0.2, body_seconds=0.2)


def echo(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    body = environ["wsgi.input"].read() or environ["PATH_INFO"].encode("latin-1")
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


def test_one_connection_serves_many_requests_also_pipelined_ones() -> None:
    with serving(echo) as server, Client(server) as client:
        assert client.get("/a%20b?c") == (200, b"/a b")
        client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc\r\n" * 20)
        assert [client.response() for _ in range(20)] == [(200, b"abc")] * 20
        assert client.get("http://localhost/x") == (200, b"/x")
        assert client.get("/last", "Connection: close") == (200, b"/last")
        assert client.closed()
        with Client(server) as old:
            assert old.get(version="1.0") == (200, b"/") and old.closed()


def test_a_body_comes_in_parts_and_after_its_client_was_told_to_go_on() -> None:
    with serving(echo) as server, Client(server) as client:
        client.send(b"POST / HTTP/1.1\r\nHo")
        client.send(b"st: x\r\nContent-Length: 6\r\nExpect: 100-continue\r\n\r\n")
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue"
        client.send(b"abc")
        client.send(b"def")
        assert client.response() == (200, b"abcdef")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\nb: c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
        (b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 17_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 101 + b"\r\n", 431),
        (b"GET /" + b"x" * 20_000, 431),
    ],
)
def test_a_malformed_request_is_refused_and_its_connection_closed(sent: bytes, status: int) -> None:
    with serving(echo) as server, Client(server) as client:
        client.send(sent)
        assert client.response()[0] == status
        assert client.closed()


def test_a_field_with_an_underscore_cannot_pass_for_another() -> None:
    seen: list[dict[str, Any]] = []

    def watch(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        seen.append(environ)
        return echo(environ, start_response)

    with serving(watch) as server, Client(server) as client:
        client.get("/", "X_Forwarded_User: eve", "Accept: a", "Accept: b")
        assert "HTTP_X_FORWARDED_USER" not in seen[0] and seen[0]["HTTP_ACCEPT"] == "a, b"
        assert seen[0]["REMOTE_ADDR"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n", 408),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc", 408),
        (b"", None),
    ],
)
def test_a_request_has_a_deadline_in_all(sent: bytes, status: int | None) -> None:
    """Of a client, too, that goes on to send a byte now and again."""
    stopping = threading.Event()
    with serving(echo, QUICK, started=False) as server, Client(server) as client:

        def drip() -> None:
            while not stopping.wait(0.05):
                try:
                    client.send(b"x")
                except OSError:
                    return

        client.send(sent)
        server.start()  # only now: its time begins when it is accepted
        thread = threading.Thread(target=drip)
        if sent:
            thread.start()
        try:
            if status is not None:
                assert client.response()[0] == status
            assert client.closed()
        finally:
            stopping.set()
            if sent:
                thread.join()


def test_a_connection_that_is_idle_ends() -> None:
    with serving(echo, ServerSettings(idle_seconds=0.2)) as server, Client(server) as client:
        assert client.get()[0] == 200
        assert client.closed()


def test_crowds_of_slow_clients_hold_up_no_other() -> None:
    """They say nothing, half of a head, half of a body; the oldest give way."""
    with serving(echo) as server, ExitStack() as held:
        sent = [
            b"",
            b"GET / HTTP/1.1\r\n",
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n",
        ]
        crowd = [held.enter_context(Client(server)) for _ in range(500)]
        for number, client in enumerate(crowd):
            try:
                client.send(sent[number % 3])
            except ConnectionError:
                assert number < 300
        for _ in range(20):
            with Client(server) as quick:
                assert quick.get("/quick") == (200, b"/quick")
        assert crowd[0].closed()


def test_the_oldest_of_too_many_large_bodies_gives_way() -> None:
    settings = ServerSettings(all_bodies_bytes=100_000)
    with serving(echo, settings) as server, ExitStack() as held:
        head = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 50001\r\n\r\n"
        first, *others = [held.enter_context(Client(server)) for _ in range(3)]
        for client in (first, *others):
            client.send(head + b"x" * 40_000)
        assert first.closed()
        for client in others:
            client.send(b"x" * 10_001)
            assert client.response()[0] == 200


def test_clients_that_read_nothing_hold_no_thread() -> None:
    body = b"x" * 4_000_000

    def large(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/quick":
            return echo(environ, start_response)
        start_response("200 OK", [("Content-Length", str(len(body)))])
        return [body]

    settings = ServerSettings(threads=1, send_seconds=0.3)
    with serving(large, settings) as server, ExitStack() as held:
        for _ in range(20):
            deaf = held.enter_context(Client(server, receives=4096))
            deaf.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        with Client(server) as quick:
            assert quick.get("/quick") == (200, b"/quick")
        eventually(lambda: not server.connections)


class Events:
    def __init__(self) -> None:
        self.parts: SimpleQueue[bytes | None] = SimpleQueue()
        self.is_closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.parts.get, None)

    def close(self) -> None:
        self.is_closed.set()
        self.parts.put(None)


def streaming(events: list[Events]) -> Callable[..., Iterable[bytes]]:
    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] != "/live":
            return echo(environ, start_response)
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        events.append(Events())
        return events[-1]

    return application


def test_a_stream_is_written_as_it_comes_and_ends_with_its_client() -> None:
    made: list[Events] = []
    with serving(streaming(made)) as server, Client(server) as client:
        client.send(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n")
        client.until(b"\r\n\r\n")
        for part in (b"one\n", b"two\n"):
            made[0].parts.put(part)
            assert client.until(b"\n") == part.strip()
        client.socket.close()
        assert made[0].is_closed.wait(PATIENCE)


def test_a_stream_ends_so_that_its_client_is_admitted_again() -> None:
    made: list[Events] = []
    settings = ServerSettings(stream_seconds=0.1)
    with serving(streaming(made), settings) as server, Client(server) as client:
        client.send(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n")
        assert client.closed() and made[0].is_closed.wait(PATIENCE)


def test_what_waits_for_a_database_leaves_threads_for_the_files_of_the_page() -> None:
    goes_on = threading.Event()

    def wait(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"].startswith("/api/"):
            goes_on.wait(20)
        return echo(environ, start_response)

    with ExitStack() as opened:
        server = opened.enter_context(serving(wait, ServerSettings(threads=2)))
        clients = [opened.enter_context(Client(server)) for _ in range(4)]
        for client in clients:
            client.send(b"GET /api/overview HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            with Client(server) as other:
                assert other.get("/static/app.js") == (200, b"/static/app.js")
        finally:
            goes_on.set()
        assert [client.response()[0] for client in clients] == [200] * 4


def test_streams_are_bounded_and_leave_threads_for_others() -> None:
    made: list[Events] = []
    settings = ServerSettings(threads=1, streams=3)
    with serving(streaming(made), settings) as server, ExitStack() as held:
        for _ in range(3):
            client = held.enter_context(Client(server))
            client.send(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n")
            client.until(b"\r\n\r\n")
        with Client(server) as refused:
            assert refused.get("/live")[0] == 503
        assert made[3].is_closed.is_set()
        with Client(server) as quick:
            assert quick.get()[0] == 200
    assert all(each.is_closed.is_set() for each in made)


def test_a_stop_lets_requests_end_and_ends_streams() -> None:
    made: list[Events] = []
    begun, go_on = threading.Event(), threading.Event()

    def slow(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/slow":
            begun.set()
            go_on.wait(20)
        return streaming(made)(environ, start_response)

    with serving(slow) as server, Client(server) as client, Client(server) as watcher:
        client.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        watcher.send(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n")
        watcher.until(b"\r\n\r\n")
        assert begun.wait(PATIENCE)
        server.ask_to_stop(20)
        assert watcher.closed() and made[0].is_closed.wait(PATIENCE)
        go_on.set()
        assert client.response() == (200, b"/slow") and client.closed()


def test_a_defect_of_the_application_is_one_line_of_log(caplog: pytest.LogCaptureFixture) -> None:
    def broken(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        raise KeyError("secret")

    with serving(broken) as server, Client(server) as client:
        assert client.get()[0] == 500
    [record] = caplog.records
    assert "KeyError in test_web_server.py" in record.message and "secret" not in record.message


def test_where_each_connection_is_served_another_client_is_turned_away() -> None:
    begun: SimpleQueue[None] = SimpleQueue()
    go_on = threading.Event()

    def slow(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        begun.put(None)
        go_on.wait(20)
        return echo(environ, start_response)

    settings = ServerSettings(connections=2)
    with serving(slow, settings) as server, Client(server) as one, Client(server) as two:
        for client in (one, two):
            client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            begun.get(timeout=PATIENCE)
        with Client(server) as third:
            assert third.closed()
        go_on.set()
        assert one.response()[0] == two.response()[0] == 200


#: Serves with few descriptors, prints the port, and ends with its standard input.
FEW_DESCRIPTORS = """
import resource, socket, sys, threading
from cmdbus.web.http.server import Server
def application(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]
server = Server(socket.create_server(("127.0.0.1", 0), backlog=1024), application)
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
server.start()
print(server.address[1], flush=True)
sys.stdin.read()
server.stop()
"""


@pytest.mark.process
def test_without_descriptors_the_oldest_clients_give_way() -> None:
    command = [sys.executable, "-c", FEW_DESCRIPTORS]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        address = "127.0.0.1", int(process.stdout.readline())
        with ExitStack() as held:
            for _ in range(100):
                held.enter_context(socket.create_connection(address, PATIENCE))
            for _ in range(3):
                with socket.create_connection(address, PATIENCE) as quick:
                    quick.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    assert quick.makefile("rb").read().endswith(b"\r\n\r\nok")
        _, stderr = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0
        warnings = [line for line in stderr.splitlines() if b"Too many open files" in line]
        assert len(warnings) == 1
