"""What a supervisor looks at before it starts, against servers that really refuse."""

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from guarded import SECRET, Guarded
from handlers import connect
from preflights import AWAY, FATAL, OK, WARNING, checks, troubles
from proxy import Proxy
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.sql import SQL, Identifier
from queries import rows

from cmdbus.database.session_names import session_name
from cmdbus.readiness import Finding, worst
from cmdbus.settings import Settings, ThreadRange
from cmdbus.supervisor.host import Pidfile, check_host
from cmdbus.timeouts import Timeouts


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A DSN of a server that gives every client the same answer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    with client:
                        client.recv(4096)
                        client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        port = listener.getsockname()[1]
        try:
            yield f"host=127.0.0.1 port={port} user=ann password={SECRET} dbname=shop sslmode="
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_a_database_that_is_ready_passes_every_check(dsn: str) -> None:
    found = checks(dsn)
    assert list(found) == [
        *("app", "connection", "server", "encoding", "pooling", "schema", "claim"),
        *("timeouts", "handlers", "connections", "listen"),
    ]
    assert worst(found.values()) is OK
    assert "1 x 2 threads + 2 for the steward + 2 for housekeeping + 2 for a replacement = 8" in (
        found["connections"].sentence
    )
    assert "listen" not in checks(dsn, listen=False)


def test_the_ladder_wins_over_what_the_dsn_says(dsn: str) -> None:
    """The options of a DSN come first."""
    found = checks(f"{dsn} options='-c statement_timeout=40s'")["timeouts"]
    assert found.finding is OK and "statement 25 s" in found.sentence
    tight = Timeouts(statement=1, pool=2, lease=2, thread=3, watchdog=4)
    assert troubles(dsn, timeouts=tight) == []


def drop_options(data: bytes) -> bytes:
    """What a pooler with ignore_startup_parameters does."""
    return re.sub(
        rb"\0options\0[^\0]*",
        lambda match: b"\0application_name\0" + b"x" * (len(match[0]) - 18),
        data,
    )


