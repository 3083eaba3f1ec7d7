"""What is decided about starting, by values: refusals, the budget of connections, the ladder."""

from dataclasses import replace

import pytest

from cmdbus.database.connect_errors import classify
from cmdbus.handlers import Handler
from cmdbus.readiness import Check, Finding, worst
from cmdbus.timeouts import Timeouts
from cmdbus.worker.boot import budget, effective
from cmdbus.worker.boot.budget import Limit, Need
from cmdbus.worker.boot.effective import Session, Setting

OK, WARNING, AWAY, FATAL = Finding

AWAY_TEXTS = [
    'connection to server at "db" (10.0.0.1), port 5432 failed: Connection refused\n\tIs the '
    "server running on that host and accepting TCP/IP connections?",
    'connection to server on socket "/run/.s.PGSQL.5432" failed: No such file or directory\n'
    "\tIs the server running locally and accepting connections on that socket?",
    "FATAL:  the database system is starting up",
    "FATAL:  the database system is not yet accepting connections\nDETAIL:  Consistent recovery",
    "FATAL:  the database system is shutting down",
    "FATAL:  the database system is in recovery mode",
    "FATAL:  sorry, too many clients already",
    'FATAL:  too many connections for role "fleet"',
    'FATAL:  too many connections for database "shop"',
    "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
    "FATAL:  no more connections allowed (max_client_conn)",
    "failed to resolve host 'db': [Errno -2] Name or service not known",
    "failed to resolve host 'tls-db': [Errno -2] Name or service not known",
    'connection to server at "atlsql01" (10.0.0.1), port 5432 failed: Connection refused',
    "Verbindung zum Server auf »atlsql01«, Port 5432 fehlgeschlagen: Verbindungsaufbau abgelehnt",
    "failed to resolve host 'db': [Errno -3] Temporary failure in name resolution",
    "connection timeout expired",
    'connection to server at "db", port 5432 failed: SSL error: unexpected eof while reading',
    'connection to server at "10.0.0.1", port 5432 failed: No route to host',
    'connection to server at "10.0.0.1", port 5432 failed: session is read-only',
    "FATAL:  canceling statement due to lock timeout",
    "FATAL:  etwas, das niemand kennt",
]
FATAL_TEXTS = [
    ("connection is bad: local user with ID 4242 does not exist", "correct the user"),
    (
        'FATAL:  password authentication failed for user "ann"',
        "the password is wrong",
    ),
    ("fe_sendauth: no password supplied", "or missing"),
    ('FATAL:  Peer authentication failed for user "ann"', "operating system's user"),
    ('FATAL:  no pg_hba.conf entry for host "::1", user "ann", database "x"', "pg_hba.conf"),
    ('FATAL:  kein pg_hba.conf-Eintrag für Host "::1"', "pg_hba.conf"),
    ('FATAL:  role "ann" does not exist', "no such role"),
    ('FATAL:  role "ann" is not permitted to log in', "may not log in"),
    ('FATAL:  database "x" does not exist', "no such database"),
    ('FATAL:  permission denied for database "x"', "may not connect"),
    ('FATAL:  database "x" is not currently accepting connections', "may not connect"),
    ('FATAL:  role "atls" does not exist', "no such role"),
    ('FATAL:  database "certificates" does not exist', "no such database"),
    ("server does not support SSL, but SSL was required", "encrypted"),
    ("SSL error: certificate verify failed", "encrypted"),
    ('root certificate file "/x/root.crt" does not exist', "encrypted"),
    ('FATAL:  unrecognized configuration parameter "x"', "option of the connection"),
    ("FATAL:  unsupported startup parameter: options", "ignore_startup_parameters"),
]


@pytest.mark.parametrize("text", AWAY_TEXTS)
def test_what_may_pass_by_itself_is_waited_for(text: str) -> None:
    assert classify(f"connection failed: {text}").finding is AWAY


@pytest.mark.parametrize(("text", "fragment"), FATAL_TEXTS)
def test_what_a_restart_would_find_again_is_fatal(text: str, fragment: str) -> None:
    found = classify(f"connection failed: {text}")
    assert found.finding is FATAL
    assert fragment in found.sentence + found.fix


