"""What libpq adds to a DSN: the settings of a service file and of the environment."""

from typing import Any

from psycopg import pq
from psycopg.conninfo import make_conninfo

#: An address of which libpq can say immediately that no server is there.
_NOWHERE = {"host": "/nonexistent", "hostaddr": "", "port": "5432"}

#: What stands for nothing where an empty value is refused.
_BLANK = {
    b"sslcertmode": b"allow",
    b"min_protocol_version": b"3.0",
    b"max_protocol_version": b"3.0",
    b"require_auth": b"none,password,md5,gss,sspi,scram-sha-256",
}


def resolved(parts: dict[str, Any]) -> dict[str, str]:
    """What a connection with these parts would use, except its address: they win over their
    service, and that over the environment. libpq itself says so, when it begins to connect."""
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
    """With all that this libpq would take from the environment; some of it is not known to
    every version. A service cannot be named away: see lacks_service."""
    known = {
        option.keyword.decode(): (option.compiled or _BLANK.get(option.keyword, b"")).decode()
        for option in pq.Conninfo.get_defaults()
        if option.envvar and option.keyword != b"service"
    }
    return {**known, **parts}


def lacks_service(parts: dict[str, Any]) -> bool:
    """Whether a service is asked for, by these parts or by the environment, that is defined
    nowhere: it keeps every connection from being made."""
    began = _begin(parts)
    try:
        return b"definition of service" in (began.error_message or b"")
    finally:
        began.finish()


def _begin(parts: dict[str, Any]) -> pq.abc.PGconn:
    return pq.PGconn.connect_start(make_conninfo(**{**parts, **_NOWHERE}).encode())
