"""Data source names: read with care, completed with what every connection needs.

Errors name what is wrong and never show the password, nor a part of it: libpq's
own messages repeat the DSN in some cases, so they are not passed on from here.
"""

import re
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from cmdbus.errors import DatabaseUnavailableError

#: Where the DSN says nothing else. Neither statement_timeout nor libpq's defaults free a
#: client whose server went silent; with these it notices within about 5 seconds.
_DEFAULTS = {
    "client_encoding": "UTF8",
    "connect_timeout": "10",
    "keepalives": "1",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}

#: Keywords of libpq, each with text.
Parts = dict[str, Any]


def parse(dsn: str) -> Parts:
    """A URI or keywords, as keywords; a ValueError says what is wrong without showing it."""
    if not isinstance(dsn, str):
        raise ValueError(f"the DSN must be a string, not {type(dsn).__name__}")
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
        return (
            "the DSN has a keyword that is none of PostgreSQL's: remove it, or put a value with "
            "spaces into single quotes"
        )
    return (
        "the DSN is neither a URI like postgresql://host/database nor keywords like "
        "'host=... dbname=...'; in a URI, percent-encode special characters of the password"
    )


def complete(parts: Parts, *, application_name: str, settings: Mapping[str, str]) -> Parts:
    """With keepalives and server settings, where the user's DSN does not say otherwise.

    Settings go into the options of the connection: a plain SET would leak to whoever
    uses the session next.
    """
    options = " ".join(f"-c {name}={_escaped(value)}" for name, value in settings.items())
    named = {"application_name": application_name, **_DEFAULTS, **parts}
    # The user's own options come last, and so win.
    return {**named, "options": f"{options} {parts.get('options', '')}".strip()}


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def describe(parts: Parts) -> str:
    """Where it leads, for messages."""
    host = parts.get("host") or parts.get("hostaddr") or "the default host"
    port = f" port {parts['port']}" if "port" in parts else ""
    user = f" as {parts['user']}" if "user" in parts else ""
    return f"database {parts.get('dbname', '(default)')!r} at {host}{port}{user}"


def connect(parts: Parts) -> psycopg.Connection:
    """One plain connection in autocommit mode, or one clear sentence why there is none."""
    try:
        return psycopg.connect(**parts, autocommit=True)
    except psycopg.OperationalError as error:
        raise DatabaseUnavailableError(unavailable(parts, error)) from None


def unavailable(parts: Parts, error: BaseException) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    return f"cannot connect to {describe(parts)}: {redact(reason, parts)}"


def redact(text: str, parts: Parts) -> str:
    password = parts.get("password")
    # A shorter one would be betrayed by where it is replaced.
    return text.replace(password, "***") if password and len(password) > 3 else text


#: What cannot be in these parts unless something else spilt into them.
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