def test_with_several_hosts_the_one_that_may_come_back_is_waited_for() -> None:
    password = 'FATAL:  password authentication failed for user "ann"'
    for reasons, finding in (
        ((password, "Connection refused"), AWAY),
        (("timeout expired", password), AWAY),
        ((password, password), FATAL),
    ):
        hosts = [
            f'connection failed: connection to server at "{host}", port 5432 failed: {reason}'
            for host, reason in zip("ab", reasons, strict=True)
        ]
        of_psycopg = "".join(f"\n- host: '{each[36]}', port: '5432': {each}" for each in hosts)
        for text in (
            "\n".join(hosts),
            f"{hosts[-1]}\nMultiple connection attempts failed. All failures were:{of_psycopg}",
        ):
            assert classify(text).finding is finding, text


def test_a_sqlstate_decides_whatever_the_language_of_the_message() -> None:
    assert classify("FATAL:  ...", "28P01").finding is FATAL
    assert classify("FATAL:  ...", "57P03").finding is AWAY


def test_the_worst_finding_counts() -> None:
    checks = [Check("x", finding, "") for finding in (WARNING, AWAY, OK)]
    assert worst(checks) is AWAY
    assert worst([*checks, Check("x", FATAL, "")]) is FATAL
    assert worst([]) is OK


NEED = Need(procs=4, threads=8, housekeeping=2)


def limited(size: int, others: int = 0, name: str = "the limit is") -> Limit:
    return Limit(f"{name} {size}", size, others, "raise it")


@pytest.mark.parametrize(
    ("size", "others", "finding", "fitting"),
    [
        (100, 0, OK, ""),
        (44, 0, OK, ""),
        (100, 56, OK, ""),
        (100, 57, WARNING, "--procs 3"),
        (43, 0, WARNING, "--procs 3"),
        (36, 0, WARNING, "--procs 3"),
        (36, 1, WARNING, "--procs 2"),
        (35, 0, FATAL, "--procs 2"),
        (20, 0, FATAL, "--procs 1"),
        (19, 0, FATAL, "--procs 1 --threads 7"),
        (6, 0, FATAL, "--procs 1 --threads 1"),
        (5, 0, FATAL, ""),
        (0, 0, FATAL, ""),
    ],
)
def test_the_budget_counts_threads_steward_housekeeping_and_a_replacement(
    size: int, others: int, finding: Finding, fitting: str
) -> None:
    """The processes' pools have a connection for each thread, or they do not
    start. What does not fit only because of others is a warning, since they may leave."""
    found = budget.check_budget(NEED, [limited(size, others)], other_nodes=0)
    assert found.finding is finding
    arithmetic = "4 x 8 threads + 2 for the steward + 2 for housekeeping + 8 for a replacement = 44"
    assert found.sentence.startswith(arithmetic)
    assert (f"run with {fitting}, which fits, or " in found.fix) == bool(fitting)


def test_the_advised_size_fits() -> None:
    for size in range(6, 60):
        procs, threads = 4, 8
        match NEED.fitting(size).split():
            case ["--procs", p]:
                procs = int(p)
            case ["--procs", p, "--threads", t]:
                procs, threads = int(p), int(t)
        fits = Need(procs=procs, threads=threads, housekeeping=2).peak <= size
        assert fits or (procs, threads) == (4, 8)


def test_the_tightest_limit_and_other_supervisors_are_named() -> None:
    limits = [limited(100, 3, "max_connections is"), limited(50, 1, "the role's limit is")]
    found = budget.check_budget(NEED, limits, other_nodes=1)
    assert "the role's limit is 50, of which others use 1, 1 of them of other" in found.sentence
    limits[0] = limited(10, 0, "max_connections is")
    assert "max_connections is 10" in budget.check_budget(NEED, limits, 0).sentence


GOOD = {
    "statement_timeout": Setting("25000", "client"),
    "idle_in_transaction_session_timeout": Setting("35000", "client"),
    "lock_timeout": Setting("1000", "client"),
    "transaction_timeout": Setting("0", "default"),
    "idle_session_timeout": Setting("0", "default"),
    "default_transaction_isolation": Setting("read committed", "client"),
    "default_transaction_read_only": Setting("off", "default"),
}


def judged(name: str, value: str, source: str, longest: float = 35.0) -> list[Check]:
    session = Session(
        settings={**GOOD, name: Setting(value, source)},
        role="fleet",
        database="shop",
        requested={"statement_timeout": "25s", "lock_timeout": "1s"},
    )
    return effective.check_timeouts(session, Timeouts(), longest)


