"""Data source names: read with care, completed with what every connection needs.

Errors name the defect and never show a part of the password: libpq's own messages, which may
repeat the DSN, are not passed on.
"""

import math
import os
import re
from collections.abc import Mapping
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from cmdbus.checks import did_you_mean
from cmdbus.database import libpq
from cmdbus.database.adapters import ADAPTERS
from cmdbus.errors import DatabaseUnavailableError
from cmdbus.printable import joined

#: Keywords that apply unless the DSN, its service or the environment sets them. Neither
#: statement_timeout nor libpq's defaults free a client whose server went silent; with these it
#: notices within about 5 seconds.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
    # A server that accepts no writes, such as a standby, counts as away.
    "target_session_attrs": "read-write",
}

#: Settings that reading results and writing arrays rely on; for DateStyle see Session.
_PARSED = {"IntervalStyle": "postgres", "array_nulls": "on", "extra_float_digits": "1"}
#: The server's keepalives, which end a session whose client is gone within about 25 seconds, and
#: with it what waits for its transaction: a COPY has no other limit.
_PRODUCERS = {
    "default_transaction_isolation": "read committed",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
}
#: Off for a role or a database, it would keep due commands waiting for the fallback poll.
_WORKERS = {"cmdbus.notify": "on"}

_DATE_STYLE_VARIABLE = "PGDATESTYLE"

#: Keywords of libpq, each with text.
Parts = dict[str, Any]


def parse(dsn: str) -> Parts:
    """A URI or keywords, as keywords; a ValueError names the defect without showing them."""
    if not isinstance(dsn, str):
        raise ValueError(f"the DSN must be a string, not {type(dsn).__name__}")
    if not dsn.strip():
        raise ValueError("the DSN is empty: give a URI like postgresql://host/database")
    if "\0" in dsn:
        raise ValueError("the DSN contains a NUL character")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9_+.-]*)://", dsn)
    if scheme and scheme[1] not in ("postgres", "postgresql"):
        raise ValueError("the DSN begins with another scheme: it must be postgresql://")
    if scheme and re.search(r"[\r\n]", dsn):
        raise ValueError("the DSN has more than one line: it must be one URI")
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error as error:
        raise ValueError(_unreadable(dsn, str(error))) from None
    parts = {key: str(value) for key, value in parts.items() if value is not None}
    _refuse_spilt_password(parts)
    if libpq.is_closed(parts) and libpq.lacks_service(parts):
        raise ValueError(
            "the environment variable PGSERVICE names a service that no service file defines, "
            "which keeps libpq from connecting anywhere: unset it, or define the service"
        )
    return parts


def _unreadable(dsn: str, message: str) -> str:
    """Names a parameter only where it cannot be a part of a password: behind all @."""
    unknown = re.match(r'invalid URI query parameter: "([a-z_]{1,30})"', message)
    if unknown and re.search(rf"[?&]{unknown[1]}=[^@]*\Z", dsn):
        return (
            f"the DSN's parameter {unknown[1]!r} is none of PostgreSQL's: remove it (settings of "
            f"an ORM or of a pool do not belong there)"
        )
    if message.startswith("invalid connection option"):
        if sentence := _mistyped_keyword(dsn, message):
            return sentence
        return (
            "the DSN has a keyword that is none of PostgreSQL's: remove it, or put a value with "
            "spaces into single quotes"
        )
    return (
        "the DSN is neither a URI like postgresql://host/database nor keywords like "
        "'host=... dbname=...'; in a URI, percent-encode special characters of the password"
    )


def _mistyped_keyword(dsn: str, message: str) -> str:
    """Empty unless the keyword is near to one of libpq's and no password is before it: otherwise
    it could be a part of one."""
    unknown = re.match(r'invalid connection option "([a-z_]{1,30})"', message)
    found = unknown and re.search(rf"(?<![^\s]){unknown[1]}\s*=", dsn)
    if not unknown or not found or "pass" in dsn[: found.start()].lower():
        return ""
    question = did_you_mean(unknown[1], libpq.keywords())
    sentence = f"the DSN's keyword {unknown[1]!r} is none of PostgreSQL's: {question}"
    return sentence if question else ""


def complete(parts: Parts, *, application_name: str, settings: Mapping[str, str]) -> Parts:
    """For a session that has this name and these settings whatever the environment sets.

    Settings go into the options of the connection, behind those of the DSN, its service or the
    environment: a plain SET would leak to what uses the session next.
    """
    resolved = _resolved(parts)
    options = [resolved.get("options", ""), _options({**_PARSED, **_WORKERS, **settings})]
    return _completed(parts, resolved, application_name, options)


