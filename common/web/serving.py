"""The page with its views and actions, mounted or served by itself."""

import hashlib
from collections.abc import Mapping
from typing import Any

from cmdbus.producer.bus import CommandBus
from cmdbus.web.http.settings import ServerSettings
from cmdbus.web.security.access import Access, HeaderAccess, LocalAccess
from cmdbus.web.security.gate import Role
from cmdbus.web.security.token_access import TokenAccess
from cmdbus.web.wsgi import Application

#: For a DSN whose sessions are the page's alone, as arguments of `with_defaults`: their name in
#: pg_stat_activity, seconds for a server to answer, and what one view may take of it.
DSN_DEFAULTS: Mapping[str, Any] = {
    "application_name": "cmdbus:web",
    "connect_timeout": "5",
    "settings": {"statement_timeout": "10s", "idle_in_transaction_session_timeout": "10s"},
}
#: For which a request waits for a session of such a bus: then the page says what is the matter.
WAIT_SECONDS = 10.0


def page(
    bus: CommandBus,
    access: Access | None = None,
    *,
    role: Role,
    secret: bytes | None = None,
    operator: str | None = None,
) -> Application:
    from cmdbus.web.actions import ACTIONS
    from cmdbus.web.views import VIEWS

    return Application(
        bus, VIEWS, ACTIONS, role=role, access=access, secret=secret, operator=operator
    )


def access_of(
    *, host: str, token: str | None = None, header: str | None = None
) -> tuple[Access, bytes | None]:
    """Of a page that is served by itself, with its secret: by a token or by a proxy's header, or
    for this machine alone, by whose name `host` it may be asked for. With the same token, browsers
    stay signed in when the page is started again."""
    if token is not None:
        return TokenAccess(token), hashlib.sha256(token.encode()).digest()
    if header is not None:
        return HeaderAccess(header), None
    return LocalAccess(host.lower()), None


def server_settings(header: str | None = None) -> ServerSettings:
    """`header`: of the proxy, which a request has once."""
    single = (header.lower(),) if header else ()
    return ServerSettings(single=single)
