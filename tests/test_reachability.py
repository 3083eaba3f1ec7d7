"""Whether the database answers, while probes come: also one that has gone silent."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from eventually import eventually, stays
from proxy import Proxy
from psycopg.conninfo import make_conninfo
from queries import rows

from cmdbus.worker.claims.sessions import abort_io_at
from cmdbus.worker.probes.database import Reachability

NAME = "the probe"
#: Seconds until it must be known; 2, and a busy machine.
WITHIN = 4.0


@contextmanager
def reachability(dsn: str) -> Iterator[Reachability]:
    named = make_conninfo(dsn, application_name=NAME)
    made = Reachability(lambda: psycopg.connect(named, autocommit=True), "cmdbus")
    made.start()
    try:
        yield made
    finally:
        made.stop(10)


def sessions(dsn: str, what: str = "count(*)") -> int:
    query = f"SELECT {what} FROM pg_stat_activity WHERE application_name = '{NAME}'"
    return int(rows(dsn, query)[0][0])


def test_a_server_that_is_gone_or_silent_is_away_within_2_s_until_it_answers(dsn: str) -> None:
    with Proxy(dsn) as proxy, reachability(proxy.dsn) as probe:
        assert not probe.is_away
        proxy.freeze()  # A fresh session would be answered.
        eventually(lambda: probe.is_away, WITHIN)
        eventually(lambda: not probe.is_away, WITHIN)
        proxy.freeze(new_ones=True)
        eventually(lambda: probe.is_away, WITHIN)
        proxy.cut()
        proxy.freeze(new_ones=False)
        eventually(lambda: not probe.is_away, 15)
    with Proxy(dsn) as proxy, reachability(proxy.dsn) as probe:
        assert not probe.is_away
        proxy.__exit__(None, None, None)
        eventually(lambda: probe.is_away, WITHIN)


def test_the_end_of_its_own_session_is_no_outage_and_without_probes_it_has_none(dsn: str) -> None:
    with reachability(dsn) as probe:
        assert sessions(dsn) == 0
        assert not probe.is_away
        eventually(lambda: sessions(dsn) == 1)
        for _ in range(5):
            sessions(dsn, "count(pg_terminate_backend(pid))")
            assert not probe.is_away
        eventually(lambda: sessions(dsn) == 1)
    eventually(lambda: sessions(dsn) == 0)


def test_a_probe_is_answered_that_comes_just_as_the_pings_end(dsn: str) -> None:
    """A minute after the one before it: then the thread found that it has none to answer."""
    with reachability(dsn) as probe:
        probe._probed_at = time.monotonic()
        eventually(lambda: not probe.is_away and sessions(dsn) == 1)


def test_without_a_thread_for_a_deadline_it_keeps_what_it_knew_and_lives_on(dsn: str) -> None:
    with reachability(dsn) as probe:
        assert not probe.is_away
        threading.stack_size(1 << 46)  # More than the system can give.
        try:
            with pytest.raises(BlockingIOError), abort_io_at(0.0, lambda: None):
                pass
            stays(lambda: probe.thread.is_alive() and not probe.is_away, 1.0)
        finally:
            threading.stack_size(0)
        sessions(dsn, "count(pg_terminate_backend(pid))")
        eventually(lambda: sessions(dsn) == 1)
