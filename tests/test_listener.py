"""The listening session on a real server: it is kept alive, and replaced when it is lost."""

import os
import resource
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest
from eventually import eventually
from handlers import beside
from proxy import Proxy
from psycopg.conninfo import make_conninfo

from cmdbus.board.board import Board, Node
from cmdbus.board.wake_pipe import WakePipe
from cmdbus.worker.claims.claim_statements import ClaimStatements
from cmdbus.worker.steward.listening import Listening
from cmdbus.worker.waiting.listener import Listener

NAME = "the listener"


def connect(dsn: str) -> psycopg.Connection:
    return psycopg.connect(make_conninfo(dsn, application_name=NAME), autocommit=True)


class Ear(Listener):
    """What a listener reports, in order: began, ended, and sets of channels."""

    def __init__(self, open: Callable[[], psycopg.Connection], **options: Any) -> None:
        super().__init__(open, ClaimStatements("cmdbus", 30), **options)
        self.text: list[str | set[str]] = []
        self.subscriptions: list[str] = []

    def began(self) -> None:
        self.text.append("began")

    def heard(self, notifications: Mapping[str, Collection[str]]) -> None:
        self.text.append(set(notifications))

    def subscribed(self, channels: Collection[str]) -> None:
        self.subscriptions += channels

    def ended(self) -> None:
        self.text.append("ended")

    def channels(self, since: int) -> set[str]:
        return {name for text in self.text[since:] if not isinstance(text, str) for name in text}

    @property
    def is_on(self) -> bool:
        ends = [text for text in self.text if isinstance(text, str)]
        return bool(ends) and ends[-1] == "began"


@contextmanager
def listening(open: Callable[[], psycopg.Connection], **options: Any) -> Iterator[Ear]:
    ear = Ear(open, **options)
    ear.start()
    try:
        yield ear
    finally:
        ear.stop()


