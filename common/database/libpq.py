"""What libpq adds to a DSN: the settings of a service file and of the environment."""

from typing import Any

from psycopg import pq
from psycopg.conninfo import make_conninfo

#: An address of which libpq can say immediately that no server is there.
_NOWHERE = {"host": "/nonexistent", "hostaddr": "", "port": "5432"}

#: Values that change nothing, for keywords that may not be empty.
_BLANK = {
    b"sslcertmode": b"allow",
    b"min_protocol_version": b"3.0",
    b"max_protocol_version": b"3.0",
    b"require_auth": b"none,password,md5,gss,sspi,scram-sha-256",
}


def keywords() -> list[str]:
    return [option.keyword.decode() for option in pq.Conninfo.get_defaults()]


def resolved(parts: dict[str, Any]) -> dict[str, str]:
    """What a connection with these parts would use, except its address: libpq shows it when it
    begins to connect. The parts win over their service, and that over the environment."""
    began = _begin(parts)
    try:
        return {
            option.keyword.decode(): option.val.decode(errors="surrogateescape")
            for option in began.info
            if option.val and option.val != option.compiled
        }
    finally:
        began.finish()


def is_closed(parts: dict[str, Any]) -> bool:
    """Whether it names everything itself, as the embedded server's DSN does."""
    return parts.get("hostaddr") == ""


def close(parts: dict[str, Any]) -> dict[str, Any]:
    """With a value for each keyword that this libpq would take from the environment, except the
    service: see lacks_service."""
    known = {
        option.keyword.decode(): (option.compiled or _BLANK.get(option.keyword, b"")).decode()
        for option in pq.Conninfo.get_defaults()
        if option.envvar and option.keyword != b"service"
    }
    return {**known, **parts}


def lacks_service(parts: dict[str, Any]) -> bool:
    """Whether these parts or the environment name a service that is defined nowhere, which fails
    every connection."""
    began = _begin(parts)
    try:
        return b"definition of service" in (began.error_message or b"")
    finally:
        began.finish()


def _begin(parts: dict[str, Any]) -> pq.abc.PGconn:
    return pq.PGconn.connect_start(make_conninfo(**{**parts, **_NOWHERE}).encode())
