"""The ladder against the settings that the server applies to a worker's session. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cmdbus.readiness import Check, Finding
from cmdbus.registry import Handler
from cmdbus.timeouts import Timeouts

_NAME = "timeouts"
#: Handlers named in a sentence; the others are counted.
_NAMED = 3
#: The settings to read. A server may lack some, as transaction_timeout before 17.
NAMES = (
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "lock_timeout",
    "transaction_timeout",
    "idle_session_timeout",
    "default_transaction_isolation",
    "default_transaction_read_only",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of pg_settings; timeouts are in milliseconds."""

    value: str
    source: str

    @property
    def seconds(self) -> float:
        return int(self.value) / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session opened like a worker's."""

    settings: Mapping[str, Setting]
    role: str
    database: str
    #: The settings requested when it was opened, as text with a unit.
    requested: Mapping[str, str]


def check_timeouts(session: Session, timeouts: Timeouts, max_thread: float) -> list[Check]:
    """`max_thread`: seconds that the slowest handler may take."""
    found = [
        *_ladder(session, timeouts),
        *_bounds(session, "lock_timeout", timeouts.max_lock_wait, f"half of {_lease(timeouts)}"),
        *_idle(session, timeouts),
        *_transaction(session, max_thread),
        *_modes(session),
    ]
    statement = session.settings["statement_timeout"]
    return found or [
        Check(
            _NAME,
            Finding.OK,
            f"statement {statement.seconds:g} s < lease {timeouts.lease:g} s < thread "
            f"{timeouts.thread:g} s < watchdog {timeouts.watchdog:g} s, as the server applies them",
        )
    ]


def check_handlers(handlers: Iterable[Handler], timeouts: Timeouts) -> Iterator[Check]:
    """The limits of handlers that have their own. extend() moves both with the deadline, except a
    `statement_timeout` of the handler's own."""
    own: list[str] = []
    for handler in handlers:
        thread = handler.timeout or timeouts.thread
        statement = handler.statement_timeout or timeouts.statement_for(thread)
        limits = f"{handler.domain}/{handler.type}: statement {statement:g} s, thread {thread:g} s"
        if handler.statement_timeout and statement >= thread:
            yield Check(
                "handlers",
                Finding.WARNING,
                f"{limits}: its thread is given up before the server ends a slow statement",
                "make statement_timeout= less than timeout=",
            )
        elif (statement, thread) != (timeouts.statement, timeouts.thread):
            own.append(limits)
    if own:
        more = f"; and {len(own) - _NAMED} more" if len(own) > _NAMED else ""
        sentence = f"with limits of their own: {'; '.join(own[:_NAMED])}{more}"
        yield Check("handlers", Finding.OK, sentence)


def _ladder(session: Session, timeouts: Timeouts) -> Iterator[Check]:
    refused = list(_bounds(session, "statement_timeout", timeouts.lease, _lease(timeouts)))
    yield from refused
    found = session.settings["statement_timeout"]
    if not refused and found.seconds > timeouts.statement:
        yield Check(
            _NAME,
            Finding.WARNING,
            f"statement_timeout is {found.seconds:g} s ({_from(found)}) and not "
            f"--statement-timeout {timeouts.statement:g}, though still below the lease",
            _fix(session, "statement_timeout"),
        )


def _lease(timeouts: Timeouts) -> str:
    return f"the lease (--visibility-timeout {timeouts.lease:g})"


def _bounds(session: Session, name: str, below: float, rung: str) -> Iterator[Check]:
    found = session.settings[name]
    if 0 < found.seconds < below:
        return
    value = f"{found.seconds:g} s" if found.seconds else "off"
    yield Check(
        _NAME,
        Finding.FATAL,
        f"{name} is {value} ({_from(found)}), and must be less than {rung}",
        _fix(session, name),
    )


def _idle(session: Session, timeouts: Timeouts) -> Iterator[Check]:
    name = "idle_in_transaction_session_timeout"
    found = session.settings[name]
    if not found.seconds or found.seconds > timeouts.watchdog:
        value = f"{found.seconds:g} s" if found.seconds else "off"
        yield Check(
            _NAME,
            Finding.FATAL,
            f"{name} is {value} ({_from(found)}), and must not be more than the watchdog "
            f"(--watchdog-timeout {timeouts.watchdog:g})",
            _fix(session, name),
        )
    name = "idle_session_timeout"
    idle = session.settings.get(name)
    if idle and idle.seconds:
        yield Check(
            _NAME,
            Finding.WARNING,
            f"{name} is {idle.seconds:g} s ({_from(idle)}): the sessions of idle workers are "
            f"ended and reopened all the time",
            _fix(session, name),
        )


def _transaction(session: Session, max_thread: float) -> Iterator[Check]:
    name = "transaction_timeout"
    found = session.settings.get(name)
    if found and 0 < found.seconds < max_thread:
        yield Check(
            _NAME,
            Finding.FATAL,
            f"{name} is {found.seconds:g} s ({_from(found)}) and ends the transactions of "
            f"handlers, which may take {max_thread:g} s (--thread-timeout, or a handler's own)",
            _fix(session, name),
        )


def _modes(session: Session) -> Iterator[Check]:
    for name, wanted in (
        ("default_transaction_isolation", "read committed"),
        ("default_transaction_read_only", "off"),
    ):
        found = session.settings[name]
        if found.value != wanted:
            yield Check(
                _NAME,
                Finding.FATAL,
                f"{name} is {found.value} ({_from(found)}), and must be {wanted}",
                _fix(session, name, wanted),
            )


_SOURCES = {
    "client": "from the DSN's options or PGOPTIONS",
    "user": "set for the role",
    "database": "set for the database",
    "database user": "set for the role in this database",
    "global": "set for all roles",
    "configuration file": "from the server's configuration",
    "command line": "from the server's command line",
    "environment variable": "from the server's environment",
    "default": "the server's default",
    "session": "set in the session",
}


def _from(found: Setting) -> str:
    return _SOURCES.get(found.source, found.source)


def _fix(session: Session, name: str, wanted: str = "0") -> str:
    """Resets the setting where it is set. A requested value that is not in effect was dropped by a
    pooler."""
    role, database = _quoted(session.role), _quoted(session.database)
    source = session.settings[name].source
    reset = {
        "client": f"take {name} out of the DSN's options and PGOPTIONS",
        "user": f"ALTER ROLE {role} RESET {name}",
        "database": f"ALTER DATABASE {database} RESET {name}",
        "database user": f"ALTER ROLE {role} IN DATABASE {database} RESET {name}",
        "global": f"ALTER ROLE ALL RESET {name}",
    }.get(source, "")
    requested = session.requested.get(name)
    if requested is None or source == "client":
        return reset or f"ALTER ROLE {role} SET {name} = {wanted}"
    return (
        f"a pooler between here and the server drops the options of connections: "
        f"ALTER ROLE {role} SET {name} = '{requested}'; then let the pooler reconnect to the server"
    )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
