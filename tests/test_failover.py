"""Servers that accept no writes: standbys, before and after they are promoted."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from eventually import eventually
from guarded import Guarded
from handlers import handling, running
from preflights import checks, troubles
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier

from cmdbus import CommandBus, Status
from cmdbus.database.schema import install
from cmdbus.readiness import Finding


@contextmanager
def standby(guarded: Guarded) -> Iterator[Callable[[], None]]:
    """Its server is one until the yielded function promotes it, or until the end."""
    signal = guarded.embedded.directory / "data" / "standby.signal"
    guarded.embedded.stop()
    signal.touch()
    shutil.chown(signal, (signal.parent / "PG_VERSION").stat().st_uid)
    try:
        guarded.start()
        yield lambda: guarded.execute(SQL("SELECT pg_promote()"))
    finally:
        if signal.exists():
            guarded.embedded.stop()
            signal.unlink()
            guarded.start()


def plain(dsn: str, **more: str) -> str:
    """A DSN as users write them: the embedded server's asks for no server that may write."""
    parts = conninfo_to_dict(dsn)
    named: dict[str, str] = {
        key: str(parts[key]) for key in ("host", "port", "user", "dbname") if key in parts
    }
    named |= more
    return make_conninfo("", **named)


@contextmanager
def database(guarded: Guarded, name: str) -> Iterator[str]:
    guarded.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    own_dsn = plain(guarded.embedded.dsn, dbname=name)
    install(own_dsn)
    try:
        yield own_dsn
    finally:
        guarded.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(name)))


def waits_for(change: Callable[[], object], bus: CommandBus) -> None:
    """A send that is refused meanwhile is done after the change."""
    sent: list[object] = []
    thread = threading.Thread(target=lambda: sent.append(bus.send("payments", "Debit")))
    thread.start()
    eventually(lambda: getattr(bus._connections._pool(), "_failure", None), 20)
    assert not sent
    change()
    thread.join(20)
    assert len(sent) == 1


def test_a_standby_is_passed_by_and_waited_for(dsn: str, guarded: Guarded) -> None:
    """After a switchover the first host of the DSN is the standby."""
    parts = conninfo_to_dict(dsn)
    with database(guarded, str(parts["dbname"])) as alone, standby(guarded) as promote:
        hosts = f"{conninfo_to_dict(alone)['host']},{parts['host']}"
        both = plain(dsn, host=hosts)
        with CommandBus(both) as bus, running(both, handling(), concurrency=1):
            id_ = bus.send("payments", "Debit")
            assert bus.wait("payments", id_, 20).status is Status.COMPLETED
        assert checks(both)["connection"].finding is Finding.OK
        found = checks(alone)["connection"]
        assert (found.finding, "asks for" in found.sentence) == (Finding.AWAY, True)
        wanted = make_conninfo(alone, target_session_attrs="any")
        assert checks(wanted)["primary"].finding is Finding.FATAL
        with CommandBus(wanted) as reader:
            assert reader.query() == []
            with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
                reader.send("payments", "Debit")
        with CommandBus(alone) as bus:
            waits_for(promote, bus)


@contextmanager
def read_only(guarded: Guarded) -> Iterator[Callable[[], None]]:
    """Its server is, by its configuration, until the yielded function is called or the end."""
    reload = SQL("SELECT pg_reload_conf()")

    def make_writable() -> None:
        # This setting of its own session is what its server refuses meanwhile.
        with psycopg.connect(
            guarded.embedded.dsn, autocommit=True, options="-c default_transaction_read_only=off"
        ) as admin:
            admin.execute(SQL("ALTER SYSTEM RESET default_transaction_read_only"))
            admin.execute(reload)

    try:
        guarded.execute(SQL("ALTER SYSTEM SET default_transaction_read_only = on"))
        guarded.execute(reload)
        yield make_writable
    finally:
        make_writable()


def await_read_only(connection: psycopg.Connection[Any]) -> None:
    show = SQL("SHOW default_transaction_read_only")
    eventually(lambda: connection.execute(show).fetchone() == ("on",), 20)


def test_a_session_that_turns_read_only_is_left(guarded: Guarded) -> None:
    with database(guarded, "turns_read_only") as own_dsn, CommandBus(own_dsn) as bus:
        bus.send("payments", "Debit")
        with read_only(guarded) as make_writable:
            with bus._connections._pool().connection() as connection:
                await_read_only(connection)
            waits_for(make_writable, bus)
        assert bus.snapshot("payments")["depth"] == 2


def test_a_fleet_waits_for_a_server_that_was_made_read_only(guarded: Guarded) -> None:
    """As providers do while its disk is full."""
    with guarded.role("worker") as dsn:
        with psycopg.connect(dsn, autocommit=True) as session, read_only(guarded) as make_writable:
            await_read_only(session)
            found = checks(dsn)["primary"]
            assert (found.finding, "no writes" in found.sentence) == (Finding.AWAY, True)
            make_writable()
        eventually(lambda: not troubles(dsn), 20)