def complete_producers(parts: Parts) -> Parts:
    """For a session of the application's, which may be called and set otherwise."""
    resolved = _resolved(parts)
    name = resolved.get("application_name", "cmdbus:bus")
    options = [_options(_PRODUCERS), resolved.get("options", ""), _options(_PARSED)]
    return _completed(parts, resolved, name, options)


def with_defaults(dsn: str, *, settings: Mapping[str, str], **keywords: str) -> str:
    """A DSN whose sessions have these settings and keywords, unless it, its service or the
    environment sets them."""
    parts = parse(dsn)
    resolved = _resolved(parts)
    given = {key: resolved.get(key, value) for key, value in keywords.items()}
    options = _join([_options(settings), resolved.get("options", "")])
    return make_conninfo("", **{**given, **parts, "options": options})


def _resolved(parts: Parts) -> Parts:
    return parts if libpq.is_closed(parts) else libpq.resolved(parts)


def _completed(parts: Parts, resolved: Parts, name: str, options: list[str]) -> Parts:
    if libpq.is_closed(parts):
        parts = libpq.close({**_DEFAULTS, **parts})
    return {
        **{key: resolved.get(key, value) for key, value in _DEFAULTS.items()},
        **parts,
        "client_encoding": "UTF8",
        "application_name": name,
        "options": _join(options),
    }


def _options(settings: Mapping[str, str]) -> str:
    return " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())


def _join(options: list[str]) -> str:
    return " ".join(option for option in options if option)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def describe(parts: Parts) -> str:
    """Where it leads, for messages."""
    host = parts.get("host") or parts.get("hostaddr") or "the default host"
    port = f" port {parts['port']}" if "port" in parts else ""
    user = f" as {parts['user']}" if "user" in parts else ""
    return f"database {parts.get('dbname', '(default)')!r} at {host}{port}{user}"


class Session(psycopg.Connection[Any]):
    """A connection whose timestamps can be read, whatever style a role or a database sets and
    whatever loaders an application registers."""

    has_default_adapters = True

    @classmethod
    def connect(cls, conninfo: str = "", **kwargs: Any) -> Self:
        kwargs["context"] = ADAPTERS
        made = super().connect(conninfo, **kwargs)
        style, _, order = (made.info.parameter_status("DateStyle") or "ISO").partition(", ")
        if style == "ISO":
            return made
        # The order decides how an ambiguous date is read, which is up to the role.
        made.close()
        if _DATE_STYLE_VARIABLE in os.environ:  # which no option overrides
            os.environ[_DATE_STYLE_VARIABLE] = f"ISO,{order}"
        options = _join([kwargs.get("options", ""), _options({"DateStyle": f"ISO,{order}"})])
        return super().connect(conninfo, **{**kwargs, "options": options})


def connect(parts: Parts, within: float | None = None) -> Session:
    """One plain connection in autocommit mode, or one clear sentence why there is none."""
    try:
        return open_session(parts, within)
    except psycopg.OperationalError as error:
        reason = redact(joined(str(error)) or type(error).__name__, parts)
        raise DatabaseUnavailableError(f"cannot connect to {describe(parts)}: {reason}") from None


def open_session(parts: Parts, within: float | None = None) -> Session:
    """The same, with psycopg's own errors. `within` bounds, in seconds, what each host takes;
    2 s are the least that libpq can do."""
    given = str(parts.get("connect_timeout", ""))
    if within is not None and (not given.isdecimal() or int(given) == 0 or within < int(given)):
        parts = {**parts, "connect_timeout": str(max(2, math.ceil(within)))}
    return Session.connect(**parts, autocommit=True)


def redact(text: str, parts: Parts) -> str:
    password = parts.get("password")
    # A shorter one would be betrayed by where it is replaced.
    return text.replace(password, "***") if password and len(password) > 3 else text


#: Characters that are in these parts only if another part spilt into them.
_SPILT = {"host": "@=", "dbname": "@=", "user": "@:"}


def _refuse_spilt_password(parts: Parts) -> None:
    """An unescaped @ / ? or # in a URI's password spills its tail into the other parts."""
    for key, signs in _SPILT.items():
        for sign in signs:
            if sign in parts.get(key, ""):
                raise ValueError(
                    f'the DSN\'s {key} contains "{sign}": if that belongs to the password, '
                    f"percent-encode the special characters in it (@ is %40, : is %3A, / is %2F)"
                )
    if re.fullmatch(r"[^:\[]+:[^:]+", parts.get("host", "")):
        raise ValueError('the DSN\'s host contains ":": give the port by itself (port=5432)')
    if not re.fullmatch(r"[0-9,]*", parts.get("port", "")):
        raise ValueError(
            "the DSN's port is not a number: if it belongs to the password, percent-encode "
            "the special characters in it (/ is %2F, ? is %3F, : is %3A)"
        )
