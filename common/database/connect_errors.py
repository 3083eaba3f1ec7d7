"""Why no connection could be made: whether to wait for it, and what to do about it. Pure.

While a connection is being made, libpq has no SQLSTATE to give but only text, which may be
in the language of the server or of the machine. An unknown error is waited for: to stop
for something that passes by itself would need a person.
"""

import re
from dataclasses import dataclass

from cmdbus.readiness import Finding


@dataclass(frozen=True, slots=True)
class ConnectFailure:
    """A kind of refusal, and how to know it."""

    finding: Finding
    #: In the text, whatever its case.
    pattern: str
    sqlstates: tuple[str, ...]
    sentence: str
    fix: str


_AWAY, _FATAL = Finding.AWAY, Finding.FATAL

_NOT_WRITABLE = r"session is (not )?read-only|server is (not )?in hot standby"

#: The first that fits. With several hosts there are several reasons, and what may pass
#: comes first.
_FAILURES = (
    ConnectFailure(
        _AWAY,
        r"starting up|shutting down|in recovery mode|not (yet )?accepting connections$|crash of",
        ("57P01", "57P02", "57P03"),
        "the server is starting, stopping or recovering",
        "wait, or look into its log",
    ),
    ConnectFailure(
        _AWAY,
        r"too many (clients|connections)|connection slots are reserved|max_client_conn"
        r"|connection limit exceeded",
        ("53300",),
        "there is no free connection: a limit of the server, the database or the role is reached",
        "end other sessions, raise the limit, or run with fewer --procs and --threads",
    ),
    ConnectFailure(
        _AWAY,
        r"connection refused|no such file or directory\s+is the server running",
        (),
        "nothing listens there: the server is down, or the host or port is another",
        "start the server, or correct the DSN",
    ),
    ConnectFailure(
        _AWAY,
        r"failed to resolve|could not translate host|name or service not known"
        r"|name resolution|nodename nor servname",
        (),
        "the host's name cannot be resolved",
        "correct the host in the DSN, or see to the name service",
    ),
    ConnectFailure(
        _AWAY,
        r"timeout expired|timed out|connection timeout|no route to host|network is unreachable"
        r"|host is down",
        ("08001",),
        "the host does not answer",
        "see to the network and its firewalls, or correct the host in the DSN",
    ),
    ConnectFailure(
        _AWAY,
        r"lock timeout|statement timeout",
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
        r"local user with ID \d+ does not exist",
        (),
        "the DSN names no user, and the operating system has no name for this process's user",
        "put the user into the DSN (user=...)",
    ),
    ConnectFailure(
        _FATAL,
        r"password authentication failed|sasl authentication failed",
        ("28P01",),
        "the password is wrong, or has expired, or there is no such role",
        "correct the DSN or the password file",
    ),
    ConnectFailure(
        _FATAL,
        r"no password supplied|no password was provided",
        (),
        "the server wants a password, and none was given",
        "put it into --dsn-file, CMDBUS_DSN or a password file (~/.pgpass)",
    ),
    ConnectFailure(
        _FATAL,
        r"peer authentication failed|ident authentication failed",
        (),
        "the server lets in only the operating system's user of that name",
        "run as that user, or connect with a password over TCP",
    ),
    ConnectFailure(
        _FATAL,
        r"does not support ssl|certificate|ssl error|tls|root\.crt|sslmode|sslrootcert",
        (),
        "the encrypted connection that the DSN asks for cannot be had",
        "see to the server's certificate, or correct sslmode and sslrootcert in the DSN",
    ),
    ConnectFailure(
        _FATAL,
        r"pg_hba\.conf",
        ("28000",),
        "the server's pg_hba.conf lets no client in from here as this role",
        "add a line for it there and reload the server",
    ),
    ConnectFailure(
        _FATAL,
        r"role \"[^\"]*\" does not exist|is not permitted to log in",
        (),
        "there is no such role, or it may not log in",
        "create it (CREATE ROLE ... LOGIN), or correct the user in the DSN",
    ),
    ConnectFailure(
        _FATAL,
        r"database \"[^\"]*\" does not exist",
        ("3D000",),
        "there is no such database",
        "create it (createdb), or correct the dbname in the DSN",
    ),
    ConnectFailure(
        _FATAL,
        r"permission denied for database|is not currently accepting connections",
        ("42501", "55000"),
        "the role may not connect to this database",
        "GRANT CONNECT ON DATABASE ... TO the role, or correct the DSN",
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
_UNKNOWN = ConnectFailure(_AWAY, "", (), "there is no connection", "see what the server's log says")


def is_read_only(text: str) -> bool:
    """Whether a host answers that accepts no writes: it may be promoted, whatever is wrong
    with the other hosts."""
    return re.search(_NOT_WRITABLE, text, re.IGNORECASE) is not None


def classify(text: str, sqlstate: str | None = None) -> ConnectFailure:
    """Which one a text of libpq's, or a SQLSTATE, speaks of."""
    for known in _FAILURES:
        if sqlstate in known.sqlstates:
            return known
        if re.search(known.pattern, text, re.IGNORECASE | re.MULTILINE):
            return known
    return _UNKNOWN