@pytest.fixture
def other(dsn: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(dsn, autocommit=True) as other:
        yield other


def sessions(other: psycopg.Connection) -> list[tuple[Any, ...]]:
    query = "SELECT pid, query_start FROM pg_stat_activity WHERE application_name = %s"
    return other.execute(query, (NAME,)).fetchall()


def test_a_listener_reports_the_channels_of_its_notifications(
    dsn: str, other: psycopg.Connection
) -> None:
    with listening(lambda: connect(dsn)) as ear:
        eventually(lambda: ear.is_on)
        assert ear.sessions == 1
        other.execute("NOTIFY cmdbus_ready, 'payments'; NOTIFY elsewhere")
        eventually(lambda: ear.text == ["began", {"cmdbus_ready"}])
        with other.transaction():
            other.execute("NOTIFY cmdbus_due, '1'; NOTIFY cmdbus_ready, 'mail'")
        eventually(lambda: ear.channels(2) == {"cmdbus_due", "cmdbus_ready"})
    assert ear.text[-1] == "ended"
    eventually(lambda: sessions(other) == [])


def test_a_thousand_notifications_at_once_are_all_heard(
    dsn: str, other: psycopg.Connection
) -> None:
    """They may arrive together, and none stays in the driver."""
    with listening(lambda: connect(dsn)) as ear:
        eventually(lambda: ear.is_on)
        other.execute("SELECT pg_notify('cmdbus_ready', n::text) FROM generate_series(1, 999) n")
        other.execute("NOTIFY cmdbus_due")
        eventually(lambda: ear.channels(1) == {"cmdbus_ready", "cmdbus_due"})


def test_a_listener_hears_other_channels_as_long_as_it_is_to(
    dsn: str, other: psycopg.Connection
) -> None:
    """Each session says from when on it does: what was sent before reached none."""
    odd, more = 'pgmq.q_a "b";.INSERT', [f"q{n:03}" for n in range(250)]
    with listening(lambda: connect(dsn)) as ear:
        ear.subscribe([odd])
        for session in (1, 2):
            eventually(lambda s=session: ear.subscriptions == [odd] * s)  # type: ignore[misc]
            other.execute("SELECT pg_notify(%s, %s)", (odd, str(session)))
            eventually(lambda: ear.text[-1] == {odd})
            if session == 1:
                [(pid, _)] = sessions(other)
                other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        ear.subscribe(more)
        eventually(lambda: ear.subscriptions[2:] == more)
        other.execute("SELECT pg_notify(%s, '')", (odd,))
        other.execute("NOTIFY q249")
        eventually(lambda: ear.text[-1] == {"q249"})
        assert ear.text == ["began", {odd}, "ended", "began", {odd}, {"q249"}]


def test_a_session_that_was_ended_is_followed_by_the_next_at_once(
    dsn: str, other: psycopg.Connection
) -> None:
    """It reports that it listens again: what was sent in the gap notified no session."""
    with listening(lambda: connect(dsn)) as ear:
        for session in (1, 2, 3):
            eventually(lambda s=session: ear.sessions == s and ear.is_on)  # type: ignore[misc]
            if session < 3:
                [(pid, _)] = sessions(other)
                other.execute("SELECT pg_terminate_backend(%s)", (pid,))
        other.execute("NOTIFY cmdbus_ready")
        eventually(lambda: {"cmdbus_ready"} in ear.text)
    ends = [text for text in ear.text if isinstance(text, str)]
    assert ends == ["began", "ended"] * 3


def test_a_server_that_has_gone_silent_is_noticed_and_left(
    dsn: str, other: psycopg.Connection
) -> None:
    """Nothing else would notice, for nothing is sent."""
    with Proxy(dsn) as proxy, listening(lambda: connect(proxy.dsn), ping=0.05, pong=1.0) as ear:
        eventually(lambda: ear.is_on)
        proxy.freeze()
        eventually(lambda: ear.sessions > 1 and ear.is_on)
        assert ear.text[:2] == ["began", "ended"]
        other.execute("NOTIFY cmdbus_ready")
        eventually(lambda: {"cmdbus_ready"} in ear.text)


def test_a_server_that_goes_silent_at_the_listen_is_left(dsn: str) -> None:
    """Connected, it waits for an answer that never comes."""

    def freeze_at_the_first(data: bytes) -> bytes:
        if b"LISTEN" in data and not silent:
            silent.append(True)
            proxy.freeze()
        return data

    silent: list[bool] = []
    with Proxy(dsn, freeze_at_the_first) as proxy:
        with listening(lambda: connect(proxy.dsn), ping=1.0) as ear:
            eventually(lambda: ear.is_on)
        assert silent and ear.sessions == 1


def test_a_quiet_server_that_answers_keeps_its_session(dsn: str, other: psycopg.Connection) -> None:
    with listening(lambda: connect(dsn), ping=0.05) as ear:
        eventually(lambda: ear.is_on)
        for _ in range(5):
            [(pid, asked_at)] = sessions(other)
            eventually(lambda p=pid, a=asked_at: _asked_again(other, p, a))  # type: ignore[misc]
        other.execute("NOTIFY cmdbus_ready")
        eventually(lambda: {"cmdbus_ready"} in ear.text)
        assert ear.text == ["began", {"cmdbus_ready"}]


def _asked_again(other: psycopg.Connection, pid: int, asked_at: object) -> bool:
    [(same, again_at)] = sessions(other)
    assert same == pid
    return bool(again_at != asked_at)


def test_while_there_is_no_server_it_tries_until_there_is(dsn: str) -> None:
    nowhere = make_conninfo(dsn, host="/nowhere")
    tried = []

    def open() -> psycopg.Connection:
        tried.append(1)
        return connect(nowhere if len(tried) < 4 else dsn)

    with listening(open) as ear:
        eventually(lambda: ear.is_on)
        assert len(tried) == 4 and ear.sessions == 1
    assert ear.text == ["began", "ended"]


def test_a_session_lost_while_there_is_no_server_ends_once(
    dsn: str, other: psycopg.Connection
) -> None:
    lost = threading.Event()
    nowhere = make_conninfo(dsn, host="/nowhere")
    with listening(lambda: connect(nowhere if lost.is_set() else dsn)) as ear:
        eventually(lambda: ear.is_on)
        lost.set()
        other.execute("SELECT pg_terminate_backend(%s)", (sessions(other)[0][0],))
        eventually(lambda: ear.text == ["began", "ended"])
        lost.clear()
        eventually(lambda: ear.text == ["began", "ended", "began"])


def test_a_stop_interrupts_it_whatever_it_waits_for(dsn: str) -> None:
    with listening(lambda: connect(dsn), ping=600) as ear:
        eventually(lambda: ear.is_on)
        ear.stop()
        assert "cmdbus-listener" not in {thread.name for thread in threading.enumerate()}
        assert ear.text == ["began", "ended"]
    with listening(lambda: connect(make_conninfo(dsn, host="/nowhere"))) as ear:
        pass
    assert ear.text == []


def test_one_that_was_never_started_can_be_stopped(dsn: str) -> None:
    Listener(lambda: connect(dsn), ClaimStatements("cmdbus", 30)).stop()


def test_it_listens_in_a_process_with_a_thousand_files_open(
    dsn: str, other: psycopg.Connection
) -> None:
    """select() knows no descriptor above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2_048:
        pytest.skip("this process may not open that number of files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    try:
        with ExitStack() as opened:
            while (descriptor := os.dup(0)) < 1_100:
                opened.callback(os.close, descriptor)
            opened.callback(os.close, descriptor)
            with listening(lambda: connect(dsn)) as ear:
                eventually(lambda: ear.is_on)
                other.execute("NOTIFY cmdbus_ready")
                eventually(lambda: {"cmdbus_ready"} in ear.text)
    finally:
        with suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_no_pause_of_a_domain_is_lost_when_two_threads_count_one_each(
    dsn: str, frequent_switches: None
) -> None:
    """A worker that has seen the one would not release what it claimed before the other."""
    board = Board.in_memory(2, 2)
    pipe = WakePipe(8)
    node = Node(board=board, seat=board.seat(0), worker_pipe=pipe, steward_pipe=pipe)
    listening = Listening(
        node,
        ClaimStatements("cmdbus", 30),
        lambda: connect(dsn),
        board.seat(1).slot(0),
        enabled=True,
    )
    listening.sessions = 2

    def count() -> None:
        for _ in range(5_000):
            listening._count_pause(0.0)

    with closing(pipe):
        with beside(count):
            for _ in range(5_000):
                listening.began()
        listening.stop()
    assert board.domain_pauses == 10_000