def replacing(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


@pytest.mark.parametrize(
    ("kind", "source"), [("ROLE", "set for the role"), ("DATABASE", "set for the database")]
)
def test_behind_a_pooler_the_settings_of_role_and_database_are_found(
    guarded: Guarded, kind: str, source: str
) -> None:
    """The server's effective value, with pooler, role and database."""
    with guarded.role("worker") as dsn:
        for name, value in (
            ("statement_timeout", "60s"),
            ("lock_timeout", "1s"),
            ("idle_in_transaction_session_timeout", "35s"),
        ):
            guarded.alter(kind, dsn, f"SET {name} = '{value}'")
        assert troubles(dsn) == []
        with Proxy(dsn, drop_options) as pooler:
            found = checks(pooler.dsn)["timeouts"]
            assert found.finding is FATAL
            assert f"statement_timeout is 60 s ({source})" in found.sentence
            assert "SET statement_timeout = '25s'" in found.fix
            guarded.alter(kind, dsn, "SET statement_timeout = '25s'")
            assert troubles(pooler.dsn) == []


def test_a_read_only_role_is_refused_with_the_source_of_the_setting(guarded: Guarded) -> None:
    with guarded.role("worker") as dsn:
        guarded.alter("ROLE", dsn, "SET default_transaction_read_only = on")
        found = checks(dsn)["timeouts"]
    assert found.finding is FATAL
    assert "default_transaction_read_only is on (set for the role)" in found.sentence
    assert found.fix.endswith("RESET default_transaction_read_only")


def test_a_pooler_that_cannot_listen_is_recognised(dsn: str) -> None:
    for instead, text in ((b"--     ", "no notification arrived"), (b"LISTEM ", "is refused")):
        with Proxy(dsn, replacing(b"LISTEN ", instead)) as pooler:
            found = checks(pooler.dsn)["listen"]
            assert (found.finding, text in found.sentence) == (FATAL, True)
            assert "run with --wake poll" in found.fix
            assert troubles(pooler.dsn, listen=False) == []


def test_a_server_that_is_slow_to_notify_is_no_pooler(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmdbus.worker.boot.preflight._NOTIFY_SECONDS", 0.2)
    listening = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE datname = current_database() AND query LIKE 'LISTEN%check%'"
    )
    resumed = list[threading.Timer]()

    def stopping(data: bytes) -> bytes:
        if b"pg_notify" in data:
            [(pid,)] = rows(dsn, listening)
            os.kill(pid, signal.SIGSTOP)
            resumed.append(threading.Timer(0.5, os.kill, (pid, signal.SIGCONT)))
            resumed[0].start()
        return data

    with Proxy(dsn, stopping) as proxy:
        assert checks(proxy.dsn)["listen"].finding is OK
    resumed[0].join()


def test_the_connections_of_a_range_are_those_of_the_most_threads(dsn: str) -> None:
    found = checks(dsn, procs=2, threads=ThreadRange(1, 4))["connections"]
    assert "2 x 4 threads + 2 for the steward" in found.sentence


def test_a_limit_on_connections_is_refused_with_its_arithmetic(guarded: Guarded) -> None:
    with guarded.role("worker") as dsn:
        assert "max_connections 20 - 3 reserved = 17" in checks(dsn)["connections"].sentence
        found = checks(dsn, procs=4, threads=8)["connections"]
        assert (found.finding, "max_connections 20 - 3" in found.sentence) == (FATAL, True)
        assert "run with --procs 1 --threads 6, which fits" in found.fix
        guarded.await_no_session(dsn)
        assert checks(dsn, procs=1, threads=6)["connections"].finding is OK
        guarded.await_no_session(dsn)
        guarded.alter("DATABASE", dsn, "CONNECTION LIMIT 6")
        found = checks(dsn, procs=2, threads=2)["connections"]
        assert "the database's CONNECTION LIMIT is 6" in found.sentence
        guarded.await_no_session(dsn)
        guarded.alter("ROLE", dsn, "CONNECTION LIMIT 5")
        found = checks(dsn, procs=3, threads=1)["connections"]
        assert (found.finding, "the role's CONNECTION LIMIT is 5" in found.sentence) == (
            FATAL,
            True,
        )


def test_the_sessions_of_others_are_a_warning_and_a_full_house_is_waited_for(
    guarded: Guarded,
) -> None:
    """Others may leave, so nothing is given up for them."""
    with guarded.role("worker", options="CONNECTION LIMIT 9") as dsn:
        node = make_conninfo(dsn, application_name=session_name("other", 7))
        with psycopg.connect(node), psycopg.connect(node):
            found = checks(dsn)["connections"]
            assert found.finding is WARNING
            assert "of which others use 2, 2 of them of other supervisors" in found.sentence
        guarded.await_no_session(dsn)
        guarded.alter("ROLE", dsn, "CONNECTION LIMIT 1")
        with psycopg.connect(dsn):
            full = checks(dsn)
            assert full["connection"].finding is AWAY
            assert "no free connection" in full["connection"].sentence


def test_a_role_without_a_workers_rights_is_refused_with_the_command_that_grants_them(
    guarded: Guarded,
) -> None:
    for grants, text in (((), "lacks USAGE on"), (("producer",), "lacks [A-Z]+ on [a-z_]+, ")):
        with guarded.role(*grants) as dsn:
            name = conninfo_to_dict(dsn)["user"]
            found = checks(dsn)["rights"]
            assert found.finding is FATAL
            assert re.search(text, found.sentence)
            assert f"cmdbus init --worker {name}" in found.fix


def test_each_refusal_of_a_connection_is_one_sentence_without_the_password(
    guarded: Guarded,
) -> None:
    """Secrets never appear."""
    with guarded.role("worker") as dsn:
        for changed, finding, text in (
            ({"password": "wrong-and-secret"}, FATAL, "the password is wrong"),
            ({"password": ""}, FATAL, "or missing"),
            ({"user": "nobody_we_know"}, FATAL, "there is no such role"),
            ({"dbname": "no_such_database"}, FATAL, "there is no such database"),
            ({"port": "5433"}, AWAY, "does not answer, or is not ready"),
            ({"host": "127.0.0.1", "port": "1"}, AWAY, "does not answer, or is not ready"),
            ({"host": "no-such-host.invalid"}, AWAY, "resolve host"),
        ):
            found = checks(make_conninfo(dsn, **changed))
            assert list(found) == ["app", "connection"]
            assert found["connection"].finding is finding, found
            assert text in str(found["connection"])
            assert "wrong-and-secret" not in str(found["connection"])
            assert "\n" not in str(found["connection"])
        name = str(conninfo_to_dict(dsn)["user"])
        guarded.execute(SQL("REVOKE CONNECT ON DATABASE {} FROM PUBLIC").format(Identifier(name)))
        assert "may not connect" in checks(dsn)["connection"].sentence
        guarded.alter("ROLE", dsn, "NOLOGIN")
        assert "may not log in" in checks(dsn)["connection"].sentence


def test_a_lock_that_outlasts_a_check_is_waited_for_and_named(dsn: str) -> None:
    with psycopg.connect(dsn) as stranger:
        stranger.execute("LOCK TABLE cmdbus.migration")
        found = checks(dsn)["connection"]
    assert found.finding is AWAY
    assert "cannot check database" in found.sentence and "another session holds" in found.sentence
    assert "pg_blocking_pids" in found.fix


def test_a_full_disk_is_waited_for(dsn: str) -> None:
    with connect(dsn) as admin:
        admin.execute(
            "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE disk_full USING MESSAGE = 'no space left'; END $$;"
            " CREATE TRIGGER fill BEFORE INSERT ON cmdbus.ready FOR EACH ROW"
            " EXECUTE FUNCTION fill()"
        )
    found = checks(dsn)["claim"]
    assert found.finding is AWAY
    assert found.sentence.endswith("settled here at the moment: no space left"), found.sentence
    assert "disk" in found.fix


def test_a_server_without_tls_or_one_that_starts_is_recognised() -> None:
    with answering(b"N") as dsn:
        found = checks(dsn + "require")["connection"]
        assert (found.finding, "encrypted connection" in found.sentence) == (FATAL, True)
    with answering(b"S") as dsn:  # It begins with TLS, and stops.
        assert checks(dsn + "require")["connection"].finding is AWAY
    fields = b"SFATAL\0C57P03\0Mthe database system is starting up\0\0"
    starting = b"E" + (len(fields) + 4).to_bytes(4, "big") + fields
    with answering(starting) as dsn:
        found = checks(dsn + "disable")["connection"]
        assert (found.finding, "is not ready" in found.sentence) == (AWAY, True)


def test_a_dsn_that_means_nothing_is_refused_without_showing_it() -> None:
    for dsn in (f"mysql://ann:{SECRET}@db/x", f"host=db {SECRET}"):
        found = checks(dsn)["connection"]
        assert (found.finding, "DSN" in found.sentence) == (FATAL, True)


def test_a_name_and_a_port_that_are_taken_are_found(tmp_path: Path) -> None:
    def found(directory: Path) -> list[tuple[str, Finding, bool]]:
        settings = Settings(http=("127.0.0.1", port), runtime_dir=directory)
        return [(c.name, c.finding, c.sentence in text) for c in check_host(settings)]

    text: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        text.append(
            f"cannot listen on 127.0.0.1:{port} (--http): the port is taken by another process"
        )
        assert found(tmp_path / "none") == [("name", OK, False), ("http", FATAL, True)]
        tmp_path.chmod(0o700)
        with closing(Pidfile(tmp_path / "cmdbus.pid", "cmdbus")):
            text.append(
                f"a supervisor named 'cmdbus' runs already (pid {os.getpid()}): stop it, or "
                f"choose another --name or --runtime-dir"
            )
            assert found(tmp_path) == [("name", WARNING, True), ("http", WARNING, True)]
    assert found(tmp_path) == [("name", OK, False), ("http", OK, False)]
    tmp_path.chmod(0o755)
    assert found(tmp_path)[0][1] is FATAL
    assert not list(tmp_path.iterdir())


def test_a_connection_that_is_lost_during_the_trial_claim_is_no_verdict_on_the_schema(
    dsn: str,
) -> None:
    def cut_at_the_send(data: bytes) -> bytes:
        if b"enqueue" in data:
            proxy.cut()
        return data

    with Proxy(dsn, cut_at_the_send) as proxy:
        found = checks(proxy.dsn)
    assert "claim" not in found
    assert found["connection"].finding is AWAY
