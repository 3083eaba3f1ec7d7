"""Why no connection could be made: whether to wait for it, and what to do about it. Pure.

While a connection is being made, libpq gives no SQLSTATE but only text, which may be in the
language of the server or of the machine. An unknown failure is waited for: to stop for one that
passes by itself would need an operator. So is a failure of several hosts unless each is fatal.
"""

import re
from dataclasses import dataclass

from cmdbus.readiness import Finding

TOO_MANY_CONNECTIONS = "53300"


@dataclass(frozen=True, slots=True)
class ConnectFailure:
    finding: Finding
    #: Recognises the failure in a text, in any case; empty: only a SQLSTATE does.
    pattern: str
    sqlstates: tuple[str, ...]
    sentence: str
    fix: str


_AWAY, _FATAL = Finding.AWAY, Finding.FATAL

_NOT_WRITABLE = r"session is (not )?read-only|server is (not )?in hot standby"

#: The first match applies.
_FAILURES = (
    ConnectFailure(
        _AWAY,
        r"too many (clients|connections)|connection slots are reserved|max_client_conn"
        r"|connection limit exceeded",
        (TOO_MANY_CONNECTIONS,),
        "there is no free connection: a limit of the server, the database or the role is reached",
        "end other sessions, raise the limit, or run with fewer --procs and --threads",
    ),
    ConnectFailure(
        _AWAY,
        "",
        ("55P03", "57014"),
        "a statement was not executed in time: another session holds a lock that it needs, or the "
        "server is overloaded",
        "find the session that blocks it (pg_blocking_pids, pg_stat_activity), and end it or wait",
    ),
    ConnectFailure(
        _AWAY,
        _NOT_WRITABLE,
        (),
        "no server there is what target_session_attrs asks for",
        "promote one, or correct the hosts in the DSN",
    ),
    ConnectFailure(
        _FATAL,
        r"authentication failed|no password (was )?(supplied|provided)",
        ("28P01",),
        "the password is wrong, expired or missing, or there is no such role",
        "correct the DSN or the password file (~/.pgpass), or connect as the operating system's "
        "user of that name",
    ),
    ConnectFailure(
        _FATAL,
        # OpenSSL's unexpected end is that of a server, or a proxy before it, that stops meanwhile.
        r"does not support ssl|certificate|ssl error(?!: unexpected eof)|tls|root\.crt|sslmode"
        r"|sslrootcert",
        (),
        "the encrypted connection that the DSN asks for cannot be had",
        "check the server's certificate, or correct sslmode and sslrootcert in the DSN",
    ),
    ConnectFailure(
        _FATAL,
        r"pg_hba\.conf",
        ("28000",),
        "the server's pg_hba.conf does not admit this role from this host",
        "add a line for it there and reload the server",
    ),
    ConnectFailure(
        _FATAL,
        r"role \"[^\"]*\" does not exist|is not permitted to log in|local user with ID",
        (),
        "there is no such role, or it may not log in",
        "create it (CREATE ROLE ... LOGIN), or correct the user in the DSN",
    ),
    ConnectFailure(
        _FATAL,
        r"database \"[^\"]*\" (does not exist|is not currently accepting)"
        r"|permission denied for database",
        ("3D000", "42501", "55000"),
        "there is no such database, or the role may not connect to it",
        "create it (createdb), GRANT CONNECT ON DATABASE ... TO the role, or correct the DSN",
    ),
    ConnectFailure(
        _FATAL,
        r"unrecognized configuration parameter|unsupported startup parameter"
        r"|invalid value for parameter|invalid connection option|invalid .* value",
        ("42704", "22023"),
        "an option of the connection is refused",
        "correct the DSN's options; PgBouncer needs ignore_startup_parameters = options",
    ),
)
_UNKNOWN = ConnectFailure(
    _AWAY,
    "",
    (),
    "the server does not answer, or is not ready",
    "start it, correct host and port in the DSN, or read the server's log",
)


def is_read_only(text: str) -> bool:
    """Whether a host answers that accepts no writes: it may be promoted."""
    return re.search(_NOT_WRITABLE, text, re.IGNORECASE) is not None


def classify(text: str, sqlstate: str | None = None) -> ConnectFailure:
    """The failure that a SQLSTATE or a text of libpq's describes; of several attempts one that may
    pass, if there is one."""
    for known in _FAILURES:
        if sqlstate in known.sqlstates:
            return known
    failures = [_attempt(part) for part in _ATTEMPTS.split(text) if part.strip()] or [_UNKNOWN]
    return next((each for each in failures if each.finding is _AWAY), failures[0])


#: Beginnings of the text of each attempt, by libpq and by psycopg.
_ATTEMPTS = re.compile(
    r"(?:connection failed: )?connection to server (?=at|on)|connection failed: "
    r"|Multiple connection attempts failed\. All failures were:\n"
    r"|^- host: .*?: (?=connection|failed)",
    re.MULTILINE,
)


#: Names, in which a pattern means nothing, as `tls` in a host's.
_QUOTED = re.compile(r"""["'»„][^\s"'«“]*["'«“]""")


def _attempt(text: str) -> ConnectFailure:
    text = _QUOTED.sub('""', text)
    for known in _FAILURES:
        if known.pattern and re.search(known.pattern, text, re.IGNORECASE):
            return known
    return _UNKNOWN