@pytest.mark.parametrize(
    ("name", "value", "source", "finding", "fragment"),
    [
        ("statement_timeout", "25000", "client", OK, "statement 25 s < lease 30 s"),
        ("statement_timeout", "5000", "client", OK, "statement 5 s < lease 30 s"),
        ("statement_timeout", "28000", "client", WARNING, "is 28 s (from the DSN's options"),
        ("statement_timeout", "30000", "client", FATAL, "(--visibility-timeout 30); take statem"),
        ("statement_timeout", "0", "default", FATAL, "is off (the server's default)"),
        ("statement_timeout", "60000", "user", FATAL, "is 60 s (set for the role)"),
        ("statement_timeout", "60000", "database", FATAL, "a pooler between here and the server"),
        ("lock_timeout", "0", "default", FATAL, "ALTER ROLE \"fleet\" SET lock_timeout = '1s'"),
        ("lock_timeout", "15000", "client", FATAL, "must be less than half of the lease"),
        ("idle_in_transaction_session_timeout", "0", "default", FATAL, "is off"),
        ("idle_in_transaction_session_timeout", "60001", "user", FATAL, "than the watchdog"),
        ("idle_in_transaction_session_timeout", "60000", "user", OK, ""),
        ("transaction_timeout", "20000", "user", FATAL, 'ALTER ROLE "fleet" RESET transaction_'),
        ("transaction_timeout", "20000", "database", FATAL, 'ALTER DATABASE "shop" RESET trans'),
        ("transaction_timeout", "20000", "database user", FATAL, 'IN DATABASE "shop" RESET tr'),
        ("transaction_timeout", "20000", "configuration file", FATAL, "transaction_timeout = 0"),
        ("transaction_timeout", "35000", "user", OK, ""),
        ("idle_session_timeout", "9000", "global", WARNING, "ALTER ROLE ALL RESET idle_session"),
        ("default_transaction_isolation", "serializable", "client", FATAL, "be read committed"),
        ("default_transaction_read_only", "on", "database", FATAL, "RESET default_transaction_"),
    ],
)
def test_the_ladder_is_compared_with_what_the_server_applies(
    name: str, value: str, source: str, finding: Finding, fragment: str
) -> None:
    """Also against the server's effective value (role, database, pooler)."""
    (found,) = judged(name, value, source)
    assert found.finding is finding
    assert fragment in str(found)
    assert finding is OK or name in found.sentence


def test_the_slowest_handler_counts_for_a_transaction() -> None:
    assert judged("transaction_timeout", "40000", "user")[0].finding is OK
    assert judged("transaction_timeout", "40000", "user", longest=60.0)[0].finding is FATAL


def test_a_server_that_lacks_a_setting_does_not_apply_it() -> None:
    """transaction_timeout came with PostgreSQL 17."""
    settings = {name: value for name, value in GOOD.items() if name != "transaction_timeout"}
    session = Session(settings=settings, role="r", database="d", requested={})
    assert [check.finding for check in effective.check_timeouts(session, Timeouts(), 35.0)] == [OK]


def checked(**own: float | None) -> list[Check]:
    handler = Handler(domain="reports", type="Build", function=lambda command, context: None, **own)  # type: ignore[arg-type]
    return list(effective.check_handlers([handler], Timeouts()))


def test_limits_of_a_handlers_own_are_named() -> None:
    assert checked() == []
    (shorter,) = checked(timeout=5)
    assert shorter.finding is OK and "thread 5 s" in shorter.sentence
    (longer,) = checked(timeout=300)
    assert longer.finding is OK
    assert "reports/Build: statement 290 s, thread 300 s" in longer.sentence
    (above,) = checked(timeout=300, statement_timeout=300)
    assert above.finding is WARNING and "given up before the server ends" in above.sentence


def test_many_handlers_with_limits_are_counted() -> None:
    handlers = [
        Handler(domain="d", type=f"T{n}", function=lambda command, context: None, timeout=100 + n)
        for n in range(5)
    ]
    handlers[0] = replace(handlers[0], timeout=Timeouts().thread / 2)
    (found,) = effective.check_handlers(handlers, Timeouts())
    assert (
        "d/T0" in found.sentence
        and "d/T2" in found.sentence
        and found.sentence.endswith("and 2 more")
    )
