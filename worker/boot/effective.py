"""The ladder against the settings that the server applies to a worker's session. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cmdbus.handlers import Handler
from cmdbus.readiness import Check, Finding
from cmdbus.timeouts import Timeouts

_NAME = "timeouts"
#: Handlers named in a sentence; the others are counted.
_NAMED = 3
_MODES = {
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
}
#: The settings to read. A server may lack some, as transaction_timeout before 17.
NAMES = (
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "lock_timeout",
    "transaction_timeout",
    "idle_session_timeout",
    *_MODES,
)


@dataclass(frozen=True, slots=True)
class Setting:
    """A row of pg_settings; timeouts are in milliseconds."""

    value: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session opened like a worker's."""

    settings: Mapping[str, Setting]
    role: str
    database: str
    #: The settings requested when it was opened, as text with a unit.
    requested: Mapping[str, str]

    def seconds(self, name: str) -> float:
        """0 is off, as on a server that lacks the setting."""
        return int(self.settings[name].value) / 1000 if name in self.settings else 0.0

    @property
    def is_server_read_only(self) -> bool:
        """Whether all sessions are read-only by default, and not those of a role or a database."""
        read_only = self.settings["default_transaction_read_only"]
        return read_only == Setting("on", "configuration file")


def check_timeouts(session: Session, timeouts: Timeouts, max_thread: float) -> list[Check]:
    """`max_thread`: seconds that the slowest handler may take."""
    found = list(_wrong(session, timeouts, max_thread))
    statement = session.seconds("statement_timeout")
    return found or [
        Check(
            _NAME,
            Finding.OK,
            f"statement {statement:g} s < lease {timeouts.lease:g} s < thread "
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


def _wrong(session: Session, timeouts: Timeouts, max_thread: float) -> Iterator[Check]:
    lease = f"the lease (--visibility-timeout {timeouts.lease:g})"
    statement = session.seconds("statement_timeout")
    if not 0 < statement < timeouts.lease:
        yield _check(session, "statement_timeout", f", and must be less than {lease}")
    elif statement > timeouts.statement:
        demand = (
            f" and not --statement-timeout {timeouts.statement:g}, though still below the lease"
        )
        yield _check(session, "statement_timeout", demand, Finding.WARNING)
    if not 0 < session.seconds("lock_timeout") < timeouts.max_lock_wait:
        yield _check(session, "lock_timeout", f", and must be less than half of {lease}")
    name = "idle_in_transaction_session_timeout"
    if not 0 < session.seconds(name) <= timeouts.watchdog:
        watchdog = f"the watchdog (--watchdog-timeout {timeouts.watchdog:g})"
        yield _check(session, name, f", and must not be more than {watchdog}")
    if session.seconds("idle_session_timeout"):
        effect = ": the sessions of idle workers are ended and reopened all the time"
        yield _check(session, "idle_session_timeout", effect, Finding.WARNING)
    if 0 < session.seconds("transaction_timeout") < max_thread:
        effect = (
            f" and ends the transactions of handlers, which may take {max_thread:g} s "
            "(--thread-timeout, or a handler's own)"
        )
        yield _check(session, "transaction_timeout", effect)
    for name, wanted in _MODES.items():
        if session.settings[name].value != wanted:
            yield _check(session, name, f", and must be {wanted}", wanted=wanted)


def _check(
    session: Session, name: str, why: str, finding: Finding = Finding.FATAL, wanted: str = "0"
) -> Check:
    found = session.settings[name]
    source, reset = _SOURCES.get(found.source, (found.source, ""))
    sentence = f"{name} is {_shown(found)} ({source}){why}"
    names = {"name": name, "role": _quoted(session.role), "database": _quoted(session.database)}
    requested = session.requested.get(name)
    if requested is None or found.source == "client":
        fix = (reset or f"ALTER ROLE {{role}} SET {name} = {wanted}").format(**names)
    else:
        # A requested value that is not in effect was dropped by a pooler.
        fix = (
            "a pooler between here and the server drops the options of connections: ALTER ROLE "
            f"{names['role']} SET {name} = '{requested}'; then let the pooler reconnect to the "
            "server"
        )
    return Check(_NAME, finding, sentence, fix)


def _shown(found: Setting) -> str:
    if not found.value.isdecimal():
        return found.value
    return f"{int(found.value) / 1000:g} s" if int(found.value) else "off"


#: The sources of a setting, and the way to reset it there.
_SOURCES = {
    "client": (
        "from the DSN's options or PGOPTIONS",
        "take {name} out of the DSN's options and PGOPTIONS",
    ),
    "user": ("set for the role", "ALTER ROLE {role} RESET {name}"),
    "database": ("set for the database", "ALTER DATABASE {database} RESET {name}"),
    "database user": (
        "set for the role in this database",
        "ALTER ROLE {role} IN DATABASE {database} RESET {name}",
    ),
    "global": ("set for all roles", "ALTER ROLE ALL RESET {name}"),
    "configuration file": ("from the server's configuration", ""),
    "command line": ("from the server's command line", ""),
    "environment variable": ("from the server's environment", ""),
    "default": ("the server's default", ""),
    "session": ("set in the session", ""),
}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
